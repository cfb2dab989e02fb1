"""Noise added to a model's inputs, to measure how sensitive the model is to small differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.models.tensors import Array, TensorSpec, numpy_dtype
from ndld_flow.samples.feeds import Feed
from ndld_flow.samples.generated_values import is_float, random_stream

Kind = Literal["normal", "uniform", "salt_pepper"]


@dataclass(frozen=True)
class Noise:
    """What is added to float inputs. Equal seeds add the same; sample i gets `seed + i`."""

    kind: Kind
    amount: float
    """Standard deviation, largest absolute value, or the share of elements replaced."""
    inputs: tuple[str, ...]
    """Their names; empty means all float inputs."""
    seed: int
    on_reference: bool
    """Whether the reference gets the same noise as the candidate."""

    def describe(self, *, compared: bool) -> str:
        """Return `normal, deviation 0.02, seed 0`, and which of two compared models get the noise."""
        word = {"normal": "deviation", "uniform": "amplitude", "salt_pepper": "share"}[self.kind]
        where = f", on {', '.join(self.inputs)}" if self.inputs else ""
        models = (", both models" if self.on_reference else ", candidate only") if compared else ""
        return f"{self.kind}, {word} {self.amount:g}, seed {self.seed}{where}{models}"


def noisy_inputs(noise: Noise, inputs: Sequence[TensorSpec]) -> frozenset[str]:
    """The inputs that get noise. Raises `RequestError` for one that the model does not have or that is not float, and
    where no input is.
    """
    floats = [spec.name for spec in inputs if _is_float(spec)]
    for name in noise.inputs:
        if name in floats:
            continue
        if any(spec.name == name for spec in inputs):
            raise RequestError(f'noise: input "{name}" is not of floats, so no noise can be added to it. Leave it out.')
        near = suggest(name, [spec.name for spec in inputs])
        raise RequestError(f'noise: "{name}" is no input of the model; {near}')
    if not floats:
        raise RequestError("noise: the model has no input of floats to add it to. Leave `noise` out.")
    return frozenset(noise.inputs or floats)


def add_noise(feed: Feed, name: str, noise: Noise, sample: int) -> Feed:
    """The feed with noise on it, in its own dtype; values that are not finite stay."""
    stream = random_stream(f"noise on {name}", noise.seed + sample)
    values = _ADDED[noise.kind](feed.values.astype(np.float64), noise.amount, stream)
    with np.errstate(over="ignore"):
        cast = values.astype(feed.values.dtype)
    return replace(feed, values=cast, description=f"{feed.description}, with noise")


def _normal(values: Array, deviation: float, stream: np.random.Generator) -> Array:
    return values + stream.normal(0.0, deviation, values.shape)


def _uniform(values: Array, amplitude: float, stream: np.random.Generator) -> Array:
    return values + stream.uniform(-amplitude, amplitude, values.shape)


def _salt_pepper(values: Array, share: float, stream: np.random.Generator) -> Array:
    """So many elements, at random, become the smallest or the largest value there is, half of them each."""
    drawn = stream.random(values.shape)
    finite = values[np.isfinite(values)]
    if not finite.size:
        return values
    return np.where(drawn < share / 2, finite.min(), np.where(drawn < share, finite.max(), values))


_ADDED = {"normal": _normal, "uniform": _uniform, "salt_pepper": _salt_pepper}


def _is_float(spec: TensorSpec) -> bool:
    dtype = numpy_dtype(spec.dtype)
    return dtype is not None and is_float(dtype)
