"""This machine: its description, limits, GPUs and installed libraries."""
