"""Plans and profiles as JSON, for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ndld_flow.profiles.diagnose.diagnose import Triage
from ndld_flow.records.document import Record
from ndld_flow.records.profile import Profile
from ndld_flow.step import Foresight

if TYPE_CHECKING:
    from ndld_flow.runner.plan import Decision


class StepDecision(Record):
    """The decision whether a run would execute a step, from `ndld-flow plan`."""

    name: str
    step: str
    """The step's type."""
    reason: str
    """`reused`, or the reason why it would run, such as `settings changed`."""
    detail: str
    key: str
    """The digest of everything that the result depends on; empty while one of its inputs does not exist yet."""
    notes: tuple[str, ...]
    """Its work on this machine, such as `TensorRT 10.8: weakly typed; FP16, TF32`."""
    problems: tuple[str, ...]
    """Conflicts of the settings with the chosen libraries, each with a remedy. With one, the exit code is 2."""
    lacks: tuple[str, ...]
    """Requirements missing on this machine, each with the way to get it."""


class ProfileOutput(Record):
    """A profile and its summary, from `ndld-flow profile`."""

    profile: Profile
    triage: Triage


def describe_decisions(decisions: Sequence[Decision], foreseen: Sequence[Foresight]) -> list[StepDecision]:
    """Return the plan of a run as `ndld-flow plan` prints it; `foreseen` has an entry for each decision."""
    return [
        StepDecision(
            name=decision.step.name,
            step=decision.step.type.name,
            reason=decision.reason.text,
            detail=decision.detail,
            key=decision.key,
            notes=seen.notes,
            problems=seen.problems,
            lacks=seen.lacks,
        )
        for decision, seen in zip(decisions, foreseen, strict=True)
    ]
