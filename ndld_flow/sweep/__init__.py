"""Sweeps: many points of one recipe, planned and run together."""
