"""Immutable, content-addressed files: kinds, digests and the store."""
