"""Tensors inside a model, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from ndld_flow.accuracy.inside.inside import open_inside
from ndld_flow.accuracy.inside.tensor_places import TensorPlace, in_parts, tensor_bytes, tensors_of
from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings

__all__ = ["BUDGET_BYTES", "TensorPlace", "capture", "capture_part", "chosen_places", "tensors_of"]

BUDGET_BYTES = 2**29
"""Of captured arrays held at once: what is more takes more runs."""

Feeds = Mapping[str, Array]


def capture(
    path: Path,
    tensors: Sequence[str],
    samples: Iterable[Feeds],
    settings: SessionSettings,
    scratch: Path,
    budget: int = BUDGET_BYTES,
) -> Iterator[dict[str, Array]]:
    """Run a model on every sample and give the values of these tensors, one dict a sample.

    Where a sample's are more bytes than `budget`, the model is run several times over all samples, and the arrays are
    mapped from files in `scratch`, which go when the next sample is asked for. Tensors in bodies, and what is no
    tensor, are left out. External data is read by ONNX Runtime from where it lies. Raises `RequestError` for a name
    that no node of the model makes, `ModelError` and `BackendError` as `open_model`.
    """
    places = chosen_places(path, tensors)
    return _captured(path, places, samples, replace(settings, memory_reuse=False), scratch, budget)


def chosen_places(path: Path, tensors: Sequence[str] | None) -> tuple[TensorPlace, ...]:
    """The tensors of these names (None: all but constants) that can be captured, in the order of execution.

    Raises `RequestError` for a name that no node of the model makes.
    """
    places = tensors_of(path)
    known = {place.name for place in places}
    for name in tensors or ():
        if name not in known:
            raise RequestError(f'no node of {path} makes a tensor "{name}"; {suggest(name, known)}')
    wanted = {place.name for place in places if place.op_type != "Constant"} if tensors is None else set(tensors)
    return tuple(place for place in places if place.name in wanted and place.can_be_captured)


def capture_part(
    path: Path,
    tensors: Sequence[str],
    samples: Iterable[Feeds],
    settings: SessionSettings,
    changed: bytes | None = None,
) -> Iterator[dict[str, Array]]:
    """The values of these tensors, all held at once, one dict a sample; what turns out to be no tensor is left out.

    `changed` is run instead of the file, as by `open_model`.
    """
    model = open_inside(path, tensors, replace(settings, memory_reuse=False), changed)
    for feeds in samples:
        bound = model.bind(feeds)
        bound.once()
        yield {name: array for name, array in bound.outputs().items() if array is not None}


def _captured(
    path: Path,
    places: Sequence[TensorPlace],
    samples: Iterable[Feeds],
    settings: SessionSettings,
    scratch: Path,
    budget: int,
) -> Iterator[dict[str, Array]]:
    waiting = iter(samples)
    first = next(waiting, None)
    if first is None or not places:
        yield from ({} for _ in chain(() if first is None else (first,), waiting))
        return
    parts = in_parts(tensor_bytes(path, places, first, settings), budget)
    if len(parts) == 1:
        yield from capture_part(path, parts[0], chain([first], waiting), settings)
        return
    held = [first, *waiting]
    stored: list[dict[str, _Stored]] = [{} for _ in held]
    for number, part in enumerate(parts):
        for sample, arrays in enumerate(capture_part(path, part, held, settings)):
            for index, (name, array) in enumerate(arrays.items()):
                stored[sample][name] = _Stored(array, scratch / f"captured-{sample}-{number}-{index}")
    for tensors in stored:
        yield {name: one.mapped() for name, one in tensors.items()}
        for one in tensors.values():
            one.path.unlink(missing_ok=True)


class _Stored:
    """An array in a file; those of no elements, and of text, stay in memory."""

    def __init__(self, array: Array, path: Path) -> None:
        self.path, self._shape, self._dtype = path, array.shape, array.dtype
        self._held = array if not array.size or array.dtype.kind == "O" else None
        if self._held is None:
            array.tofile(path)

    def mapped(self) -> Array:
        if self._held is not None:
            return self._held
        return np.memmap(self.path, self._dtype, "r", shape=self._shape)
