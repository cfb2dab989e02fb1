"""Make a model smaller without changing what it computes: one thought a file, `pipeline.py` puts them in order."""

from ndld_flow.graph.sanitize.options import SanitizeOptions
from ndld_flow.graph.sanitize.pipeline import sanitize_file

__all__ = ["SanitizeOptions", "sanitize_file"]
