"""Collect the divergence of two runs of a model by layer, for charts and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ndld_flow.base.quantities import ABSENT, count, number, percent
from ndld_flow.base.text import short_name, visible_name
from ndld_flow.records.accuracy import LayerDivergence, TensorRange, noise_of
from ndld_flow.report.encoding import rounded
from ndld_flow.report.measured import shape_text

NOT_FINITE = -1.0
"""Represents a NaN or infinite error in page data; errors are never negative."""

WORST_SHOWN = 20
"""Number of layers in the table for pages without a script."""


@dataclass(frozen=True)
class FormatLimits:
    """The magnitudes that a floating-point format can represent."""

    subnormal: float
    """Smallest subnormal number."""
    normal: float
    """Smallest normal number."""
    largest: float


LIMITS = {
    "fp16": FormatLimits(2.0**-24, 2.0**-14, 65504.0),
    "bf16": FormatLimits(2.0**-133, 2.0**-126, (2 - 2.0**-7) * 2.0**127),
}
"""IEEE 754 binary16; bfloat16, which has the exponent range of float32."""


@dataclass(frozen=True)
class Bound:
    """The bound that a chart draws as a line."""

    error: float
    words: str
    metric: str = "relative_rms"
    """The bounded metric of layers: `slice_rms` or `relative_rms`."""


@dataclass(frozen=True)
class DepthLayer:
    """One tensor, in the order of execution."""

    record: LayerDivergence
    """The layer of the first curve that has it."""
    of_curves: tuple[LayerDivergence | None, ...]

    @property
    def node(self) -> str:
        """Displayed text."""
        return short_name(self.record.node or self.record.tensor)

    @property
    def op_type(self) -> str:
        """Displayed text."""
        return short_name(self.record.op_type, 60)

    @property
    def words(self) -> tuple[str, ...]:
        """Its error on each curve, as text."""
        return tuple(map(_error_words, self.of_curves))

    @property
    def range(self) -> TensorRange | None:
        return next((curve.range for curve in self.of_curves if curve is not None and curve.range is not None), None)


@dataclass(frozen=True)
class DepthView:
    """Layers with one error for each curve."""

    curves: tuple[str, ...]
    """Description of each curve: `all in fp16`."""
    layers: tuple[DepthLayer, ...]
    kept: tuple[int, ...] = ()
    """Positions in `layers` of the layers kept at higher precision."""
    first: int | None = None
    """Position of the first divergent layer."""
    bound: Bound | None = None
    precision: str = ""
    """Format whose limits are drawn with the ranges; empty for none."""

    @property
    def metric(self) -> str:
        """The drawn metric: that of the bound, otherwise the error of the worst slice if measured."""
        if self.bound is not None:
            return self.bound.metric
        by_slice = any("slice_rms" in curve.metrics for layer in self.layers for curve in layer.of_curves if curve)
        return "slice_rms" if by_slice else "relative_rms"

    @property
    def has_ranges(self) -> bool:
        return any(layer.range is not None for layer in self.layers)

    @property
    def worst(self) -> tuple[DepthLayer, ...]:
        """The layers with the largest error on the first curve, the worst first."""
        metric = self.metric
        by_error = sorted(
            self.layers, key=lambda layer: (-_order(error_of(layer.of_curves[0], metric)), layer.record.position)
        )
        return tuple(by_error[:WORST_SHOWN])


def collect_depth(
    curves: Mapping[str, Sequence[LayerDivergence]],
    kept: Callable[[LayerDivergence], bool],
    first: str,
    bound: Bound | None,
    precision: str = "",
) -> DepthView | None:
    """Combine curves by tensor. `first` is the node or tensor of the first divergent layer.

    Returns None if nothing was compared.
    """
    by_tensor: dict[str, LayerDivergence] = {}
    for layer in (layer for curve in curves.values() for layer in curve):
        by_tensor.setdefault(layer.tensor, layer)
    if not by_tensor:
        return None
    by_curve = [{layer.tensor: layer for layer in curve} for curve in curves.values()]
    layers = tuple(
        DepthLayer(layer, tuple(curve.get(tensor) for curve in by_curve))
        for tensor, layer in sorted(by_tensor.items(), key=lambda item: item[1].position)
    )
    return DepthView(
        curves=tuple(curves),
        layers=layers,
        kept=tuple(index for index, layer in enumerate(layers) if kept(layer.record)),
        first=next(
            (
                index
                for index, layer in enumerate(layers)
                if first and first in (layer.record.node, layer.record.tensor)
            ),
            None,
        ),
        bound=bound,
        precision=precision,
    )


def bound_of(tolerance: Mapping[str, float]) -> Bound | None:
    """Return the bound on slices; without one, the strictest of the others, converted to a relative rms.

    The conversion is exact for SNR, and for a cosine if the error is orthogonal to the reference. None without bounds.
    """
    if tolerance.get("slice_rms", 0) > 0:
        return Bound(tolerance["slice_rms"], f"slice rms {percent(tolerance['slice_rms'])}", "slice_rms")
    bounds = []
    if tolerance.get("relative_rms", 0) > 0:
        bounds.append(Bound(tolerance["relative_rms"], f"relative rms {percent(tolerance['relative_rms'])}"))
    if "snr_db" in tolerance:
        bounds.append(Bound(noise_of(tolerance["snr_db"]), f"SNR {tolerance['snr_db']:g} dB"))
    cosine = tolerance.get("cosine", 0.0)
    if 0 < cosine < 1:
        bounds.append(Bound(math.sqrt(1 / cosine**2 - 1), f"cosine {cosine:g}"))
    return min(bounds, key=lambda bound: bound.error, default=None)


def error_of(layer: LayerDivergence | None, metric: str = "slice_rms") -> float | None:
    """Return a layer's error; `NOT_FINITE` if a value is NaN or infinite, None if not measured.

    Records without slices have the relative rms of the whole tensor.
    """
    if layer is None:
        return None
    value = layer.metrics.get(metric, layer.metrics.get("relative_rms"))
    if layer.nonfinite or (value is not None and not math.isfinite(value)):
        return NOT_FINITE
    if value is None and "snr_db" in layer.metrics:
        value = noise_of(layer.metrics["snr_db"])
    return value


def _distance(layer: LayerDivergence | None) -> float | None:
    """Return 1 - cosine, which preserves the digits of a cosine near 1."""
    if layer is None or "cosine" not in layer.metrics:
        return None
    cosine = layer.metrics["cosine"]
    return NOT_FINITE if layer.nonfinite or not math.isfinite(cosine) else max(0.0, 1 - cosine)


def _error_words(layer: LayerDivergence | None) -> str:
    error = error_of(layer)
    if error is None:
        return ABSENT
    if error != NOT_FINITE:
        return number(error)
    return f"{count(layer.nonfinite)} NaN or infinite" if layer and layer.nonfinite else "not finite"


def _order(error: float | None) -> float:
    if error is None:
        return -1.0
    return math.inf if error == NOT_FINITE else error


# --- data of the charts ---


@dataclass(frozen=True)
class DepthRanges:
    """Ranges of values, an item for each layer."""

    largest_abs: list[float | None]
    smallest_abs: list[float | None]
    rms: list[float | None]
    beyond_share: list[float | None]
    subnormal_share: list[float | None]
    vanishing_share: list[float | None]
    nonfinite: list[int]


@dataclass(frozen=True)
class DepthCurves:
    """Errors of two models layer by layer; a curve is one precision or one comparison."""

    curves: list[str]
    node: list[str]
    op_type: list[str]
    tensor: list[str]
    dims: list[str]
    position: list[int]
    error: list[list[float | None]]
    """`NOT_FINITE` for an error that is NaN or infinite."""
    distance: list[list[float | None]]
    """1 - cosine."""
    nonfinite: list[list[int]]
    ranges: DepthRanges | None
    kept: list[int]
    first: int | None
    bound: Bound | None
    precision: str
    limits: FormatLimits | None


def depth_curves(view: DepthView) -> DepthCurves:
    """Return the data of a chart over depth, rounded to three digits: finer than a pixel."""
    records = [layer.record for layer in view.layers]
    curves = [[layer.of_curves[index] for layer in view.layers] for index in range(len(view.curves))]
    return DepthCurves(
        curves=list(view.curves),
        node=[visible_name(record.node) for record in records],
        op_type=[visible_name(record.op_type) for record in records],
        tensor=[visible_name(record.tensor) for record in records],
        dims=[shape_text(record.shape) if record.shape else "" for record in records],
        position=[record.position for record in records],
        error=[_short(error_of(layer, view.metric) for layer in curve) for curve in curves],
        distance=[_short(map(_distance, curve)) for curve in curves],
        nonfinite=[[layer.nonfinite if layer else 0 for layer in curve] for curve in curves],
        ranges=_ranges(view) if view.has_ranges else None,
        kept=list(view.kept),
        first=view.first,
        bound=view.bound,
        precision=view.precision,
        limits=LIMITS.get(view.precision),
    )


def _ranges(view: DepthView) -> DepthRanges:
    ranges = [layer.range for layer in view.layers]

    def column(name: str) -> list[float | None]:
        return _short(None if range_ is None else getattr(range_, name) for range_ in ranges)

    return DepthRanges(
        largest_abs=column("largest_abs"),
        smallest_abs=column("smallest_abs"),
        rms=column("rms"),
        beyond_share=column("beyond_share"),
        subnormal_share=column("subnormal_share"),
        vanishing_share=column("vanishing_share"),
        nonfinite=[range_.nan_count + range_.inf_count if range_ else 0 for range_ in ranges],
    )


def _short(values: Iterable[float | None]) -> list[float | None]:
    """Return values rounded to three digits, finer than a pixel. The run's files have all digits."""
    return [
        None
        if value is None or not math.isfinite(value)
        else int(value)
        if value in (0, 1, NOT_FINITE)
        else rounded(value, 3)
        for value in values
    ]
