"""Writes the maps of captured tensors, and all of their values where they are asked for. Files have numbers for names:
tensors' names are anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ndld_flow.backends.activations.layouts import plane_shape, planes
from ndld_flow.backends.activations.map_codes import PlaneShape, encode, finite_bounds, fit, pool, share_out
from ndld_flow.backends.activations.tensor_meter import TensorMeter
from ndld_flow.backends.models.tensors import Array
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
    """The maps of one document: a fair share of all bytes for each."""

    def __init__(self, out: Path, limits: MapLimits, shapes: Sequence[tuple[PlaneShape, int]]) -> None:
        """`shapes` are the planes of each tensor, as channels x height x width, and how many maps it will have."""
        self._out, self._limits = out, limits
        whole = [fit(shape, limits.channels, limits.side, 2**63).size for shape, maps in shapes for _ in range(maps)]
        self._most = share_out(whole, limits.total)
        for folder in ("maps", *(("arrays",) if limits.arrays else ())):
            (out / folder).mkdir()

    def write(self, meter: TensorMeter, number: int, sample: int, sides: Sides) -> None:
        """Write one tensor's maps for one sample. Both sides' are pooled, chosen and coded alike."""
        whole = {side: planes(values, meter.layout) for side, values in sides.items()}
        shape = plane_shape(sides["candidate"].shape, meter.layout)
        size = fit(shape, self._limits.channels, self._limits.side, self._most)
        ranked = meter.ranked if len(meter.ranked) == shape[0] else tuple(range(shape[0]))
        chosen = sorted(ranked[: size.channels])
        shown = pool([values[chosen] for values in whole.values()], size.scale)
        low, high = finite_bounds(shown)
        for side, values in zip(whole, shown, strict=True):
            name = f"{number:04}-{sample}-{side}"
            (self._out / "maps" / f"{name}.u16").write_bytes(encode(values, low, high).tobytes())
            array_file = f"arrays/{name}.npy" if self._limits.arrays else ""
            if array_file:
                np.save(self._out / array_file, sides[side], allow_pickle=False)
            meter.maps.append(
                ActivationMap(
                    sample=sample,
                    side=side,
                    file=f"maps/{name}.u16",
                    array_file=array_file,
                    channels=len(chosen),
                    height=size.height,
                    width=size.width,
                    total_channels=shape[0],
                    channel_numbers=tuple(chosen) if len(chosen) < shape[0] else (),
                    full_height=shape[1],
                    full_width=shape[2],
                    scale=size.scale,
                    low=low,
                    high=high,
                )
            )
