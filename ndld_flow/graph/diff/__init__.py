"""The differences between two models."""
