"""Lists that a model sorts by a score, such as the detections of an end-to-end detector.

They are one output, [batch, 300, 6], or several: boxes, scores and labels.

Rounding swaps rows whose scores are nearly equal, so that the same row of two right models may hold different
detections. The rows of both models are therefore compared in pairs: each row of the reference with the most similar one
of the candidate. That hides no wrong order, since the list is sorted by a score, which is compared with the rest of its
row. Which rows are the last is as arbitrary as their order, so only those are compared that one of the models scores
above the end of the reference's list by more than 5 % of the range of all its scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ndld_flow.models.files import load_structure
from ndld_flow.models.tensors import Array
from ndld_flow.samples.generated_values import is_float

Outputs = Mapping[str, Array | None]
"""Output name -> array; None for an output that is not a tensor."""
_LEAST_STEPS = 32
"""Minimum number of neighbouring rows in all samples, all in order, that show a sorted list."""
_END = 0.05
"""Scores within this part of the range of all scores of the list's end belong to the end."""
_MOST_COLUMNS = 256
"""Outputs with more values in a row, such as masks, do not decide which rows are similar."""


@dataclass(frozen=True)
class RankedList:
    """Outputs with the same rows, sorted by one of their columns."""

    outputs: tuple[str, ...]
    axis: int
    """The axis of the rows: 0, or 1 behind a batch."""
    score: str
    """The output with the scores."""
    column: int
    """Its column with the scores; 0 if it has no axis of columns."""
    margin: float
    """Rows are compared whose scores are above the list's end by more than this."""

    def pair(self, output: str, right: Outputs, wrong: Outputs) -> tuple[Array, Array] | None:
        """Return the rows of an output that are compared, of the reference and of the candidate, [1, rows, ...] with a
        batch, else [rows, ...]; `wrong` has the names of `right`.

        None if the two have other shapes, or the candidate's list is not sorted: then it is compared as it is.
        """
        named = ((name, right.get(name), wrong.get(name)) for name in self.outputs)
        both = {name: (r, c) for name, r, c in named if r is not None and c is not None and r.shape == c.shape}
        if len(both) < len(self.outputs) or len({r.shape[: self.axis + 1] for r, _ in both.values()}) > 1:
            return None
        batches = {name: (self._batched(r), self._batched(c)) for name, (r, c) in both.items()}
        scores = [array[..., self.column].astype(np.float64) for array in batches[self.score]]
        with np.errstate(invalid="ignore"):
            if (np.diff(scores[1], axis=1) > self.margin).any():
                return None
        compared = [arrays for arrays in batches.values() if arrays[0].shape[2] <= _MOST_COLUMNS]
        picked = [
            _pair_rows([(r[i], c[i]) for r, c in compared], scores[0][i], scores[1][i], self.margin)
            for i in range(len(scores[0]))
        ]
        rows = [
            np.concatenate([array[i][pairs[side]] for i, pairs in enumerate(picked)])
            for side, array in enumerate(batches[output])
        ]
        shape = (*([1] if self.axis else []), len(rows[0]), *both[output][0].shape[self.axis + 1 :])
        return rows[0].reshape(shape), rows[1].reshape(shape)

    def _batched(self, array: Array) -> Array:
        """Return [batch, rows, columns]."""
        columns = math.prod(array.shape[self.axis + 1 :])
        return array.reshape(-1 if self.axis else 1, array.shape[self.axis], columns)


def _pair_rows(values: Sequence[tuple[Array, Array]], r_score: Array, c_score: Array, margin: float) -> Array:
    """Return [2, pairs]: rows of the reference, and the rows of the candidate to compare them with.

    `values` has both models' [rows, columns] of each output: integers, such as labels, are equal or not.
    """
    if not r_score.size:
        return np.zeros((2, 0), np.int64)
    end = r_score.min() + margin
    scales = [np.ptp(r.astype(np.float64), axis=0) for r, _ in values]
    free = (np.ones(len(r_score), bool), np.ones(len(r_score), bool))
    pairs: list[tuple[int, int]] = []

    def match(index: int, side: int) -> None:
        """Pair a row of the reference (side 0) or of the candidate (1) with the most similar free one of the other."""
        distance = np.zeros(len(r_score))
        for arrays, scale in zip(values, scales, strict=True):
            own, others = arrays[side][index], arrays[1 - side]
            if is_float(own.dtype):
                apart = np.abs(others.astype(np.float64) - own.astype(np.float64)) / np.where(scale > 0, scale, 1.0)
                distance += np.square(np.nan_to_num(apart, nan=1e9, posinf=1e9)).sum(axis=1)
            else:
                distance += (others != own).sum(axis=1)
        nearest = int(np.where(free[1 - side], distance, np.inf).argmin())
        free[side][index] = free[1 - side][nearest] = False
        pairs.append((nearest, index) if side else (index, nearest))

    with np.errstate(invalid="ignore", over="ignore"):
        for index in np.flatnonzero(r_score > end):
            match(int(index), 0)
        for index in np.flatnonzero(free[1] & ~(c_score <= end)):  # NaN is above
            match(int(index), 1)
    return np.array(pairs, np.int64).reshape(-1, 2).T


def find_lists(stored: Iterable[Outputs], model: Path) -> Mapping[str, RankedList]:
    """Return output -> the list that it is part of, for the outputs of a reference on all samples, and its file.

    `stored` is read several times. A model that selects by scores (TopK, NonMaxSuppression) has a list where a column
    never rises from row to row, in no sample.
    """
    first = next(iter(stored), {})
    found: dict[str, RankedList] = {}
    for axis in (1, 0):
        groups: dict[tuple[int, ...], list[str]] = {}
        for name, array in first.items():
            if array is not None and array.ndim > axis and array.dtype.kind in "biuf" and name not in found:
                groups.setdefault(array.shape[: axis + 1], []).append(name)
        for shape, names in groups.items():
            if shape[-1] > 1:
                ranked = next(filter(None, (_find_list(tuple(names), name, axis, stored) for name in names)), None)
                found |= {} if ranked is None else dict.fromkeys(names, ranked)
    return found if found and _selects(model) else {}


def _find_list(names: tuple[str, ...], score: str, axis: int, stored: Iterable[Outputs]) -> RankedList | None:
    """Return the list whose scores are a column of an output; None if no column is sorted in all samples."""
    sorted_columns, lowest, highest, steps = np.array(True), np.array(np.inf), np.array(-np.inf), 0
    for outputs in stored:
        array = outputs.get(score)
        if array is None or array.ndim not in (axis + 1, axis + 2) or not is_float(array.dtype):
            return None
        columns = array.shape[axis + 1 :] or (1,)
        rows = array.astype(np.float64).reshape(-1 if axis else 1, array.shape[axis], *columns)
        if sorted_columns.ndim and rows.shape[2:] != sorted_columns.shape:
            return None
        with np.errstate(invalid="ignore"):  # of equal infinities
            sorted_columns = sorted_columns & (np.diff(rows, axis=1) <= 0).all(axis=(0, 1))
        if not sorted_columns.any():
            return None
        lowest = np.minimum(lowest, rows.min(axis=(0, 1), initial=np.inf))
        highest = np.maximum(highest, rows.max(axis=(0, 1), initial=-np.inf))
        steps += rows.shape[0] * max(rows.shape[1] - 1, 0)
    ranges = np.where(sorted_columns, highest - lowest, 0.0).reshape(-1)
    column = int(ranges.argmax())
    if steps < _LEAST_STEPS or not 0 < ranges[column] < np.inf:
        return None
    return RankedList(names, axis, score, column, _END * float(ranges[column]))


def _selects(model: Path) -> bool:
    """Return whether a model has an operator that selects by scores."""
    types = {node.op_type for node in load_structure(model).graph.all_nodes()}
    return bool(types & {"TopK", "NonMaxSuppression"}) or any("NMS" in name for name in types)
