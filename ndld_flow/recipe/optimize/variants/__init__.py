"""Families of variants that `optimize` tries, one per file; every module in this folder is found.

A module has `ORDER`, its place in the search (the cheap families come first, so that a budget ends the expensive ones),
and `propose`, which yields variants, and sentences on what it does not try.
"""
