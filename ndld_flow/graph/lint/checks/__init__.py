"""Checks of models, by subject; every module in this folder is found."""
