"""Checks of models, one file each; they are found by their place."""
