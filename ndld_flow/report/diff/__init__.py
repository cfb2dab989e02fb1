"""Differences between two models, for pages and texts."""
