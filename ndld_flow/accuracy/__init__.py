"""Accuracy: the agreement of two models' outputs and inner tensors."""
