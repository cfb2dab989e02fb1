"""Rules on concentration of time in one layer or one type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ndld_flow.base.quantities import milliseconds, share
from ndld_flow.profiles.diagnose.insight import Insight
from ndld_flow.profiles.diagnose.subject import Subject, layers_word, one_line

_DOMINATES = 0.25
_TYPE_DOMINATES = 0.6
_FEWEST_LAYERS = 4
"""Minimum number of layers; in a model of three, one always dominates."""


def one_layer(subject: Subject) -> Iterator[Insight]:
    """Report a layer that takes at least a quarter.

    The estimated saving is half of the time above its roof, because few kernels reach it; a quarter of its time if no
    roof is known.
    """
    if len(subject.layers) < _FEWEST_LAYERS:
        return
    longest = subject.longest_first(range(len(subject.layers)))[:1]
    part = subject.share(longest)
    if part < _DOMINATES:
        return
    layer, roofline = subject.layers[longest[0]], subject.rooflines[longest[0]]
    if roofline is None:
        reached, saving = "", 0.25
    else:
        reached = f" It reaches {share(roofline.reached)} of the device's {roofline.limit} roof."
        saving = max(0.0, 1 - roofline.reached) / 2
    dims = "; ".join("x".join(map(str, tensor.shape)) for tensor in layer.inputs[:2])
    yield Insight(
        score=part * saving,
        title=f"One layer takes {share(part)} of {subject.whole}",
        evidence=f"{subject.call(longest[0])}, inputs {dims or 'unknown'}: {subject.took(longest)}.{reached}",
        next_step=(
            "Work on this layer first: look at its nodes, shape and precision, and whether the "
            "model needs it at this size."
        ),
        layers=longest,
    )


def one_type(subject: Subject) -> Iterator[Insight]:
    """Report a type of layer that takes at least 60 %: only work on it pays (Amdahl, 1967). The score is 0."""
    times: Counter[str] = Counter()
    for layer, median_ms in zip(subject.layers, subject.medians_ms, strict=True):
        times[layer.type] += median_ms  # type: ignore[assignment]
    if len(times) < _FEWEST_LAYERS:
        return
    kind, sum_ms = times.most_common(1)[0]
    positions = subject.where(lambda layer: layer.type == kind)
    part = subject.share(positions)
    if part < _TYPE_DOMINATES:
        return
    called = one_line(kind)
    yield Insight(
        score=0.0,
        title=f"{called} takes {share(part)} of {subject.whole}",
        evidence=f"{layers_word(len(positions))} of this type take {milliseconds(sum_ms)} of "
        f"{milliseconds(subject.layers_ms)} in all layers; the longest is {subject.call(positions[0])}.",
        next_step=(
            f"Only a faster {called} pays: lower precision if the provider supports it well, a smaller "
            f"input, fewer channels. All other layers together take {share(1 - part)} of {subject.whole}."
        ),
        layers=positions,
    )
