"""The metrics that a step returns, declared with its class, so that gates are checked before anything runs.

::

    returns = (
        *metrics("nodes", "casts_added"),
        *metrics("initializer_bytes", unit="bytes"),
        *metrics("batch_{size}.latency.median", unit="ms", given=lambda step, size: int(size) in step.batches),
        *metrics("{output}.cosine", when="the model has several outputs"),
    )
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ndld_flow.base.quantities import apart, percent, quantity
from ndld_flow.base.text import lazy_pattern, suggest

_WORD = lazy_pattern(r"\{(\w+)\}")


@dataclass(frozen=True)
class Returns:
    """A metric that a step returns, or a family of them."""

    name: str
    """`latency.median`; `{output}` stands for one word: `{output}.cosine`."""
    unit: str = ""
    """`ms`, `s`, `bytes`, `1/s`, `dB`; empty for a count or a ratio."""
    given: Callable[..., bool] | None = None
    """`given(step, *words)` is true if a step with these settings returns the metric, with these words in the
    placeholders; None if all settings return it."""
    when: str = ""
    """The condition in words: that of `given`, or one that is only known after the run, such as a property of the model
    or the machine. Empty if the metric is always returned."""

    def words_of(self, name: str) -> tuple[str, ...] | None:
        """Return the words that a name has in the placeholders; None if the name is not of this family."""
        if "{" not in self.name:
            return () if name == self.name else None
        match = re.fullmatch(_WORD.sub(r"(\\w+)", re.escape(self.name).replace(r"\{", "{").replace(r"\}", "}")), name)
        return match.groups() if match else None

    def is_given(self, step: object, words: Sequence[str]) -> bool:
        """Return whether this step, with its settings, returns the metric."""
        return self.given is None or self.given(step, *words)


def metrics(
    *names: str, unit: str = "", given: Callable[..., bool] | None = None, when: str = ""
) -> tuple[Returns, ...]:
    """Return the declarations of several metrics with the same unit and condition."""
    return tuple(Returns(name, unit, given, when) for name in names)


def find_unit(name: str, declared: Iterable[Returns] | None) -> str:
    """Return the unit that a metric is declared with; empty for one that is not declared."""
    return next((each.unit for each in declared or () if each.words_of(name) is not None), "")


@dataclass(frozen=True)
class Wrong:
    """The reason why a step does not return a metric."""

    what: str
    hint: str = ""


def find_metric(name: str, step: object, declared: Iterable[Returns], *, settled: bool = True) -> Returns | Wrong:
    """Return the declaration of a metric, or the reason why the step does not return it.

    `settled` is true if the step's settings are known and none of them varies.
    """
    declared = list(declared)
    of_family = [(each, words) for each in declared if (words := each.words_of(name)) is not None]
    for each, words in of_family:
        if not settled or each.is_given(step, words):
            return each
    known = [each.name for each in declared if not settled or "{" in each.name or each.is_given(step, ())]
    if of_family:
        nearest = suggest(name, known)
        meant = f"{nearest} `{name}` is " if nearest.startswith("did you mean") else ""
        return Wrong(f"with these settings it returns no `{name}`", f"{meant}returned when {of_family[0][0].when}")
    if not known:
        return Wrong(f"it returns no `{name}`, and no other metric")
    inner = [each for each in known if each.startswith(f"{name}.")]
    if inner:
        parts = f', such as "{name}.median"' if f"{name}.median" in inner else f": {', '.join(inner)}"
        return Wrong(f"it returns no `{name}`", f"name a part of it{parts}")
    return Wrong(f"it returns no `{name}`", suggest(name, known))


# --- units ---

DURATIONS = ("ms", "s")
ANY = None
"""The unit of a plain number, which takes the unit of the other operand."""
UNKNOWN = "?"
"""The unit of a metric whose step declares none, and of products of units."""


def mixed(left: str | None, right: str | None) -> bool:
    """Return whether two units cannot be compared or added."""
    if ANY in (left, right) or UNKNOWN in (left, right) or left == right:
        return False
    return not {left, right} <= {*DURATIONS}


Better = Literal["lower", "higher", "neither"]
HIGHER_IS_BETTER = ("cosine", "snr_db", "psnr_db", "top1", "top5")
"""Metrics for which lower is worse: their tolerance is a lower bound, and the lowest value of several outputs counts.
Other `topK` metrics are of this kind too: see `higher_is_better`."""
OF_WORST_SAMPLE = ("cosine", "snr_db", "psnr_db", "relative_rms", "max_abs", "max_rel", "slice_max")
"""Metrics whose value over several samples is that of the worst one; a bound on another is one on all samples together,
which a single sample may exceed."""
_TOP = lazy_pattern(r"top\d+")
_HIGHER_IS_BETTER = ("accuracy", "throughput")
_LOWER_IS_BETTER = ("bytes", "nodes", "macs", "parameters")
_ERRORS = ("max_abs", "mean_abs", "max_rel", "rmse", "relative_rms", "mismatched", "kl")
FRACTIONS = ("slice_rms", "slice_max", "position_rms", "iou_loss", "relative_rms", "mismatched")
"""Errors that people read in percent."""


def higher_is_better(metric: str) -> bool:
    """Return whether a lower value of a metric of agreement is worse; a user's own metrics are not known here."""
    return metric in HIGHER_IS_BETTER or _TOP.fullmatch(metric) is not None


def metric_texts(name: str, *values: float) -> tuple[str, ...]:
    """Format values of a metric without a unit, with enough digits to show that they differ: `0.49 %` of `slice_rms`,
    `0.9998` of `cosine`.
    """
    if name.rpartition(".")[2] not in FRACTIONS or not all(map(math.isfinite, values)):
        return apart(values, "")
    texts = tuple(map(percent, values))
    return texts if len(set(texts)) == len(set(values)) else apart([100 * value for value in values], "%")


def metric_text(name: str, value: float, unit: str = "") -> str:
    """Format one value with its unit, or like `metric_texts` without one."""
    return quantity(value, unit) if unit else metric_texts(name, value)[0]


def which_is_better(name: str, unit: str) -> Better:
    """Return whether less or more of a metric is better, by the last part of its name and its unit."""
    rest, _, last = name.rpartition(".")
    if rest.rpartition(".")[2] == "drop":  # a user's metric
        return "neither"
    if last in _HIGHER_IS_BETTER or higher_is_better(last) or unit == "1/s":
        return "higher"
    return "lower" if last in (*_LOWER_IS_BETTER, *_ERRORS) or unit in ("ms", "s", "bytes") else "neither"
