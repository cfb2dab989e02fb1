"""The steps of a run in progress: gather the work of one, set damaged results aside, and place new ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ndld_flow.base.text import visible_text
from ndld_flow.execution.events import Notice, StepFinished, StepLogged, describe_progress
from ndld_flow.execution.listener import Listener
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.outcomes import Outcome
from ndld_flow.records.run_record import RunStep, StepRecord
from ndld_flow.runner.plan import Decision
from ndld_flow.runner.run_state import RunState
from ndld_flow.store.hidden_credentials import hide_credentials
from ndld_flow.store.store import Store

if TYPE_CHECKING:
    from ndld_flow.execution.execute import Work


LAST_LINES = 40
"""Number of lines of a failed step's log that are recorded."""


def gather_work(run: RunState, decision: Decision, name: str = "") -> Work:
    """Return the work of a step; all its inputs exist. `name` replaces the step's in events, its log and errors."""
    from ndld_flow.execution.execute import Work

    step, parts = decision.step, decision.parts
    shown = name or step.name
    assert parts is not None  # all inputs of a step are computed before the step
    run.planner.store.locks.use([decision.key])

    def progress(done: int, total: int, what: str) -> None:
        run.listener(describe_progress(shown, done, total, hide_credentials(what)))

    last_lines = run.logs[step.name] = deque[str](maxlen=LAST_LINES)

    def logged(line: str) -> None:
        last_lines.append(line)
        run.listener(StepLogged(name=shown, text=hide_credentials(visible_text(line))))

    artifacts = {key: run.artifacts[name] for key, name in step.reads.items()}
    inputs = run.recipe.file.inputs if step.inputs is None else step.inputs
    return Work(replace(step, name=shown), parts, artifacts, inputs, progress, run.recipe.name, logged)


def set_damaged_aside(step: str, key: str, store: Store, listener: Listener) -> str:
    """Set a damaged result of a step aside before it is recomputed, and report that; return a short description."""
    damaged = store.clear(key)
    if damaged is None:
        return ""
    listener(
        Notice(
            text=f"the result of step {step} was damaged ({damaged.damage}); it was moved to {damaged.place} "
            "and is recomputed",
            warning=True,
        )
    )
    return f"{damaged.damage}; set aside as {damaged.place.name}"


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
                target=run.target_of(step) if outcome == "done" else step.target,
            )
        )
    return placed


def skip_step(step: RecipeStep, reason: str) -> RunStep:
    """Return the entry of a step that does not run."""
    return RunStep(
        name=step.name, step=step.type.name, outcome="skipped", reason=reason, wall_s=0.0, target=step.target
    )


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
