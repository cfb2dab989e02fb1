"""Tensors as images: pixels, formulas over tensors, and results drawn over the input."""
