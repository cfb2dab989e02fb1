"""The conditions of `--keep`: those on accuracy, and those on the latency."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.declared_metrics import Wrong, find_metric
from ndld_flow.base.errors import RequestError
from ndld_flow.recipe.gates import GateError, parse_condition
from ndld_flow.records.accuracy import SampleAgreement
from ndld_flow.records.measurement import Metric

_KEEP = re.compile(r"\s*([A-Za-z_][\w.]*)\s*((?:<=|>=|==|<|>).*)", re.DOTALL)
_LATENCY = re.compile(r"\s*latency\s*<=\s*(\d+(?:\.\d+)?)\s*x\s*")
_BEST = {"cosine": 1.0, "relative_rms": 0.0, "rmse": 0.0, "mean_abs": 0.0, "max_abs": 0.0, "kl": 0.0, "mismatched": 0.0}
"""Metric -> its best value, of those whose error adds up over samples."""
_MARGIN = 0.5
"""Share of the allowed error that a search for exceptions may use. One that uses all of it on its samples exceeds it on
others: 0.9911 became 0.9855 on held-out samples for PP-OCR recognition, with a bound of 0.99."""


@dataclass(frozen=True)
class Conditions:
    """The conditions of one search."""

    accuracy: tuple[tuple[str, str], ...] = ()
    """Metric and bound: `cosine`, `>= 0.999`."""
    latency: float | None = None
    """Allowed latency as a multiple of the source's."""

    def of(self, step: str) -> list[str]:
        """Return the conditions on accuracy, on the metrics of a step."""
        return [f"{step}.{metric} {bound}" for metric, bound in self.accuracy]

    def violated(self, metrics: Mapping[str, Metric], factor: float = _MARGIN) -> str:
        """Return a metric whose error is more than that many times the allowed one; empty if there is none."""
        for metric, sign, bound in self.scaled(factor):
            found = metrics.get(metric)
            if found is not None and not (found.value >= bound if sign == ">=" else found.value <= bound):
                return metric
        return ""

    def near_bound(self, samples: Sequence[SampleAgreement]) -> str:
        """Return the condition that as many new samples may violate, with the value that they may have; else nothing.

        Errors are those of the worst output of each sample.
        """
        from ndld_flow.accuracy.new_samples import largest_expected

        for metric, sign, bound in self.scaled(1.0):
            best = _BEST[metric]
            of_outputs = (
                [abs(values[metric] - best) for values in sample.outputs.values() if metric in values]
                for sample in samples
            )
            expected = largest_expected([max(errors) for errors in of_outputs if errors])
            if expected is not None and expected > abs(bound - best):
                value = best - expected if best else expected
                return f"{metric} {sign} {bound:g} may fail on other samples: the worst of as many may be {value:.4g}"
        return ""

    def scaled(self, factor: float) -> Iterator[tuple[str, str, float]]:
        """Yield metric, comparison and bound of the conditions on errors, which are allowed to be that many times as
        large."""
        for metric, bound in self.accuracy:
            best, sign = _BEST.get(metric), bound[:2].rstrip("= ") + "="
            try:
                value = float(bound.lstrip("<>= "))
            except ValueError:
                continue
            if best is not None and sign == (">=" if best else "<="):
                yield metric, sign, best + (value - best) * factor


def read_conditions(keep: Sequence[str], metric: Path | None, labels: Path | None) -> Conditions:
    """Return the conditions of `--keep`. Raises RequestError for one that is not on a metric of `check_accuracy`."""
    from ndld_flow.steps.check_accuracy import CheckAccuracy

    if (metric is None) != (labels is None):
        raise RequestError("give both --metric and --labels: your own metric judges outputs by their labels.")
    if labels is not None and labels.suffix.lower() == ".npy":
        raise RequestError(
            f"--labels {labels}: labels without names follow the order of all samples, and a third of these is held "
            "out. Give a .csv with the columns file and label, or a .json object that names the files."
        )
    step = CheckAccuracy.model_construct(metric=metric, labels=labels)  # only declares its metrics
    accuracy, latency = [], None
    for text in keep:
        if allowed := _LATENCY.fullmatch(text):
            latency = float(allowed[1])
            continue
        match = _KEEP.fullmatch(text)
        try:
            parse_condition(text)
        except GateError as error:
            raise RequestError(f"--keep {text!r}: {error}, such as 'cosine >= 0.999' or 'latency <= 1.1x'.") from None
        if match is None:
            raise RequestError(f"--keep {text!r}: write METRIC, a comparison and a number, such as 'cosine >= 0.999'.")
        found = find_metric(match[1], step, CheckAccuracy.returns, settled=metric is None)
        if isinstance(found, Wrong):
            raise RequestError(f"--keep {text!r}: check_accuracy: {found.what}; {found.hint}")
        accuracy.append((match[1], match[2].strip()))
    return Conditions(tuple(accuracy), latency)


def tolerance_of(conditions: Conditions) -> str:
    """Return the bounds of a search inside a variant that correspond to conditions, with a margin, as far as it has
    them; by default those that judge variants.
    """
    from ndld_flow.accuracy.tolerance import Tolerance

    bounds = {metric: bound.lstrip("<>= ") for metric, bound in conditions.accuracy}
    bounds |= {metric: f"{value:.6g}" for metric, _, value in conditions.scaled(_MARGIN)}
    bounds = {name: bound for name, bound in bounds.items() if name in Tolerance.model_fields and name != "slices"}
    if not bounds:
        return ", tolerance: {slices: default}"
    return ", tolerance: {slices: off, " + ", ".join(f"{name}: {value}" for name, value in bounds.items()) + "}"
