"""Where what goes wrong in a model begins.

A layer is off when it has NaN or infinities that the reference does not have there, or when its noise is larger than
the bound on the outputs allows: a layer's noise is measured in parts of its own signal, and so are the bounds. That
alone says little: a tensor of small values may be far off and be added to large ones that are right, and errors may
cancel out. So a layer counts only where what is wrong with it stays: where it is read by a layer that is off, which is
read by another, down to one that nobody reads. The first of those in the order of execution is where it begins. But
where NaN or infinities stay it is the first layer that has them, for nothing that came before weighs as much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ndld_flow.records.divergence import LayerDivergence

USUAL_NOISE = 0.045
"""Relative RMS allowed where the bounds say nothing of relative noise: that of a cosine of 0.999."""


def allowed_noise(bounds: Mapping[str, float]) -> float:
    """The largest rms(c - r) / rms(r) that bounds on outputs allow, the strictest of them.

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
    return min(allowed, default=USUAL_NOISE)


def first_divergent(layers: Sequence[LayerDivergence], bounds: Mapping[str, float]) -> LayerDivergence | None:
    """The layer where what goes wrong begins, None when nothing does. `bounds` are `Tolerance.bounds()`.

    `layers` are in the order of execution, as `diverge` gives them.
    """
    noise = allowed_noise(bounds)
    staying = _staying(layers, {layer.tensor for layer in layers if _is_off(layer, noise)})
    return next((layer for layer in staying if layer.nonfinite), next(iter(staying), None))


def _is_off(layer: LayerDivergence, noise: float) -> bool:
    return layer.nonfinite > 0 or layer.metrics.get("relative_rms", 0.0) > noise


def _staying(layers: Sequence[LayerDivergence], off: set[str]) -> list[LayerDivergence]:
    """Layers that are off, from which only layers that are off lead to one that nobody reads."""
    read = {name for layer in layers for name in layer.reads}
    stays: set[str] = set()
    for layer in reversed(layers):
        if layer.tensor in off and (layer.tensor not in read or layer.tensor in stays):
            stays.add(layer.tensor)
            stays.update(layer.reads)
    return [layer for layer in layers if layer.tensor in stays and layer.tensor in off]
