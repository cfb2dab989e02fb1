"""Precision constraints, and models that carry them out by Casts."""
