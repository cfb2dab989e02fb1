"""Samples yielded by a function of a user's file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from blake3 import blake3

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name, suggest, visible_name
from ndld_flow.base.user_code import load_user_module, locating_errors
from ndld_flow.models.tensors import dtype_text
from ndld_flow.samples.value_files import cast_to_model
from ndld_flow.samples.wanted_inputs import Feed, WantedInput, check_names

FUNCTION = "samples"
_END = object()


class UserSamples:
    """The samples of `samples()` in a file: mappings, input -> array, or pairs of a label and such a mapping.

    Each iteration calls it again and must get the same samples: two compared models take one iteration each. Raises
    `RequestError` for exceptions of the code, with their line, and for samples that do not fit the model.
    """

    def __init__(self, path: Path, wanted: Sequence[WantedInput], model: str, requested: int | None) -> None:
        self._path, self._wanted, self._model = path, {each.name: each for each in wanted}, model
        module = load_user_module(path)
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        if FUNCTION not in known:
            raise RequestError(f"{path}: it has no function {FUNCTION!r}; {suggest(FUNCTION, known)}")
        self._function: Callable[[], Any] = getattr(module, FUNCTION)
        self._count = requested if requested is not None else self._own_count()
        self._digests: dict[int, str] = {}
        """Sample index -> digest of its values."""

    notes: ClassVar[Mapping[str, str]] = {}
    """No caveats: nothing is converted but dtypes."""

    def __len__(self) -> int:
        return self._count

    @property
    def label_count(self) -> int:
        """Return the number of samples: each has a separate label."""
        return self._count

    def feeds(self) -> Iterator[tuple[str, dict[str, Feed]]]:
        """Yield label and values of each sample, up to the requested number."""
        with locating_errors(self._path):
            items = iter(self._function())
        for index in range(self._count):
            with locating_errors(self._path):
                item = next(items, _END)
            if item is _END:
                raise RequestError(f"{self._path}: {FUNCTION}() ended after {index} samples of {self._count}.")
            yield self._checked(index, item)

    def _own_count(self) -> int:
        with locating_errors(self._path):
            samples = self._function()
        if not hasattr(samples, "__len__"):
            raise RequestError(
                f"{self._path}: the result of {FUNCTION}() has no length and may be endless: give `samples:`."
            )
        if len(samples) == 0:
            raise RequestError(f"{self._path}: {FUNCTION}() yields no samples.")
        return len(samples)

    def _checked(self, place: int, item: object) -> tuple[str, dict[str, Feed]]:
        label, given = f"{visible_name(self._path.name)} sample {place}", item
        if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str):
            label, given = short_name(item[0]), item[1]
        where = f"{self._path}: sample {place}"
        if not isinstance(given, Mapping):
            raise RequestError(
                f"{where} is {type(given).__name__}: yield a mapping, input -> array, "
                "or a pair of a label and such a mapping."
            )
        arrays = {str(name): array for name, array in given.items()}
        check_names(arrays, [wanted.spec for wanted in self._wanted.values()], where, self._model)
        for name, wanted in self._wanted.items():
            if name not in arrays and (wanted.given.data_patterns or wanted.given.is_random):
                raise RequestError(f'{where} has no "{name}": yield it, or give a number as `inputs.{name}.data`.')
        origin = f"{visible_name(str(self._path))} sample {place}"
        feeds = {name: self._feed(self._wanted[name], array, origin) for name, array in arrays.items()}
        self._check_same(place, where, feeds)
        return label, feeds

    def _feed(self, wanted: WantedInput, array: object, origin: str) -> Feed:
        with locating_errors(self._path):
            values = np.array(array)  # a copy: the code may use its buffer again
        how = origin if dtype_text(values.dtype) == dtype_text(wanted.dtype) else f"{origin} cast"
        values = cast_to_model(values, wanted.dtype, wanted.name, origin)
        wanted.check_shape(values.shape, f"{origin} has")
        return Feed(values, f"{how}, {wanted.describe(values)}", is_from_file=True)

    def _check_same(self, place: int, where: str, feeds: Mapping[str, Feed]) -> None:
        hasher = blake3()
        for name in sorted(feeds):
            hasher.update(feeds[name].values.tobytes())
        if self._digests.setdefault(place, hasher.hexdigest()) != hasher.hexdigest():
            raise RequestError(
                f"{where} changed since it was first read: {FUNCTION}() must yield the same samples in each call. "
                "Seed its random numbers."
            )
