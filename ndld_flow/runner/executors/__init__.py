"""Executors: compute steps in this process, in worker processes, or on other machines."""
