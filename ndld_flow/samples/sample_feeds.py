"""The samples that a step runs a model on, read one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from blake3 import blake3

from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.base.text import short_name, visible_name
from ndld_flow.base.user_code import load_user_module, locating_errors
from ndld_flow.inputs import InputSpec
from ndld_flow.models.tensors import Array, TensorSpec, dtype_text
from ndld_flow.records.measurement import DISTORTED
from ndld_flow.samples.feeds import complete_feeds, note_assumed
from ndld_flow.samples.file_samples import InputFiles, open_files
from ndld_flow.samples.sample_settings import JudgedSettings, SampleSettings
from ndld_flow.samples.value_files import cast_to_model
from ndld_flow.samples.wanted_inputs import Feed, WantedInput, check_names, want_inputs

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
            raise UnknownNameError(f"{path}: it has no function {FUNCTION!r}", FUNCTION, known)
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
                raise RequestError(f"{self._path}: {FUNCTION}() ended after {index} of {self._count} samples.")
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


@dataclass(frozen=True)
class Sample:
    """Values for every input of a model."""

    label: str
    """`receipt.png`, `clip.mp4 frame 12`, `random, seed 3`."""
    feeds: dict[str, Feed]

    @property
    def arrays(self) -> dict[str, Array]:
        """Return the values alone, by input."""
        return {name: feed.values for name, feed in self.feeds.items()}


class SampleArrays(Collection[dict[str, Array]]):
    """The values of samples, or of the first ones, read again in each iteration.

    An iteration ends after the first sample, or a later one, once `time_is_up`.
    """

    def __init__(
        self, samples: Samples, most: int | None = None, time_is_up: Callable[[], bool] = lambda: False
    ) -> None:
        self._samples, self._time_is_up = samples, time_is_up
        self._count = len(samples) if most is None else min(len(samples), most)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, Array]]:
        for index, sample in enumerate(islice(self._samples, self._count)):
            if index and self._time_is_up():
                return
            yield sample.arrays

    def __contains__(self, arrays: object) -> bool:
        return any(arrays is sample for sample in self)


MOST_LABELS = 1000
_OTHER_SEED = 1000


class SeenSamples(NamedTuple):
    """The samples of some data that steps were fitted to."""

    labels: Mapping[str, tuple[str, ...]]
    """Step -> the first of its samples."""
    are_judged: bool
    """They are judged too, because there are no others."""


def name_seen(
    seen: Mapping[str, Sequence[int]], judged: Sequence[int], label_of: Callable[[int], str]
) -> SeenSamples | None:
    """Return the samples at these places, by the steps that were fitted to them; None if none were."""
    labels = {step: tuple(map(label_of, places[:MOST_LABELS])) for step, places in seen.items()}
    are_judged = any(not set(judged).isdisjoint(places) for places in seen.values())
    return SeenSamples(labels, are_judged) if seen else None


class Samples:
    """Samples in their order, read again in each iteration: only one is in memory.

    Iterating raises `RequestError` for a sample that does not fit.
    """

    def __init__(
        self,
        wanted: Sequence[WantedInput],
        source: InputFiles | UserSamples,
        places: Sequence[int],
        seed: int,
        seen: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Create the samples at these places of the data; `seen` has the places of those that others were fitted to."""
        self._source, self._places = source, places
        self.wanted, self.seed = wanted, seed
        self._seen_places: Mapping[str, Sequence[int]] = seen or {}
        self._labels: dict[int, str] = {}
        self.is_generated = isinstance(source, InputFiles) and not source.counts
        """True if no file and no loader gives any value."""
        self._label_seeds = any(each.given.is_random for each in wanted) and max(places) >= source.label_count
        first = next(iter(self)).feeds
        self.described = describe_origins(first)
        """The origin of the values of the first sample, and what happened to a file's, a line for each input."""
        # Caveats on distortion are replaced by the ones that count files.
        counted = {f"input {short_name(name)}: ": note for name, note in source.notes.items()}
        kept = (note for note in note_assumed(first) if DISTORTED not in note or not note.startswith(tuple(counted)))
        self.notes = (*kept, *(f"{start}{note}" for start, note in counted.items()))
        """Caveats: reasons why results on the samples are less reliable than they seem."""

    @property
    def seen(self) -> SeenSamples | None:
        """Return the samples that others were fitted to, with their labels after an iteration; None if none were."""
        return name_seen(self._seen_places, self._places, lambda place: self._labels.get(place, f"sample {place}"))

    @property
    def made_seed(self) -> int:
        """Return the seed of samples made to go with these, unlike those that a step may have been fitted to."""
        return self.seed + (_OTHER_SEED if self._seen_places else 0)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Sample]:
        rounds, chosen = self._source.feeds(), set(self._places)
        last = max(chosen.union(*self._seen_places.values()))
        for i in range(last + 1):
            label, read = next(rounds, (None, {}))
            if label is None:
                raise RequestError(f"only {i} of {last + 1} samples were found: their files changed during the step.")
            seeded = f"random, seed {self.seed + i}" if self._label_seeds else ""
            self._labels[i] = ", ".join(word for word in (label, seeded) if word) or f"sample {i}"
            if i in chosen:
                yield Sample(self._labels[i], complete_feeds(self.wanted, read, self.seed + i))


def first_labels(samples: Iterable[Sample]) -> tuple[str, ...]:
    """Return the labels of the first samples, as many as a record keeps."""
    return tuple(sample.label for sample in islice(samples, MOST_LABELS))


def describe_origins(feeds: Mapping[str, Feed]) -> tuple[str, ...]:
    """Return a line for each input with the origin of its values."""
    return tuple(f"input {short_name(name)}: {feed.description}" for name, feed in feeds.items())


def make_samples(
    specs: Sequence[TensorSpec], given: Mapping[str, InputSpec], wanted: SampleSettings, model: str
) -> Samples:
    """Return the samples of the recipe's `inputs:` and a step's settings, for a model with these inputs.

    The first sample is read at once, others are checked by their files' headers. Raises `RequestError` naming the input
    and the file, the found and the expected values; of several files that do not fit, the first ones.
    """
    inputs = choose_inputs(specs, given, wanted, model)
    source, total = _open_source(inputs, wanted, model)
    seen = wanted.seen_places(total) if isinstance(wanted, JudgedSettings) else None
    return Samples(inputs, source, wanted.choose(total), wanted.seed, seen)


def _open_source(
    inputs: Sequence[WantedInput], wanted: SampleSettings, model: str
) -> tuple[InputFiles | UserSamples, int | None]:
    """Return the data with the number of its samples, counted up to the requested one; None if it has no end."""
    if wanted.loader is not None:
        try:
            loaded = UserSamples(wanted.loader, inputs, model, None if wanted.needs_total else wanted.samples)
        except RequestError:  # its number is unknown
            loaded = UserSamples(wanted.loader, inputs, model, wanted.samples)
        return loaded, len(loaded)
    files = open_files(inputs, wanted.samples, count_all=wanted.needs_total)
    total = max(files.counts.values(), default=1)
    return files, None if total == 1 and any(each.given.is_random for each in inputs) else total


def choose_inputs(
    specs: Sequence[TensorSpec], given: Mapping[str, InputSpec], wanted: SampleSettings, model: str
) -> list[WantedInput]:
    """Return every input with its settings in the recipe, and the data of the step where it has its own.

    Raises `RequestError` for an input that the model does not have, or a shape that does not match the model's.
    """
    check_names(wanted.data, specs, "data", model)
    own = {
        name: given.get(name, InputSpec()).model_copy(update={"data": data, "values": None})
        for name, data in wanted.data.items()
    }
    return want_inputs(specs, {**given, **own}, model)
