"""Immutable, content-addressed artifacts, and locks on them."""
