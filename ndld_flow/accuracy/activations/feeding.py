"""The inputs of both models: the same samples under each model's names and dtypes, with noise, and their images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from ndld_flow.accuracy.sequence_runs import read_samples
from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.inputs import InputSpec, patterns_of
from ndld_flow.models.tensors import Array, TensorSpec, numpy_dtype
from ndld_flow.records.activations import SampleShown
from ndld_flow.samples.feeds import Feed, SharedInputs
from ndld_flow.samples.generated_values import is_float, random_stream
from ndld_flow.samples.images import find_layout, swap_red_and_blue, write_received_images
from ndld_flow.samples.sample_feeds import Sample
from ndld_flow.samples.sample_settings import Noise, SampleSettings


def noisy_inputs(noise: Noise, inputs: Sequence[TensorSpec]) -> frozenset[str]:
    """Return the inputs that get noise.

    Raises `RequestError` for an input that the model does not have or that is not float, and if the model has no
    float input.
    """
    floats = [spec.name for spec in inputs if (dtype := numpy_dtype(spec.dtype)) is not None and is_float(dtype)]
    for name in noise.inputs:
        if name in floats:
            continue
        if any(spec.name == name for spec in inputs):
            raise RequestError(f'noise: input "{name}" is not float, so it cannot have noise. Remove it.')
        raise UnknownNameError(f'noise: the model has no input "{name}"', name, [spec.name for spec in inputs])
    if not floats:
        raise RequestError("noise: the model has no float input. Remove `noise`.")
    return frozenset(noise.inputs or floats)


def add_noise(feed: Feed, name: str, noise: Noise, sample: int) -> Feed:
    """Return the feed with noise, in its own dtype; non-finite values stay."""
    stream = random_stream(f"noise on {name}", noise.seed + sample)
    values = _ADDED[noise.kind](feed.values.astype(np.float64), noise.amount, stream)
    with np.errstate(over="ignore"):
        cast = values.astype(feed.values.dtype)
    return replace(feed, values=cast, description=f"{feed.description}, with noise")


def _salt_pepper(values: Array, share: float, stream: np.random.Generator) -> Array:
    """Replace a random share of elements by the smallest and the largest finite value, half each."""
    drawn = stream.random(values.shape)
    finite = values[np.isfinite(values)]
    if not finite.size:
        return values
    return np.where(drawn < share / 2, finite.min(), np.where(drawn < share, finite.max(), values))


_ADDED: Mapping[str, Callable[[Array, float, np.random.Generator], Array]] = {
    "normal": lambda values, deviation, stream: values + stream.normal(0.0, deviation, values.shape),
    "uniform": lambda values, amplitude, stream: values + stream.uniform(-amplitude, amplitude, values.shape),
    "salt_pepper": _salt_pepper,
}


LARGEST_SIDE = 512
"""Pixels."""
_FAR = (-1.0, 2.0)
"""Normalized pixels are 0 to 1; values this far outside are not normalized pixels, and are stretched instead."""


def _pixels(values: Array, given: InputSpec) -> Array | None:
    """Return uint8 [height, width, channels] of the first item of a batch, with `scale`, `mean`, `std` and `color`
    undone; None for values of another rank, or with other than 1, 3 or 4 channels.
    """
    if values.ndim not in (3, 4) or not values.size:
        return None
    item = values[0] if values.ndim == 4 else values
    item = item.transpose(1, 2, 0) if (given.layout or find_layout(item.shape)) == "NCHW" else item
    if item.shape[2] not in (1, 3, 4):
        return None
    if given.color == "bgr" and item.shape[2] > 1:
        item = swap_red_and_blue(item)
    if not is_float(values.dtype):
        return np.clip(item, 0, 255).astype(np.uint8)
    scaled = item.astype(np.float64) * np.asarray(given.std) + np.asarray(given.mean)
    wide = np.nan_to_num(scaled / (255 * given.scale if given.scale else 1.0), posinf=0, neginf=0)
    low, high = float(wide.min()), float(wide.max())
    if low < _FAR[0] or high > _FAR[1]:
        wide = (wide - low) / ((high - low) or 1.0)
    pixels: Array = np.rint(np.clip(wide, 0, 1) * 255).astype(np.uint8)
    return pixels


_JOINT = ", "
"""Separator of the labels of several inputs."""


def with_short_labels(samples: Sequence[SampleShown]) -> Iterator[SampleShown]:
    """Yield the samples with paths in their labels cut to as few final parts as keep them distinct.

    Files of distant folders would otherwise be labelled by nearly their whole paths.
    """
    rows = [sample.label.split(_JOINT) for sample in samples]
    columns = [_endings(column) for column in zip(*rows, strict=True)] if len(set(map(len, rows))) == 1 else []
    labels = map(_JOINT.join, zip(*columns, strict=True)) if columns else (sample.label for sample in samples)
    for sample, label in zip(samples, labels, strict=True):
        yield sample.model_copy(update={"label": label})


def _endings(paths: Sequence[str]) -> list[str]:
    """Return the last parts of all paths, the same number of each; equal paths stay equal."""
    wanted = len(set(paths))
    most = max(path.count("/") for path in paths) + 1
    cut = (["/".join(path.split("/")[-parts:]) for path in paths] for parts in range(1, most + 1))
    return next(endings for endings in cut if len(set(endings)) == wanted)


Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Fed:
    """One sample, ready for both models."""

    reference: Arrays
    """Arrays under the reference's names, or the candidate's if there is no reference."""
    candidate: Arrays
    feeds: Mapping[str, Feed]
    """Values under the reference's names, with noise."""
    clean: Mapping[str, Feed]
    """The same without noise."""


class Feeding:
    """The samples of a request.

    Raises `RequestError` for names that are not inputs of the model, and for values that do not fit.
    """

    def __init__(
        self,
        inputs: SharedInputs,
        given: Mapping[str, InputSpec],
        wanted: SampleSettings,
        noise: Noise | None,
        model: str,
        whole: Path,
    ) -> None:
        """`whole` computes the states of sequences: the model that names the inputs, with all of its outputs."""
        self._inputs, self._noise = inputs, noise
        named = inputs.named_as_reference(given)
        data = {name: {"data": value} for name, value in wanted.data.items()}
        own = {name: named.get(name, InputSpec()).model_copy(update=update) for name, update in data.items()}
        self._given, self._loaded = {**named, **own}, wanted.loader is not None
        self._noisy = frozenset() if noise is None else noisy_inputs(noise, inputs.specs)
        self._samples = read_samples(whole, inputs.specs, named, wanted, model)
        self.shown: list[SampleShown] = []
        """The samples fed so far."""

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return caveats of the samples, once they have been read."""
        return self._samples.notes

    def record(self) -> tuple[SampleShown, ...]:
        """Return the samples fed so far; labels of a loader are kept in full."""
        return tuple(self.shown if self._loaded else with_short_labels(self.shown))

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Return the inputs of the reference."""
        return self._inputs.specs

    def first_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return input of the reference -> its shape in the first sample."""
        first = next(iter(self._samples))
        return {name: tuple(feed.values.shape) for name, feed in first.feeds.items()}

    def candidate_name(self, name: str) -> str:
        """Return the candidate's name of an input of the reference."""
        return self._inputs.candidate_names[name]

    def samples(self, out: Path, pictures: int) -> Iterator[Fed]:
        """Yield all samples in order; write images of the first `pictures` into `out`."""
        for number, sample in enumerate(self._samples):
            noisy = self._with_noise(sample, number)
            if number == 0:
                write_received_images(noisy.feeds, out)
            picture = self._picture(noisy, out, number) if number < pictures else ""
            descriptions = {name: feed.description for name, feed in noisy.feeds.items()}
            self.shown.append(SampleShown(label=sample.label, inputs=descriptions, picture=picture))
            of_reference = noisy if self._noise is not None and self._noise.on_reference else sample
            yield Fed(of_reference.arrays, self._inputs.for_candidate(noisy.feeds), noisy.feeds, sample.feeds)

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
        """Write an image of the first input that is one and return its file."""
        name = f"samples/{number}.png"
        for input_name, feed in sample.feeds.items():
            pixels = self.pixels(input_name, feed)
            if pixels is not None:
                path = out / name
                image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
                image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
                path.parent.mkdir(exist_ok=True)
                image.save(path, format="PNG")
                return name
        return ""

    def given(self, name: str) -> InputSpec:
        """Return the recipe's settings of an input."""
        return self._given.get(name, InputSpec())

    def pixels(self, name: str, feed: Feed) -> Array | None:
        """Return uint8 [height, width, channels] of the first image of an input, noise included; None for values that
        are not an image. Generated values are none, whatever their shape.
        """
        given = self.given(name)
        return _pixels(feed.values, given) if self._loaded or patterns_of(given.data) else None
