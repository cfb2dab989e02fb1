"""Stores that earlier versions made, as they made them. They are never made again: a new format gets a new one."""
