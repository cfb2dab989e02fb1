"""INT8 of matrix products and LSTMs, with ranges that are computed in every inference."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.base.quantities import percent
from ndld_flow.optimize.variant import QUANTIZED, Subject, Variant

ORDER = 8
_NAME = "INT8 with dynamic ranges"


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield variants by the operators and the scales. Convolutions become slower that way."""
    if not subject.samples.search or not subject.runs_in_onnxruntime:
        return
    if not subject.allows("MatMulInteger", "DynamicQuantizeLinear"):
        return
    products = subject.pays_in(0.08, "MatMul", "Gemm", weights=0.25)
    if products:
        for name, per_channel in (("", "false"), (" by channels", "true")):
            yield _variant(subject, name, f"op_types: [Gemm, MatMul], per_channel: {per_channel}")
    if subject.pays_in(0.1, "LSTM", weights=0.25):
        yield _variant(subject, " of LSTM too" if products else "", "op_types: [Gemm, LSTM, MatMul]")
    if subject.aims_at("size") and subject.weights.get("Gather"):
        yield _variant(subject, " of embedding tables too", "op_types: [Gather, Gemm, LSTM, MatMul]")
    elif (
        not products
        and subject.quantized_share < QUANTIZED
        and (share := subject.time_in("MatMul", "Gemm")) is not None
    ):
        yield f"{_NAME} is not tried for MatMul and Gemm: they take {percent(share)} of the time."


def _variant(subject: Subject, name: str, settings: str) -> Variant:
    made = {"made": f"{{{subject.quantize()}, mode: dynamic, {settings}}}"}
    return Variant(f"{_NAME}{name}{subject.label}", subject.runtime, made)
