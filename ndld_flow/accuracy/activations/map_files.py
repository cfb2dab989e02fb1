"""Writes the maps of captured tensors, and all of their values where they are asked for. Files have numbers for names:
tensors' names are anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ndld_flow.accuracy.activations.layouts import plane_shape, planes
from ndld_flow.accuracy.activations.map_codes import MapSize, encode, finite_bounds, fit, pool, share_out
from ndld_flow.accuracy.activations.tensor_meter import TensorMeter
from ndld_flow.models.tensors import Array
from ndld_flow.records.activations import ActivationMap

Sides = Mapping[str, Array]
"""`candidate`, and `reference` where there is one -> values."""


@dataclass(frozen=True)
class MapLimits:
    """How much of tensors is shown."""

    samples: int
    """The first so many."""
    channels: int
    """Of a tensor, at most."""
    side: int
    """Height and width of a map, at most."""
    total: int
    """Bytes of all maps together."""
    arrays: bool
    """Also write all values."""


class MapFiles:
    """The maps of one document. Samples have equal parts of all bytes, and tensors fair parts of a sample's."""

    def __init__(self, out: Path, limits: MapLimits, samples: int) -> None:
        self._out, self._limits = out, limits
        self._left, self._samples_left = limits.total, samples
        for folder in ("maps", *(("arrays",) if limits.arrays else ())):
            (out / folder).mkdir()

    def write(self, sample: int, captured: Sequence[tuple[TensorMeter, Sides]]) -> None:
        """Write the maps of one sample, and tell every meter of its own."""
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
        """Both sides' maps are pooled, chosen and coded alike."""
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
