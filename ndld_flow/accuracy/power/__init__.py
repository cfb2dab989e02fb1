"""Measure what an accuracy check would notice: plant faults in its reference, and observe what its samples reach."""
