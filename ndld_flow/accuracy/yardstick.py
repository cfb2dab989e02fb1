"""The criterion that an output is judged by, chosen from the reference's values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ndld_flow.accuracy.slices import Reference, measure_reference
from ndld_flow.models.tensors import Array
from ndld_flow.records.accuracy import OutputKind
from ndld_flow.samples.generated_values import is_float

Samples = Callable[[], Iterable[Array]]
"""Yields an output's values, sample by sample; may be called more than once."""

_MOST_CLASSES = 256
_LEAST_ELEMENTS = 30
"""Least elements for each class of a class map, on average."""
_LEVELS = 64
"""An 8-bit output with more distinct values than this is an image or a quantised tensor if neighbours differ."""
_EQUAL_NEIGHBOURS = 0.5


@dataclass(frozen=True)
class Yardstick:
    """The kind of judgement of an output, and the reference that its errors are measured against."""

    kind: OutputKind = "exact"
    slices: Reference | None = None
    """The reference for numbers; None where they cannot be cut into slices."""


def find_yardstick(samples: Samples) -> Yardstick:
    """Choose the criterion of an output from the reference's values."""
    first = next(iter(samples()), None)
    if first is None or first.dtype.kind not in "biuf":
        return Yardstick()
    if is_float(first.dtype) or _has_levels(first, samples):
        return Yardstick("numbers", measure_reference(samples))
    return Yardstick("classes" if _is_class_map(samples) else "exact")


def _is_class_map(samples: Samples) -> bool:
    """Return True for few distinct values among many elements."""
    classes: set[int] = set()
    elements = 0
    for array in samples():
        elements += array.size
        classes.update(np.unique(array).tolist())
        if len(classes) > _MOST_CLASSES:
            return False
    return elements >= _LEAST_ELEMENTS * max(1, len(classes))


def _has_levels(first: Array, samples: Samples) -> bool:
    """Return True where 8-bit values are levels, such as brightness, and not class numbers, which form regions."""
    if first.dtype.itemsize != 1 or first.dtype.kind not in "iu" or not first.ndim:
        return False
    levels: set[int] = set()
    equal = steps = 0
    for array in samples():
        levels.update(np.unique(array).tolist())
        equal += int(np.count_nonzero(array[..., 1:] == array[..., :-1]))
        steps += array[..., 1:].size
    return len(levels) > _LEVELS and equal < _EQUAL_NEIGHBOURS * steps


class ClassOverlap:
    """Overlap of two class maps over one or more samples.

    `iou_loss` is the largest, over the classes of the reference, of 1 - (intersection + 2) / union, at least 0: the
    loss of intersection over union (the Jaccard index) beyond two elements, which a tie may flip anywhere.
    """

    def __init__(self) -> None:
        self._counts: dict[int, Array] = {}
        """Class -> number of elements that have it in the reference, in the candidate, in both."""

    def add(self, reference: Array, candidate: Array) -> None:
        """Add one sample; both have the same shape."""
        same = reference[reference == candidate]
        for place, values in enumerate((reference, candidate, same)):
            for value, count in zip(*np.unique(values, return_counts=True), strict=True):
                self._counts.setdefault(int(value), np.zeros(3))[place] += count

    def take(self, other: ClassOverlap) -> None:
        """Add another sample's counts."""
        for value, counts in other._counts.items():
            self._counts[value] = self._counts.get(value, np.zeros(3)) + counts

    def worst(self) -> tuple[int, float] | None:
        """Return the class that overlaps least and its `iou_loss`; None where nothing was added."""
        losses = {
            value: max(0.0, 1.0 - float((both + 2) / (mine + theirs - both)))
            for value, (mine, theirs, both) in self._counts.items()
            if mine or theirs > 2
        }
        return max(losses.items(), key=lambda item: item[1], default=None)
