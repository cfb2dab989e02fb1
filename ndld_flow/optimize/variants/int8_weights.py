"""Weights of matrix products in 8 bits, where the memory that they are read from limits the speed."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.optimize.variant import Subject, Variant

ORDER = 27
_WHOLE_WEIGHTS = 2**20
"""Bytes of weights of matrix products from which the memory's bandwidth may limit the latency."""


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield weights in INT8, and for the size those in INT4: these are less right and no faster."""
    if not subject.samples.search or not subject.runs_in_onnxruntime or not subject.allows("MatMulNBits"):
        return
    matrices = subject.weights.get("MatMul", 0) + subject.weights.get("Gemm", 0)
    if matrices < _WHOLE_WEIGHTS or not subject.pays_in(0.08, "MatMul", "Gemm", weights=0.25):
        return
    for weights in ("int8", "int4") if subject.aims_at("size") else ("int8",):
        settings = f"mode: weight_only, weights: {weights}, block_size: 128, accuracy_level: 4"
        made = {"made": f"{{{subject.quantize()}, {settings}}}"}
        yield Variant(f"weights in {weights.upper()}{subject.label}", subject.runtime, made)
