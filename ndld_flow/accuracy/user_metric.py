"""A user's metric: a Python file that says how good a model's outputs are on a labelled set."""

from __future__ import annotations

import contextlib
import inspect
import keyword
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ndld_flow.accuracy.kept_outputs import KeptOutputs
from ndld_flow.accuracy.labels import Label
from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name
from ndld_flow.base.user_code import load_user_module, locating_errors
from ndld_flow.models.tensors import Array

PLAIN = "metric"
"""What a metric that is a plain number is called."""
_TAKEN = re.compile(
    r"cosine|snr_db|psnr_db|max_abs|mean_abs|max_rel|rmse|relative_rms|mismatched|kl|top\d+|reference|drop"
)


@dataclass(frozen=True)
class LabelledSet:
    """One model's outputs on samples whose labels are known."""

    model: str
    samples: Sequence[str]
    labels: Sequence[Label]
    outputs: KeptOutputs


@dataclass(frozen=True)
class Scores:
    """What a user's metric says of one model."""

    values: Mapping[str, float]
    """Over all samples."""
    each: tuple[dict[str, float], ...] = ()
    """Of each sample; empty where the metric is one of the whole set."""


@dataclass(frozen=True)
class UserMetric:
    """The function of a user's file."""

    path: Path
    kind: Literal["metric", "evaluate"]
    function: Callable[..., Any]

    def score(self, labelled: LabelledSet) -> Scores:
        """Raises `RequestError` with file, line and message where the function fails, and by name for what it returns
        if that is no number.
        """
        return self._over_samples(labelled) if self.kind == "metric" else self._over_set(labelled)

    def _over_samples(self, labelled: LabelledSet) -> Scores:
        each: list[dict[str, float]] = []
        for sample, label, kept in zip(labelled.samples, labelled.labels, labelled.outputs, strict=True):
            where = f"sample {short_name(sample)}, model {short_name(labelled.model)}"
            with _told_where(where), locating_errors(self.path):
                each.append(self._numbers(self.function(_own_arrays(kept), label)))
                if each[-1].keys() != each[0].keys():
                    raise RequestError(
                        f"{self.path}: metric() returns {', '.join(each[-1])} for one sample and "
                        f"{', '.join(each[0])} for others: return the same names for all"
                    )
        names = each[0] if each else {}
        return Scores({name: math.fsum(one[name] for one in each) / len(each) for name in names}, tuple(each))

    def _over_set(self, labelled: LabelledSet) -> Scores:
        predictions = _Predictions(labelled)
        where = f"model {short_name(labelled.model)}"
        with _told_where(where), locating_errors(self.path):
            values = self._numbers(self.function(predictions))
            if predictions.taken < len(predictions):
                raise RequestError(
                    f"{self.path}: evaluate() took {predictions.taken} of {len(predictions)} predictions: a metric of "
                    "the whole set needs them all"
                )
        return Scores(values)

    def _numbers(self, returned: object) -> dict[str, float]:
        named = returned if isinstance(returned, Mapping) else {PLAIN: returned}
        if not named:
            raise RequestError(f"{self.path}: {self.kind}() returns an empty dict: return what it measured")
        return {self._name(name): self._number(name, value) for name, value in named.items()}

    def _name(self, name: object) -> str:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise RequestError(
                f"{self.path}: {self.kind}() calls a metric {short_name(repr(name))}: use a name of letters, digits "
                "and _, which gates can say"
            )
        if _TAKEN.fullmatch(name):
            raise RequestError(
                f'{self.path}: {self.kind}() calls a metric "{name}", as check_accuracy calls one of its own: use '
                "another name"
            )
        return name

    def _number(self, name: object, value: object) -> float:
        # An array of one number is what many a calculation with numpy ends in.
        if isinstance(value, np.ndarray | np.generic) and value.size == 1:
            value = value.item()
        if not isinstance(value, bool | int | float) or not math.isfinite(value):
            called = "" if name == PLAIN else f" for {short_name(str(name))}"
            raise RequestError(
                f"{self.path}: {self.kind}() returns {short_name(repr(value), 60)}{called}, which is no finite number"
            )
        return float(value)


class _Predictions:
    """(outputs, label) of each sample, in their order, as often as wanted."""

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
    """The function `metric(outputs, label)` or `evaluate(predictions)` of a file. Raises `RequestError` when the file
    cannot be imported, or has not one of the two.
    """
    module = load_user_module(path)
    kinds: dict[Literal["metric", "evaluate"], tuple[str, int]] = {
        "metric": ("metric(outputs, label)", 2),
        "evaluate": ("evaluate(predictions)", 1),
    }
    there = [kind for kind in kinds if callable(getattr(module, kind, None))]
    if len(there) != 1:
        has = "has both" if there else "has neither"
        raise RequestError(
            f"{path} {has} `def metric(outputs, label)` (of one sample; the mean is taken) and `def "
            "evaluate(predictions)` (of the whole set, pairs of outputs and label): write one of them."
        )
    function = getattr(module, there[0])
    wanted, count = kinds[there[0]]
    if not _takes(function, count):
        raise RequestError(f"{path}: write it as `def {wanted}`; it is `def {there[0]}{_signature(function)}`.")
    return UserMetric(path, there[0], function)


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # something compiled, which does not say
        return True
    return True


def _signature(function: Callable[..., Any]) -> str:
    return str(inspect.signature(function))


def _own_arrays(kept: Mapping[str, Array | None]) -> dict[str, Array]:
    """In memory, and free to be changed."""
    return {name: np.array(array) for name, array in kept.items() if array is not None}


@contextlib.contextmanager
def _told_where(where: str) -> Iterator[None]:
    """Adds to an error which sample it was."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"{error} ({where}).") from error.__cause__
