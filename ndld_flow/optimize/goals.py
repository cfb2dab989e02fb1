"""The goals of `optimize`: objectives, by which it ranks and proves gains, and the conditions of `--keep`."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ndld_flow.base.declared_metrics import Wrong, find_metric
from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.base.quantities import percent
from ndld_flow.base.text import short_name
from ndld_flow.recipe.gates import GateError, parse_condition
from ndld_flow.records.accuracy import Accuracy, SampleAgreement
from ndld_flow.records.measurement import Metric

AT_LEAST = 0.99
"""Largest upper end of a ratio to the source at which a variant is better: two equal models may differ by 1 %."""
PAYS = 0.97
"""Largest ratio to the best proved latency at which a variant is worth the time of a proof."""
SLOWER = 1.03
"""Largest upper end of the ratio of latencies at which a variant is not slower, when another objective comes first."""
Evidence = Literal["alternating passes", "process runs", "exact", "single builds"]


@dataclass(frozen=True)
class Objective:
    """An objective."""

    name: str
    direction: Literal["minimize", "maximize"]
    metric: str
    """The metric of the step `speed`, or of the step `engine` where only an engine is built."""
    evidence: Evidence
    ratio: str = ""
    """The ratio to the source in a proof, below 1 for a gain, whose ends are `{end}`: `_low` and `_high`."""


_TIMES = "versus.latency.median.ratio{end}"
OBJECTIVES: Mapping[str, Objective] = {
    each.name: each
    for each in (
        Objective("latency", "minimize", "speed.latency.min", "alternating passes", _TIMES),
        Objective("size", "minimize", "speed.model_bytes", "exact", "speed.model_bytes / base.model_bytes"),
        Objective("memory", "minimize", "speed.memory.peak_bytes", "process runs", "versus.memory.peak.ratio{end}"),
        Objective("build_time", "minimize", "speed.load_ms", "process runs", "versus.load.ratio{end}"),
        Objective(
            "throughput",
            "maximize",
            "speed.throughput.items",
            "alternating passes",
            f"{_TIMES} * base.items_per_pass / speed.items_per_pass",
        ),
    )
}
"""Name -> objective, for targets that run models on this machine."""
ENGINE_OBJECTIVES: Mapping[str, Objective] = {
    each.name: each
    for each in (
        Objective("size", "minimize", "engine.engine_bytes", "exact", "engine.engine_bytes / base.engine_bytes"),
        Objective("build_time", "minimize", "engine.build_s", "single builds", "engine.build_s / base.build_s"),
    )
}
"""Name -> objective, for targets whose engines this machine builds and cannot run."""


def choose_objectives(
    minimize: Sequence[str], maximize: Sequence[str], by_default: Sequence[str], *, built_only: bool = False
) -> tuple[Objective, ...]:
    """Return the objectives, those to minimize first; `by_default` names those of the target.

    Raises RequestError for a name that is no objective, or one of the other direction.
    """
    known = ENGINE_OBJECTIVES if built_only else OBJECTIVES
    given = [*(("minimize", name) for name in minimize), *(("maximize", name) for name in maximize)]
    for direction, name in given:
        objective = known.get(name)
        if objective is None and name in OBJECTIVES:
            raise RequestError(
                f"--{direction} {name}: no device of this target is here, so that it is unknown; "
                f"known are {', '.join(known)}."
            )
        if objective is None:
            raise UnknownNameError(f"--{direction} {name}: it is no objective", name, list(known))
        if objective.direction != direction:
            raise RequestError(f"--{direction} {name}: write --{objective.direction} {name}.")
    names = dict.fromkeys(name for _, name in given) or dict.fromkeys(by_default)
    return tuple(known[name] for name in names)


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
    if not bounds:  # at the default one of 5 %, the result would be near it on other samples
        return ", tolerance: {slices: default, slice_rms: 4 %}"
    return ", tolerance: {slices: off, " + ", ".join(f"{name}: {value}" for name, value in bounds.items()) + "}"


FEWEST = 8
"""Number of samples from which their spread is estimated."""
_RISK = 0.05
"""Probability that any of the new samples exceeds the bound."""
_SPREAD = 1e-3
"""Smaller errors than this share of the largest count as this: zeros have no logarithm."""
_MOST_FREEDOM, _LEAST_FREEDOM = 8.0, 3.0


def largest_expected(errors: Sequence[float]) -> float | None:
    """Return the error that as many new samples exceed in 5 % of cases; at least the largest of those at hand.

    `errors` are those of whole samples, from 0 on. None if there are too few, or one is not finite.

    The worst of 24 new samples is worse than the worst of 36 in 40 % of cases, by chance alone: a bound that just holds
    on the samples at hand does not hold on others. The result is a prediction bound for several future observations by
    Bonferroni's inequality (Hahn and Meeker, "Statistical Intervals", section 4.8).

    Errors of numeric formats spread over orders of magnitude, so that their logarithms are modelled, above the median
    only: that some samples are nearly exact shows nothing of the worst. Some inputs are far worse than a normal
    distribution foresees; Student's t with 8 degrees of freedom allows for these, and with fewer for the spread of
    fewer samples.

    Measured on 87 variants of 16 models with 60 samples each, which were divided anew 40 times, for all bounds up to 32
    times the worst error that was seen: of the bounds that hold on 36 samples, 7.9 % fail on 24 others; of those that
    this accepts, 66 %, 1.5 % fail. To demand that the worst error is at most a fourth of the bound accepts 60 %; 2.7 %
    of these fail.
    """
    if len(errors) < FEWEST or not all(map(math.isfinite, errors)):
        return None
    largest = max(errors)
    if largest <= 0:
        return 0.0
    logarithms = [math.log(max(error, _SPREAD * largest)) for error in errors]
    median, count = statistics.median(logarithms), len(logarithms)
    spread = math.sqrt(statistics.fmean((each - median) ** 2 for each in logarithms if each >= median))
    freedom = min(max(count / 4, _LEAST_FREEDOM), _MOST_FREEDOM)
    scale = spread / math.sqrt(freedom / (freedom - 2))  # the root is the deviation of Student's t
    reach = _student(_RISK / count, freedom) * scale * math.sqrt(1 + 1 / count)
    return max(largest, math.exp(median + reach))


def _student(risk: float, freedom: float) -> float:
    """Return the value that Student's t exceeds with a probability, by its expansion about the normal distribution
    (Abramowitz and Stegun, 26.7.5).
    """
    z = statistics.NormalDist().inv_cdf(1 - risk)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def near_default_bound(accuracy: Accuracy) -> str:
    """Return the output whose RMS error as many new samples may raise above its default bound; else nothing.

    The bound is on the mean square of the errors over all samples, m. That of n others is larger than
    m + t s sqrt(1 / n + 1 / n) in 5 % of cases, where s is the deviation of the squares of single samples, and t the
    quantile of Student's t.
    """
    for output in accuracy.outputs:
        bound = accuracy.output_tolerance.get(output.output, accuracy.tolerance).get("slice_rms", math.inf)
        value = output.metrics.get("slice_rms", 0.0)
        of_samples = (sample.outputs.get(output.output, {}).get("slice_rms") for sample in accuracy.samples)
        squares = [error**2 for error in of_samples if error is not None]
        if len(squares) < FEWEST or not any(squares):
            continue
        scatter = statistics.stdev(squares) / statistics.fmean(squares) * math.sqrt(2 / len(squares))
        expected = value * math.sqrt(1 + _student(_RISK, len(squares) - 1) * scatter)
        if expected > bound:
            name = f"{short_name(output.output, 40)}: " if len(accuracy.outputs) > 1 else ""
            return f"{name}slice_rms may be {percent(expected)} on as many other samples, more than {percent(bound)}"
    return ""
