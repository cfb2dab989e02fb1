"""Errors, units, text and settings: modules that every other package may import."""
