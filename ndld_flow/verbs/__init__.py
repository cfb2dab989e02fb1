"""The verbs: one file each, with its help, its function in the Python API, and its command."""
