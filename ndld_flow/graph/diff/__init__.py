"""What is different between two models."""
