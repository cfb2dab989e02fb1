"""Errors, units, text and settings: modules that every other room may import."""
