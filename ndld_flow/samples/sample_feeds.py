"""The samples that a step runs a model on, read one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name
from ndld_flow.inputs import InputSpec
from ndld_flow.models.tensors import TensorSpec
from ndld_flow.records.measurement import DISTORTED
from ndld_flow.samples.feeds import complete_feeds, note_assumed
from ndld_flow.samples.file_samples import InputFiles, open_files
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.samples.user_samples import UserSamples
from ndld_flow.samples.wanted_inputs import Feed, WantedInput, check_names, want_inputs


@dataclass(frozen=True)
class Sample:
    """Values for every input of a model."""

    label: str
    """`receipt.png`, `clip.mp4 frame 12`, `random, seed 3`."""
    feeds: dict[str, Feed]


class Samples:
    """Samples in their order, read again in each iteration: only one is in memory.

    Iterating raises `RequestError` for a sample that does not fit.
    """

    def __init__(self, wanted: Sequence[WantedInput], source: InputFiles | UserSamples, count: int, seed: int) -> None:
        self._source, self._count = source, count
        self.wanted, self.seed = wanted, seed
        self.is_generated = isinstance(source, InputFiles) and not source.counts
        """True if no file and no loader gives any value."""
        self._label_seeds = any(each.given.is_random for each in wanted) and not source.has_distinct_labels(count)
        first = next(iter(self)).feeds
        self.described = describe_origins(first)
        """The origin of the values of the first sample, and what happened to a file's, a line for each input."""
        # Caveats on distortion are replaced by the ones that count files.
        counted = {f"input {short_name(name)}: ": note for name, note in source.notes.items()}
        kept = (note for note in note_assumed(first) if DISTORTED not in note or not note.startswith(tuple(counted)))
        self.notes = (*kept, *(f"{start}{note}" for start, note in counted.items()))
        """Caveats: reasons why results on the samples are less reliable than they seem."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sample]:
        rounds = self._source.feeds()
        for i in range(self._count):
            label, read = next(rounds, (None, {}))
            if label is None:
                raise RequestError(
                    f"only {i} of {self._count} samples were found: their files changed during the step."
                )
            feeds = complete_feeds(self.wanted, read, self.seed + i)
            seeded = f"random, seed {self.seed + i}" if self._label_seeds else ""
            yield Sample(", ".join(word for word in (label, seeded) if word) or f"sample {i}", feeds)


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
    if wanted.loader is not None:
        loaded = UserSamples(wanted.loader, inputs, model, wanted.samples)
        return Samples(inputs, loaded, len(loaded), wanted.seed)
    files = open_files(inputs, wanted.samples)
    count = wanted.samples or max(files.counts.values(), default=1)
    return Samples(inputs, files, count, wanted.seed)


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
