"""Reduction of a model to the nodes and values that a failure needs."""
