"""The verbs of the command line: one file each, which calls one function of `ndld_flow.api`."""
