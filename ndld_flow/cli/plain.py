"""A run or a sweep as plain lines, for logs and pipes; the live display shares the lines of ends."""

from __future__ import annotations

from ndld_flow.base.quantities import quantity
from ndld_flow.base.text import shortened, visible_text
from ndld_flow.records.run_record import ENDINGS
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

MARKS = {
    "passed": ("✓", "green"),
    "refused": ("✗", "yellow"),
    "inconclusive": ("?", "yellow"),
    "failed": ("✗", "red"),
}
_LONGEST = 160


def describe_point(event: PointFinished) -> str:
    """Describe a finished point: `speed.threads=2, speed.optimization=all  3.21 ms`."""
    values = visible_text(", ".join(f"{name}={value}" for name, value in event.values.items()))
    objectives = ", ".join(quantity(metric.value, metric.unit) for metric in event.objectives.values())
    reason = shortened(visible_text(" ".join(event.reason.split())), _LONGEST)
    parts = [shortened(values, _LONGEST), objectives, reason, "measured again" if event.again else ""]
    return "  ".join(filter(None, parts))


def describe_sweep_end(event: SweepFinished) -> list[str]:
    """Describe the end of a sweep: its verdict and its report, or the sweep that it reuses."""
    if event.nothing_to_do:
        head = f"nothing to do: sweep {event.sweep} has all of these results"
        return [head, event.verdict[0], *_applied(event), f"report {event.report}"]
    return [*event.verdict, *_applied(event), f"report {event.report}"]


def _applied(event: SweepFinished) -> list[str]:
    return [f"the best point's recipe: {event.applied}"] if event.applied else []


def describe_step_end(event: StepFinished) -> str:
    """Describe the end of a step: `half: done in 0.82 s: fp16: 326 nodes`."""
    if event.outcome == "skipped":
        return f"{event.name}: skipped, {event.reason}"
    how = "reused" if event.outcome == "reused" else f"{event.outcome} in {event.wall_s:.2f} s"
    if event.outcome in ("failed", "inconclusive") and event.reason == "reused":
        how = f"{event.outcome} (reused)"
    return f"{event.name}: {how}: {event.summary}"


def describe_failure(event: RunFailed) -> list[str]:
    """Describe a failed run: outcome, step and report. The error itself is printed last."""
    steps = f" in step {' and '.join(event.steps)}" if event.steps else ""
    return [f"{ENDINGS[event.outcome].headline} {event.run}{steps}", f"report {event.report}"]


def describe_end(event: RunFinished) -> list[str]:
    """Describe the end of a run: its verdict and its report, or the run that it reuses."""
    if event.nothing_to_do:
        word = "passed" if event.passed else "was INCONCLUSIVE" if event.exit_code == 4 else "FAILED"
        head = f"nothing to do: run {event.run} has all of these results and {word}"
        return [head, *_failed_gates(event), f"report {event.report}", *_exported(event)]
    return [*event.verdict, *_failed_gates(event), f"report {event.report}", *_exported(event)]


def _exported(event: RunFinished) -> list[str]:
    return [f"result {path}" for path in event.exported]


def _failed_gates(event: RunFinished) -> list[str]:
    """Return a line for each failed gate: `gate failed: agree.cosine >= 0.999: measured 0.981, limit 0.999`."""
    return [
        f"gate failed: {gate.gate}: measured {quantity(gate.left, gate.unit)}, limit {quantity(gate.right, gate.unit)}"
        for gate in event.gates
        if not gate.passed
    ]


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
