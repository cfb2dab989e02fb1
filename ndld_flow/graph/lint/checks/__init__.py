"""Checks of models, one per file; every module in this folder is found."""
