"""Judgement of two models by a user's metric on a labelled set.

Labels are read from a file and matched to the samples by name; the metric is a function in a Python file."""

from __future__ import annotations

import contextlib
import csv
import inspect
import io
import json
import keyword
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from ndld_flow.accuracy.model_comparison import Comparison, StoredOutputs
from ndld_flow.accuracy.tolerance import MetricTolerance
from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.base.text import one_paragraph, short_name, shortened
from ndld_flow.base.user_code import load_user_module, locating_errors
from ndld_flow.models.tensors import Array
from ndld_flow.records.accuracy import LabelledMetric
from ndld_flow.records.document import stat_file
from ndld_flow.samples.value_files import NO_HEADER

Label = object
"""A string or number of a table, any value of a JSON object, or a number or array of a `.npy` file."""
_NAMED = 3
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
_DECIMAL = re.compile(r"-?\d+\.\d*(e[+-]?\d+)?")
_HEADER = ["file", "label"]


@dataclass(frozen=True)
class Labels:
    """The labels in a file."""

    path: Path
    named: Mapping[str, Label] | None
    """Sample name -> label; None if the file names no samples."""
    ordered: Sequence[Label] = ()
    """One label for each sample in their order, if the file names no samples."""

    def match(self, samples: Sequence[str], *, spare: bool) -> list[Label]:
        """Return the label of each sample.

        A label's name matches the sample of that name, or one of the two is a suffix of the other's path. With `spare`
        there may be labels without a sample. Raises `RequestError` that names the mismatches on both sides.
        """
        if self.named is None:
            count = len(self.ordered)
            if count < len(samples) or (count > len(samples) and not spare):
                raise RequestError(
                    f"{self.path} does not match the samples: it has {count} labels, and there are {len(samples)} "
                    "samples."
                )
            return list(self.ordered[: len(samples)])
        matched, wrong = _match_names(self.named, list(dict.fromkeys(samples)))
        used = set(matched.values())
        left = [name for name in self.named if name not in used]
        if left and not spare:
            wrong.append(_count_names(left, "label has no sample", "labels have no sample"))
        if wrong:
            raise RequestError(f"{self.path} does not match the samples: {'; '.join(wrong)}.")
        return [self.named[matched[sample]] for sample in samples]


def read_labels(path: Path) -> Labels:
    """Read labels from a `.csv` (`file,label`), a `.json` object (name -> label) or a `.npy` (one label per row).

    Raises `RequestError` for a file that cannot be read, with all of its errors.
    """
    read = {".csv": _read_csv, ".json": _read_json, ".npy": _read_npy}.get(path.suffix.lower())
    if read is None:
        raise RequestError(f"{path}: labels are a .csv with the columns file and label, a .json object, or a .npy.")
    try:
        stat_file(path)
        return read(path)
    except OSError as error:
        raise RequestError(f"{path}: the labels cannot be read ({error.strerror or error}).") from None
    except (*NO_HEADER, csv.Error, MemoryError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else one_paragraph(error)
        if "pickle" in reason:
            reason = "it holds pickled objects, which are never loaded. Save an array of numbers or strings"
        raise RequestError(f"{path}: the labels cannot be read: {short_name(reason, 300)}.") from None


def _read_csv(path: Path) -> Labels:
    rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""), strict=True))
    if not rows or [cell.strip() for cell in rows[0]] != _HEADER:
        raise ValueError("its first line is not `file,label`")
    pairs = []
    odd = []
    for line, row in enumerate(rows[1:], 2):
        if len(row) == len(_HEADER):
            pairs.append((row[0].strip(), _plain_value(row[1].strip())))
        elif row:
            odd.append(str(line))
    if odd:
        raise ValueError(_count_names(odd, "row does not have two columns", "rows do not have two columns", "row"))
    return _named(path, pairs)


def _read_json(path: Path) -> Labels:
    pairs: list[tuple[str, Label]] = []

    def keep_pairs(read: list[tuple[str, Label]]) -> dict[str, Label]:
        pairs[:] = read  # those of the outermost object come last; a dictionary would hide a name that is repeated
        return dict(read)

    if not isinstance(json.loads(path.read_bytes(), object_pairs_hook=keep_pairs), dict):
        raise ValueError('it is not an object of file names and labels, such as {"cat.png": 3}')
    return _named(path, pairs)


def _read_npy(path: Path) -> Labels:
    values = np.load(path, allow_pickle=False)
    if not isinstance(values, np.ndarray) or values.ndim == 0:
        raise ValueError("it is not an array with one label per row")
    return Labels(path, None, list(values))


def _named(path: Path, pairs: Sequence[tuple[str, Label]]) -> Labels:
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(_count_names(twice, "file is labelled twice", "files are labelled twice"))
    if not pairs:
        raise ValueError("it contains no labels")
    return Labels(path, dict(pairs))


def _plain_value(text: str) -> Label:
    """Convert `3` to 3 and `0.5` to 0.5; `007` and everything else stay strings."""
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


def _match_names(names: Collection[str], samples: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return sample -> label name, and sentences about samples with no label or several."""
    by_file: dict[str, list[str]] = {}
    for name in names:
        by_file.setdefault(_parts(name)[-1], []).append(name)
    matched: dict[str, str] = {}
    without: list[str] = []
    several: list[str] = []
    for sample in samples:
        alike = by_file.get(_parts(sample)[-1], [])
        # One of the two is a suffix of the other's path.
        fitting = [name for name in alike if all(map(operator.eq, reversed(_parts(name)), reversed(_parts(sample))))]
        fitting = [sample] if sample in names else fitting
        if len(fitting) == 1:
            matched[sample] = fitting[0]
        else:
            (several if fitting else without).append(sample)
    wrong = [_count_names(without, "sample has no label", "samples have no label")] if without else []
    if several:
        wrong.append(_count_names(several, "sample matches several labels", "samples match several labels"))
    shared = [name for name, count in Counter(matched.values()).items() if count > 1]
    if shared:
        wrong.append(_count_names(shared, "label matches several samples", "labels match several samples"))
    return matched, wrong


def _parts(name: str) -> tuple[str, ...]:
    return PurePosixPath(name.replace("\\", "/")).parts or (name,)


def _count_names(names: Iterable[str], singular: str, plural: str, counted: str = "") -> str:
    """Return `3 samples have no label (a.png, b.png, c.png)`."""
    listed = list(names)
    shown = ", ".join(f"{counted} {short_name(name)}".strip() for name in listed[:_NAMED])
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return f"{len(listed)} {singular if len(listed) == 1 else plural} ({shown}{more})"


PLAIN = "metric"
"""Name of a metric that is a plain number."""
_TAKEN = re.compile(
    r"cosine|snr_db|psnr_db|max_abs|mean_abs|max_rel|rmse|relative_rms|mismatched|kl|top\d+|reference|drop"
)


@dataclass(frozen=True)
class LabelledSet:
    """One model's outputs on labelled samples."""

    model: str
    samples: Sequence[str]
    labels: Sequence[Label]
    outputs: StoredOutputs


@dataclass(frozen=True)
class Scores:
    """The values of a user's metric for one model."""

    values: Mapping[str, float]
    """Values over all samples."""
    each: tuple[dict[str, float], ...] = ()
    """Values of each sample; empty if the metric is of the whole set."""


@dataclass(frozen=True)
class UserMetric:
    """The metric function of a user's file."""

    path: Path
    kind: Literal["metric", "evaluate"]
    function: Callable[..., Any]

    def score(self, labelled: LabelledSet) -> Scores:
        """Score one model.

        Raises `RequestError` with file, line and message if the function fails, and with the metric's name if it
        returns no number.
        """
        return self._over_samples(labelled) if self.kind == "metric" else self._over_set(labelled)

    def _over_samples(self, labelled: LabelledSet) -> Scores:
        each: list[dict[str, float]] = []
        for sample, label, kept in zip(labelled.samples, labelled.labels, labelled.outputs, strict=True):
            where = f"sample {short_name(sample)}, model {short_name(labelled.model)}"
            with _with_sample(where), locating_errors(self.path):
                each.append(self._numbers(self.function(_own_arrays(kept), label)))
                if each[-1].keys() != each[0].keys():
                    raise RequestError(
                        f"{self.path}: metric() returns {', '.join(each[-1])} for one sample and "
                        f"{', '.join(each[0])} for others: return the same names for all"
                    )
        names = each[0] if each else {}
        return Scores({name: math.fsum(scores[name] for scores in each) / len(each) for name in names}, tuple(each))

    def _over_set(self, labelled: LabelledSet) -> Scores:
        predictions = _Predictions(labelled)
        where = f"model {short_name(labelled.model)}"
        with _with_sample(where), locating_errors(self.path):
            values = self._numbers(self.function(predictions))
            if predictions.taken < len(predictions):
                raise RequestError(
                    f"{self.path}: evaluate() read {predictions.taken} of {len(predictions)} predictions: a metric of "
                    "the whole set needs all of them"
                )
        return Scores(values)

    def _numbers(self, returned: object) -> dict[str, float]:
        named = returned if isinstance(returned, Mapping) else {PLAIN: returned}
        if not named:
            raise RequestError(f"{self.path}: {self.kind}() returns an empty dict: return at least one metric")
        return {self._name(name): self._number(name, value) for name, value in named.items()}

    def _name(self, name: object) -> str:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise RequestError(
                f"{self.path}: {self.kind}() calls a metric {short_name(repr(name))}: use a name of letters, digits "
                "and _, so that gates can name it"
            )
        if _TAKEN.fullmatch(name):
            raise RequestError(
                f'{self.path}: {self.kind}() calls a metric "{name}", a name that check_accuracy uses: use another name'
            )
        return name

    def _number(self, name: object, value: object) -> float:
        # Many computations with numpy result in an array of one number.
        if isinstance(value, np.ndarray | np.generic) and value.size == 1:
            value = value.item()
        if not isinstance(value, bool | int | float) or not math.isfinite(value):
            called = "" if name == PLAIN else f" for {short_name(str(name))}"
            raise RequestError(
                f"{self.path}: {self.kind}() returns {short_name(repr(value), 60)}{called}, not a finite number"
            )
        return float(value)


class _Predictions:
    """Pairs (outputs, label) of all samples in order; can be iterated repeatedly."""

    def __init__(self, labelled: LabelledSet) -> None:
        self._labelled = labelled
        self.taken = 0

    def __len__(self) -> int:
        return len(self._labelled.outputs)

    def __iter__(self) -> Iterator[tuple[dict[str, Array], Label]]:
        pairs = zip(self._labelled.outputs, self._labelled.labels, strict=True)
        for i, (kept, label) in enumerate(pairs, 1):
            self.taken = max(self.taken, i)
            yield _own_arrays(kept), label


def load_metric(path: Path) -> UserMetric:
    """Load the function `metric(outputs, label)` or `evaluate(predictions)` of a file.

    Raises `RequestError` if the file cannot be imported, or does not have exactly one of the two.
    """
    module = load_user_module(path)
    kinds: dict[Literal["metric", "evaluate"], tuple[str, int]] = {
        "metric": ("metric(outputs, label)", 2),
        "evaluate": ("evaluate(predictions)", 1),
    }
    there = [kind for kind in kinds if callable(getattr(module, kind, None))]
    if len(there) != 1:
        has, joined = ("has both", "and") if there else ("has neither", "nor")
        raise RequestError(
            f"{path} {has} `def metric(outputs, label)` (for one sample; the mean is reported) {joined} "
            "`def evaluate(predictions)` (for the whole set, pairs of outputs and label): define one of them."
        )
    function = getattr(module, there[0])
    wanted, count = kinds[there[0]]
    if not _takes(function, count):
        raise RequestError(f"{path}: write it as `def {wanted}`; it is `def {there[0]}{inspect.signature(function)}`.")
    return UserMetric(path, there[0], function)


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a compiled function without a signature
        return True
    return True


def _own_arrays(kept: Mapping[str, Array | None]) -> dict[str, Array]:
    """Return copies in memory that the user's code may change."""
    return {name: np.array(array) for name, array in kept.items() if array is not None}


@contextlib.contextmanager
def _with_sample(where: str) -> Iterator[None]:
    """Add the sample to a `RequestError`'s message."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"{error} ({where}).") from error.__cause__


_LABEL_LENGTH = 80


@dataclass(frozen=True)
class LabelledJudgement:
    """The metric's values for both models."""

    file: str
    """The name of the user's file."""
    metrics: tuple[LabelledMetric, ...]
    labels: tuple[str, ...]
    """The label of each sample, as text."""
    reference: Scores
    candidate: Scores


@dataclass(frozen=True)
class LabelledComparison:
    """A metric and the labels of all samples, loaded before any model runs."""

    metric: UserMetric
    labels: Sequence[Label]
    tolerance: Mapping[str, MetricTolerance]

    def judge(self, compared: Comparison) -> LabelledJudgement:
        """Score both models.

        Raises `RequestError` if the user's code fails or returns no numbers, and for bounds of a metric that it does
        not return.
        """
        both = (compared.reference, compared.kept_reference), (compared.candidate, compared.kept_candidate)
        reference, candidate = (
            self.metric.score(LabelledSet(run.side.label, compared.samples, self.labels, outputs))
            for run, outputs in both
        )
        self._check_names(reference, candidate)
        metrics = (self._judged(name, value, candidate.values[name]) for name, value in reference.values.items())
        labels = tuple(shortened(str(label), _LABEL_LENGTH) for label in self.labels)
        return LabelledJudgement(self.metric.path.name, tuple(metrics), labels, reference, candidate)

    def _check_names(self, reference: Scores, candidate: Scores) -> None:
        names = list(reference.values)
        if reference.values.keys() != candidate.values.keys():
            raise RequestError(
                f"{self.metric.path}: {self.metric.kind}() returns {', '.join(names)} for the reference and "
                f"{', '.join(candidate.values)} for the candidate: return the same names for both."
            )
        for name in self.tolerance:
            if name not in names:
                raise UnknownNameError(f'metric_tolerance: {self.metric.kind}() returns no "{name}"', name, names)

    def _judged(self, name: str, reference: float, candidate: float) -> LabelledMetric:
        tolerance = self.tolerance.get(name)
        return LabelledMetric(
            name=name,
            reference=reference,
            candidate=candidate,
            bounds={} if tolerance is None else tolerance.given(),
            failed=() if tolerance is None else tuple(tolerance.outside(name, reference, candidate)),
        )


def prepare_labelled(
    metric: Path, labels: Path, tolerance: Mapping[str, MetricTolerance], samples: Sequence[str], *, spare: bool
) -> LabelledComparison:
    """Load a metric and match its labels to the samples.

    With `spare` there may be more labels than samples. Raises `RequestError` if the file of either cannot be read,
    and for labels and samples that do not match.
    """
    return LabelledComparison(load_metric(metric), read_labels(labels).match(samples, spare=spare), tolerance)
