"""Diagnose profiles and engines: bottlenecks, and what to try next."""
