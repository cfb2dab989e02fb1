"""Measurement of the latency of a model and of each of its layers."""
