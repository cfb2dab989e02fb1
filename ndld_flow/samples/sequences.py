"""Sequences of steps: a model whose outputs at one step are inputs of the next, and the values of its other inputs.

An input with `from:` is a state, or the tokens that a decoder chose. It has a value of its own at the first step of a
sequence only; whatever runs the model computes the others. A file with several items (windows of audio, frames, rows)
is one sequence, one item a step; files of one item each are the steps of one sequence. Each item of a file of first
values starts a sequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from typing import TypeVar

import numpy as np

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name
from ndld_flow.inputs import InputSpec
from ndld_flow.models.tensors import TensorSpec
from ndld_flow.samples.feedback import Feedback, find_feedback
from ndld_flow.samples.feeds import complete_feeds, note_assumed
from ndld_flow.samples.file_samples import open_input
from ndld_flow.samples.generated_values import counts_positions
from ndld_flow.samples.sample_feeds import Sample, UserSamples, choose_inputs, describe_origins, name_seen
from ndld_flow.samples.sample_settings import JudgedSettings, SampleSettings
from ndld_flow.samples.wanted_inputs import Feed, FileSamples, WantedInput
from ndld_flow.store.found_files import find_files

STEPS_UNKNOWN = "the number of steps is unknown: give `steps:`, or files in `data:` whose items are the steps"
_ALL = 2**62


@dataclass(frozen=True)
class Item:
    """One sequence of the data."""

    label: str
    steps: int | None
    """None if nothing in the data limits it."""


Read = Mapping[str, Feed]


class _InputSequences:
    """The sequences in the files of one input."""

    def __init__(self, wanted: WantedInput, *, is_fed: bool) -> None:
        files = open_input(wanted)
        counts = [file.count(_ALL) for file in files]
        self.labels = [file.label for file in find_files(wanted.given.data_patterns)]
        self.counts = counts
        """Number of steps of each sequence; 1 for values that do not change."""
        self._groups: list[tuple[list[FileSamples], int]] = [([file], 0) for file in files]
        """The files of each sequence, and the item at which it begins."""
        if is_fed:
            starts = [(file, item) for file, count in zip(files, counts, strict=True) for item in range(count)]
            self._groups = [([file], item) for file, item in starts]
            numbered = zip(self.labels, counts, strict=True)
            self.labels = [f"{label} {item + 1}" if n > 1 else label for label, n in numbered for item in range(n)]
            self.counts = [1] * len(starts)
        elif len(files) > 1 and max(counts) == 1:
            self._groups, self.counts = [(files, 0)], [len(files)]

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def has_steps(self) -> bool:
        return max(self.counts) > 1

    def read(self, sequence: int) -> Iterator[Feed]:
        """Yield the value at each step; endless for a value that does not change."""
        files, start = _at(self._groups, sequence)
        stream = islice((feed for file in files for _, feed in file.feeds()), start, None)
        return stream if self.has_steps else repeat(next(stream))


class _FileSequences:
    """Sequences in files."""

    def __init__(self, wanted: Sequence[WantedInput], feedback: Feedback) -> None:
        self._inputs = {
            each.name: _InputSequences(each, is_fed=each.name in feedback)
            for each in wanted
            if each.given.data_patterns
        }
        self._stepping = [sequences for sequences in self._inputs.values() if sequences.has_steps]
        numbers = {name: len(sequences) for name, sequences in self._inputs.items() if len(sequences) > 1}
        if len(set(numbers.values())) > 1:
            counted = ", ".join(f'"{short_name(name)}" has {number}' for name, number in numbers.items())
            raise RequestError(f"sequences: input {counted}. Give the same number of files to each, or one file.")
        self._number = max(numbers.values(), default=1)

    def items(self) -> list[Item]:
        """Return the sequences; a single one without a limit if nothing is read."""
        items = []
        named = self._stepping or [sequences for sequences in self._inputs.values() if len(sequences) > 1]
        for index in range(self._number):
            counts = [_at(sequences.counts, index) for sequences in self._stepping]
            labels = [_at(sequences.labels, index) for sequences in named]
            label = ", ".join(dict.fromkeys(labels)) if labels else "the sequence"
            items.append(Item(label, min(counts, default=None)))
        return items

    def steps_of(self, sequence: int) -> Iterator[Read]:
        """Yield the values of each step of a sequence; endless if nothing limits it."""
        streams = {name: sequences.read(sequence) for name, sequences in self._inputs.items()}
        while True:
            read = {name: next(stream, None) for name, stream in streams.items()}
            if any(feed is None for feed in read.values()):
                return
            yield {name: feed for name, feed in read.items() if feed is not None}


class _LoadedSequence:
    """The sequence that a user's function yields, step by step."""

    def __init__(self, samples: UserSamples) -> None:
        self._samples = samples

    def items(self) -> list[Item]:
        return [Item("the loader's sequence", len(self._samples))]

    def steps_of(self, sequence: int) -> Iterator[Read]:
        del sequence
        return (read for _, read in self._samples.feeds())


def _at_step(wanted: WantedInput, step: int) -> WantedInput:
    """Return an input with the shape that it has at a step, counted from 0."""
    given = wanted.given
    if given.first_shape is None and given.grow is None:
        is_prompt = step == 0 and given.apply is not None and bool(given.data_patterns)
        return replace(wanted, pattern=wanted.spec.shape) if is_prompt else wanted
    if given.grow is None:
        shape = given.first_shape if step == 0 else given.run_shape
    else:
        sizes = zip(given.first_shape or given.run_shape or (), given.grow, strict=True)
        shape = tuple(size + step * more for size, more in sizes)
    return replace(wanted, pattern=shape if shape is not None else wanted.pattern)


T = TypeVar("T")


def _at(values: Sequence[T], index: int) -> T:
    """Return the value of a sequence; a single value is that of all."""
    return values[index] if len(values) > 1 else values[0]


class Sequences:
    """Sequences of steps in their order, read again in each iteration: only one step is in memory.

    A step is a sample with values for all inputs that are no states, and at the first step of a sequence for all. Its
    label is `step 12`, or `speech.wav, step 12` if there are several sequences.

    Iterating raises `RequestError` for values that do not fit.
    """

    def __init__(
        self,
        wanted: Sequence[WantedInput],
        source: _FileSequences | _LoadedSequence,
        settings: SampleSettings,
        feedback: Feedback,
    ) -> None:
        self._wanted, self._source, self._settings, self.feedback = wanted, source, settings, feedback
        self._counting = [each.name for each in wanted if counts_positions(each)]
        labels = [item.label for item in source.items()]
        self._places = [index for index in settings.choose(len(labels)) if index < len(labels)]
        seen = settings.seen_places(len(labels)) if isinstance(settings, JudgedSettings) else {}
        self.seen = name_seen(seen, self._places, labels.__getitem__)
        """The sequences that other steps were fitted to."""
        self._items, notes = self._find_items()
        first = next(iter(self)).feeds
        self.described = describe_origins(first)
        """The origin of the values of the first step, a line for each input."""
        self.notes = (*note_assumed(first), *notes)
        """Caveats: reasons why results on the sequences are less reliable than they seem."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return the number of steps of each sequence."""
        return tuple(item.steps or 0 for item in self._items)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the label of each sequence."""
        return tuple(item.label for item in self._items)

    def __len__(self) -> int:
        """Return the number of steps of all sequences."""
        return sum(self.lengths)

    def __iter__(self) -> Iterator[Sample]:
        number = 0
        for index, item in zip(self._places, self._items, strict=True):
            prefix = f"{item.label}, " if len(self._items) > 1 else ""
            reading, counted = self._source.steps_of(index), Counter[str]()
            for step in range(item.steps or 0):
                read = next(reading, None)
                if read is None:
                    raise RequestError(f"{item.label} has only {step} of {item.steps} steps: it changed meanwhile.")
                if step:
                    read = {name: feed for name, feed in read.items() if name not in self.feedback}
                wanted = [_at_step(each, step) for each in self._wanted]
                feeds = complete_feeds(wanted, read, self._settings.seed + number)
                for name in (name for name in self._counting if not feeds[name].is_from_file):
                    values = feeds[name].values
                    feeds[name] = replace(feeds[name], values=values + np.asarray(counted[name], values.dtype))
                    counted[name] += values.shape[-1]
                if step:
                    feeds = {name: feed for name, feed in feeds.items() if name not in self.feedback}
                yield Sample(f"{prefix}step {step + 1}", feeds)
                number += 1

    def _find_items(self) -> tuple[list[Item], list[str]]:
        asked = self._settings.steps
        every = self._source.items()
        held = [every[index] for index in self._places]
        longest = max((item.steps for item in held if item.steps is not None), default=None)
        if asked is None and longest is None:
            raise RequestError(STEPS_UNKNOWN)
        if asked is not None and longest is not None and asked > longest:
            raise RequestError(f"steps: {asked:,} are requested, and the data has {longest:,}.")
        numbers = [min(number for number in (asked, item.steps) if number is not None) for item in held]
        for item, number in zip(held, numbers, strict=True):
            if number < 2:
                raise RequestError(f"{item.label} has {number} step, so that no state is fed back: 2 are needed.")
        notes = []
        if asked is not None and longest is not None and asked < longest:
            notes.append(f"{asked:,} of the {longest:,} steps of the data ran: later ones are not seen")
        return [Item(item.label, number) for item, number in zip(held, numbers, strict=True)], notes


def make_sequences(
    specs: Sequence[TensorSpec], given: Mapping[str, InputSpec], settings: SampleSettings, model: str
) -> Sequences:
    """Return the sequences of the recipe's `inputs:` and a step's settings, for a model with these inputs.

    The first step is read at once, files are checked by their headers. Raises `RequestError` naming the input and the
    file, the found and the expected values.
    """
    inputs, feedback = choose_inputs(specs, given, settings, model), find_feedback(given)
    source: _FileSequences | _LoadedSequence
    if settings.loader is not None:
        source = _LoadedSequence(UserSamples(settings.loader, inputs, model, settings.steps))
    else:
        source = _FileSequences([_at_step(each, 0) for each in inputs], feedback)
    return Sequences(inputs, source, settings, feedback)
