"""Reduced precision as hardware has it, on a machine that computes in fp32."""
