"""Sweeps: many points of one recipe, planned together."""
