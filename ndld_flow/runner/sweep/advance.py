"""Take points through their steps, all at the same time: what one point makes is there for the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from ndld_flow.base.errors import NdldFlowError, OutputsError
from ndld_flow.records.step_record import StepRecord
from ndld_flow.runner.events import StepStarted
from ndld_flow.runner.executors.executor import Task
from ndld_flow.runner.plan import Decision
from ndld_flow.runner.reasons import Reason
from ndld_flow.runner.sweep.point_run import PointRun
from ndld_flow.runner.sweep.session import hold_sitting
from ndld_flow.runner.sweep.state import Desk
from ndld_flow.runner.unit_work import gather_work, set_damaged_aside

IN_FLIGHT = 2
"""Steps for each worker: one it does, and one that waits, so that it need not."""


@dataclass
class _Flight:
    """A step that is being computed, for one point."""

    point: PointRun
    decision: Decision
    waiting: list[PointRun] = field(default_factory=list)
    """Points that need the same."""


@dataclass
class _Traffic:
    """All steps that are being computed."""

    desk: Desk
    flights: dict[Future[Sequence[StepRecord]], _Flight] = field(default_factory=dict)
    by_key: dict[str, _Flight] = field(default_factory=dict)

    def start(self, point: PointRun, decision: Decision) -> None:
        """Have a step computed."""
        name = f"{decision.step.name}#{point.number}"
        set_damaged_aside(name, decision.key, self.desk.store, self.desk.listener)
        self.desk.listener(
            StepStarted(name=name, step=decision.step.type.name, reason=decision.reason.text, detail=decision.detail)
        )
        work = self.desk.name_work(gather_work(point.run, decision), name)
        fresh = decision.reason in (Reason.FORCED, Reason.NEVER)
        task = Task((work,), fresh, self.desk.limit_s(decision.step.name))
        flight = self.by_key[decision.key] = _Flight(point, decision)
        self.flights[self.desk.executor.submit(task, self.desk.store)] = flight

    def land(self) -> list[PointRun]:
        """Wait until a step is done; the points that can go on."""
        done, _ = wait(self.flights, return_when=FIRST_COMPLETED)
        return [point for future in done for point in self._land(future)]

    def _land(self, future: Future[Sequence[StepRecord]]) -> list[PointRun]:
        flight = self.flights.pop(future)
        del self.by_key[flight.decision.key]
        error = future.exception()
        if isinstance(error, NdldFlowError) and not isinstance(error, OutputsError):
            for point in (flight.point, *flight.waiting):
                point.fail(point.waiting[0][0], error)  # by its own name for it
        else:  # a full disk, or a bug: no point's error, and raised
            self.desk.place_made(flight.point, [flight.decision], future.result())
        self.desk.tell_step(flight.point, flight.decision.step)
        return [flight.point, *flight.waiting]


def advance_points(points: Sequence[PointRun], desk: Desk) -> None:
    """Do all steps of these points, each distinct one once; measuring steps in sittings, when all others are done.

    Points that fail note it. Raises what is no error of a point.
    """
    traffic = _Traffic(desk)
    ready = deque(points)
    while True:
        while ready and len(traffic.flights) < IN_FLIGHT * desk.executor.slots:
            _advance(ready.popleft(), traffic)
        desk.tell_finished(points)
        if traffic.flights:
            ready += traffic.land()
        elif blocked := [point for point in points if not point.finished]:
            ready += hold_sitting(blocked, desk)
        else:
            return


def _advance(point: PointRun, traffic: _Traffic) -> None:
    """Take a point as far as it comes without waiting."""
    while point.waiting and not point.waiting[0][0].type.cls.takes_turns:
        (step,) = unit = point.waiting[0]
        try:
            [decision] = point.run.planner.decide(unit, point.run.digests)
        except NdldFlowError as error:
            point.fail(step, error)
            return
        if decision.key in traffic.by_key:  # even when its record is there: whose work it was is told when it lands
            traffic.by_key[decision.key].waiting.append(point)
            return
        if decision.record is None:
            traffic.start(point, decision)
            return
        traffic.desk.place_found(point, [decision], [decision.record])
