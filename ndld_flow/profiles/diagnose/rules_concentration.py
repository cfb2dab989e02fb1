"""Rules on where the time is concentrated: one layer, one type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ndld_flow.base.quantities import milliseconds, share
from ndld_flow.profiles.diagnose.insight import Insight
from ndld_flow.profiles.diagnose.subject import Subject, layers_word, one_line

_DOMINATES = 0.25
_TYPE_DOMINATES = 0.6
_FEWEST_LAYERS = 4
"""In a model of three layers one always dominates."""


def one_layer(subject: Subject) -> Iterator[Insight]:
    """One layer takes a quarter or more.

    What may be saved is what lies above its roof, halved because few kernels reach theirs; a quarter of it where no
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
            "Work on this layer first: look at the nodes it came from, at its shape and precision, and at whether the "
            "model needs it at this size."
        ),
        layers=longest,
    )


def one_type(subject: Subject) -> Iterator[Insight]:
    """One type of layer takes 60 % or more: nothing but work on these pays (Amdahl, 1967). It saves nothing itself."""
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
            f"Only what makes {called} quicker pays: lower precision where the provider is quicker at it, a smaller "
            f"input, fewer channels. Everything else together takes {share(1 - part)} of {subject.whole}."
        ),
        layers=positions,
    )
