"""Convolutions and matrix products that run on CUDA cores while others use tensor cores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ndld_flow.base.quantities import share
from ndld_flow.profiles.diagnose.lint_subject import LintSubject, channels_of, is_depthwise, is_product, name_some
from ndld_flow.profiles.diagnose.subject import Insight, layers_word
from ndld_flow.records.profile import Layer

_NOTABLE_SHARE = 0.03


def off_tensor_cores(subject: LintSubject) -> Iterator[Insight]:
    """Report products with kernels known to use CUDA cores that take at least 3 %, while others use tensor cores.

    The estimated saving is half of their time. Yields nothing if no layer runs on a tensor core, because the device may
    have none. Depthwise convolutions, which multiply no matrices, are ignored.
    """
    layers = subject.layers
    if not any(layer.on_tensor_cores for layer in layers):
        return
    positions = subject.longest_first(
        place
        for place, layer in enumerate(layers)
        if is_product(layer)
        and layer.unit not in ("", "none")
        and not layer.on_tensor_cores
        and not is_depthwise(layer)
    )
    part = subject.share(positions)
    if not positions or (subject.is_timed and part < _NOTABLE_SHARE):
        return
    longest = layers[positions[0]]
    channels = channels_of(longest)
    odd = f", with {' and '.join(channels.odd)}" if channels is not None and channels.odd else ""
    tactic = f" by {longest.tactic[:60]}" if longest.tactic else ""
    units = " and ".join(dict.fromkeys(layers[place].unit for place in positions))
    yield Insight(
        score=part / 2,
        title=f"{layers_word(len(positions))} multiplying on CUDA cores instead of tensor cores ({units})"
        + (f": {share(part)} of {subject.whole}" if subject.is_timed else ""),
        evidence=f"{name_some(subject, positions)}: {subject.took(positions)}. The longest computes "
        f"{longest.precision or 'in an unknown type'}{tactic}{odd}.",
        next_step=_advice([layers[place] for place in positions]),
        layers=positions,
    )


def _advice(layers: Sequence[Layer]) -> str:
    advice = []
    if any(layer.unit == "INT8 DP4A" and (read := channels_of(layer)) and read.is_image for layer in layers):
        advice.append(
            "A first layer with the few channels of an image gains little from INT8: leave it out with `exclude.nodes` "
            "of `quantize`, so that it computes in FP16, and profile both in turns."
        )
    if any(layer.unit == "FP32 FMA" for layer in layers):
        advice.append(
            "FP16 kernels on tensor cores pad small channel counts: run `convert_fp16`, or list fewer nodes in its "
            "`block`, and `check_accuracy`."
        )
    if not advice:
        advice.append("Tensor cores can run such layers if channels are multiples of 8 (FP16), 16 or 32 (INT8).")
    return " ".join(advice)
