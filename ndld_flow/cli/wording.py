"""The lines at the end of a step and a run, shared by the live display and the plain lines."""

from __future__ import annotations

from ndld_flow.base.quantities import quantity
from ndld_flow.records.run_record import ENDINGS
from ndld_flow.runner.events import RunFailed, RunFinished, StepFinished


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
        head = f"nothing to do: run {event.run} has all of these results and {word} ({event.wall_s:.2f} s)"
        return [head, *_failed_gates(event), f"report {event.report}"]
    return [*event.verdict, *_failed_gates(event), f"report {event.report}"]


def _failed_gates(event: RunFinished) -> list[str]:
    """Return a line for each failed gate: `gate failed: agree.cosine >= 0.999: measured 0.981, limit 0.999`."""
    return [
        f"gate failed: {gate.gate}: measured {quantity(gate.left, gate.unit)}, limit {quantity(gate.right, gate.unit)}"
        for gate in event.gates
        if not gate.passed
    ]
