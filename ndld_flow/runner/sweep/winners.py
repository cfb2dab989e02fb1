"""Choose the best points, measure them again in turns, and rank all points."""

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
from ndld_flow.recipe.points import Objective, Sweep
from ndld_flow.records.comparison import ComparedMetric, Verdict
from ndld_flow.records.metric import Metric
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import read_stored
from ndld_flow.records.step_record import RunStep
from ndld_flow.records.sweep import MeasuredAgain, Standing
from ndld_flow.runner.learn_noise import find_noise
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.sweep.advance import advance_points
from ndld_flow.runner.sweep.judge import Judgement, judge_point
from ndld_flow.runner.sweep.point_run import PointRun
from ndld_flow.runner.sweep.state import Desk
from ndld_flow.runner.sweep.try_points import Tried
from ndld_flow.store.kinds import ProfileDocument
from ndld_flow.store.store import Store
from ndld_flow.sweep_search.ranking import (
    Contender,
    Goal,
    Place,
    choose_winners,
    find_best,
    rank_points,
    steady_sittings,
)
from ndld_flow.sweep_search.search import Direction


@dataclass(frozen=True)
class Finalist:
    """A winner, measured again."""

    point: PointRun
    """A run of its own: the first one's records stay."""
    judgement: Judgement

    @property
    def metrics(self) -> dict[str, Metric]:
        return self.point.metrics


def measure_again(winners: Sequence[PointRun], desk: Desk) -> Mapping[int, Finalist]:
    """Measure these points again in one sitting; their other steps are there. Number -> what it came to.

    Points that nothing was measured for are left out.
    """
    measured = [point for point in winners if point.sitting is not None]
    if len(measured) < 2:
        return {}  # nobody to take turns with: it would only be another number
    finals = replace(desk, again="again")
    copies = [PointRun.begin(p.number, p.point, p.changes, desk.open_run(p.run.recipe)) for p in measured]
    advance_points(copies, finals)
    return {point.number: Finalist(point, judge_point(point, desk.goals)) for point in copies}


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
class WinnerValues:
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
    finalists = {number: read_winner(steps, expression, outputs.store) for number, steps in finals.items()}
    profile = next((one for finalist in finalists.values() for one in finalist.profiles.values()), None)
    noise = find_noise(outputs, profile) if profile is not None else None
    return compare_winners(finalists, best, Aim(expression, direction, Rules(noise=noise)))


def read_winner(steps: Iterable[RunStep], expression: Expression, store: Store) -> WinnerValues:
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
    return WinnerValues(metrics, profiles)


def compare_winners(finalists: Mapping[int, WinnerValues], best: int, aim: Aim) -> dict[int, Stand]:
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


def _stand(finalist: WinnerValues, best: WinnerValues, aim: Aim) -> Stand:
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


def _values_in_runs(expression: Expression, finalist: WinnerValues) -> tuple[float, ...]:
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


def _metric_in_runs(name: str, finalist: WinnerValues) -> tuple[float, ...]:
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


Finalists = Mapping[int, Finalist]
Standings = Mapping[int, MeasuredAgain]


def choose_finalists(tried: Tried, sweep: Sweep) -> list[int]:
    """Numbers of the points that are worth measuring again; none where nothing that was looked for is measured."""
    goals = _goals(sweep)
    if not any(goal.noise for goal in goals):
        return []
    contenders, count = _contenders(tried, {}, {}), sweep.section.winners
    chosen = choose_winners(contenders, goals, count)
    sitting = {point.number: point.sitting for point in tried.points}
    if len(goals) > 1 or len(set(sitting.values())) == 1:
        return chosen
    # A slow sitting hides its best: whoever is good among those it was measured with has a chance too.
    steadied = choose_winners(steady_sittings(contenders, sitting), goals, count)
    return list(dict.fromkeys([*chosen[:count], *steadied[:count], *chosen, *steadied]))[: 2 * count]


def rank_tried(tried: Tried, finalists: Finalists, sweep: Sweep, desk: Desk) -> tuple[Mapping[int, Place], Standings]:
    """Number -> where a point came in; and how each winner stands against the best."""
    goals = _goals(sweep)
    best = find_best(rank_points(_contenders(tried, finalists, {}), goals))
    stands: Mapping[int, Stand] = {}
    if best is not None and best in finalists:
        finals = {number: finalist.point.run.steps for number, finalist in finalists.items()}
        first = sweep.objectives[0]
        stands = decide_standing(finals, best, first.expression, first.direction, desk.outputs)
    places = rank_points(_contenders(tried, finalists, stands), goals)
    return places, {number: _describe_again(finalists[number], stand) for number, stand in stands.items()}


def _goals(sweep: Sweep) -> list[Goal]:
    return [Goal(one.direction, Rules.threshold if is_measured(one, sweep) else 0.0) for one in sweep.objectives]


def is_measured(objective: Objective, sweep: Sweep) -> bool:
    """Whether a measuring step tells it, so that it has noise."""
    measuring = {step.name for step in sweep.base.steps if step.type.cls.takes_turns}
    return any(name.partition(".")[0] in measuring for name in objective.expression.names)


def _contenders(tried: Tried, finalists: Finalists, stands: Mapping[int, Stand]) -> list[Contender]:
    return [
        _contender(point, judged, finalists.get(point.number), stands.get(point.number))
        for point, judged in zip(tried.points, tried.judgements, strict=True)
    ]


def _contender(point: PointRun, judged: Judgement, finalist: Finalist | None, stand: Stand | None) -> Contender:
    """A winner that said no when it was measured again is none."""
    again = finalist.judgement if finalist is not None else None
    return Contender(
        number=point.number,
        passed=judged.outcome == "passed" and (again is None or again.outcome == "passed"),
        objectives=judged.objectives,
        again=again.objectives if again is not None else None,
        standing=stand.standing if stand is not None else None,
    )


def _describe_again(finalist: Finalist, stand: Stand) -> MeasuredAgain:
    return MeasuredAgain(
        metrics=finalist.metrics,
        objectives=finalist.judgement.objectives,
        standing=stand.standing,
        ratio=stand.ratio,
        ratio_low=stand.low,
        ratio_high=stand.high,
    )
