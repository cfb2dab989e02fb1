"""Families of variants that `optimize` tries, one per file; every module in this folder is found.

A module has `ORDER`, its place in the search (likely winners come first, and what takes long last, so that a budget
ends that), and `propose`, which yields variants where they can pay, by the graph and by the time that operators take,
and sentences on what is not tried.
"""
