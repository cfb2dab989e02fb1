"""Values of a model's inputs for one sample, as the recipe specifies them; inputs and outputs of two models matched."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.quantities import counted, size
from ndld_flow.base.text import short_name, shortened
from ndld_flow.inputs import InputSpec, shape_override
from ndld_flow.machine.host import memory_size
from ndld_flow.models.tensors import TEXT, Array, TensorSpec, numpy_dtype, shape_text
from ndld_flow.records.measurement import SIZES_ASSUMED
from ndld_flow.samples.file_samples import open_file
from ndld_flow.samples.generated_values import (
    Sized,
    constant_values,
    counted_values,
    is_float,
    is_integer,
    random_stream,
    random_values,
    usual_values,
)
from ndld_flow.samples.value_files import cast_to_model
from ndld_flow.samples.wanted_inputs import Feed, ImageOrigin, WantedInput, named_sizes, want_inputs, with_batch
from ndld_flow.store.found_files import find_files

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


_MOST_DIMENSIONS = 64
"""Maximum number of dimensions of a numpy array."""

_OWN = ", or the same of the step's own `inputs:`"
"""End of a recorded note: a result is reused by recipes that write equal inputs in either place."""

__all__ = ["Feed", "complete_feeds", "make_feeds", "note_assumed"]


def make_feeds(
    inputs: Sequence[TensorSpec],
    given: Mapping[str, InputSpec],
    seed: int = 0,
    model: str = "the model",
    batch: int | None = None,
) -> dict[str, Feed]:
    """Return values for every input of a model, by name: one sample, the first one of files.

    Dynamic dimensions take the size that the recipe gives to the same name in another input, else 1. Each input has a
    separate random stream: equal seeds give equal values regardless of the other inputs. For more samples, increase
    `seed`, or see `make_samples`. `batch` replaces the size of every dynamic first dimension, and of dimensions of the
    same name; values from files are repeated. Raises `RequestError` naming the input, the found and the expected
    values.
    """
    wanted = want_inputs(inputs, given, model)
    if batch is not None:
        wanted = with_batch(wanted, batch, model)
    read = {}
    for each in wanted:
        if each.given.data_patterns:
            file = find_files(each.given.data_patterns)[0]
            _, read[each.name] = next(open_file(each, file).feeds())
    return complete_feeds(wanted, read, seed)


def complete_feeds(wanted: Sequence[WantedInput], read: Mapping[str, Feed], seed: int) -> dict[str, Feed]:
    """Return values for every input: the given ones, and generated ones for all others."""
    shaped = [
        replace(wanted_input, pattern=read[wanted_input.name].values.shape)
        if wanted_input.name in read
        else wanted_input
        for wanted_input in wanted
    ]
    sizes = named_sizes(shaped)
    known = [(each, _full_shape(each, sizes)) for each in shaped]
    return {
        each.name: read.get(each.name) or _generated(each, known[:index] + known[index + 1 :], sizes, seed)
        for index, each in enumerate(shaped)
    }


def note_assumed(feeds: Mapping[str, Feed]) -> tuple[str, ...]:
    """Return a warning for each input whose free dimensions were taken as 1, with the override that sets them, and
    for each whose file was converted in a way that nothing sets.
    """
    return tuple(
        f"input {short_name(name)} runs at {shape_text(feed.values.shape)}, {SIZES_ASSUMED}: "
        f"set {shape_override(short_name(name), feed.open_sizes)}{_OWN}"
        for name, feed in feeds.items()
        if feed.open_sizes
    ) + tuple(f"input {short_name(name)}: {note}" for name, feed in feeds.items() for note in feed.notes)


def _full_shape(wanted_input: WantedInput, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else sizes.get(dim or "", 1) for dim in wanted_input.pattern or ())


def _generated(wanted_input: WantedInput, others: Sequence[Sized], sizes: Mapping[str, int], seed: int) -> Feed:
    given, dtype, pattern = wanted_input.given, wanted_input.dtype, wanted_input.pattern or ()
    shape = _full_shape(wanted_input, sizes)
    needed, memory = math.prod(shape) * dtype.itemsize, memory_size() or sys.maxsize
    if needed > memory or len(shape) > _MOST_DIMENSIONS:
        most = f"this machine has ({size(memory)})" if needed > memory else f"{_MOST_DIMENSIONS} dimensions"
        raise RequestError(
            f'input "{short_name(wanted_input.name)}" is {dtype.name} {shortened(shape_text(shape), 100)}, '
            f"{size(needed)}: more than {most}. Give a smaller shape in `inputs:`."
        )
    if given.values is not None:
        values, how = _written_values(wanted_input), "as the recipe writes them"
    elif dtype == TEXT:
        values, how = _texts(wanted_input, shape, seed)
    elif given.is_random:
        values, how = _random(wanted_input, shape, others, seed)
    elif isinstance(given.data, int | float):
        values, how = constant_values(wanted_input.name, dtype, shape, given.data)
    elif given.data == "arange":
        values, how = counted_values(wanted_input.name, dtype, shape), "arange"
    else:
        values, how = (
            np.full(shape, 1 if given.data == "ones" else 0, dtype),
            "ones" if given.data == "ones" else "zeros",
        )
    is_open = any(not isinstance(dim, int) and (dim or "") not in sizes for dim in pattern)
    return Feed(values, f"{how}, {wanted_input.describe(values)}", _name_sizes(pattern, sizes) if is_open else "")


def _written_values(wanted_input: WantedInput) -> Array:
    values = np.array(wanted_input.given.values)
    if not values.size or (is_integer(values.dtype) and is_float(wanted_input.dtype)):
        return values.astype(wanted_input.dtype)
    return cast_to_model(values, wanted_input.dtype, wanted_input.name, "`values` of the recipe")


def _texts(wanted_input: WantedInput, shape: tuple[int, ...], seed: int) -> tuple[Array, str]:
    """Return texts that the model knows, or else the word `text`."""
    given, known = wanted_input.given, wanted_input.spec.known_texts
    if not given.is_random:
        raise RequestError(
            f'input "{wanted_input.name}" is string, and `data: {given.data}` gives numbers: give `values: [...]`, or '
            "a .txt, .csv or .npy file as `data`."
        )
    if not known:
        return np.full(shape, "text"), "the word `text`, as nothing gives values"
    drawn = random_stream(wanted_input.name, seed).integers(0, len(known), size=shape)
    how = f"random ones of {counted(len(known), 'text')} that the model knows, seed {seed}"
    return np.array(known, TEXT)[drawn], how


def _random(wanted_input: WantedInput, shape: tuple[int, ...], others: Sequence[Sized], seed: int) -> tuple[Array, str]:
    """Return usual values if they are known and the recipe gives no range, else random ones."""
    given = wanted_input.given
    if given.range == InputSpec().range:
        values, how = usual_values(wanted_input, shape, others, seed)
        if how:
            return values, how
    return random_values(wanted_input.name, wanted_input.dtype, shape, given.range, seed)


def _name_sizes(pattern: Sequence[int | str | None], sizes: Mapping[str, int]) -> str:
    """Return `[1,3,height,width]`: the known sizes, and names for the others, which a user replaces."""
    known = (dim if isinstance(dim, int) else sizes.get(dim or "", dim) for dim in pattern)
    return f"[{','.join(re.sub(r'[^A-Za-z0-9_]', '', shortened(str(dim or ''), 30)) or 'N' for dim in known)}]"
