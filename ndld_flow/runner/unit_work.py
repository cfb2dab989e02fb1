"""Units of steps that run together: from the plan's decisions to work, and from records to a run's steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.run_record import Outcome, RunStep, StepRecord
from ndld_flow.runner.events import Listener, Notice, StepFinished, StepStarted, describe_progress
from ndld_flow.runner.execute import Work
from ndld_flow.runner.open_run import RunState
from ndld_flow.runner.plan import Decision
from ndld_flow.store.hidden_credentials import hide_credentials
from ndld_flow.store.store import Store

LAST_LINES = 40
"""Lines of the log that are recorded of a step that failed."""


def gather_work(run: RunState, decision: Decision) -> Work:
    """Return the work of a step; all its inputs exist."""
    step, parts = decision.step, decision.parts
    assert parts is not None  # all inputs of a step are computed before it
    run.planner.store.locks.use([decision.key])

    def progress(done: int, total: int, what: str) -> None:
        run.listener(describe_progress(step.name, done, total, hide_credentials(what)))

    last_lines = run.logs[step.name] = deque[str](maxlen=LAST_LINES)
    artifacts = {key: run.artifacts[name] for key, name in step.reads.items()}
    return Work(step, parts, artifacts, run.recipe.file.inputs, progress, run.recipe.name, last_lines.append)


def set_damaged_aside(step: str, key: str, store: Store, listener: Listener) -> str:
    """Set a damaged result of a step aside before it is recomputed, and report that; return a short description."""
    found = store.clear(key)
    if found is None:
        return ""
    listener(
        Notice(
            text=f"set aside: the result of step {step} was damaged ({found.damage}); it is kept in {found.place} and "
            "is recomputed"
        )
    )
    return f"{found.damage}; set aside as {found.place.name}"


def clear_damage(run: RunState, decisions: Sequence[Decision]) -> list[Decision]:
    """Set the damaged results of these decisions aside, and add that to their details. Their keys must be locked."""
    cleared = []
    for decision in decisions:
        detail = set_damaged_aside(decision.step.name, decision.key, run.planner.store, run.listener)
        cleared.append(replace(decision, detail=detail) if detail else decision)
    return cleared


def place_records(
    run: RunState, decisions: Sequence[Decision], records: Sequence[StepRecord], outcome: Outcome, wall_s: float
) -> list[RunStep]:
    """Make artifacts readable for later steps; return the finished steps, each with a duration of `wall_s`."""
    placed = []
    for decision, record in zip(decisions, records, strict=True):
        step = decision.step
        kind = step.type.cls.kinds()[1]
        folder = run.planner.store.object_folder(record.artifact.digest)
        run.artifacts[step.name] = kind(folder / kind.main, step.name, record.artifact.digest)
        placed.append(
            RunStep(
                name=step.name,
                step=step.type.name,
                outcome=outcome if record.passed else "inconclusive" if record.inconclusive else "failed",
                reason=decision.reason.text,
                detail=decision.detail,
                wall_s=wall_s,
                record=record,
            )
        )
    return placed


def skip_step(step: RecipeStep, reason: str) -> RunStep:
    """Return the entry of a step that does not run."""
    return RunStep(name=step.name, step=step.type.name, outcome="skipped", reason=reason, wall_s=0.0)


def describe_start(decision: Decision) -> StepStarted:
    step = decision.step
    return StepStarted(name=step.name, step=step.type.name, reason=decision.reason.text, detail=decision.detail)


def describe_end(step: RunStep) -> StepFinished:
    return StepFinished(
        name=step.name,
        step=step.step,
        outcome=step.outcome,
        reason=step.reason,
        detail=step.detail,
        summary=step.record.summary if step.record else "",
        wall_s=step.wall_s,
        metrics=step.record.metrics if step.record else {},
    )
