"""Samples made to reach what a model's default ones do not: forms of floats, sizes, masks, positions, branches.

A default sample is typical: floats in [0, 1), masks of ones, one size. A candidate that ignores its mask agrees with
the reference there. A *form* is a kind of float values, such as smooth ones; other inputs get values by their use in
the model and by their names. Values that a recipe writes (`data: 16000`, `values:`) stay, and a `range:` limits them.

There are no larger values: on normal ones times 30 and smooth ones in [0, 255], FP16 overflowed or failed in 3 of 10
models whose FP16 passes on default samples (a decoder, speech detection, text recognition), and on the forms below in
none but text recognition. That one is at 95 % of its bound on 24 photographs, and failed with 3 of 4 seeds on quiet or
normal values, so that images get values in [-1, 1] only; it still fails with 3 of 8 seeds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from ndld_flow.inputs import GENERATED, InputSpec
from ndld_flow.models.tensors import TEXT, Array
from ndld_flow.samples.feeds import complete_feeds
from ndld_flow.samples.generated_values import (
    InputKind,
    compared_values,
    is_float,
    is_integer,
    kind_of,
    largest_integer,
    random_stream,
)
from ndld_flow.samples.likely_inputs import is_image
from ndld_flow.samples.sample_feeds import Sample, Samples, SeenSamples
from ndld_flow.samples.wanted_inputs import Feed, WantedInput

Shape = tuple[int, ...]
Form = Callable[[np.random.Generator, Shape], Array]

_SMOOTH_SIDE = 16
"""Axes of this length or more are smooth; shorter ones are channels."""


def _smooth(stream: np.random.Generator, shape: Shape) -> Array:
    """Return noise of mean 0 and deviation 1 whose amplitude falls with frequency, as in images and sounds."""
    values = stream.normal(size=shape)
    for axis, length in enumerate(shape):
        if length >= _SMOOTH_SIDE:
            frequency = np.fft.rfftfreq(length) * length
            frequency[0] = 1
            weight = (frequency**-0.7).reshape([-1 if other == axis else 1 for other in range(len(shape))])
            values = np.fft.irfft(np.fft.rfft(values, axis=axis) * weight, length, axis=axis)
    deviation = float(values.std()) if values.size > 1 else 1.0
    return values / (deviation or 1.0)


FORMS: Mapping[str, Form] = {
    "uniform": lambda stream, shape: stream.random(shape),
    "normal": lambda stream, shape: stream.normal(size=shape),
    "smooth": _smooth,
    "smooth in [0, 1]": lambda stream, shape: np.clip(0.5 + 0.25 * _smooth(stream, shape), 0, 1),
    "normal x3": lambda stream, shape: 3 * stream.normal(size=shape),
    "quiet": lambda stream, shape: 0.1 * _smooth(stream, shape),
    "sparse": lambda stream, shape: (stream.random(shape) < 0.05) * 3 * stream.normal(size=shape),
    "normal x0.01": lambda stream, shape: 0.01 * stream.normal(size=shape),
}
_IN_RANGE: Mapping[str, Form] = {
    "uniform": FORMS["uniform"],
    "smooth in the range": FORMS["smooth in [0, 1]"],
    "sparse in the range": lambda stream, shape: (stream.random(shape) < 0.05) * stream.random(shape),
}
"""Forms in [0, 1], for an input whose range the recipe gives."""
_OF_IMAGES: Mapping[str, Form] = {
    "uniform": FORMS["uniform"],
    "smooth in [0, 1]": FORMS["smooth in [0, 1]"],
    "smooth in [-1, 1]": lambda stream, shape: np.clip(0.5 * _smooth(stream, shape), -1, 1),
    "uniform in [-1, 1]": lambda stream, shape: stream.uniform(-1, 1, shape),
}
DRAWS: Mapping[str, Callable[[np.random.Generator, int, Shape], Array]] = {
    "random": lambda stream, count, shape: stream.integers(0, count, shape),
    "skewed": lambda stream, count, shape: stream.permutation(count)[
        _log_uniform(stream, count - 1, shape).astype(int)
    ],
    "few values": lambda stream, count, shape: stream.permutation(count)[stream.integers(0, min(count, 8), shape)],
}
"""Ways to draw from values that the model looks up: all alike, some more often as in texts, or a few of them."""
_SIZES = (1.0, 0.5, 1.5)
_BATCHES = (1, 2)
_MOST_POSITION = 32_767
_MOST_SETTING = 255
"""Largest single integer: it may be a number of iterations."""


@dataclass(frozen=True)
class MadeSample:
    """A sample that is computed again whenever it is read."""

    form: str
    """One of the forms; `random` if no input has one."""
    shapes: Mapping[str, Shape]
    sizes: str
    """Open sizes: `batch 2, 24 frames`; empty if there are none."""
    seed: int
    number: int = 1
    """Counts samples that are otherwise described alike."""

    @property
    def label(self) -> str:
        number = f"number {self.number}" if self.number > 1 else ""
        return f"made: {', '.join(part for part in (self.form, self.sizes, number) if part)}"

    def feeds(self, wanted: Sequence[WantedInput]) -> dict[str, Feed]:
        """Return the values of all inputs."""
        sized = [replace(each, pattern=self.shapes[each.name]) for each in wanted]
        made: dict[str, Feed] = {}
        for each in sized:
            values, how = _values(each, self, random_stream(each.name, self.seed))
            if how:
                made[each.name] = Feed(values, f"{how}, seed {self.seed}, {each.describe(values)}")
        feeds = complete_feeds(sized, made, self.seed)
        return {each.name: _shortened(each, feeds[each.name], self.seed) for each in sized}


class ExtendedSamples(Samples):
    """Samples of a recipe, followed by made ones."""

    def __init__(self, base: Samples, made: Sequence[MadeSample]) -> None:
        self.base, self._made = base, made
        self._free = [without_files(each) for each in base.wanted]
        self.wanted, self.seed, self.is_generated = base.wanted, base.seed, base.is_generated
        self.described, self.notes = base.described, base.notes

    @property
    def seen(self) -> SeenSamples | None:
        return self.base.seen

    def __len__(self) -> int:
        return len(self.base) + len(self._made)

    def __iter__(self) -> Iterator[Sample]:
        yield from self.base
        for made in self._made:
            yield Sample(made.label, made.feeds(self._free))


def without_files(wanted: WantedInput) -> WantedInput:
    """Return an input whose values are generated where they come from files."""
    given = wanted.given
    return replace(wanted, given=given.model_copy(update={"data": "random"})) if given.data_patterns else wanted


def candidates(
    wanted: Sequence[WantedInput], base: Mapping[str, Shape], seed: int, *, one_size: bool = False
) -> Iterator[MadeSample]:
    """Yield samples without end to choose from, the most typical first; `base` has the shapes of the default sample,
    which all have with `one_size`.
    """
    forms = forms_of(wanted)
    # The shapes of all inputs for each combination of sizes and batches.
    combinations = [
        tuple((each.name, _sized(each, base[each.name], factor, batch, wanted)) for each in wanted)
        for factor in _SIZES
        for batch in (None, *_BATCHES)
    ]
    variants = [(shapes, describe_sizes(wanted, dict(shapes))) for shapes in dict.fromkeys(combinations)]
    variants = variants[: 1 if one_size else None]
    known: Counter[tuple[str, str]] = Counter()
    number = 0
    while True:
        for size in range(len(variants)):
            for index, form in enumerate(forms):
                # Neighbours differ in form and size, so that the first few have several of both.
                shapes, described = variants[(size + index) % len(variants)]
                number += 1
                known[form, described] += 1
                yield MadeSample(form, dict(shapes), described, seed + number, known[form, described])


def forms_of(wanted: Sequence[WantedInput]) -> Sequence[str]:
    """Return the names of the forms that differ from sample to sample."""
    own = [tuple(_own_forms(each)) for each in wanted if _takes_form(each)]
    if own:
        return max(own, key=len)
    return tuple(DRAWS) if any(_looked_up(each) for each in wanted) else ("random",)


def _own_forms(wanted: WantedInput) -> Mapping[str, Form]:
    if _has_range(wanted):
        return _IN_RANGE
    return _OF_IMAGES if is_image(wanted.spec) else FORMS


def _form(wanted: WantedInput, sample: MadeSample) -> tuple[str, Form]:
    """Return the form of an input in a sample: the sample's, or one of its own."""
    own = _own_forms(wanted)
    name = sample.form if sample.form in own else list(own)[sample.seed % len(own)]
    return name, own[name]


def _takes_form(wanted: WantedInput) -> bool:
    """Return True for a float tensor that is not a mask, and not looked up."""
    if not _is_generated(wanted) or wanted.dtype == TEXT or not is_float(wanted.dtype) or not wanted.pattern:
        return False
    return not _looked_up(wanted) and kind_of(wanted) is InputKind.OTHER


def _looked_up(wanted: WantedInput) -> list[float] | range:
    """Return the values that the model looks up, or compares with constants, and another."""
    if wanted.dtype.kind == "b":
        return []
    rows = min(wanted.spec.uses.rows or 0, largest_integer(wanted.dtype) + 1)
    return range(rows) if rows else compared_values(wanted, another=True)


def _has_range(wanted: WantedInput) -> bool:
    return wanted.given.range != InputSpec().range


def _is_generated(wanted: WantedInput) -> bool:
    return wanted.given.values is None and wanted.given.data in GENERATED


# --- sizes ---


def _sized(each: WantedInput, base: Shape, factor: float, batch: int | None, wanted: Sequence[WantedInput]) -> Shape:
    if each.given.values is not None:
        return base
    declared = each.spec.shape or ()
    sizes = []
    for axis, size in enumerate(base):
        if axis >= len(declared) or isinstance(declared[axis], int):
            sizes.append(size)
            continue
        is_batch = _is_batch(each, axis, wanted)
        changed = (batch or size) if is_batch else max(1, round(size * factor))
        low = each.given.min[axis] if each.given.min is not None else 0
        high = each.given.max[axis] if each.given.max is not None else changed
        sizes.append(min(max(changed, low), high))
    return tuple(sizes)


def _is_batch(each: WantedInput, axis: int, wanted: Sequence[WantedInput]) -> bool:
    """Return True for an open first axis, in an input of one axis only if others have such a batch."""
    declared = each.spec.shape or ()
    firsts = [other.spec.shape[0] for other in wanted if other.spec.shape is not None and len(other.spec.shape) > 1]
    batches = [dim for dim in firsts if not isinstance(dim, int)]
    if isinstance(declared[axis], str) and declared[axis] in batches:
        return True
    return axis == 0 and (len(declared) > 1 or (declared[0] is None and bool(batches)))


def describe_sizes(wanted: Sequence[WantedInput], shapes: Mapping[str, Shape]) -> str:
    """Return `batch 2, 24 frames`: the open sizes by name; those without a name as the shape of their input."""
    parts: dict[str, None] = {}
    for each in wanted:
        for axis, (dim, size) in enumerate(zip(each.spec.shape or (), shapes[each.name], strict=False)):
            if isinstance(dim, int):
                continue
            if _is_batch(each, axis, wanted):
                parts[f"batch {size:,}"] = None
            elif dim is not None and dim.isidentifier() and not dim.startswith("unk__"):
                parts[f"{size:,} {dim}"] = None
            else:
                parts["x".join(map(str, shapes[each.name]))] = None
    return ", ".join(parts)


# --- values ---

_DEFAULT: tuple[Array, str] = (np.zeros(0), "")
"""The values are those of a default sample."""


def _values(wanted: WantedInput, sample: MadeSample, stream: np.random.Generator) -> tuple[Array, str]:
    """Return made values of an input, and their description; an empty one if it keeps those of a default sample."""
    kind, shape = kind_of(wanted), sample.shapes[wanted.name]
    if not _is_generated(wanted) or wanted.dtype == TEXT or not math.prod(shape):
        return _DEFAULT
    if kind in (InputKind.MASK, InputKind.HIDING_MASK):
        # It shows a random number of first elements, at least one, along the last axis.
        hides = kind is InputKind.HIDING_MASK
        length = shape[-1] if shape else 1
        shown = np.arange(length) < stream.integers(1, length + 1, (*shape[:-1], 1))
        values = np.broadcast_to(~shown if hides else shown, shape) if shape else np.asarray(not hides)
        return values.astype(wanted.dtype), "a mask that hides the last elements"
    if _has_range(wanted):
        low, high = wanted.given.range
        if not is_float(wanted.dtype) or low >= high:
            return _DEFAULT
        name, form = _form(wanted, sample)
        values = low + (high - low) * form(stream, shape)
        top = np.nextafter(np.asarray(high, wanted.dtype), np.asarray(low, wanted.dtype))
        return np.minimum(values.astype(wanted.dtype), top), f"{name} [{low:g}, {high:g})"
    if kind is InputKind.POSITIONS and shape:
        # They begin anywhere in their table, or at a large number.
        uses, length = wanted.spec.uses, shape[-1]
        most = min(uses.rows or _MOST_POSITION + 1, largest_integer(wanted.dtype) + 1) - length
        if most <= 0:
            return _DEFAULT
        start = int(stream.integers(0, most + 1)) if uses.rows else int(_log_uniform(stream, most, ()))
        values = np.broadcast_to(start + np.arange(length), shape).astype(wanted.dtype)
        return values, f"positions {start:,} to {start + length - 1:,}"
    return _DEFAULT if kind is InputKind.LENGTH else _by_use(wanted, sample, stream, shape)


def _by_use(wanted: WantedInput, sample: MadeSample, stream: np.random.Generator, shape: Shape) -> tuple[Array, str]:
    dtype, held = wanted.dtype, _looked_up(wanted)
    if dtype.kind == "b":
        return _DEFAULT
    if held:
        way = sample.form if sample.form in DRAWS else list(DRAWS)[sample.seed % len(DRAWS)]
        values = np.asarray(np.asarray(held)[DRAWS[way](stream, len(held), shape)])
        return values.astype(dtype), f"{way} of {len(held):,} values that the model looks up or compares them with"
    if is_integer(dtype):  # bytes, or numbers of all magnitudes, such as positions; a number alone stays small
        largest = largest_integer(dtype)
        if math.prod(shape) == 1:
            return _log_uniform(stream, min(largest, _MOST_SETTING), shape).astype(dtype), "an integer up to 255"
        if sample.number % 2:
            return np.asarray(stream.integers(0, min(largest, 255) + 1, shape)).astype(dtype), "integers 0 to 255"
        values = _log_uniform(stream, min(largest, _MOST_POSITION), shape)
        return values.astype(dtype), "integers of all magnitudes up to 32,767"
    if not shape:
        return np.asarray(10 ** stream.uniform(-2, 3)).astype(dtype), "a number from 0.01 to 1,000"
    name, form = _form(wanted, sample)
    most = float(ml_dtypes.finfo(dtype).max)
    return np.asarray(np.clip(form(stream, shape), -most, most)).astype(dtype), name


def _log_uniform(stream: np.random.Generator, most: int, shape: Shape) -> Array:
    return np.floor(np.exp(stream.uniform(0, math.log(most + 1), shape)) - 1e-9)


def _shortened(wanted: WantedInput, feed: Feed, seed: int) -> Feed:
    """Return the length of another input cut by up to a half; others unchanged."""
    most = feed.values.max(initial=0) if kind_of(wanted) is InputKind.LENGTH and _is_generated(wanted) else 0
    if most < 2 or _has_range(wanted):
        return feed
    drawn = random_stream(wanted.name, seed).integers(-(-int(most) // 2), int(most) + 1, feed.values.shape)
    values = np.asarray(drawn).astype(feed.values.dtype)
    return replace(feed, values=values, description=f"lengths up to {most:,}, {wanted.describe(values)}")
