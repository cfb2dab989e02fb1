"""Tensors inside a model: captured, measured, compared layer by layer."""
