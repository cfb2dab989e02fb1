"""Conversion to fp16: what may be halved, what stays, and the fewest Casts between."""
