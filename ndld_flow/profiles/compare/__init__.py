"""Compare profiles: which layers belong together, and what a difference means."""
