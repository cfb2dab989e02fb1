"""Which points are best, once they are tried and the winners are measured again."""

from __future__ import annotations

from collections.abc import Mapping

from ndld_flow.profiles.compare.measured import Rules
from ndld_flow.recipe.points import Objective, Sweep
from ndld_flow.records.sweep import MeasuredAgain
from ndld_flow.runner.sweep.desk import Desk
from ndld_flow.runner.sweep.judge import Judgement
from ndld_flow.runner.sweep.point_run import PointRun
from ndld_flow.runner.sweep.standing import Stand, decide_standing
from ndld_flow.runner.sweep.try_points import Tried
from ndld_flow.runner.sweep.winners import Finalist
from ndld_flow.sweep_search.drift import steady_sittings
from ndld_flow.sweep_search.ranking import Contender, Goal, Place, choose_winners, find_best, rank_points

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
