"""The source at the level `extended` of ONNX Runtime: without its own layout of convolutions."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.optimize.variant import Subject, Variant

ORDER = 12


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield the source at that level, if it has convolutions: for others, the level `all` is the same on a CPU."""
    if subject.runs_in_onnxruntime and "Conv" in subject.operators:
        level = "{backend: onnxruntime, optimization: extended}"
        yield Variant(f"source at the level extended{subject.label}", level, is_source=True)
