"""End a sweep: rank its points, write its record and its folder, or name the earlier sweep with the same results."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.base.text import visible_name
from ndld_flow.base.users import name_me
from ndld_flow.machine.description import describe_machine
from ndld_flow.recipe.gates import GateError
from ndld_flow.recipe.points import Objective, Sweep
from ndld_flow.records.run_record import StepRecord
from ndld_flow.records.sweep import MeasuredAgain, PointStep, SweepAxis, SweepObjective, SweepPoint, SweepRecord
from ndld_flow.runner.plan import Reason
from ndld_flow.runner.run_record import library_versions, model_digests
from ndld_flow.runner.run_state import RunState
from ndld_flow.store.digest import digest_json
from ndld_flow.store.hidden_credentials import hide_all_credentials, hide_credentials, hide_in_values
from ndld_flow.sweep.state import Judgement, PointRun, SweepState
from ndld_flow.sweep.try_points import TriedPoints
from ndld_flow.sweep.winners import Finalist, rank_tried
from ndld_flow.sweep_search.ranking import Place, find_best
from ndld_flow.sweep_search.space import Numbers, excluded_count


def active_seconds(records: Iterable[StepRecord]) -> float:
    """Return the seconds in which at least one of these steps was running: parallel steps count once."""
    spans = sorted((record.started_at, record.ended_at) for record in records if record.ended_at is not None)
    active_s, until = 0.0, None
    for began, ended in spans:
        if until is None or began > until:
            active_s += (ended - began).total_seconds()
        elif ended > until:
            active_s += (ended - until).total_seconds()
        until = ended if until is None else max(until, ended)
    return active_s


@dataclass(frozen=True)
class Ended:
    """A sweep whose points have all been tried."""

    sweep: Sweep
    state: SweepState
    tried: TriedPoints
    finalists: Mapping[int, Finalist]
    base: RunState
    """The run of the recipe without its sweep: models, command and start are those of the sweep."""


def describe_sweep(ended: Ended) -> SweepRecord:
    """Return the record of a sweep."""
    sweep, state, tried, finalists, base = ended.sweep, ended.state, ended.tried, ended.finalists, ended.base
    places, comparisons = rank_tried(tried, finalists, sweep, state)
    points = tuple(
        _describe_point(point, judged, places[point.number], comparisons.get(point.number))
        for point, judged in zip(tried.points, _judge_at_end(tried, finalists), strict=True)
    )
    wall_s = time.perf_counter() - base.start
    return SweepRecord(
        id=base.id,
        recipe_name=sweep.base.name,
        description=sweep.base.file.description,
        recipe=sweep.resolve(model_digests(base)),
        identity=_identity(ended),
        command=tuple(map(hide_credentials, base.command)),
        directory=str(Path.cwd()),
        user=visible_name(name_me()),
        host=visible_name(platform.node()),
        started_at=base.started_at,
        wall_s=wall_s,
        own_s=max(wall_s - active_seconds([state.known[key] for key in state.computed]), 0.0),
        method=sweep.section.method,
        seed=sweep.section.seed,
        axes=tuple(_describe_axes(sweep, tried.points)),
        objectives=tuple(_describe_objective(objective, tried.points) for objective in sweep.objectives),
        constraints=tuple(gate.text for gate in sweep.constraints),
        points=points,
        sessions=tuple(state.sessions),
        best=find_best(places),
        stopped_because=tried.stopped_because,
        excluded_count=excluded_count(sweep.space) or 0,
        steps_done=len(state.computed),
        steps_shared=sum(step.reason == Reason.SHARED.text for point in points for step in point.steps),
        steps_reused=len(state.known.keys() - state.computed),
        machine=describe_machine(),
        versions=library_versions(sweep.base),
        passed=any(point.outcome == "passed" for point in points),
    )


def _describe_point(point: PointRun, judged: Judgement, place: Place, again: MeasuredAgain | None) -> SweepPoint:
    return SweepPoint(
        number=point.number,
        values=hide_in_values(point.point),
        changes=hide_in_values(point.changes),
        outcome=judged.outcome,
        reason=judged.reason,
        failed_step=point.failed_step,
        metrics=point.metrics,
        objectives=judged.objectives,
        constraints=judged.constraints,
        steps=tuple(
            PointStep(
                name=step.name,
                step=step.step,
                outcome=step.outcome,
                reason=step.reason,
                key=step.record.key if step.record is not None else "",
                wall_s=step.wall_s,
            )
            for step in point.run.steps
        ),
        session=point.session,
        again=again,
        rank=place.rank,
        tied=place.tied,
        on_front=place.on_front,
        wall_s=sum(step.wall_s for step in point.run.steps),
        folder=f"points/{point.number:04}" if point.is_begun and not judged.missing else "",
    )


def _judge_at_end(tried: TriedPoints, finalists: Mapping[int, Finalist]) -> Iterator[Judgement]:
    """Yield the final judgements of the points; a winner that fails when it is measured again has not passed."""
    for point, judged in zip(tried.points, tried.judgements, strict=True):
        again = finalists[point.number].judgement if point.number in finalists else judged
        reason = (
            f"measured again: {again.reason}" if again is not judged and again.outcome != "passed" else judged.reason
        )
        yield replace(judged, outcome=again.outcome, reason=reason)


def _describe_axes(sweep: Sweep, points: Sequence[PointRun]) -> list[SweepAxis]:
    axes = []
    for swept, axis in zip(sweep.axes, sweep.space.axes, strict=True):
        tried = {digest_json(point.point[axis.name]): point.point[axis.name] for point in points}
        # Listed values are as listed, numbers ascending.
        if isinstance(axis, Numbers):
            values: tuple[JsonValue, ...] = tuple(
                sorted(value for value in tried.values() if isinstance(value, int | float))
            )
        else:
            values = tuple(hide_all_credentials(value) for value in axis.values if digest_json(value) in tried)
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        log = isinstance(axis, Numbers) and axis.log
        axes.append(SweepAxis(name=swept.name, keys=swept.keys, values=values, numeric=numeric, log=log))
    return axes


def _describe_objective(objective: Objective, points: Sequence[PointRun]) -> SweepObjective:
    units = set()
    for point in points:
        with contextlib.suppress(GateError):  # in points that did not reach it
            units.add(objective.expression.evaluate(point.metrics).unit)
    unit = units.pop() if len(units) == 1 else ""
    return SweepObjective(text=objective.text, direction=objective.direction, unit=unit)


def _identity(ended: Ended) -> str:
    """Return a digest that is equal for sweeps with the same work and the same results."""
    sweep = ended.sweep
    points: list[JsonValue] = [
        [
            hide_in_values(point.point),
            {step.name: step.record.key if step.record else step.reason for step in point.run.steps},
        ]
        for point in (*ended.tried.points, *(finalist.point for finalist in ended.finalists.values()))
    ]
    judgements = [*ended.tried.judgements, *(finalist.judgement for finalist in ended.finalists.values())]
    reason: list[JsonValue] = [[judged.outcome, judged.reason] for judged in judgements]
    gates: list[JsonValue] = [gate.text for gate in sweep.base.gates]
    section = hide_all_credentials(sweep.section.model_dump(mode="json"))
    return digest_json([sweep.base.name, sweep.base.file.description, section, gates, points, reason])
