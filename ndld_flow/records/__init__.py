"""Typed, versioned JSON records of runs and measurements. Imports nothing heavy."""
