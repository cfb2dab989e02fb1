"""INT8 after SmoothQuant, for models that are mostly matrix products, as transformers are."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.optimize.variant import Subject, Variant
from ndld_flow.optimize.variants.int8 import plain_form

ORDER = 92


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield one variant, with real samples."""
    quantized = subject.allows("QuantizeLinear", "DequantizeLinear", "Mul")
    if not subject.samples.search or not quantized or not subject.pays_in(0.3, "MatMul", "Gemm"):
        return
    smoothed = "{step: smooth_activations, from: clean}"
    made = f"{{{subject.quantize('found')}{subject.quantize_target}}}"
    name, plain = f"INT8 of smoothed activations{subject.label}", plain_form(subject)
    steps = {"found": smoothed, "made": made}
    yield Variant(name, subject.runtime, steps, costly=True, unless=(plain,), whole=plain, needs=plain)
