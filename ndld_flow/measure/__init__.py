"""Latency of a model, and of each of its layers."""
