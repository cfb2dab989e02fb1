"""What an accuracy check would notice: faults planted in the reference, and what the samples reach."""
