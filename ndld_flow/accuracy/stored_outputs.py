"""Outputs of one model on every sample, stored in files because they may exceed memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from ndld_flow.models.tensors import Array
from ndld_flow.samples.generated_values import is_float

Outputs = Mapping[str, Array | None]
"""Output name -> array; None for an output that is not a tensor."""


class StoredOutputs:
    """Stored outputs, sample by sample, in the order they were stored."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._samples: list[dict[str, Path | None]] = []

    def add(self, outputs: Outputs) -> None:
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
        """Return the outputs of one sample by name; types unknown to .npy files are converted as by `storable`."""
        return {name: None if path is None else _load(path) for name, path in self._samples[sample].items()}

    def samples_of(self, name: str) -> Callable[[], Iterator[Array]]:
        """Return a function that yields one output, sample by sample; it yields nothing for an output that is not a
        tensor.
        """
        return lambda: (array for outputs in self for array in [outputs[name]] if array is not None)

    def __iter__(self) -> Iterator[dict[str, Array | None]]:
        return (self[i] for i in range(len(self)))


def storable(array: Array) -> Array:
    """Return an array that a .npy file can hold: strings of fixed length, and bfloat16 and the like as float32, which
    is exact.
    """
    if array.dtype.kind == "O":
        return array.astype(str)
    if array.dtype.isbuiltin != 1:
        return array.astype(np.float32 if is_float(array.dtype) else np.int64)
    return array


def _load(path: Path) -> Array:
    loaded: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return loaded
