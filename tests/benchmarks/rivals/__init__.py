"""Tools that make a model faster, one file each: its packages, and a function that delivers models.

`bench_rivals` runs `python -m tests.benchmarks.rivals.NAME REQUEST.json` in an environment that has `PACKAGES`. Nothing
of `ndld_flow` is there, unless the file is of `ndld_flow` itself.
"""
