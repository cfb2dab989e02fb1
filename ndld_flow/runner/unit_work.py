"""Steps that are done together: from the plan's decisions to work, and from records to a run's steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.step_record import Outcome, RunStep, StepRecord
from ndld_flow.runner.events import Listener, Said, StepFinished, StepStarted, describe_progress
from ndld_flow.runner.execute import Work
from ndld_flow.runner.plan import Decision
from ndld_flow.runner.state import RunState
from ndld_flow.store.hidden_credentials import hide_credentials
from ndld_flow.store.store import Store

LAST_LINES = 40
"""Lines of a step's log that are kept of one that did not come to its end."""


def gather_work(run: RunState, decision: Decision) -> Work:
    """A step with all it needs; everything it reads is made."""
    step, parts = decision.step, decision.parts
    assert parts is not None  # everything a step reads is made before it
    run.planner.store.locks.use([decision.key])

    def progress(done: int, total: int, what: str) -> None:
        run.listener(describe_progress(step.name, done, total, hide_credentials(what)))

    last_lines = run.logs[step.name] = deque[str](maxlen=LAST_LINES)
    artifacts = {key: run.artifacts[name] for key, name in step.reads.items()}
    return Work(step, parts, artifacts, run.recipe.file.inputs, progress, run.recipe.name, last_lines.append)


def set_damaged_aside(step: str, key: str, store: Store, listener: Listener) -> str:
    """Set aside what is damaged of a step's result that is made again, and tell so; what was done, in a few words."""
    found = store.clear(key)
    if found is None:
        return ""
    listener(
        Said(
            text=f"set aside: the result of step {step} was damaged ({found.damage}); it is kept in {found.place} and "
            "is made again"
        )
    )
    return f"{found.damage}; set aside as {found.place.name}"


def clear_damage(run: RunState, decisions: Sequence[Decision]) -> list[Decision]:
    """Set aside what is damaged of what these decisions make again; they tell it then. Hold their keys."""
    cleared = []
    for decision in decisions:
        said = set_damaged_aside(decision.step.name, decision.key, run.planner.store, run.listener)
        cleared.append(replace(decision, detail=said) if said else decision)
    return cleared


def place_records(
    run: RunState, decisions: Sequence[Decision], records: Sequence[StepRecord], outcome: Outcome, wall_s: float
) -> list[RunStep]:
    """Make what records name readable for later steps, and note how it came to be; `wall_s` is spent on each."""
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
    """A step that is not done."""
    return RunStep(name=step.name, step=step.type.name, outcome="skipped", reason=reason, wall_s=0.0)


def tell_start(decision: Decision) -> StepStarted:
    step = decision.step
    return StepStarted(name=step.name, step=step.type.name, reason=decision.reason.text, detail=decision.detail)


def tell_end(step: RunStep) -> StepFinished:
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
