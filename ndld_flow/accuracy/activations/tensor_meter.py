"""One captured tensor of one model or two, sample after sample."""

from __future__ import annotations

from dataclasses import dataclass

from ndld_flow.accuracy.activations.channels import channel_statistics, rank_channels
from ndld_flow.accuracy.activations.layouts import RANKS, Layout, guess_layout
from ndld_flow.accuracy.activations.saturation import Bounds, count_saturated, dtype_bounds
from ndld_flow.accuracy.activations.shared_histogram import SharedHistogram
from ndld_flow.accuracy.inside.layer_agreement import LayerAgreement
from ndld_flow.accuracy.inside.ranges import RangeMeter
from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.models.float_tensors import Format
from ndld_flow.models.tensors import Array, shape_text
from ndld_flow.records.activations import ActivationMap, CapturedTensor, ChannelStatistics
from ndld_flow.records.divergence import LayerDivergence

MOST_CHANNELS = 256
"""Channels of a tensor that are told; a document is no place for all of 4096."""


@dataclass(frozen=True)
class Looked:
    """A tensor to look at."""

    name: str
    node: str
    op_type: str
    position: int
    dtype: str
    """The candidate's."""
    reference_dtype: str = ""
    """Empty where the reference has no such tensor, or there is none."""
    in_both: bool = False
    """The reference has it too."""
    channels: str = ""
    """Where its channels are: `first`, `last`, `transposed` or nothing."""
    layout: Layout | None = None
    """As the recipe says; None guesses."""
    bounds: Bounds = ()
    """Values at which its activation ends."""


class TensorMeter:
    """Begins with the first sample's values, which say shape and layout; then takes samples in, the first one too.

    Values of the reference are None where it has no such tensor. Raises `RequestError` for a layout of another rank.
    """

    def __init__(self, looked: Looked, limits: Format, first: Array, reference: Array | None) -> None:
        self.looked = looked
        self.shape = tuple(first.shape)
        self.layout: Layout = looked.layout or guess_layout(first.ndim, looked.channels)
        if RANKS.get(self.layout, first.ndim) != first.ndim:
            raise RequestError(
                f'layout: tensor "{looked.name}" is {shape_text(first.shape)}, which cannot be {self.layout}. '
                "Give the pattern another layout, or leave it out."
            )
        self.maps: list[ActivationMap] = []
        self.compared = reference is not None
        dtypes = (looked.dtype, looked.reference_dtype)[: 1 + self.compared]
        self._bounds = [(*looked.bounds, *dtype_bounds(dtype)) for dtype in dtypes]
        self._ranges = [RangeMeter(looked.name, limits) for _ in dtypes]
        self._saturated = [0 for _ in dtypes]
        self._histogram = SharedHistogram(len(dtypes))
        self._agreement = LayerAgreement(by_slice=True)
        self._channels: tuple[ChannelStatistics, ...] = ()
        ranked = rank_channels(first, reference, self.layout)
        self.ranked = ranked.numbers if ranked else ()
        """Channels, those that matter most first; empty for a layout without."""
        if ranked:
            told = sorted(ranked.numbers[:MOST_CHANNELS])
            self._channels = tuple(channel_statistics(first, reference, self.layout, told, self._bounds[0]))
        self._channels_by = ranked.by if ranked else ""

    def add(self, candidate: Array, reference: Array | None) -> None:
        """Take one sample in."""
        sides = [candidate] if reference is None else [candidate, reference]
        if reference is not None and reference.shape != candidate.shape:
            raise ModelError(
                f'tensor "{self.looked.name}" is {shape_text(candidate.shape)} where the reference has '
                f"{shape_text(reference.shape)}, in one sample and not in the first: they cannot be compared."
            )
        for number, side in enumerate(sides):
            self._ranges[number].add(side)
            self._saturated[number] += count_saturated(side, self._bounds[number])
        self._histogram.add(*sides)
        if reference is not None:
            self._agreement.add(reference, candidate)

    def record(self) -> CapturedTensor:
        """Of everything that was added."""
        looked, both = self.looked, self.compared
        ranges, histograms = [meter.range() for meter in self._ranges], self._histogram.histograms()
        return CapturedTensor(
            tensor=looked.name,
            node=looked.node,
            op_type=looked.op_type,
            position=looked.position,
            dtype=looked.dtype,
            reference_dtype=looked.reference_dtype if both else "",
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
        """How far the candidate is from the reference; None where they were not compared."""
        if not self.compared:
            return None
        looked = self.looked
        return LayerDivergence(
            position=looked.position,
            node=looked.node,
            op_type=looked.op_type,
            tensor=looked.name,
            shape=self.shape,
            metrics=self._agreement.metrics(),
            worst_slice=self._agreement.worst_slice,
            nonfinite=self._agreement.nonfinite,
            range=self._ranges[1].range(),
        )
