"""A sitting: the measuring steps of several points, measured in turns on one device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ndld_flow.base.errors import NdldFlowError, OutputsError
from ndld_flow.machine.host import UNKNOWN_HOST
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.step_record import KeyParts, StepRecord
from ndld_flow.records.sweep import Sitting
from ndld_flow.runner.events import StepStarted
from ndld_flow.runner.execute import Work
from ndld_flow.runner.executors.executor import Task, find_records
from ndld_flow.runner.keys import fingerprint_machine, join_keys, make_key
from ndld_flow.runner.plan import Decision
from ndld_flow.runner.reasons import Reason
from ndld_flow.runner.sweep.point_run import PointRun
from ndld_flow.runner.sweep.state import Desk
from ndld_flow.runner.unit_work import gather_work, set_damaged_aside
from ndld_flow.step import Reuse


@dataclass(frozen=True)
class Seats:
    """Who measures what in a sitting."""

    works: tuple[Work, ...]
    """Each distinct step once."""
    taken: tuple[tuple[PointRun, RecipeStep, int], ...]
    """Point, its step, and which work that is."""


def hold_sitting(blocked: Sequence[PointRun], desk: Desk) -> list[PointRun]:
    """Measure what the first of these points waits for, together with all that wait for the same device.

    Points that a constraint refuses are not measured. Returns the points that can go on.
    """
    refused = [point for point in blocked if point.refuse_by(desk.goals.constraints)]
    if refused:
        return []  # whoever asks comes again with the others
    kind = _kind(blocked[0])
    members = [point for point in blocked if _kind(point) == kind]
    _measure(members, desk)
    return members


def _kind(point: PointRun) -> tuple[str, str]:
    step = point.waiting[0][0]
    return step.type.name, step.step.device


def _measure(members: Sequence[PointRun], desk: Desk) -> None:
    """Measure points in turns; when one fails, the others are measured again without it."""
    able = [point for point in members if not point.finished]
    if not able:
        return
    try:
        seats = seat_points(able, desk)
    except NdldFlowError as error:  # a data file that is not there
        _split(able, desk, error)
        return
    found = None if _must_measure(seats, desk) else find_records(seats.works, desk.store)
    if found is not None:
        place_sitting(seats, found, desk, reused=True)
        return
    for work in seats.works:
        set_damaged_aside(work.step.name, make_key(work.parts), desk.store, desk.listener)
        desk.listener(
            StepStarted(
                name=work.step.name, step=work.step.type.name, reason=_reason(seats).text, detail=_company(seats)
            )
        )
    answer = desk.executor.submit(_task(seats, desk), desk.store)
    try:
        place_sitting(seats, answer.result(), desk, reused=False)
    except OutputsError:
        raise  # a full disk is no point's fault
    except NdldFlowError as error:
        if _fail_culprits(seats, desk, error):
            _measure(able, desk)
        else:
            _split(able, desk, error)


def _split(members: Sequence[PointRun], desk: Desk, error: NdldFlowError) -> None:
    """Nobody knows whose error it was: measure each half by itself."""
    if len(members) == 1:
        step = members[0].waiting[0][0]
        members[0].fail(step, error)
        desk.tell_step(members[0], step)
        return
    middle = len(members) // 2
    _measure(members[:middle], desk)
    _measure(members[middle:], desk)


def seat_points(members: Sequence[PointRun], desk: Desk) -> Seats:
    """Each distinct step once. Twins within one point are two: that is how noise is measured."""
    places: dict[tuple[str, int], int] = {}
    parts: list[KeyParts] = []
    owners: list[tuple[PointRun, RecipeStep]] = []
    taken: list[tuple[PointRun, RecipeStep, int]] = []
    for point in members:
        unit, twins = point.waiting[0], dict[str, int]()
        for step, own in zip(unit, point.run.planner.describe(unit, point.run.digests), strict=True):
            alone = make_key(own)
            twins[alone] = twins.get(alone, 0) + 1
            place = places.setdefault((alone, twins[alone]), len(parts))
            if place == len(parts):
                parts.append(own)
                owners.append((point, step))
            taken.append((point, step, place))
    joined = [_mark(own, desk.again) for own in join_keys(parts)]
    works = tuple(
        desk.name_work(gather_work(point.run, Decision(step, Reason.TOGETHER, "", own)), f"{step.name}#{point.number}")
        for (point, step), own in zip(owners, joined, strict=True)
    )
    return Seats(works, tuple(taken))


def _mark(parts: KeyParts, again: str) -> KeyParts:
    """What is measured again is another measurement, though everything about it is the same."""
    return parts.model_copy(update={"together": (*parts.together, again)}) if again else parts


def _must_measure(seats: Seats, desk: Desk) -> bool:
    steps = [step for _, step, _ in seats.taken]
    unknown = any(UNKNOWN_HOST in work.parts.machine for work in seats.works)
    return unknown or any(step.name in desk.forced or step.step.reused_where() is Reuse.NEVER for step in steps)


def _reason(seats: Seats) -> Reason:
    return Reason.TOGETHER if len(seats.works) > 1 else Reason.NEW


def _company(seats: Seats) -> str:
    others = len(seats.works) - 1
    return f"with {others} other{'s' if others > 1 else ''}" if others else ""


def _task(seats: Seats, desk: Desk) -> Task:
    names = {place: step.name for _, step, place in seats.taken}
    limits = [desk.limit_s(name) for name in names.values()]
    known = [limit for limit in limits if limit is not None]
    return Task(seats.works, _must_measure(seats, desk), sum(known) if len(known) == len(limits) else None)


def _fail_culprits(seats: Seats, desk: Desk, error: NdldFlowError) -> bool:
    """Whether the error names a step; the points that have it have failed then."""
    culprits = list(_culprits(seats, error))
    begun = {work.step.name for work in seats.works}
    for point, step in culprits:
        point.fail(step, error)
        if f"{step.name}#{point.number}" in begun:
            desk.tell_step(point, step)
    return bool(culprits)


def _culprits(seats: Seats, error: NdldFlowError) -> Iterator[tuple[PointRun, RecipeStep]]:
    """Points whose step the error names; all, where all have the same one."""
    blamed = {place for place, work in enumerate(seats.works) if f"step {work.step.name}: " in str(error)}
    if len(blamed) == 1:
        yield from ((point, step) for point, step, place in seats.taken if place in blamed)


def place_sitting(seats: Seats, records: Sequence[StepRecord], desk: Desk, *, reused: bool) -> None:
    """Give each point what was measured for it, and note the sitting."""
    number = len(desk.sittings) + 1
    points = tuple(dict.fromkeys(point.number for point, _, _ in seats.taken))
    given: set[int] = set()
    for point, step, place in seats.taken:
        decision = Decision(step, _reason(seats), _company(seats), seats.works[place].parts)
        mine = not reused and place not in given
        (desk.place_made if mine else desk.place_found)(point, [decision], [records[place]])
        if place not in given and not reused:
            desk.tell_step(point, step)
        given.add(place)
        point.sitting = point.sitting or number
    desk.sittings.append(
        Sitting(
            number=number,
            points=points,
            steps=tuple(dict.fromkeys(step.name for _, step, _ in seats.taken)),
            device=seats.works[0].step.step.device,
            again=bool(desk.again),
            reused=reused,
            started_at=min(record.started_at for record in records),
            ended_at=max(record.ended_at or record.started_at for record in records),
            beside=tuple(dict.fromkeys(said for record in records for said in record.beside)),
            machine=_elsewhere(records),
        )
    )


def _elsewhere(records: Sequence[StepRecord]) -> str:
    """Return the machine that they were measured on; empty where it is of this one's kind."""
    machine = records[0].parts.machine.partition("; ")[0]
    return "" if machine == fingerprint_machine() else machine
