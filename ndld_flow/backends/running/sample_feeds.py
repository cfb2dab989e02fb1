"""The samples a step runs a model on, read one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ndld_flow.backends.models.tensors import TensorSpec
from ndld_flow.backends.running.feeds import Feed, WantedInput, complete_feeds, note_assumed, read_feed, want_inputs
from ndld_flow.backends.running.sample_settings import SampleSettings
from ndld_flow.errors import RequestError
from ndld_flow.found_files import FoundFile, find_files
from ndld_flow.inputs import InputSpec
from ndld_flow.nearest import say_nearest


@dataclass(frozen=True)
class Sample:
    """Values for every input of a model."""

    label: str
    """`receipt.png`, `clip.mp4 frame 12`, `random, seed 3`."""
    feeds: dict[str, Feed]


class Samples:
    """Samples in their order. Each round reads them again: no more than one is in memory."""

    def __init__(
        self, wanted: Sequence[WantedInput], files: Mapping[str, Sequence[FoundFile]], count: int, seed: int
    ) -> None:
        self._wanted, self._files, self._count, self._seed = wanted, files, count, seed
        self.notes: tuple[str, ...] = ()
        """What makes the samples say less than it seems, once they have been read."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sample]:
        for i in range(self._count):
            chosen = {name: files[i % len(files)] for name, files in self._files.items()}
            read = {
                one.spec.name: read_feed(one, chosen[one.spec.name]) for one in self._wanted if one.spec.name in chosen
            }
            feeds = complete_feeds(self._wanted, read, self._seed + i)
            self.notes = self.notes or note_assumed(feeds)
            labels = dict.fromkeys(file.label for file in chosen.values())
            yield Sample(", ".join(labels) or f"random, seed {self._seed + i}", feeds)


def make_samples(
    specs: Sequence[TensorSpec], given: Mapping[str, InputSpec], wanted: SampleSettings, model: str
) -> Samples:
    """The samples that the recipe's `inputs:` and a step's settings say, for a model with these inputs.

    Raises `RequestError` naming the input and the file, what was found and what is expected.
    """
    for name in wanted.data:
        if name not in [spec.name for spec in specs]:
            raise RequestError(
                f'data: "{name}" is no input of {model}; {say_nearest(name, [spec.name for spec in specs])}'
            )
    given = {
        **given,
        **{name: given.get(name, InputSpec()).model_copy(update={"data": data}) for name, data in wanted.data.items()},
    }
    inputs = want_inputs(specs, given, model)
    files = {one.spec.name: find_files(one.given.data_patterns) for one in inputs if one.given.data_patterns}
    count = wanted.samples or max(map(len, files.values()), default=1)
    return Samples(inputs, files, count, wanted.seed)
