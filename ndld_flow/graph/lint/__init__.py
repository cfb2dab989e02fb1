"""Checks of a model for mistakes, a module for each kind; `run_checks` runs those that are selected."""
