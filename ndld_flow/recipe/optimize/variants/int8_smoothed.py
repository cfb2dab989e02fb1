"""INT8 after SmoothQuant, for models that are mostly matrix products, as transformers are."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.recipe.optimize.variant import Subject, Variant

ORDER = 35


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield one variant, with real samples."""
    quantized = subject.allows("QuantizeLinear", "DequantizeLinear", "Mul")
    if not subject.samples.search or not quantized or subject.share_of("MatMul", "Gemm") < 0.5:
        return
    smoothed = "{step: smooth_activations, from: clean}"
    made = f"{{step: quantize, from: found, method: percentile{subject.quantize_target}}}"
    yield Variant(f"INT8 of smoothed activations{subject.label}", subject.runtime, {"found": smoothed, "made": made})
