"""The samples that a step runs a model on, read one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name
from ndld_flow.inputs import InputSpec
from ndld_flow.models.tensors import Array, TensorSpec
from ndld_flow.records.measurement import DISTORTED
from ndld_flow.samples.feeds import complete_feeds, note_assumed
from ndld_flow.samples.file_samples import InputFiles, open_files
from ndld_flow.samples.sample_settings import JudgedSettings, SampleSettings
from ndld_flow.samples.user_samples import UserSamples
from ndld_flow.samples.wanted_inputs import Feed, WantedInput, check_names, want_inputs


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
    """The values of samples, or of the first ones, read again in each iteration."""

    def __init__(self, samples: Samples, most: int | None = None) -> None:
        self._samples = samples
        self._count = len(samples) if most is None else min(len(samples), most)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return (sample.arrays for sample in islice(self._samples, self._count))

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
