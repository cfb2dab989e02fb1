"""Sequences of steps: a model whose outputs at one step are inputs of the next, and the values of its other inputs.

An input with `from:` is a state. It has a value of its own at the first step of a sequence only; whatever runs the
model computes the others. A file with several items (windows of audio, frames, rows) is one sequence, one item a step;
files of one item each are the steps of one sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Protocol, TypeVar

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name, suggest
from ndld_flow.inputs import InputSpec
from ndld_flow.models.tensors import TensorSpec, shape_text
from ndld_flow.samples.feeds import complete_feeds, note_assumed
from ndld_flow.samples.file_samples import FileSamples, open_input
from ndld_flow.samples.sample_feeds import Sample, choose_inputs, describe_origins
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.samples.user_samples import UserSamples
from ndld_flow.samples.wanted_inputs import Feed, WantedInput
from ndld_flow.store.found_files import find_files

Feedback = Mapping[str, str]
"""Input -> the output whose value it has at the next step."""
STEPS_UNKNOWN = "the number of steps is unknown: give `steps:`, or files in `data:` whose items are the steps"
_ALL = 2**62


def find_feedback(given: Mapping[str, InputSpec]) -> dict[str, str]:
    """Return the inputs with `from:`; empty if a recipe has no sequences."""
    return {name: spec.fed_from for name, spec in given.items() if spec.fed_from is not None}


def check_feedback(
    feedback: Feedback, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], model: str
) -> Iterator[tuple[str, str, str]]:
    """Yield input, mistake and hint for each output that a model does not have, and each that its input cannot take.

    Dimensions that are not known agree with all.
    """
    known, states = {spec.name: spec for spec in outputs}, {spec.name: spec for spec in inputs}
    for name, output in feedback.items():
        if output not in known:
            is_input = " (it is an input)" if output in states else ""
            yield name, f'"{output}" is not an output of {model}{is_input}', suggest(output, list(known))
        elif name in states and (why := _disagreement(states[name], known[output])):
            yield name, f'output "{output}" of {model} is {why}', ""


def _disagreement(state: TensorSpec, output: TensorSpec) -> str:
    if state.dtype != output.dtype:
        return f"{output.dtype}, and the input {state.dtype}"
    if state.shape is None or output.shape is None:
        return ""
    sizes = zip(state.shape, output.shape, strict=False)
    same = all(mine == theirs for mine, theirs in sizes if isinstance(mine, int) and isinstance(theirs, int))
    if same and len(state.shape) == len(output.shape):
        return ""
    return f"{shape_text(output.shape)}, and the input {shape_text(state.shape)}"


@dataclass(frozen=True)
class Item:
    """One sequence of the data."""

    label: str
    steps: int | None
    """None if nothing in the data limits it."""


Read = Mapping[str, Feed]


class Source(Protocol):
    """The values of sequences that are read, not generated."""

    def items(self) -> list[Item]:
        """Return the sequences; a single one without a limit if nothing is read."""

    def steps_of(self, sequence: int) -> Iterator[Read]:
        """Yield the values of each step of a sequence; endless if nothing limits it."""


class _FileSequences:
    """Sequences in files."""

    def __init__(self, wanted: Sequence[WantedInput], feedback: Feedback) -> None:
        self._groups: dict[str, list[list[FileSamples]]] = {}
        """Input -> its sequences, each the files whose items are its steps."""
        self._counts: dict[str, list[int]] = {}
        self._labels: dict[str, list[str]] = {}
        for each in wanted:
            if each.given.data_patterns:
                files = open_input(each)
                counts = [file.count(_ALL) for file in files]
                in_order = len(files) > 1 and max(counts) == 1 and each.name not in feedback
                self._groups[each.name] = [files] if in_order else [[file] for file in files]
                self._counts[each.name] = [len(files)] if in_order else counts
                self._labels[each.name] = [file.label for file in find_files(each.given.data_patterns)]
        self._stepping = [name for name, counts in self._counts.items() if max(counts) > 1 and name not in feedback]
        numbers = {name: len(groups) for name, groups in self._groups.items() if len(groups) > 1}
        if len(set(numbers.values())) > 1:
            counted = ", ".join(f'"{short_name(name)}" has {number}' for name, number in numbers.items())
            raise RequestError(f"sequences: input {counted}. Give the same number of files to each, or one file.")
        self._number = max(numbers.values(), default=1)

    def items(self) -> list[Item]:
        items = []
        for place in range(self._number):
            counts = [_at(self._counts[name], place) for name in self._stepping]
            labels = [_at(self._labels[name], place) for name in self._stepping]
            label = ", ".join(dict.fromkeys(labels)) if labels else "the sequence"
            items.append(Item(label, min(counts, default=None)))
        return items

    def steps_of(self, sequence: int) -> Iterator[Read]:
        streams = {name: self._stream(name, _at(groups, sequence)) for name, groups in self._groups.items()}
        while True:
            read = {name: next(stream, None) for name, stream in streams.items()}
            if any(feed is None for feed in read.values()):
                return
            yield {name: feed for name, feed in read.items() if feed is not None}

    def _stream(self, name: str, files: Sequence[FileSamples]) -> Iterator[Feed]:
        stream = (feed for file in files for _, feed in file.feeds())
        return stream if name in self._stepping else repeat(next(stream))


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
        return wanted
    if given.grow is None:
        shape = given.first_shape if step == 0 else given.run_shape
    else:
        sizes = zip(given.first_shape or given.run_shape or (), given.grow, strict=True)
        shape = tuple(size + step * more for size, more in sizes)
    return replace(wanted, pattern=shape if shape is not None else wanted.pattern)


T = TypeVar("T")


def _at(values: Sequence[T], place: int) -> T:
    """Return the value of a sequence; a single value is that of all."""
    return values[place] if len(values) > 1 else values[0]


class Sequences:
    """Sequences of steps in their order, read again in each iteration: only one step is in memory.

    A step is a sample with values for all inputs that are no states, and at the first step of a sequence for all. Its
    label is `step 12`, or `speech.wav, step 12` if there are several sequences.

    Iterating raises `RequestError` for values that do not fit.
    """

    def __init__(
        self,
        wanted: Sequence[WantedInput],
        source: Source,
        settings: SampleSettings,
        feedback: Feedback,
    ) -> None:
        self._wanted, self._source, self._settings, self.feedback = wanted, source, settings, feedback
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
        for place, item in enumerate(self._items):
            prefix = f"{item.label}, " if len(self._items) > 1 else ""
            reading = self._source.steps_of(place)
            for step in range(item.steps or 0):
                read = next(reading, None)
                if read is None:
                    raise RequestError(f"{item.label} has only {step} of {item.steps} steps: it changed meanwhile.")
                wanted = [_at_step(each, step) for each in self._wanted]
                feeds = complete_feeds(wanted, read, self._settings.seed + number)
                if step:
                    feeds = {name: feed for name, feed in feeds.items() if name not in self.feedback}
                yield Sample(f"{prefix}step {step + 1}", feeds)
                number += 1

    def _find_items(self) -> tuple[list[Item], list[str]]:
        asked = self._settings.steps
        held = self._source.items()[: self._settings.samples]
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
    source: Source
    if settings.loader is not None:
        source = _LoadedSequence(UserSamples(settings.loader, inputs, model, settings.steps))
    else:
        source = _FileSequences(inputs, feedback)
    return Sequences(inputs, source, settings, feedback)
