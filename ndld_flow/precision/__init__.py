"""Precision of a model: FP16 conversion, constraints, emulation."""
