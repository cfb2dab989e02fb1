"""The inputs of both models: the same samples, each under the model's own names and in its own dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ndld_flow.accuracy.activations.noise import Noise, add_noise, noisy_inputs
from ndld_flow.accuracy.activations.pictures import write_picture
from ndld_flow.accuracy.activations.sample_labels import with_short_labels
from ndld_flow.inputs import InputSpec, patterns_of
from ndld_flow.models.tensors import Array
from ndld_flow.records.activations import SampleShown
from ndld_flow.runtimes.onnxruntime.model_matching import SharedInputs
from ndld_flow.samples.sample_feeds import Sample, make_samples
from ndld_flow.samples.sample_settings import SampleSettings

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Fed:
    """One sample, ready for both models."""

    reference: Arrays
    """Under the reference's names; where there is none, the candidate's."""
    candidate: Arrays


class Feeding:
    """The samples of a request. Raises `RequestError` for names that are no inputs, and values that cannot be fed."""

    def __init__(
        self,
        inputs: SharedInputs,
        given: Mapping[str, InputSpec],
        wanted: SampleSettings,
        noise: Noise | None,
        model: str,
    ) -> None:
        self._inputs, self._noise = inputs, noise
        named = inputs.named_as_reference(given)
        data = {name: {"data": value} for name, value in wanted.data.items()}
        own = {name: named.get(name, InputSpec()).model_copy(update=update) for name, update in data.items()}
        self._given, self._loaded = {**named, **own}, wanted.loader is not None
        self._noisy = frozenset() if noise is None else noisy_inputs(noise, inputs.specs)
        self._samples = make_samples(inputs.specs, named, wanted, model)
        self.shown: list[SampleShown] = []
        """The samples that have been fed."""

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def notes(self) -> tuple[str, ...]:
        """What makes the samples say less than it seems, once they have been read."""
        return self._samples.notes

    def record(self) -> tuple[SampleShown, ...]:
        """The samples that have been fed; labels that a loader gave are as it gave them."""
        return tuple(self.shown if self._loaded else with_short_labels(self.shown))

    def first_shapes(self) -> dict[str, tuple[int, ...]]:
        """Input of the reference -> its shape in the first sample."""
        first = next(iter(self._samples))
        return {name: tuple(feed.values.shape) for name, feed in first.feeds.items()}

    def candidate_name(self, name: str) -> str:
        """What the candidate calls an input of the reference."""
        return self._inputs.candidate_names[name]

    def samples(self, out: Path, pictures: int) -> Iterator[Fed]:
        """All samples in their order; of the first `pictures` a picture is written into `out`."""
        for number, sample in enumerate(self._samples):
            noisy = self._with_noise(sample, number)
            picture = self._picture(noisy, out, number) if number < pictures else ""
            told = {name: feed.description for name, feed in noisy.feeds.items()}
            self.shown.append(SampleShown(label=sample.label, inputs=told, picture=picture))
            of_reference = noisy if self._noise is not None and self._noise.on_reference else sample
            plain = {name: feed.values for name, feed in of_reference.feeds.items()}
            yield Fed(plain, self._inputs.for_candidate(noisy.feeds))

    def _with_noise(self, sample: Sample, number: int) -> Sample:
        if self._noise is None:
            return sample
        noise = self._noise
        feeds = {
            name: add_noise(feed, name, noise, number) if name in self._noisy else feed
            for name, feed in sample.feeds.items()
        }
        return replace(sample, feeds=feeds)

    def _picture(self, sample: Sample, out: Path, number: int) -> str:
        """Of the first input that is one. Generated values are no pictures, whatever their shape."""
        name = f"samples/{number}.png"
        for each, feed in sample.feeds.items():
            given = self._given.get(each, InputSpec())
            read = self._loaded or patterns_of(given.data)
            if read and write_picture(feed.values, given, out / name):
                return name
        return ""
