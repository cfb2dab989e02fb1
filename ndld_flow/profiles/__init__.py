"""Profiles: read, matched, compared, diagnosed."""
