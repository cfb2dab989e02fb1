"""Outputs of one model on every sample, kept in files: they may be more than memory holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from ndld_flow.models.tensors import Array
from ndld_flow.samples.generated_values import is_float

Outputs = Mapping[str, Array | None]
"""None for an output that is no tensor."""


class KeptOutputs:
    """Sample after sample, in the order they were kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._samples: list[dict[str, Path | None]] = []

    def keep(self, outputs: Outputs) -> None:
        kept: dict[str, Path | None] = {}
        for number, (name, array) in enumerate(outputs.items()):
            path = self._folder / f"{len(self._samples)}-{number}.npy"
            kept[name] = None if array is None else path
            if array is not None:
                np.save(path, storable(array), allow_pickle=False)
        self._samples.append(kept)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, sample: int) -> dict[str, Array | None]:
        """The outputs of one sample by name; bfloat16 and its like as `storable` makes them."""
        return {name: None if path is None else _load(path) for name, path in self._samples[sample].items()}

    def samples_of(self, name: str) -> Callable[[], Iterator[Array]]:
        """Return a function that yields one output, sample by sample; nothing for an output that is no tensor."""
        return lambda: (array for outputs in self for array in [outputs[name]] if array is not None)

    def __iter__(self) -> Iterator[dict[str, Array | None]]:
        return (self[i] for i in range(len(self)))


def storable(array: Array) -> Array:
    """What a .npy file can hold: strings of one length, and bfloat16 and its like as float32 (which is exact)."""
    if array.dtype.kind == "O":
        return array.astype(str)
    if array.dtype.isbuiltin != 1:
        return array.astype(np.float32 if is_float(array.dtype) else np.int64)
    return array


def _load(path: Path) -> Array:
    loaded: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return loaded
