"""Inspection of a model. Weights are read only if their statistics are requested, and then in pieces."""
