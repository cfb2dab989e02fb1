"""Precision constraints: read, written, and carried out by Casts."""
