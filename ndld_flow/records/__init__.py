"""Typed, versioned JSON: what was done and what was measured. Imports nothing heavy."""
