"""Channels of captured tensors: which matter, and what they are like. All sums are float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ndld_flow.accuracy.activations.layouts import Layout, by_channel
from ndld_flow.accuracy.activations.saturation import Bounds, count_saturated
from ndld_flow.models.tensors import Array
from ndld_flow.records.activations import ChannelStatistics


@dataclass(frozen=True)
class RankedChannels:
    """The channels of a tensor, those that matter most first."""

    numbers: tuple[int, ...]
    by: str
    """`difference` or `energy`."""


def rank_channels(values: Array, reference: Array | None, layout: Layout) -> RankedChannels | None:
    """The channels of one sample by the energy of what differs from the reference, where there is one, else by their
    own; what is not finite comes first. None for a layout without channels.
    """
    channels = by_channel(values, layout)
    if channels is None:
        return None
    others = None if reference is None else by_channel(reference, layout)
    energies = []
    for number, channel in enumerate(channels):
        wide = channel.astype(np.float64) if others is None else _difference(channel, others[number])
        energies.append(_rank(wide))
    order = np.argsort(-np.asarray(energies), kind="stable")
    return RankedChannels(tuple(order.tolist()), "energy" if others is None else "difference")


def channel_statistics(
    values: Array, reference: Array | None, layout: Layout, numbers: Sequence[int], bounds: Bounds
) -> Iterator[ChannelStatistics]:
    """What these channels of one sample are like, in this order."""
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
    # Where only the reference is not finite there is nothing to hold against the candidate.
    return np.where(np.isfinite(reference.astype(np.float64)), difference, 0.0)


def _rank(wide: Array) -> float:
    finite = _finite(wide)
    return math.inf if finite.size < wide.size else _rms(finite)


def _finite(wide: Array) -> Array:
    return wide[np.isfinite(wide)]


def _rms(finite: Array) -> float:
    """Root of the mean square, scaled first: squares of large numbers may be infinite."""
    largest = float(np.abs(finite).max(initial=0.0))
    if largest == 0.0:
        return 0.0
    scaled = finite / largest
    return largest * math.sqrt(float(np.mean(scaled * scaled)))
