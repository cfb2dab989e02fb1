"""A run as plain lines, for logs and pipes."""

from __future__ import annotations

from ndld_flow.cli.sweep_words import describe_point, describe_sweep_end
from ndld_flow.cli.wording import describe_end, describe_failure, describe_step_end
from ndld_flow.runner.events import (
    Event,
    Notice,
    PointFinished,
    RunFailed,
    RunFinished,
    StepFinished,
    StepStarted,
    StepWaits,
    SweepFinished,
    SweepStarted,
)


class PlainLines:
    """Prints one line for what a reader of a log wants to know; progress within a step is left out."""

    def __init__(self) -> None:
        self._sweeps = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, SweepStarted):
            self._sweeps = True
            count = "" if event.point_count is None else f" of at most {event.point_count} points"
            print(f"{event.recipe}: sweep{count}, {event.method}", flush=True)
        elif self._sweeps and isinstance(event, StepStarted | StepFinished):
            return  # a sweep may have thousands of steps: only its points are printed
        elif isinstance(event, PointFinished):
            print(f"point {event.number}: {event.outcome}: {describe_point(event)}", flush=True)
        elif isinstance(event, SweepFinished):
            print("\n".join(describe_sweep_end(event)), flush=True)
        else:
            _print_step(event)


def _print_step(event: Event) -> None:
    if isinstance(event, Notice):
        print(event.text, flush=True)
    elif isinstance(event, StepStarted):
        detail = f" ({event.detail})" if event.detail else ""
        print(f"{event.name}: {event.step} starts, {event.reason}{detail}", flush=True)
    elif isinstance(event, StepWaits):
        print(f"{event.name}: waits for {event.waits_for}", flush=True)
    elif isinstance(event, StepFinished):
        print(describe_step_end(event), flush=True)
    elif isinstance(event, RunFinished):
        print("\n".join(describe_end(event)), flush=True)
    elif isinstance(event, RunFailed):
        print("\n".join(describe_failure(event)), flush=True)
