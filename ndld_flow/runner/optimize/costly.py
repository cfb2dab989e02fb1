"""Variants whose preparation takes minutes, and the reasons why one cannot win, as the cheap ones show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ndld_flow.base.quantities import quantity
from ndld_flow.recipe.optimize.compose import SOURCE
from ndld_flow.recipe.optimize.variant import MADE, Variant
from ndld_flow.records.measurement import Metric
from ndld_flow.records.optimization import TriedVariant

_BY_PLACEMENT = 1.5
"""A model with all suitable layers in INT8 becomes at most this much faster if some stay in floats: depthwise layers of
small nets are the extreme case that was measured."""
_BY_INT8 = 4.0
"""Largest gain by INT8: a vector register, or a byte read from memory, has four times as many values as in FP32."""
_WRONG = ("not right", "not right on held-out data", "near the bound", "failed")


def find_hopeless(
    variants: Sequence[Variant],
    tried: Mapping[str, TriedVariant],
    is_comfortable: Callable[[Mapping[str, Metric]], bool],
) -> dict[str, str]:
    """Return the names of the costly variants that cannot win, as those that were tried show -> the reason;
    `tried` are these by name.

    `is_comfortable` returns whether the metrics of a variant keep a margin to all conditions.
    """
    right = {name for name, each in tried.items() if each.outcome not in _WRONG and is_comfortable(each.metrics)}
    cheap = [variant for variant in variants if not variant.costly]
    reasons = {}
    for variant in (each for each in variants if each.costly):
        equal = next((name for name in variant.unless if name in right), None)
        why = f"{equal} is right without exceptions" if equal is not None else _too_slow(variant, cheap, tried)
        if why:
            reasons[variant.name] = why
    return reasons


def _too_slow(costly: Variant, cheap: Sequence[Variant], tried: Mapping[str, TriedVariant]) -> str:
    """Return the reason if variants of the same runtime bound the latency of a costly one, and another is faster."""
    known = {each.name: each.latency.value for each in tried.values() if each.latency is not None}
    own = [variant.name for variant in cheap if variant.runtime == costly.runtime]
    here = {name: known[name] for name in own if name in known}
    right = {
        name: ms
        for name, ms in known.items()
        if tried[name].outcome not in _WRONG and (tried[name].metrics or name == SOURCE)  # else nobody judged it
    }
    if not here or not right:
        return ""
    near, fastest = min(here, key=lambda name: here[name]), min(right, key=lambda name: right[name])
    is_quantized = any(MADE in variant.steps and variant.name in here for variant in cheap)
    bound = _BY_PLACEMENT if is_quantized else _BY_INT8
    if here[near] <= bound * right[fastest]:
        return ""
    both = f"{near} takes {quantity(here[near], 'ms')} and {fastest} takes {quantity(right[fastest], 'ms')}"
    return f"{both}, and it is at most {bound:g} times as fast as the first of these"
