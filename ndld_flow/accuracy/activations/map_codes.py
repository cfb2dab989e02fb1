"""Tensors made small enough to look at, as 16-bit codes. See `records.activations.ActivationMap`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ndld_flow.models.tensors import Array

LARGEST_CODE = 65532
NAN, PLUS_INF, MINUS_INF = 65535, 65534, 65533
PlaneShape = tuple[int, int, int]
"""Channels x height x width."""
BYTES = 2
"""Of a code."""
_SMALL_SIDE = 64
"""Maps are not pooled below this height and width before channels are left out."""


@dataclass(frozen=True)
class MapSize:
    """How much of a tensor's planes a map shows."""

    channels: int
    height: int
    width: int
    scale: int

    @property
    def plane(self) -> int:
        """Bytes of the codes of one channel."""
        return self.height * self.width * BYTES

    @property
    def size(self) -> int:
        """Bytes of all its codes."""
        return self.channels * self.plane


def fit(shape: PlaneShape, channels: int, side: int, most: int) -> MapSize:
    """The largest map of planes of this shape with at most so many channels, elements in height and width, and bytes.

    It is pooled until it fits, but below 64 elements a side only where not even one channel does.
    """
    shown, scale = min(shape[0], channels), max(1, -(-max(shape[1:]) // side))
    size = _pooled(shape, shown, scale)
    while size.size > most and max(size.height, size.width) > _SMALL_SIDE:
        scale += 1
        size = _pooled(shape, shown, scale)
    while size.plane > most and max(size.height, size.width) > 1:
        scale *= 2
        size = _pooled(shape, shown, scale)
    return size if size.size <= most else replace(size, channels=most // size.plane)


def share_out(sizes: Sequence[int], total: int) -> int:
    """The most bytes that each may have so that all together stay within `total`; what some do not need others get."""
    left, waiting = total, sorted(sizes)
    while waiting and waiting[0] <= left // len(waiting):
        left -= waiting.pop(0)
    return left // len(waiting) if waiting else max(sizes, default=0)


def pool(sides: Sequence[Array], scale: int) -> list[Array]:
    """One element of every `scale x scale` block of channels x height x width, the same on all sides: the one that is
    largest by size on any side, NaN and infinity before all.
    """
    if scale == 1:
        return list(sides)
    blocks = [_blocks(side, scale) for side in sides]
    sizes = np.stack([np.abs(block.astype(np.float64)) for block in blocks]).max(axis=0)
    chosen = sizes.argmax(axis=-1)[..., np.newaxis]
    return [np.take_along_axis(block, chosen, axis=-1)[..., 0] for block in blocks]


def encode(values: Array, low: float, high: float) -> Array:
    """Codes of values that lie in [low, high] where they are finite."""
    wide = values.astype(np.float64)
    finite = np.isfinite(wide)
    # Halves, for the difference of two large numbers may be infinite.
    span = high / 2 - low / 2
    share = (np.where(finite, wide, low) / 2 - low / 2) / span if span else np.zeros(wide.shape)
    codes = np.rint(share * LARGEST_CODE).astype("<u2")
    codes[np.isnan(wide)] = NAN
    codes[np.isposinf(wide)] = PLUS_INF
    codes[np.isneginf(wide)] = MINUS_INF
    return codes


def finite_bounds(sides: Sequence[Array]) -> tuple[float, float]:
    """Smallest and largest finite value; 0 and 0 when there is none."""
    found = [side[np.isfinite(side)].astype(np.float64) for side in sides]
    lows = [float(values.min()) for values in found if values.size]
    highs = [float(values.max()) for values in found if values.size]
    return (min(lows), max(highs)) if lows else (0.0, 0.0)


def _pooled(shape: PlaneShape, channels: int, scale: int) -> MapSize:
    return MapSize(channels, -(-shape[1] // scale), -(-shape[2] // scale), scale)


def _blocks(side: Array, scale: int) -> Array:
    """channels x rows x columns x (elements of a block); blocks at the edges repeat their last elements."""
    channels, height, width = side.shape
    rows, columns = min(scale, height), min(scale, width)
    padded = np.pad(side, ((0, 0), (0, -height % rows), (0, -width % columns)), mode="edge")
    cut = padded.reshape(channels, padded.shape[1] // rows, rows, padded.shape[2] // columns, columns)
    return cut.transpose(0, 1, 3, 2, 4).reshape(channels, cut.shape[1], cut.shape[3], rows * columns)
