"""Child processes, which may crash or run out of memory without ending the run."""
