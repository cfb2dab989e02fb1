"""Accuracy: how far two models' outputs and inner tensors agree."""
