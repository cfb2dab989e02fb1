"""Quantization with Q/DQ nodes, with or without calibration data."""
