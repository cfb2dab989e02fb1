"""What a run tells while it works. Terminal, plain lines and JSON all listen to these."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from pydantic import JsonValue

from ndld_flow.records.base import Record
from ndld_flow.records.metric import Metric
from ndld_flow.records.outcome import RunOutcome
from ndld_flow.records.run_record import GateResult
from ndld_flow.records.step_record import Outcome
from ndld_flow.records.sweep import PointOutcome


class RunStarted(Record):
    event: Literal["run_started"] = "run_started"
    recipe: str
    steps: tuple[str, ...]


class Said(Record):
    """A sentence about something that takes time before the first step, such as fetching the model."""

    event: Literal["said"] = "said"
    text: str


class StepStarted(Record):
    event: Literal["step_started"] = "step_started"
    name: str
    step: str
    reason: str
    detail: str


class StepWaits(Record):
    """A step waits for another run: for the device that it measures on, or for the result of the same step."""

    event: Literal["step_waits"] = "step_waits"
    name: str
    waits_for: str
    """`cpu 0-1, held by step speed of ppocr-det (user ann, pid 123) since 10:42:07`."""


class StepProgressed(Record):
    event: Literal["step_progressed"] = "step_progressed"
    name: str
    done: int
    total: int
    """0 when unknown."""
    what: str


WAITS = "waits for "
"""How the text of a step's progress begins while it waits: workers report nothing but progress."""


def describe_progress(name: str, done: int, total: int, what: str) -> StepProgressed | StepWaits:
    """Return the event for what a step, which may be in a worker, reports as its progress."""
    if what.startswith(WAITS) and not total:
        return StepWaits(name=name, waits_for=what.removeprefix(WAITS))
    return StepProgressed(name=name, done=done, total=total, what=what)


class StepFinished(Record):
    event: Literal["step_finished"] = "step_finished"
    name: str
    step: str
    outcome: Outcome
    reason: str
    detail: str
    summary: str
    wall_s: float
    metrics: dict[str, Metric]


class RunFinished(Record):
    event: Literal["run_finished"] = "run_finished"
    passed: bool
    exit_code: int
    nothing_to_do: bool
    """Everything was there already; the run named is an earlier one."""
    run: str
    folder: str
    report: str
    verdict: tuple[str, ...]
    """Five lines for people."""
    gates: tuple[GateResult, ...]
    wall_s: float


class RunFailed(Record):
    """The run did not come to its end, and its folder tells why. What was raised follows."""

    event: Literal["run_failed"] = "run_failed"
    outcome: RunOutcome
    steps: tuple[str, ...]
    """Those that failed, or were at work."""
    message: str
    exit_code: int
    run: str
    folder: str
    report: str


class RunRefused(Record):
    """The run ended with an error that its request, its model or this machine explains."""

    event: Literal["run_refused"] = "run_refused"
    message: str
    exit_code: int


class SweepStarted(Record):
    event: Literal["sweep_started"] = "sweep_started"
    recipe: str
    method: str
    point_count: int | None
    """Points that will be tried at most; None when that cannot be known."""


class PointFinished(Record):
    """A point of a sweep came to its end; its steps were told as `STEP#NUMBER`."""

    event: Literal["point_finished"] = "point_finished"
    number: int
    values: dict[str, JsonValue]
    """Axis -> value."""
    outcome: PointOutcome
    reason: str
    objectives: dict[str, Metric]
    """What was looked for -> what it came to; what was not reached is left out."""
    again: bool = False
    """Whether it is a winner that was measured again."""


class SweepFinished(Record):
    event: Literal["sweep_finished"] = "sweep_finished"
    passed: bool
    """Whether any point passed."""
    exit_code: int
    nothing_to_do: bool
    """Everything was there already; the sweep named is an earlier one."""
    sweep: str
    folder: str
    report: str
    verdict: tuple[str, ...]
    """Lines for people."""
    best: int | None
    """Number of the best point."""
    applied: str = ""
    """Path of the recipe that was written from the best point; empty when none was."""
    outcomes: dict[PointOutcome, int]
    wall_s: float


Event = (
    RunStarted
    | Said
    | StepStarted
    | StepWaits
    | StepProgressed
    | StepFinished
    | RunFinished
    | RunFailed
    | RunRefused
    | SweepStarted
    | PointFinished
    | SweepFinished
)
Listener = Callable[[Event], None]


def one_at_a_time(listener: Listener) -> Listener:
    """A listener that may be told from several threads."""
    telling = threading.Lock()

    def tell(event: Event) -> None:
        with telling:
            listener(event)

    return tell


def ignore(_: Event) -> None:
    """A listener for programs that only want the result."""
