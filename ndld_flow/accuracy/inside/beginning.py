"""Where what goes wrong in a model begins.

A layer is off when it has NaN or infinities that the reference does not have there, when a slice of it is further off
than the bounds on slices allow, or when its noise is larger than the other bounds allow: all of these are relative to
the layer's own signal. That alone is not enough: a tensor of small values may be far off and be added to large ones
that are right, and errors may cancel out. So a layer counts only where its error stays: where it is read by a layer
that is off, which is read by another, down to one that nobody reads. The first of those in the order of execution is
where it begins. But where NaN or infinities stay it is the first layer that has them: nothing before weighs as much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ndld_flow.accuracy.slices import SLICE_METRICS
from ndld_flow.records.divergence import LayerDivergence

USUAL_NOISE = 0.045
"""Relative RMS allowed where no bound is relative to the signal: that of a cosine of 0.999."""


def allowed_noise(bounds: Mapping[str, float]) -> float:
    """Return the largest rms(c - r) / rms(r) that bounds on outputs allow, the strictest of them.

    A cosine of C allows noise at right angles to the signal of sqrt(1 / C^2 - 1); an SNR of S dB 10^(-S / 20).
    `relative_rms` is that noise itself. Other metrics depend on how large the values are, or on how many.
    """
    allowed = []
    if 0 < bounds.get("cosine", 0.0) <= 1:
        allowed.append(math.sqrt(1 / bounds["cosine"] ** 2 - 1))
    if "snr_db" in bounds:
        allowed.append(10 ** (-bounds["snr_db"] / 20))
    if "relative_rms" in bounds:
        allowed.append(bounds["relative_rms"])
    return min(allowed, default=math.inf if "slice_rms" in bounds else USUAL_NOISE)


def first_divergent(layers: Sequence[LayerDivergence], bounds: Mapping[str, float]) -> LayerDivergence | None:
    """Return the layer where what goes wrong begins, None when nothing does. `bounds` are `Tolerance.bounds()`.

    `layers` are in the order of execution, as `diverge` gives them.
    """
    allowed = {name: bound for name, bound in bounds.items() if name in SLICE_METRICS}
    allowed["relative_rms"] = allowed_noise(bounds)
    staying = _staying(layers, {layer.tensor for layer in layers if _is_off(layer, allowed)})
    return next((layer for layer in staying if layer.nonfinite), next(iter(staying), None))


def _is_off(layer: LayerDivergence, allowed: Mapping[str, float]) -> bool:
    return layer.nonfinite > 0 or any(layer.metrics.get(name, 0.0) > bound for name, bound in allowed.items())


def _staying(layers: Sequence[LayerDivergence], off: set[str]) -> list[LayerDivergence]:
    """Layers that are off, from which only layers that are off lead to one that nobody reads."""
    read = {name for layer in layers for name in layer.reads}
    stays: set[str] = set()
    for layer in reversed(layers):
        if layer.tensor in off and (layer.tensor not in read or layer.tensor in stays):
            stays.add(layer.tensor)
            stays.update(layer.reads)
    return [layer for layer in layers if layer.tensor in stays and layer.tensor in off]
