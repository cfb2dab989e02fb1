"""Measurement of one captured tensor of one or two models over all samples.

It covers layouts, ranges, histograms over shared bins, saturation, and the ranking and statistics of channels. Sums are
float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ndld_flow.accuracy.inside.layer_meters import LayerAgreement, RangeMeter
from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.models.lazy_tensors import Format
from ndld_flow.models.nodes import constant_tensor
from ndld_flow.models.streaming_statistics import Extremes
from ndld_flow.models.tensors import Array, numpy_dtype, shape_text
from ndld_flow.records.accuracy import LayerDivergence
from ndld_flow.records.activations import ActivationMap, CapturedTensor, ChannelStatistics, Histogram
from ndld_flow.samples.generated_values import is_float, is_integer

Layout = Literal["NCHW", "NHWC", "NCL", "NLC", "NCDHW", "NC", "flat"]
RANKS: Mapping[Layout, int] = {"NCHW": 4, "NHWC": 4, "NCL": 3, "NLC": 3, "NCDHW": 5, "NC": 2}
"""Layout -> number of dimensions; `flat` accepts any."""
CHANNEL_AXES: Mapping[Layout, int] = {"NCHW": 1, "NHWC": 3, "NCL": 1, "NLC": 2, "NCDHW": 1}

_CHANNELS_FIRST = {
    "AveragePool",
    "BatchNormalization",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "GroupNormalization",
    "InstanceNormalization",
    "LRN",
    "LpPool",
    "MaxPool",
    "QLinearConv",
}
_CHANNELS_LAST = {"Attention", "Gather", "Gemm", "GRU", "LayerNormalization", "LSTM", "MatMul", "QLinearMatMul", "RNN"}
_LAYOUT_UNKNOWN = {"Flatten", "Reshape", "Squeeze", "Unsqueeze"}
_TO_LAST = ((0, 2, 3, 1), (0, 2, 1))
_TO_FIRST = ((0, 3, 1, 2), (0, 2, 1))


def channel_places(graph: ir.Graph) -> dict[str, str]:
    """Return tensor -> `first`, `last` or `transposed` for tensors whose channel position follows from operators.

    A Conv determines it, a Relu keeps that of its input, a Transpose changes it.
    """
    places: dict[str, str] = {}
    for node in graph:
        place = _output_place(node, places)
        if place:
            places |= {value.name: place for value in node.outputs if value.name}
    return places


def guess_layout(rank: int, place: str) -> Layout:
    """Guess the layout of a tensor of this rank from the place of its channels (`first`, `last`, `transposed` or
    empty).
    """
    by_rank: dict[int, Layout] = {2: "NC", 3: "NCL" if place == "first" else "NLC", 4: "NCHW", 5: "NCDHW"}
    if rank == 4 and place == "transposed":
        return "NHWC"
    return by_rank.get(rank, "flat")


def planes(values: Array, layout: Layout) -> Array:
    """Return the first item of a batch as channels x height x width, as a view where possible.

    `NC`, `NLC` and `NCL` are one plane of their two last dimensions; `NCDHW` stacks its depths vertically; `flat` is
    one row.
    """
    if not values.size:
        return values.reshape(0, 0, 0)
    if layout == "NC":
        return values[np.newaxis]
    if layout == "flat":
        return values.reshape(1, 1, -1)
    item: Array = values[0]
    if layout == "NHWC":
        return item.transpose(2, 0, 1)
    if layout in ("NLC", "NCL"):
        return item[np.newaxis]
    return item.reshape(item.shape[0], -1, item.shape[-1])


def plane_shape(shape: tuple[int, ...], layout: Layout) -> tuple[int, int, int]:
    """Return channels x height x width of the planes of a tensor of this shape."""
    channels, height, width = planes(np.broadcast_to(np.uint8(0), shape), layout).shape
    return channels, height, width


def by_channel(values: Array, layout: Layout) -> Array | None:
    """Return all items as a view with the channels first; None for a layout without channels."""
    axis = CHANNEL_AXES.get(layout)
    return None if axis is None else np.moveaxis(values, axis, 0)


def _output_place(node: ir.Node, places: Mapping[str, str]) -> str:
    names = [value.name or "" for value in node.inputs if value is not None]
    read = next((places[name] for name in names if name in places), "")
    if node.op_type in _CHANNELS_FIRST:
        return "first"
    if node.op_type in _CHANNELS_LAST:
        return "last"
    if node.op_type == "Transpose":
        perm = tuple(node.attributes.get_ints("perm", ()))
        if perm in _TO_LAST and read == "first":
            return "transposed"
        if perm in _TO_FIRST and read in ("last", "transposed"):
            return "first"
        return ""
    return "" if node.op_type in _LAYOUT_UNKNOWN else read


Bounds = tuple[float, ...]

_BY_OPERATOR: Mapping[str, Bounds] = {
    "Sigmoid": (0.0, 1.0),
    "HardSigmoid": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Softsign": (-1.0, 1.0),
}


def activation_bounds(node: ir.Node | None) -> Bounds:
    """Return the values at which a node's output saturates. A Clip's 0 does not count: it acts like a Relu."""
    if node is None:
        return ()
    if node.op_type == "Cast" and node.inputs[0] is not None:
        return activation_bounds(node.inputs[0].producer())
    if node.op_type == "Clip":
        return tuple(bound for bound in _clip_bounds(node) if bound != 0.0)
    return _BY_OPERATOR.get(node.op_type, ())


def dtype_bounds(dtype: str) -> Bounds:
    """Return the smallest and largest finite value of a dtype; none for bools and non-numeric types."""
    element = numpy_dtype(dtype)
    if element is None or not (is_float(element) or is_integer(element)):
        return ()
    if is_integer(element):
        return int(ml_dtypes.iinfo(element).min), int(ml_dtypes.iinfo(element).max)
    return float(ml_dtypes.finfo(element).min), float(ml_dtypes.finfo(element).max)


def count_saturated(values: Array, bounds: Bounds) -> int:
    """Count the elements that equal one of the bounds, rounded to the array's dtype."""
    if is_integer(values.dtype):
        ends = {int(bound) for bound in bounds if math.isfinite(bound)}
        return sum(int(np.count_nonzero(values == end)) for end in ends)
    if not is_float(values.dtype):
        return 0
    with np.errstate(over="ignore"):
        rounded = {values.dtype.type(bound) for bound in bounds}
    return sum(int(np.count_nonzero(values == end)) for end in rounded if np.isfinite(end))


def _clip_bounds(node: ir.Node) -> Iterator[float]:
    for name in ("min", "max"):  # attributes until opset 11
        if name in node.attributes:
            yield node.attributes[name].as_float()
    for value in node.inputs[1:3]:
        tensor = constant_tensor(value) if value is not None else None
        if tensor is not None and tensor.size == 1:
            yield float(tensor.numpy().reshape(-1)[0])


def rank_channels(values: Array, reference: Array | None, layout: Layout) -> tuple[int, ...]:
    """Return the channels of one sample, most important first; empty for a layout without channels.

    With a reference they are ranked by the energy of their difference from it, else by their own energy; channels with
    non-finite values come first.
    """
    channels = by_channel(values, layout)
    if channels is None:
        return ()
    others = None if reference is None else by_channel(reference, layout)
    energies = []
    for number, channel in enumerate(channels):
        wide = channel.astype(np.float64) if others is None else _difference(channel, others[number])
        finite = _finite(wide)
        energies.append(math.inf if finite.size < wide.size else _rms(finite))
    order = np.argsort(-np.asarray(energies), kind="stable")
    return tuple(order.tolist())


def channel_statistics(
    values: Array, reference: Array | None, layout: Layout, numbers: Sequence[int], bounds: Bounds
) -> Iterator[ChannelStatistics]:
    """Yield the statistics of these channels of one sample, in this order."""
    channels = by_channel(values, layout)
    assert channels is not None
    others = None if reference is None else by_channel(reference, layout)
    for number in numbers:
        channel = channels[number]
        wide = channel.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        some = bool(finite.size)
        yield ChannelStatistics(
            channel=number,
            minimum=float(finite.min()) if some else 0.0,
            maximum=float(finite.max()) if some else 0.0,
            mean=float(finite.mean()) if some else 0.0,
            rms=_rms(finite),
            nonfinite=int(wide.size - finite.size),
            saturated=count_saturated(channel, bounds),
            difference_rms=None if others is None else _rms(_finite(_difference(channel, others[number]))),
        )


def _difference(candidate: Array, reference: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        difference: Array = candidate.astype(np.float64) - reference.astype(np.float64)
    # Elements where only the reference is not finite are not errors of the candidate.
    return np.where(np.isfinite(reference.astype(np.float64)), difference, 0.0)


def _finite(wide: Array) -> Array:
    return wide[np.isfinite(wide)]


def _rms(finite: Array) -> float:
    """Return the root of the mean square, scaled first because squares of large numbers may overflow."""
    largest = float(np.abs(finite).max(initial=0.0))
    if largest == 0.0:
        return 0.0
    scaled = finite / largest
    return largest * math.sqrt(float(np.mean(scaled * scaled)))


BINS = 64
_FINE = 64 * BINS
"""Number of fine bins: enough to merge them into reported bins that fit the values closely."""
_CHUNK = 1 << 20


class SharedHistogram:
    """Counts of the finite values of several arrays in bins of equal width.

    Fine bins span the first sample's smallest to largest value; a later value outside doubles the width of all bins,
    which keeps the counts exact. Reported bins begin with the first fine bin that is not empty.
    """

    def __init__(self, sides: int) -> None:
        self._low = self._high = math.nan
        self._counts = [np.zeros(_FINE, np.int64) for _ in range(sides)]

    def add(self, *sides: Array) -> None:
        """Add one sample of each side."""
        extremes = Extremes()
        for side in sides:
            extremes.add(side)
        bounds = (float(extremes.minimum), float(extremes.maximum)) if extremes.count else ()
        if not bounds:
            return
        if math.isnan(self._low):
            self._low, self._high = min(bounds), max(bounds)
            if self._low == self._high:  # a single value is in the middle
                margin = max(abs(self._low), 1.0) / 2
                self._low, self._high = self._low - margin, self._high + margin
        while min(bounds) < self._low:
            self._double(downward=True)
        while max(bounds) > self._high:
            self._double(downward=False)
        for counts, side in zip(self._counts, sides, strict=True):
            self._count(counts, side)

    def histograms(self) -> tuple[Histogram, ...]:
        """Return one histogram for each side."""
        used = np.flatnonzero(sum(self._counts))
        if not used.size:
            return tuple(Histogram(low=0.0, high=1.0, counts=(0,) * BINS) for _ in self._counts)
        first, joined = int(used[0]), -(-int(used[-1] - used[0] + 1) // BINS)
        width = self._high / _FINE - self._low / _FINE
        low, high = self._low + first * width, self._low + (first + joined * BINS) * width
        histograms = []
        for counts in self._counts:
            padded = np.concatenate([counts[first:], np.zeros(_FINE, np.int64)])[: joined * BINS]
            bins = tuple(padded.reshape(BINS, joined).sum(axis=1).tolist())
            histograms.append(Histogram(low=low, high=high, counts=bins))
        return tuple(histograms)

    def _double(self, downward: bool) -> None:
        # The range of float64 is the widest possible.
        span = min(self._high / 2 - self._low / 2, np.finfo(np.float64).max / 4) * 2
        if downward:
            self._low = max(self._low - span, -np.finfo(np.float64).max)
        else:
            self._high = min(self._high + span, np.finfo(np.float64).max)
        for counts in self._counts:
            merged = counts.reshape(-1, 2).sum(axis=1)
            none = np.zeros(_FINE // 2, np.int64)
            counts[:] = np.concatenate([none, merged] if downward else [merged, none])

    def _count(self, counts: Array, side: Array) -> None:
        flat = side.reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            wide = flat[start : start + _CHUNK].astype(np.float64)
            # Halves, because the difference of two large numbers may overflow.
            share = (wide[np.isfinite(wide)] / 2 - self._low / 2) / (self._high / 2 - self._low / 2)
            counts += np.bincount(np.clip((share * _FINE).astype(np.int64), 0, _FINE - 1), minlength=_FINE)


MOST_CHANNELS = 256
"""Maximum number of channels recorded for a tensor; a document with all of 4096 would be too large."""


@dataclass(frozen=True)
class InspectedTensor:
    """A tensor to inspect."""

    name: str
    node: str
    op_type: str
    position: int
    dtype: str
    """The candidate's dtype."""
    reference_dtype: str = ""
    """The reference's dtype; empty if it has no such tensor or there is no reference."""
    in_both: bool = False
    """The reference has the tensor too."""
    channels: str = ""
    """The place of its channels: `first`, `last`, `transposed` or empty."""
    layout: Layout | None = None
    """The recipe's layout; None to guess it."""
    bounds: Bounds = ()
    """Values at which its activation function saturates."""


class TensorMeter:
    """Measures one tensor.

    The first sample's values determine shape and layout; they must be added too. Values of the reference are None if
    it has no such tensor. Raises `RequestError` for a layout of another rank.
    """

    def __init__(self, tensor: InspectedTensor, limits: Format, first: Array, reference: Array | None) -> None:
        self.tensor = tensor
        self.shape = tuple(first.shape)
        self.layout: Layout = tensor.layout or guess_layout(first.ndim, tensor.channels)
        if RANKS.get(self.layout, first.ndim) != first.ndim:
            raise RequestError(
                f'layout: tensor "{tensor.name}" is {shape_text(first.shape)}, which cannot be {self.layout}. '
                "Give the pattern another layout, or remove it."
            )
        self.maps: list[ActivationMap] = []
        self.compared = reference is not None
        dtypes = (tensor.dtype, tensor.reference_dtype)[: 1 + self.compared]
        self._bounds = [(*tensor.bounds, *dtype_bounds(dtype)) for dtype in dtypes]
        self._ranges = [RangeMeter(tensor.name, limits) for _ in dtypes]
        self._saturated = [0 for _ in dtypes]
        self._histogram = SharedHistogram(len(dtypes))
        self._agreement = LayerAgreement(by_slice=True)
        self._channels: tuple[ChannelStatistics, ...] = ()
        self.ranked = rank_channels(first, reference, self.layout)
        """Channels, most important first; empty for a layout without channels."""
        if self.ranked:
            recorded = sorted(self.ranked[:MOST_CHANNELS])
            self._channels = tuple(channel_statistics(first, reference, self.layout, recorded, self._bounds[0]))
        self._channels_by = "" if not self.ranked else "difference" if self.compared else "energy"

    def add(self, candidate: Array, reference: Array | None) -> None:
        """Add one sample."""
        sides = [candidate] if reference is None else [candidate, reference]
        if reference is not None and reference.shape != candidate.shape:
            raise ModelError(
                f'tensor "{self.tensor.name}" is {shape_text(candidate.shape)} where the reference has '
                f"{shape_text(reference.shape)}, in a later sample but not in the first: they cannot be compared."
            )
        for number, side in enumerate(sides):
            self._ranges[number].add(side)
            self._saturated[number] += count_saturated(side, self._bounds[number])
        self._histogram.add(*sides)
        if reference is not None:
            self._agreement.add(reference, candidate)

    def record(self) -> CapturedTensor:
        """Return the record of all samples added."""
        tensor, both = self.tensor, self.compared
        ranges, histograms = [meter.range() for meter in self._ranges], self._histogram.histograms()
        return CapturedTensor(
            tensor=tensor.name,
            node=tensor.node,
            op_type=tensor.op_type,
            position=tensor.position,
            dtype=tensor.dtype,
            reference_dtype=tensor.reference_dtype if both else "",
            shape=self.shape,
            layout=self.layout,
            range=ranges[0],
            reference_range=ranges[1] if both else None,
            histogram=histograms[0],
            reference_histogram=histograms[1] if both else None,
            saturated=self._saturated[0],
            reference_saturated=self._saturated[1] if both else 0,
            channel_count=len(self.ranked),
            channels=self._channels,
            channels_by=self._channels_by,
            maps=tuple(self.maps),
        )

    def divergence(self) -> LayerDivergence | None:
        """Return the divergence of the candidate from the reference; None if they were not compared."""
        if not self.compared:
            return None
        tensor = self.tensor
        return LayerDivergence(
            position=tensor.position,
            node=tensor.node,
            op_type=tensor.op_type,
            tensor=tensor.name,
            shape=self.shape,
            metrics=self._agreement.metrics(),
            worst_slice=self._agreement.worst_slice,
            nonfinite=self._agreement.nonfinite,
            range=self._ranges[1].range(),
        )
