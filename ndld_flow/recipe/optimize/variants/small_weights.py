"""INT8 and INT4 weights, and INT8 with dynamic ranges, where the memory that weights are read from limits the speed."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.recipe.optimize.variant import Subject, Variant

ORDER = 25
_WHOLE_WEIGHTS = 2**20
"""Bytes of weights of matrix products from which the memory's bandwidth may limit the latency."""


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield variants for models whose weights are mostly those of matrix products, or of LSTMs."""
    if not subject.samples.search or subject.runtime != "onnxruntime":
        return
    if subject.share_of("MatMul", "Gemm", "LSTM") >= 0.5 and subject.allows("MatMulInteger", "DynamicQuantizeLinear"):
        dynamic = {"made": "{step: quantize, from: clean, mode: dynamic}"}
        yield Variant(f"INT8 with dynamic ranges{subject.label}", "onnxruntime", dynamic)
    matrices = subject.weights.get("MatMul", 0) + subject.weights.get("Gemm", 0)
    if subject.share_of("MatMul", "Gemm") >= 0.5 and matrices >= _WHOLE_WEIGHTS and subject.allows("MatMulNBits"):
        for weights in ("int8", "int4"):
            settings = f"mode: weight_only, weights: {weights}, accuracy_level: 4"
            made = {"made": f"{{step: quantize, from: clean, {settings}}}"}
            yield Variant(f"weights in {weights.upper()}{subject.label}", "onnxruntime", made)
