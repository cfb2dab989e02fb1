"""Precision constraints, and models that implement them with Casts."""
