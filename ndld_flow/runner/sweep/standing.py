"""How winners that were measured again stand against the best of them."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from ndld_flow.profiles.compare.measured import Rules
from ndld_flow.profiles.compare.metric_verdicts import ASSUMED_SINGLE_RUN, Bounds, judge
from ndld_flow.profiles.compare.metrics import run_values
from ndld_flow.recipe.gates import Expression, GateError
from ndld_flow.records.comparison import ComparedMetric, Verdict
from ndld_flow.records.metric import Metric
from ndld_flow.records.profile import Profile
from ndld_flow.records.step_record import RunStep
from ndld_flow.records.sweep import Standing
from ndld_flow.report.run_folder import read_stored
from ndld_flow.runner.learn_noise import find_noise
from ndld_flow.runner.runs import Outputs
from ndld_flow.store.kinds import ProfileDocument
from ndld_flow.store.store import Store
from ndld_flow.sweep_search.search import Direction

_THROUGHPUTS = ("throughput.median", "throughput.items")
_IN_RUNS = {"load_ms": "load", "memory.peak_bytes": "memory.peak", **dict.fromkeys(_THROUGHPUTS, "throughput")}
"""What the step `profile` tells of a whole profile -> what it is called in each process run, where that differs."""
_STANDINGS: dict[Verdict, Standing] = {"unchanged": "tie", "regressed": "worse"}
_TIMES = ("ns", "us", "ms", "s", "1/s")


@dataclass(frozen=True)
class Stand:
    """How one winner stands."""

    standing: Standing
    ratio: float | None = None
    """Objective over that of the best."""
    low: float | None = None
    """With `high` the 95 % interval of the ratio; None where no process runs tell it."""
    high: float | None = None


@dataclass(frozen=True)
class Finalist:
    """What a winner came to when it was measured again."""

    metrics: Mapping[str, Metric]
    """`STEP.METRIC` -> value."""
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    """By the step that measured."""


@dataclass(frozen=True)
class Aim:
    """What winners are compared by."""

    expression: Expression
    direction: Direction
    rules: Rules = field(default_factory=Rules)


def decide_standing(
    finals: Mapping[int, Sequence[RunStep]], best: int, expression: Expression, direction: Direction, outputs: Outputs
) -> dict[int, Stand]:
    """How each winner stands against the best in the first objective; `finals`: number -> its steps.

    What `ndld-flow noise` learned here raises the threshold of 3 %.
    """
    finalists = {number: read_finalist(steps, expression, outputs.store) for number, steps in finals.items()}
    profile = next((one for finalist in finalists.values() for one in finalist.profiles.values()), None)
    noise = find_noise(outputs, profile) if profile is not None else None
    return compare_finalists(finalists, best, Aim(expression, direction, Rules(noise=noise)))


def read_finalist(steps: Iterable[RunStep], expression: Expression, store: Store) -> Finalist:
    """A winner's metrics, and the profiles that the expression is about."""
    metrics: dict[str, Metric] = {}
    profiles: dict[str, Profile] = {}
    named = {name.partition(".")[0] for name in expression.names}
    for step in steps:
        if step.record is None:
            continue
        metrics |= {f"{step.name}.{name}": metric for name, metric in step.record.metrics.items()}
        if step.name in named and step.record.artifact.kind == ProfileDocument.kind:
            path = store.object_folder(step.record.artifact.digest) / ProfileDocument.main
            # its metrics are in the record: without the profile only the interval is lost
            with contextlib.suppress(OSError, ValidationError):
                profiles[step.name] = read_stored(Profile, path)
    return Finalist(metrics, profiles)


def compare_finalists(finalists: Mapping[int, Finalist], best: int, aim: Aim) -> dict[int, Stand]:
    """How each finalist stands against the best.

    The unit is the process run: an objective made of what profiles measured has a value in each run, and the ratio over
    the runs is judged as a comparison judges it: `tie` when the whole 95 % interval is inside the threshold, `worse`
    when it is wholly outside, `inconclusive` else. Where no runs tell the objective, the ratio has no interval: what is
    counted ties when it is equal and is worse else; of a time that was taken once, a difference that single runs have
    by themselves is inconclusive.
    """
    against = finalists[best]
    return {
        number: Stand("best", 1.0) if number == best else _stand(finalist, against, aim)
        for number, finalist in finalists.items()
    }


def _stand(finalist: Finalist, best: Finalist, aim: Aim) -> Stand:
    try:
        ours, theirs = aim.expression.evaluate(finalist.metrics), aim.expression.evaluate(best.metrics)
    except GateError:
        return Stand("inconclusive")
    runs = tuple(_values_in_runs(aim.expression, one) for one in (best, finalist))
    if not all(runs):
        timed = any(finalist.metrics[name].unit in _TIMES for name in aim.expression.names)
        return _stand_without_runs(ours.value, theirs.value, aim, timed)
    metric = ComparedMetric(
        metric=aim.expression.text,
        unit=ours.unit,
        better="lower" if aim.direction == "minimize" else "higher",
        values=tuple(statistics.median(values) for values in runs),
        runs=runs,
    )
    bounds = Bounds.under(aim.rules, list(best.profiles.values()), list(finalist.profiles.values()))
    verdict = judge(metric, 0, 1, replace(bounds, same=bounds.same and runs[0] == runs[1]))
    assert verdict is not None  # both have values
    # One that is surely better than the best is a contradiction between the objective and its runs: nothing is sure.
    return Stand(_STANDINGS.get(verdict.verdict, "inconclusive"), verdict.ratio, verdict.low, verdict.high)


def _values_in_runs(expression: Expression, finalist: Finalist) -> tuple[float, ...]:
    """The objective in each process run; empty where process runs do not tell it."""
    series = {name: values for name in expression.names if (values := _metric_in_runs(name, finalist))}
    counts = {len(values) for values in series.values()}
    if len(counts) != 1:
        return ()
    found = []
    for run in range(counts.pop()):
        of_run = {name: Metric(value=each[run], unit=finalist.metrics[name].unit) for name, each in series.items()}
        found.append(expression.evaluate({**finalist.metrics, **of_run}).value)
    return tuple(found) if all(0 < value < math.inf for value in found) else ()


def _metric_in_runs(name: str, finalist: Finalist) -> tuple[float, ...]:
    step, _, metric = name.partition(".")
    profile = finalist.profiles.get(step)
    if profile is None:
        return ()
    values = run_values(profile, _IN_RUNS.get(metric, metric))
    if metric not in _THROUGHPUTS or not values:
        return values
    # the metric counts what all streams do that run side by side, and of a batch every item
    side_by_side = finalist.metrics[name].value / profile.latency.throughput_per_s
    return tuple(value * side_by_side for value in values)


def _stand_without_runs(ours: float, theirs: float, aim: Aim, timed: bool) -> Stand:
    ratio = ours / theirs if theirs else None
    if math.isclose(ours, theirs, rel_tol=1e-9):
        return Stand("tie", 1.0)
    is_worse = (ours > theirs) == (aim.direction == "minimize")
    if not is_worse or (timed and _is_usual(ratio, aim.rules)):
        return Stand("inconclusive", ratio)
    return Stand("worse", ratio)


def _is_usual(ratio: float | None, rules: Rules) -> bool:
    """Whether single runs of the very same thing lie so far apart."""
    usual = rules.noise.single_run_threshold if rules.noise else ASSUMED_SINGLE_RUN
    return ratio is not None and ratio > 0 and max(ratio, 1 / ratio) <= 1 + usual
