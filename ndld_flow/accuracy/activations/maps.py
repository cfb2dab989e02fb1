"""Maps of captured tensors as files of 16-bit codes, and their full values if requested.

Files are numbered because tensor names may not be valid file names. See `records.activations.ActivationMap`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ndld_flow.accuracy.activations.tensor_meter import TensorMeter, plane_shape, planes
from ndld_flow.models.tensors import Array
from ndld_flow.records.activations import ActivationMap

LARGEST_CODE = 65532
NAN, PLUS_INF, MINUS_INF = 65535, 65534, 65533
PlaneShape = tuple[int, int, int]
"""Channels x height x width."""
BYTES = 2
"""Bytes of a code."""
_SMALL_SIDE = 64
"""Maps are not pooled below this height and width before channels are dropped."""


@dataclass(frozen=True)
class MapSize:
    """The part of a tensor's planes that a map shows."""

    channels: int
    height: int
    width: int
    scale: int

    @property
    def plane(self) -> int:
        """Return the bytes of the codes of one channel."""
        return self.height * self.width * BYTES

    @property
    def size(self) -> int:
        """Return the bytes of all its codes."""
        return self.channels * self.plane


def fit(shape: PlaneShape, channels: int, side: int, most: int) -> MapSize:
    """Return the largest map of planes of this shape within limits of channels, of elements in height and width, and of
    bytes.

    Planes are pooled until the map fits, but below 64 elements per side only if not even one channel fits.
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
    """Return the maximum number of bytes for each so that all together stay within `total`; unused shares go to the
    others.
    """
    left, waiting = total, sorted(sizes)
    while waiting and waiting[0] <= left // len(waiting):
        left -= waiting.pop(0)
    return left // len(waiting) if waiting else max(sizes, default=0)


def pool(sides: Sequence[Array], scale: int) -> list[Array]:
    """Pool every `scale x scale` block of channels x height x width to one element, the same in all arrays.

    That is the element of largest absolute value in any array; NaN and infinity take precedence.
    """
    if scale == 1:
        return list(sides)
    blocks = [_blocks(side, scale) for side in sides]
    sizes = np.stack([np.abs(block.astype(np.float64)) for block in blocks]).max(axis=0)
    chosen = sizes.argmax(axis=-1)[..., np.newaxis]
    return [np.take_along_axis(block, chosen, axis=-1)[..., 0] for block in blocks]


def encode(values: Array, low: float, high: float) -> Array:
    """Encode values within [low, high], or not finite, as 16-bit codes."""
    wide = values.astype(np.float64)
    finite = np.isfinite(wide)
    # Halves, because the difference of two large numbers may overflow.
    span = high / 2 - low / 2
    share = (np.where(finite, wide, low) / 2 - low / 2) / span if span else np.zeros(wide.shape)
    codes = np.rint(share * LARGEST_CODE).astype("<u2")
    codes[np.isnan(wide)] = NAN
    codes[np.isposinf(wide)] = PLUS_INF
    codes[np.isneginf(wide)] = MINUS_INF
    return codes


def finite_bounds(sides: Sequence[Array]) -> tuple[float, float]:
    """Return the smallest and largest finite value; (0, 0) when there is none."""
    finite = [side[np.isfinite(side)].astype(np.float64) for side in sides]
    lows = [float(values.min()) for values in finite if values.size]
    highs = [float(values.max()) for values in finite if values.size]
    return (min(lows), max(highs)) if lows else (0.0, 0.0)


def _pooled(shape: PlaneShape, channels: int, scale: int) -> MapSize:
    return MapSize(channels, -(-shape[1] // scale), -(-shape[2] // scale), scale)


def _blocks(side: Array, scale: int) -> Array:
    """Return [channels, rows, columns, elements of a block]; blocks at the edges repeat their last elements."""
    channels, height, width = side.shape
    rows, columns = min(scale, height), min(scale, width)
    padded = np.pad(side, ((0, 0), (0, -height % rows), (0, -width % columns)), mode="edge")
    cut = padded.reshape(channels, padded.shape[1] // rows, rows, padded.shape[2] // columns, columns)
    return cut.transpose(0, 1, 3, 2, 4).reshape(channels, cut.shape[1], cut.shape[3], rows * columns)


Sides = Mapping[str, Array]
"""`candidate`, and `reference` if there is one -> values."""


@dataclass(frozen=True)
class MapLimits:
    """Limits of the maps of tensors."""

    samples: int
    """Number of samples shown, from the first."""
    channels: int
    """Maximum number of channels of a tensor."""
    side: int
    """Largest height and width of a map."""
    total: int
    """Bytes of all maps together."""
    arrays: bool
    """Also write all values."""


class MapFiles:
    """The maps of one document.

    Samples get equal shares of all bytes, and tensors equal shares of a sample's.
    """

    def __init__(self, out: Path, limits: MapLimits, samples: int) -> None:
        self._out, self._limits = out, limits
        self._left, self._samples_left = limits.total, samples
        for folder in ("maps", *(("arrays",) if limits.arrays else ())):
            (out / folder).mkdir()

    def write(self, sample: int, captured: Sequence[tuple[TensorMeter, Sides]]) -> None:
        """Write the maps of one sample and add them to each meter."""
        shapes = [plane_shape(sides["candidate"].shape, meter.layout) for meter, sides in captured]
        limits = self._limits
        whole = [fit(shape, limits.channels, limits.side, 2**63).size for shape in shapes]
        sizes = [size for size, (_, sides) in zip(whole, captured, strict=True) for _ in sides]
        most = share_out(sizes, self._left // self._samples_left)
        self._samples_left -= 1
        for number, (shape, (meter, sides)) in enumerate(zip(shapes, captured, strict=True)):
            size = fit(shape, limits.channels, limits.side, most)
            self._left -= size.size * len(sides)
            meter.maps += self._written(f"{number:04}-{sample}", sample, meter, sides, size)

    def _written(
        self, name: str, sample: int, meter: TensorMeter, sides: Sides, size: MapSize
    ) -> Iterator[ActivationMap]:
        """Write the maps of both models, pooled, selected and encoded in the same way."""
        whole = {side: planes(values, meter.layout) for side, values in sides.items()}
        total, height, width = plane_shape(sides["candidate"].shape, meter.layout)
        ranked = meter.ranked if len(meter.ranked) == total else tuple(range(total))
        chosen = sorted(ranked[: size.channels])
        shown = pool([values[chosen] for values in whole.values()], size.scale)
        low, high = finite_bounds(shown)
        for side, values in zip(whole, shown, strict=True):
            file, array_file = f"maps/{name}-{side}.u16", f"arrays/{name}-{side}.npy" if self._limits.arrays else ""
            (self._out / file).write_bytes(encode(values, low, high).tobytes())
            if array_file:
                np.save(self._out / array_file, sides[side], allow_pickle=False)
            yield ActivationMap(
                sample=sample,
                side=side,
                file=file,
                array_file=array_file,
                channels=len(chosen),
                height=size.height,
                width=size.width,
                total_channels=total,
                channel_numbers=tuple(chosen) if len(chosen) < total else (),
                full_height=height,
                full_width=width,
                scale=size.scale,
                low=low,
                high=high,
            )
