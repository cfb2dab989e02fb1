"""Matching of the inputs and outputs of two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from ndld_flow.base.errors import ModelError
from ndld_flow.models.tensors import TEXT, Array, TensorSpec, numpy_dtype
from ndld_flow.samples.feeds import Feed
from ndld_flow.samples.generated_values import is_float, is_integer
from ndld_flow.samples.value_files import cast_to_model
from ndld_flow.samples.wanted_inputs import ImageOrigin

Given = TypeVar("Given")
Shape = tuple[int | str | None, ...]
Pair = tuple[str | None, str | None]
"""A name in the reference and in the candidate; None if one has no counterpart."""


def pair_names(reference: Sequence[str], candidate: Sequence[str]) -> tuple[Pair, ...]:
    """Match by name; remaining names are matched by order when both models have equally many, else not at all."""
    left = [name for name in reference if name not in candidate]
    right = [name for name in candidate if name not in reference]
    if len(left) == len(right):
        other: dict[str, str] = dict(zip(left, right, strict=True))
        return tuple((name, other.get(name, name)) for name in reference)
    same: tuple[Pair, ...] = tuple((name, name if name in candidate else None) for name in reference)
    return same + tuple((None, name) for name in right)


@dataclass(frozen=True)
class SharedInputs:
    """Inputs of two models that get the same values."""

    specs: tuple[TensorSpec, ...]
    """The reference's inputs, with dynamic dimensions set if the candidate's are fixed."""
    candidate_names: Mapping[str, str]
    """Name in the reference -> name in the candidate."""
    candidate_dtypes: Mapping[str, str]
    candidate_shapes: Mapping[str, Shape | None] = field(default_factory=dict)
    freer_shapes: Mapping[str, Shape] = field(default_factory=dict)
    """Name in the reference -> its own shape there, if the candidate fixes sizes that it leaves free."""

    def named_as_reference(self, given: Mapping[str, Given]) -> dict[str, Given]:
        """Return a recipe's `inputs:`, which may use either model's names, under the reference's names."""
        back = {theirs: mine for mine, theirs in self.candidate_names.items()}
        known = {spec.name for spec in self.specs}
        return {name if name in known else back.get(name, name): value for name, value in given.items()}

    def for_candidate(self, feeds: Mapping[str, Feed]) -> dict[str, Array]:
        """Return the reference's values under the candidate's names and in its dtypes.

        A candidate with other image inputs, such as after `add_preprocessing`, gets the same image: with channels last
        where its shape has them last, and as pixels from 0 to 255 where it takes integers and the reference floats.
        """
        values = {}
        for name, feed in feeds.items():
            declared = self.candidate_dtypes[name]
            dtype = TEXT if declared == "string" else numpy_dtype(declared)
            if dtype is None:
                raise ModelError(f'input "{name}" is {declared} in the candidate, which cannot be fed.')
            own = feed.values if feed.image is None else self._image_for_candidate(name, feed, feed.image, dtype)
            values[self.candidate_names[name]] = cast_to_model(own, dtype, name, "the reference's input")
        return values

    def _image_for_candidate(self, name: str, feed: Feed, image: ImageOrigin, dtype: np.dtype[Any]) -> Array:
        values, shape = feed.values, self.candidate_shapes.get(name)
        moves = shape is not None and _has_channels_last(values.shape, shape)
        if is_float(values.dtype) and is_integer(dtype):
            pixels = np.clip(np.round(image.restore(values)), 0, 255)  # exact: they were pixels of 8 bits
            first = pixels if moves else pixels.transpose(2, 0, 1)
            batch = values.shape[:-3]
            return np.ascontiguousarray(np.broadcast_to(first, (*batch, *first.shape)).astype(dtype))
        return np.ascontiguousarray(np.moveaxis(values, -3, -1)) if moves else values


def shared_inputs(reference: Sequence[TensorSpec], candidate: Sequence[TensorSpec]) -> SharedInputs:
    """Match two models' inputs. Raises `ModelError` if they have different inputs."""
    mine = {spec.name: spec for spec in reference}
    theirs = {spec.name: spec for spec in candidate}
    names: dict[str, str] = {}
    for left, right in pair_names(list(mine), list(theirs)):
        if left is None or right is None:
            raise ModelError(
                "the two models cannot run on the same inputs: the reference has the inputs "
                f"{', '.join(mine) or 'none'}, the candidate has {', '.join(theirs) or 'none'}."
            )
        names[left] = right
    specs = tuple(replace(spec, shape=_narrowed(spec, theirs[names[name]])) for name, spec in mine.items())
    freer = {spec.name: own.shape for spec, own in zip(specs, reference, strict=True) if spec.shape != own.shape}
    return SharedInputs(
        specs,
        names,
        {name: theirs[names[name]].dtype for name in mine},
        {name: theirs[names[name]].shape for name in mine},
        {name: shape for name, shape in freer.items() if shape is not None},
    )


def _narrowed(reference: TensorSpec, candidate: TensorSpec) -> tuple[int | str | None, ...] | None:
    if reference.shape is None or candidate.shape is None or len(reference.shape) != len(candidate.shape):
        return reference.shape
    sizes = candidate.shape
    if _has_channels_last(reference.shape, sizes):
        sizes = (*sizes[:-3], sizes[-1], *sizes[-3:-1])
    pairs = zip(reference.shape, sizes, strict=True)
    return tuple(theirs if isinstance(theirs, int) and not isinstance(mine, int) else mine for mine, theirs in pairs)


def _has_channels_last(reference: Shape, candidate: Shape) -> bool:
    """Return True if an image input of the reference has channels first and that of the candidate has them last."""
    if not len(reference) == len(candidate) in (3, 4):
        return False
    channels = reference[-3]
    return channels in (1, 3, 4) and candidate[-1] == channels and candidate[-3] != channels
