"""Choose the best points, measure them again in turns, and rank all points."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from ndld_flow.profiles.compare.intervals import RatioInterval
from ndld_flow.profiles.compare.measured import Rules, run_values
from ndld_flow.profiles.compare.verdicts import Bounds, decide_ratio, judge
from ndld_flow.recipe.gates import Expression, GateError
from ndld_flow.recipe.points import Objective, Sweep
from ndld_flow.records.comparison import ComparedMetric, Verdict
from ndld_flow.records.measurement import Metric
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import read_stored
from ndld_flow.records.run_record import RunStep, metrics_of
from ndld_flow.records.sweep import MeasuredAgain, WinnerVerdict
from ndld_flow.runs.outputs import Outputs
from ndld_flow.runs.references import find_noise
from ndld_flow.store.kinds import AccuracyDocument, ProfileDocument
from ndld_flow.store.store import Store
from ndld_flow.sweep.state import Judgement, PointRun, SweepState, if_known, judge_point
from ndld_flow.sweep.try_points import TriedPoints, advance_points
from ndld_flow.sweep_search.ranking import (
    Contender,
    Goal,
    Place,
    choose_winners,
    find_best,
    rank_points,
    remove_session_drift,
)
from ndld_flow.sweep_search.search import Direction


@dataclass(frozen=True)
class Finalist:
    """A winner, measured again."""

    point: PointRun
    """A separate run: the records of the first one stay."""
    judgement: Judgement


def measure_again(winners: Sequence[PointRun], sweep: Sweep, state: SweepState) -> Mapping[int, Finalist]:
    """Measure these points again in one session, with the recipe's own settings; their other results are reused. Return
    finalists by number.

    Points without a measurement are skipped.
    """
    measured = [point for point in winners if point.session is not None]
    if len(measured) < 2 and not sweep.short:
        return {}  # nothing to alternate with: the result would be just another number
    finals = replace(state, again="again")
    copies = [PointRun.begin(p.number, p.point, p.changes, state.open_run(sweep.point(p.point))) for p in measured]
    advance_points(copies, finals)
    return {point.number: Finalist(point, judge_point(point, state.goals)) for point in copies}


_THROUGHPUTS = ("throughput.median", "throughput.items")
_IN_RUNS = {"load_ms": "load", "memory.peak_bytes": "memory.peak", **dict.fromkeys(_THROUGHPUTS, "throughput")}
"""Metric of a whole profile -> its name in each process run, if that differs."""
_VERDICTS: dict[Verdict, WinnerVerdict] = {"unchanged": "tie", "regressed": "worse"}
_TIMES = ("ns", "us", "ms", "s", "1/s")


@dataclass(frozen=True)
class AgainstBest:
    """The comparison of one winner with the best."""

    verdict: WinnerVerdict
    ratio: float | None = None
    """Its objective divided by that of the best."""
    low: float | None = None
    """With `high` the 95 % interval of the ratio; None without values of process runs, and for single runs."""
    high: float | None = None


@dataclass(frozen=True)
class WinnerValues:
    """The results of a winner that was measured again."""

    metrics: Mapping[str, Metric]
    """`STEP.METRIC` -> value."""
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    """By the step that measured."""


@dataclass(frozen=True)
class Aim:
    """The objective by which winners are compared."""

    expression: Expression
    direction: Direction
    rules: Rules = field(default_factory=Rules)


def judge_winners(
    finals: Mapping[int, Sequence[RunStep]], best: int, expression: Expression, direction: Direction, outputs: Outputs
) -> dict[int, AgainstBest]:
    """Compare each winner with the best in the first objective; `finals`: number -> its steps.

    Noise that `ndld-flow noise` has learned here raises the threshold of 3 %.
    """
    finalists = {number: read_winner(steps, expression, outputs.store) for number, steps in finals.items()}
    profile = next((measured for finalist in finalists.values() for measured in finalist.profiles.values()), None)
    noise = find_noise(outputs, profile) if profile is not None else None
    return compare_winners(finalists, best, Aim(expression, direction, Rules(noise=noise)))


def read_winner(steps: Sequence[RunStep], expression: Expression, store: Store) -> WinnerValues:
    """Return a winner's metrics, and the profiles that the expression names."""
    profiles: dict[str, Profile] = {}
    named = set(map(_step_of, expression.names))
    for step in steps:
        if step.record is None:
            continue
        if step.name in named and step.record.artifact.kind == ProfileDocument.kind:
            path = store.object_folder(step.record.artifact.digest) / Profile.file_name
            # Its metrics are in the record: without the profile only the interval is lost.
            with contextlib.suppress(OSError, ValidationError):
                profiles[step.name] = read_stored(Profile, path)
    return WinnerValues(metrics_of(steps), profiles)


def compare_winners(finalists: Mapping[int, WinnerValues], best: int, aim: Aim) -> dict[int, AgainstBest]:
    """Compare each finalist with the best.

    The unit is the process run: an objective of profiled metrics has a value in each run, and the ratio over the runs
    is judged as in a comparison: `tie` if the whole 95 % interval is inside the threshold, `worse` if it is entirely
    outside, `inconclusive` otherwise. Without values of runs the ratio has no interval: equal counts tie, and others
    are worse; for a time that was measured once, a difference within the noise of single runs is inconclusive.
    """
    against = finalists[best]
    return {
        number: AgainstBest("best", 1.0) if number == best else _compare(finalist, against, aim)
        for number, finalist in finalists.items()
    }


def _compare(finalist: WinnerValues, best: WinnerValues, aim: Aim) -> AgainstBest:
    try:
        ours, theirs = aim.expression.evaluate(finalist.metrics), aim.expression.evaluate(best.metrics)
    except GateError:
        return AgainstBest("inconclusive")
    bounds = Bounds.under(aim.rules, list(best.profiles.values()), list(finalist.profiles.values()))
    runs = tuple(_values_in_runs(aim.expression, winner) for winner in (best, finalist))
    if not all(runs):
        timed = any(finalist.metrics[name].unit in _TIMES for name in aim.expression.names)
        return _compare_without_runs(ours.value, theirs.value, aim, bounds if timed else None)
    metric = ComparedMetric(
        metric=aim.expression.text,
        unit=ours.unit,
        better="lower" if aim.direction == "minimize" else "higher",
        values=tuple(statistics.median(values) for values in runs),
        runs=runs,
    )
    verdict = judge(metric, 0, 1, replace(bounds, same=bounds.same and runs[0] == runs[1]))
    assert verdict is not None  # both have values
    # Points are ranked by the printed values, whose ratio pairs of runs may contradict: then neither is certain.
    ratio = ours.value / theirs.value
    if not verdict.interval_is_known:
        return AgainstBest(_VERDICTS.get(verdict.verdict, "inconclusive"), ratio)
    interval = RatioInterval(verdict.ratio, verdict.low, verdict.high).around(ratio)
    decided = decide_ratio(interval, verdict.threshold, metric.better)
    return AgainstBest(_VERDICTS.get(decided, "inconclusive"), ratio, interval.low, interval.high)


def _values_in_runs(expression: Expression, finalist: WinnerValues) -> tuple[float, ...]:
    """Return the objective in each process run; empty if runs do not have its metrics."""
    series = {name: values for name in expression.names if (values := _metric_in_runs(name, finalist))}
    counts = {len(values) for values in series.values()}
    if len(counts) != 1:
        return ()
    objectives = []
    for run in range(counts.pop()):
        of_run = {name: Metric(value=each[run], unit=finalist.metrics[name].unit) for name, each in series.items()}
        objectives.append(expression.evaluate({**finalist.metrics, **of_run}).value)
    return tuple(objectives) if all(0 < value < math.inf for value in objectives) else ()


def _metric_in_runs(name: str, finalist: WinnerValues) -> tuple[float, ...]:
    step, _, metric = name.partition(".")
    profile = finalist.profiles.get(step)
    if profile is None:
        return ()
    values = run_values(profile, _IN_RUNS.get(metric, metric))
    if metric not in _THROUGHPUTS or not values:
        return values
    # The metric counts the passes of all parallel streams, and every item of a batch.
    side_by_side = finalist.metrics[name].value / profile.latency.throughput_per_s
    return tuple(value * side_by_side for value in values)


def _compare_without_runs(ours: float, theirs: float, aim: Aim, bounds: Bounds | None) -> AgainstBest:
    """Compare two values; `bounds` are those of times, of which single runs of the same model may differ as much."""
    ratio = ours / theirs if theirs else None
    if math.isclose(ours, theirs, rel_tol=1e-9):
        return AgainstBest("tie", 1.0)
    is_worse = (ours > theirs) == (aim.direction == "minimize")
    if bounds is not None and ratio is not None and ratio > 0:
        is_worse &= not bounds.is_busy and max(ratio, 1 / ratio) > 1 + bounds.single_run_threshold
    return AgainstBest("worse" if is_worse else "inconclusive", ratio)


Finalists = Mapping[int, Finalist]


def choose_finalists(tried: TriedPoints, sweep: Sweep) -> list[int]:
    """Return the numbers of the points to measure again; none if no objective is measured."""
    goals = _goals(sweep)
    if not any(goal.noise for goal in goals):
        return []
    contenders, count = _contenders(tried, {}, {}), sweep.section.winners
    chosen = choose_winners(contenders, goals, count)
    session = {point.number: point.session for point in tried.points}
    sessions = len(set(session.values()))
    # The medians of sessions show drift only if each has several points, in random order.
    if len(goals) > 1 or sessions == 1 or len(session) < 2 * sessions or not sweep.section.mixed:
        return chosen
    # A slow session hides its best points: points that are good within their session get a chance too.
    steadied = choose_winners(remove_session_drift(contenders, session), goals, count)
    return list(dict.fromkeys([*chosen[:count], *steadied[:count], *chosen, *steadied]))[: 2 * count]


def rank_tried(
    tried: TriedPoints, finalists: Finalists, sweep: Sweep, state: SweepState
) -> tuple[Mapping[int, Place], Mapping[int, MeasuredAgain]]:
    """Rank all points; return number -> place, and number -> comparison of a winner with the best."""
    goals = _goals(sweep)
    best = find_best(rank_points(_contenders(tried, finalists, {}), goals))
    comparisons: Mapping[int, AgainstBest] = {}
    if best is not None and best in finalists:
        finals = {number: finalist.point.run.steps for number, finalist in finalists.items()}
        first = sweep.objectives[0]
        comparisons = judge_winners(finals, best, first.expression, first.direction, state.outputs)
    places = rank_points(_contenders(tried, finalists, comparisons), goals)
    return places, {
        number: MeasuredAgain(
            metrics=finalists[number].point.metrics,
            objectives=finalists[number].judgement.objectives,
            verdict=against_best.verdict,
            ratio=against_best.ratio,
            ratio_low=against_best.low,
            ratio_high=against_best.high,
        )
        for number, against_best in comparisons.items()
    }


def _goals(sweep: Sweep) -> list[Goal]:
    return [
        Goal(objective.direction, Rules.threshold if is_measured(objective, sweep) else 0.0)
        for objective in sweep.objectives
    ]


def is_measured(objective: Objective, sweep: Sweep) -> bool:
    """Return whether a measuring step records the objective, so that it has noise."""
    measuring = {step.name for step in sweep.base.steps if step.type.cls.takes_turns}
    return not measuring.isdisjoint(map(_step_of, objective.expression.names))


def _contenders(tried: TriedPoints, finalists: Finalists, comparisons: Mapping[int, AgainstBest]) -> list[Contender]:
    """Return the points for ranking. A winner that failed when it was measured again has not passed."""
    contenders = []
    for point, judged in zip(tried.points, tried.judgements, strict=True):
        again = finalists[point.number].judgement if point.number in finalists else None
        contenders.append(
            Contender(
                number=point.number,
                passed=judged.outcome == "passed" and (again is None or again.outcome == "passed"),
                objectives=judged.objectives,
                again=again.objectives if again is not None else None,
                verdict=comparisons[point.number].verdict if point.number in comparisons else None,
            )
        )
    return contenders


def find_choosing_checks(tried: TriedPoints, sweep: Sweep) -> Iterator[str]:
    """Yield the checks of accuracy on whose samples the best was chosen: objectives name them, or points failed them.

    A check that all points passed chose none of them: its verdict on the best is worth as much as on any model.
    """
    objectives = {_step_of(name) for objective in sweep.objectives for name in objective.expression.names}
    for check in [step.name for step in sweep.base.steps if issubclass(step.type.cls.kinds()[1], AccuracyDocument)]:
        records = [each.record for point in tried.points for each in point.run.steps if each.name == check]
        differ = len({record.key for record in records if record is not None}) > 1
        if differ and (check in objectives or any(_fails_by(point, check, sweep) for point in tried.points)):
            yield check


def _fails_by(point: PointRun, check: str, sweep: Sweep) -> bool:
    """Return whether a check, or a constraint or gate on it, fails a point."""
    if any(step.name == check and step.record is not None and not step.record.passed for step in point.run.steps):
        return True
    gates = [gate for gate in (*sweep.constraints, *point.run.recipe.gates) if check in map(_step_of, gate.names)]
    decided = (if_known(gate.decide, point.metrics) for gate in gates)
    return any(result is not None and not result.passed for result in decided)


def _step_of(metric: str) -> str:
    return metric.partition(".")[0]
