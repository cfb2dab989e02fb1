"""Child processes, which may crash or run out of memory without harming the run."""
