"""Run the steps of points, all at the same time: the results of one point are there for the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from ndld_flow.base.errors import NdldFlowError, OutputsError
from ndld_flow.records.run_record import StepRecord
from ndld_flow.runner.events import StepStarted
from ndld_flow.runner.executors.executor import Task
from ndld_flow.runner.plan import Decision
from ndld_flow.runner.reasons import Reason
from ndld_flow.runner.sweep.point_run import PointRun
from ndld_flow.runner.sweep.session import run_session
from ndld_flow.runner.sweep.state import SweepState
from ndld_flow.runner.unit_work import gather_work, set_damaged_aside

IN_FLIGHT = 2
"""Steps for each worker: one that it computes, and one that is ready when it has finished."""


@dataclass
class _Computation:
    """A step that is being computed, for one point."""

    point: PointRun
    decision: Decision
    waiting: list[PointRun] = field(default_factory=list)
    """Points that need the same result."""


@dataclass
class _Computations:
    """All steps that are being computed."""

    state: SweepState
    running: dict[Future[Sequence[StepRecord]], _Computation] = field(default_factory=dict)
    by_key: dict[str, _Computation] = field(default_factory=dict)

    def start(self, point: PointRun, decision: Decision) -> None:
        """Submit a step of a point."""
        name = f"{decision.step.name}#{point.number}"
        set_damaged_aside(name, decision.key, self.state.store, self.state.listener)
        self.state.listener(
            StepStarted(name=name, step=decision.step.type.name, reason=decision.reason.text, detail=decision.detail)
        )
        work = self.state.name_work(gather_work(point.run, decision), name)
        fresh = decision.reason in (Reason.FORCED, Reason.NEVER)
        task = Task((work,), fresh, self.state.limit_s(decision.step.name))
        computation = self.by_key[decision.key] = _Computation(point, decision)
        self.running[self.state.executor.submit(task, self.state.store)] = computation

    def finish_one(self) -> list[PointRun]:
        """Wait until a step has finished; return the points that can go on."""
        done, _ = wait(self.running, return_when=FIRST_COMPLETED)
        return [point for future in done for point in self._finish(future)]

    def _finish(self, future: Future[Sequence[StepRecord]]) -> list[PointRun]:
        computation = self.running.pop(future)
        del self.by_key[computation.decision.key]
        error = future.exception()
        if isinstance(error, NdldFlowError) and not isinstance(error, OutputsError):
            for point in (computation.point, *computation.waiting):
                point.fail(point.waiting[0][0], error)  # by the point's own name of the step
        else:  # raises a full disk or a bug, which is no point's error
            self.state.place_computed(computation.point, [computation.decision], future.result())
        self.state.report_step(computation.point, computation.decision.step)
        return [computation.point, *computation.waiting]


def advance_points(points: Sequence[PointRun], state: SweepState) -> None:
    """Run all steps of these points, each distinct one once; measuring steps in sessions, after all others.

    A point that fails keeps its error. Raises errors that concern no single point.
    """
    computations = _Computations(state)
    ready = deque(points)
    while True:
        while ready and len(computations.running) < IN_FLIGHT * state.executor.slots:
            _advance(ready.popleft(), computations)
        state.report_finished(points)
        if computations.running:
            ready += computations.finish_one()
        elif blocked := [point for point in points if not point.finished]:
            ready += run_session(blocked, state)
        else:
            return


def _advance(point: PointRun, computations: _Computations) -> None:
    """Advance a point until it must wait."""
    while point.waiting and not point.waiting[0][0].type.cls.takes_turns:
        (step,) = unit = point.waiting[0]
        try:
            [decision] = point.run.planner.decide(unit, point.run.digests)
        except NdldFlowError as error:
            point.fail(step, error)
            return
        if decision.key in computations.by_key:  # even if its record is there: the reason depends on whose result it is
            computations.by_key[decision.key].waiting.append(point)
            return
        if decision.record is None:
            computations.start(point, decision)
            return
        computations.state.place_found(point, [decision], [decision.record])
