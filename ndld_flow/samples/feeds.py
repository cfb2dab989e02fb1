"""Values of a model's inputs for one sample, as the recipe's `inputs:` specify them."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted, size
from ndld_flow.base.text import short_name, shortened
from ndld_flow.inputs import InputSpec, shape_override
from ndld_flow.machine.description import memory_size
from ndld_flow.models.tensors import TEXT, Array, TensorSpec, shape_text
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
from ndld_flow.samples.wanted_inputs import Feed, WantedInput, named_sizes, want_inputs, with_batch
from ndld_flow.store.found_files import find_files

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
        raise RequestError(
            f'input "{short_name(wanted_input.name)}" is {dtype.name} {shortened(shape_text(shape), 100)}, '
            f"{size(needed)}: more than this machine has ({size(memory)}), or than numpy takes. Give a smaller shape "
            "in `inputs:`."
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
