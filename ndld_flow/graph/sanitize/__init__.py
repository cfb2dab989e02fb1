"""Simplification of a model without changing its results; `pipeline` runs the passes in order."""
