"""Latency of a model, and the time of each of its layers."""
