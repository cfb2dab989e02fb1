"""Work in child processes, which may crash or fill the memory without harming the run."""
