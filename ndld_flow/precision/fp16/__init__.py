"""Conversion to FP16 with the fewest Casts."""
