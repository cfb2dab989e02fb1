"""INT8 with ranges measured on samples, in the forms that differ in speed: which one wins depends on the model."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.base.quantities import percent
from ndld_flow.optimize.variant import QUANTIZED, Subject, Variant

ORDER = 30
DENSE = "INT8 of dense layers"
"""The form that quantizes least."""
_MINMAX = "INT8 by minmax"
"""That of other runtimes."""
_MORE = ("INT8 of all operators", "INT8 of all layers", "INT8 by integer operators", "INT8 with one scale per weight")
"""Forms that quantize the dense layers too, in the same way or coarser."""
_LAYERS = ("Conv", "MatMul", "Gemm")
_LEAST_TIME = 0.15
_ALL_OPERATORS = (
    "Add", "AveragePool", "Clip", "Concat", "Conv", "Flatten", "Gather", "Gemm", "GlobalAveragePool", "LeakyRelu",
    "MatMul", "MaxPool", "Mul", "Pad", "Relu", "Reshape", "Resize", "Sigmoid", "Slice", "Split", "Squeeze",
    "Transpose", "Unsqueeze", "Where",
)  # fmt: skip
"""Operators that ONNX Runtime's `quantize_static` quantizes by default, and has integer kernels for; without Softmax,
whose small probabilities vanish."""


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield the forms, with real samples, if layers that INT8 makes faster take some of the time."""
    if not may_pay(subject) and subject.quantized_share >= QUANTIZED:
        yield f"INT8 is not tried: {percent(subject.quantized_share)} of the weights are quantized already."
        return
    if not subject.samples.search:
        yield "INT8 is not tried: it needs real samples, for ranges and to be judged; give --data."
        return
    if not subject.allows("QuantizeLinear", "DequantizeLinear"):
        yield "INT8 is not tried: the target has no QuantizeLinear and DequantizeLinear."
        return
    if not may_pay(subject):
        share = subject.time_in(*_LAYERS)
        most = max(subject.shares, key=subject.shares.__getitem__, default="")
        instead = f"; {most} takes {percent(subject.shares[most])}" if most and most not in _LAYERS else ""
        yield f"INT8 is not tried: Conv, MatMul and Gemm take {percent(share or 0.0)} of the time{instead}."
        return
    for name, settings in _forms(subject):
        made = f"{{{subject.quantize()}{subject.quantize_target}{settings}}}"
        extends = f"{DENSE}{subject.label}" if name in _MORE else ""
        yield Variant(f"{name}{subject.label}", subject.runtime, {"made": made}, extends=extends)
    if own := subject.own_precision:
        dense = f"{{{subject.quantize()}{subject.quantize_target}, min_intensity: 64}}"
        name = f"INT8 of dense layers{subject.label} at the default precision"
        yield Variant(name, own, {"made": dense})


def may_pay(subject: Subject) -> bool:
    """Return whether layers that INT8 makes faster take some of the time, or may do so."""
    return subject.pays_in(_LEAST_TIME, *_LAYERS, weights=0)


def plain_form(subject: Subject) -> str:
    """Return the name of the variant with all suitable layers in INT8, which searches for exceptions improve on."""
    return f"{DENSE if subject.runs_in_onnxruntime else _MINMAX}{subject.label}"


def _forms(subject: Subject) -> Iterator[tuple[str, str]]:
    """Yield the name and the settings of each form."""
    if not subject.runs_in_onnxruntime:
        yield _MINMAX, ", method: minmax"
        if subject.preset.engine:
            yield "INT8 by percentile", ", method: percentile"
        return
    # Grouped convolutions, such as depthwise ones, are slower in INT8: where there are some, they stay in floats.
    own = "" if subject.has_groups else ", min_intensity: 0"
    operators = ", ".join(name for name in _ALL_OPERATORS if name in subject.operators)
    yield DENSE, ""  # if it is wrong, so are most others
    yield "INT8 of all operators", f", op_types: [{operators}], min_intensity: 0"
    yield "INT8 of all layers", ", min_intensity: 0"
    if subject.pays_in(_LEAST_TIME, "Conv", weights=0.1) and subject.pays_in(0.03, "MatMul", "Gemm", weights=0.1):
        yield "INT8 of convolutions", f", op_types: [Conv]{own}"
    yield "INT8 without first and last layer", f", exclude: {{first: 1, last: 1}}{own}"
    if subject.allows("QLinearConv", "QLinearMatMul"):
        yield "INT8 by integer operators", f", format: qoperator{own}"
    yield "INT8 with one scale per weight", f", per_channel: false{own}"
