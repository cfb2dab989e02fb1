"""Additions of a floating-point residual to quantized convolutions."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.base.quantities import share
from ndld_flow.profiles.diagnose.lint_subject import LintSubject, float_sums, name_some, short_dtype
from ndld_flow.profiles.diagnose.subject import Insight, layers_word


def unquantized_residual(subject: LintSubject) -> Iterator[Insight]:
    """Report quantized convolutions that add a floating-point residual and so cannot write 8 bits.

    "The precision of the first input to the element-wise addition layer determines the fusion's output precision": with
    a floating-point residual the fused convolution writes floating point, and the QuantizeLinear after it remains a
    separate layer (https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-quantized-types.html,
    "Q/DQ Layer-Placement Recommendations": quantize the residual input in skip connections). The time of those layers
    is the estimated saving.
    """
    sums = float_sums(subject)
    if not sums:
        return
    added = subject.longest_first(sums)
    between = {tensor.name for tensor in sums.values()}
    between |= {tensor.name for place in sums for tensor in subject.layers[place].outputs}
    after = subject.longest_first(
        place
        for place, layer in enumerate(subject.layers)
        if layer.role == "quantize" and any(tensor.name in between for tensor in layer.inputs)
    )
    types = " and ".join(dict.fromkeys(short_dtype(sums[place].dtype) for place in added))
    again = f" After them, {layers_word(len(after))} only to quantize: {subject.took(after)}." if after else ""
    part = subject.share(after)
    yield Insight(
        score=part,
        title=f"{layers_word(len(added))} adding an unquantized residual in {types} to a quantized convolution"
        + (f": quantizing again takes {share(part)} of {subject.whole}" if part else ""),
        evidence=f"{name_some(subject, added)}: {subject.took(added)}.{again}",
        next_step=(
            "Quantize the residual input of each Add: add `Add` to `op_types` of `quantize` (Conv, Gemm, MatMul, Add), "
            "or use its `modelopt` engine. A QAT model with Q/DQ needs a quantizer there when it is "
            "exported. Run `check_accuracy` afterwards."
        ),
        layers=(*added, *after),
    )
