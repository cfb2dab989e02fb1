"""Quantization to Q/DQ nodes, with calibration data or without."""
