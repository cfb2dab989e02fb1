"""The samples in the files of several inputs, combined."""

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
    """The files of the inputs that have any."""

    files: Mapping[str, Sequence[FileSamples]]
    counts: Mapping[str, int]
    """Input -> number of samples in its files, as far as counted."""

    def has_distinct_labels(self, count: int) -> bool:
        """Return True when this many samples have distinct labels."""
        return count <= max(self.counts.values(), default=0)

    def feeds(self) -> Iterator[tuple[str, dict[str, Feed]]]:
        """Yield label and values of each sample; endless where no input has several."""
        if not self.files:
            yield from repeat(("", {}))
        streams = [self._stream(name) for name in self.files]
        for read in zip(*streams, strict=False):
            labels = dict.fromkeys(label for label, _ in read)
            yield ", ".join(labels), {name: feed for name, (_, feed) in zip(self.files, read, strict=True)}

    def _stream(self, name: str) -> Iterator[tuple[str, Feed]]:
        stream = chain.from_iterable(file.feeds() for file in self.files[name])
        return repeat(next(stream)) if self.counts[name] == 1 else stream


def open_files(wanted: Sequence[WantedInput], requested: int | None) -> InputFiles:
    """Open the files of inputs and check them by their headers.

    Raises `RequestError` when some do not fit, when inputs have different numbers of samples, or when more are
    requested than there are. A single sample is repeated where a random input varies.
    """
    files = {wanted_input.name: _open(wanted_input) for wanted_input in wanted if wanted_input.given.data_patterns}
    # A single input is counted only up to the requested number; several inputs must have equal numbers.
    most = requested if requested is not None and len(files) == 1 else _ALL
    problems: list[str] = []
    opened = InputFiles(files, {name: _count(own, most, problems) for name, own in files.items()})
    if problems:
        more = len(problems) - _PROBLEMS_SHOWN
        raise RequestError("; ".join(problems[:_PROBLEMS_SHOWN]) + (f"; and {more} files more" if more > 0 else ""))
    _check_counts(opened.counts, requested, varies=any(wanted_input.given.data == "random" for wanted_input in wanted))
    return opened


def _open(wanted_input: WantedInput) -> list[FileSamples]:
    try:
        files = find_files(wanted_input.given.data_patterns)
    except RequestError as error:
        raise RequestError(f'input "{wanted_input.name}": {error}') from None
    opened = [open_file(wanted_input, file) for file in files]
    if wanted_input.given.every > 1 and not any(file.has_frames for file in opened):
        raise RequestError(
            f'input "{wanted_input.name}": `every: {wanted_input.given.every}` is for videos, and its data has none.'
        )
    return opened


def _count(files: Sequence[FileSamples], most: int, problems: list[str]) -> int:
    """Return the number of samples in files; problems of files are added to `problems`."""
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


def _check_counts(counts: Mapping[str, int], requested: int | None, *, varies: bool) -> None:
    several = {name: count for name, count in counts.items() if count > 1}
    if len(set(several.values())) > 1:
        counted = ", ".join(f'"{name}" has {count}' for name, count in several.items())
        raise RequestError(f"samples: input {counted}. Give the same number to each, or one that all share.")
    available = max(counts.values(), default=None)
    if requested is not None and available is not None and requested > available and (available > 1 or not varies):
        names = ", ".join(f'"{name}"' for name, count in counts.items() if count == available)
        raise RequestError(f"samples: {requested} are requested, and the data of input {names} has {available}.")
