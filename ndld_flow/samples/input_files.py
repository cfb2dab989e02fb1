"""The samples in the files of a model's inputs, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.samples.file_samples import FileSamples, open_file
from ndld_flow.samples.wanted_inputs import Feed, WantedInput
from ndld_flow.store.found_files import find_files

_PROBLEMS_SHOWN = 3
_ALL = 2**62


@dataclass(frozen=True)
class InputFiles:
    """The files of those inputs that have some."""

    files: Mapping[str, Sequence[FileSamples]]
    counts: Mapping[str, int]
    """Input -> how many samples its files have, as far as they were counted."""

    def tells_apart(self, count: int) -> bool:
        """Whether so many samples have labels of their own."""
        return count <= max(self.counts.values(), default=0)

    def feeds(self) -> Iterator[tuple[str, dict[str, Feed]]]:
        """Label and values of each sample; where no input has several, the same again and again."""
        if not self.files:
            yield from repeat(("", {}))
        streams = [self._stream(name) for name in self.files]
        for read in zip(*streams, strict=False):
            labels = dict.fromkeys(label for label, _ in read)
            yield ", ".join(labels), {name: feed for name, (_, feed) in zip(self.files, read, strict=True)}

    def _stream(self, name: str) -> Iterator[tuple[str, Feed]]:
        stream = chain.from_iterable(file.feeds() for file in self.files[name])
        return repeat(next(stream)) if self.counts[name] == 1 else stream


def open_files(wanted: Sequence[WantedInput], asked: int | None) -> InputFiles:
    """The files of those inputs that have some, checked as far as they say something of themselves.

    Raises `RequestError` when some do not fit, when inputs have different numbers of samples, or when more are asked
    for than there are. A single sample serves as many as some random input makes.
    """
    files = {one.name: _open(one) for one in wanted if one.given.data_patterns}
    # Of a single input no more are looked for than are asked for; several must go together.
    most = asked if asked is not None and len(files) == 1 else _ALL
    problems: list[str] = []
    opened = InputFiles(files, {name: _count(own, most, problems) for name, own in files.items()})
    if problems:
        more = len(problems) - _PROBLEMS_SHOWN
        raise RequestError("; ".join(problems[:_PROBLEMS_SHOWN]) + (f"; and {more} files more" if more > 0 else ""))
    _check_counts(opened.counts, asked, varies=any(one.given.data == "random" for one in wanted))
    return opened


def _open(one: WantedInput) -> list[FileSamples]:
    try:
        found = find_files(one.given.data_patterns)
    except RequestError as error:
        raise RequestError(f'input "{one.name}": {error}') from None
    opened = [open_file(one, file) for file in found]
    if one.given.every > 1 and not any(file.has_frames for file in opened):
        raise RequestError(f'input "{one.name}": `every: {one.given.every}` is for videos, and its data has none.')
    return opened


def _count(files: Sequence[FileSamples], most: int, problems: list[str]) -> int:
    """How many samples files have; what is wrong with some of them is added to `problems`."""
    total = 0
    for file in files:
        if total >= most:
            break
        try:
            total += file.count(most - total)
        except BackendError:
            raise
        except RequestError as error:
            problems.append(str(error).removesuffix("."))
    return total


def _check_counts(counts: Mapping[str, int], asked: int | None, *, varies: bool) -> None:
    several = {name: count for name, count in counts.items() if count > 1}
    if len(set(several.values())) > 1:
        told = ", ".join(f'"{name}" has {count}' for name, count in several.items())
        raise RequestError(f"samples: input {told}. Give the same number to each, or one that all share.")
    there = max(counts.values(), default=None)
    if asked is not None and there is not None and asked > there and (there > 1 or not varies):
        names = ", ".join(f'"{name}"' for name, count in counts.items() if count == there)
        raise RequestError(f"samples: {asked} are asked for, and the data of input {names} has {there}.")
