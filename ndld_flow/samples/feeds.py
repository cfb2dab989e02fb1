"""Arrays to run a model on, as the recipe's `inputs:` say."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import size
from ndld_flow.base.text import short_name, shortened
from ndld_flow.inputs import InputSpec
from ndld_flow.machine.description import memory_size
from ndld_flow.models.tensors import TensorSpec, shape_text
from ndld_flow.samples.file_samples import open_file
from ndld_flow.samples.generated_values import constant_values, random_values
from ndld_flow.samples.wanted_inputs import Feed, WantedInput, named_sizes, want_inputs, with_batch
from ndld_flow.store.found_files import find_files

_MOST_DIMENSIONS = 64
"""Of an array of numpy's."""

__all__ = ["Feed", "complete_feeds", "make_feeds", "note_assumed"]


def make_feeds(
    inputs: Sequence[TensorSpec],
    given: Mapping[str, InputSpec],
    seed: int = 0,
    model: str = "the model",
    batch: int | None = None,
) -> dict[str, Feed]:
    """Values for every input of a model, by name: one sample, of files the first one.

    Free dimensions take the size the recipe gives to the same name in another input, else 1. Each input has a random
    stream of its own: equal seeds give equal values whatever the other inputs are. For more samples, raise `seed`, or
    see `make_samples`. `batch` replaces the size of every free first dimension, and of dimensions of the same name;
    values from files are repeated. Raises `RequestError` naming the input, what was found and what is expected.
    """
    wanted = want_inputs(inputs, given, model)
    if batch is not None:
        wanted = with_batch(wanted, batch, model)
    read = {one.name: _first(one) for one in wanted if one.given.data_patterns}
    return complete_feeds(wanted, read, seed)


def complete_feeds(wanted: Sequence[WantedInput], read: Mapping[str, Feed], seed: int) -> dict[str, Feed]:
    """Values for every input: those that were read, and generated ones for all others."""
    shaped = (replace(one, pattern=read[one.name].values.shape) if one.name in read else one for one in wanted)
    sizes = named_sizes(list(shaped))
    return {one.name: read.get(one.name) or _generated(one, sizes, seed) for one in wanted}


def note_assumed(feeds: Mapping[str, Feed]) -> tuple[str, ...]:
    """A sentence about inputs whose free dimensions nobody set, for people who did not mean 1; or none."""
    assumed = [f"{name} ({shape_text(feed.values.shape)})" for name, feed in feeds.items() if feed.assumed]
    if not assumed:
        return ()
    return (f"free dimensions not set in the recipe's `inputs:` were taken as 1: {', '.join(assumed)}",)


def _first(one: WantedInput) -> Feed:
    return next(open_file(one, find_files(one.given.data_patterns)[0]).feeds())[1]


def _generated(one: WantedInput, sizes: Mapping[str, int], seed: int) -> Feed:
    given, dtype, pattern = one.given, one.dtype, one.pattern or ()
    shape = tuple(dim if isinstance(dim, int) else sizes.get(dim or "", 1) for dim in pattern)
    _check_size(one.name, dtype, shape)
    if given.data == "random":
        values, how = random_values(one.name, dtype, shape, given.range, seed)
    elif isinstance(given.data, int | float):
        values, how = constant_values(one.name, dtype, shape, given.data)
    else:
        values, how = np.full(shape, 0 if given.data == "zeros" else 1, dtype), str(given.data)
    assumed = any(not isinstance(dim, int) and (dim or "") not in sizes for dim in pattern)
    return Feed(values, f"{how}, {dtype.name} {shape_text(shape)}", assumed)


def _check_size(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
    needed, memory = math.prod(shape) * dtype.itemsize, memory_size() or sys.maxsize
    if needed > memory or len(shape) > _MOST_DIMENSIONS:
        raise RequestError(
            f'input "{short_name(name)}" is {dtype.name} {shortened(shape_text(shape), 100)}, {size(needed)}: more '
            f"than this machine has ({size(memory)}), or than numpy takes. Give a smaller shape in `inputs:`."
        )
