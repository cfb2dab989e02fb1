"""Plans and profiles as JSON, for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ndld_flow.profiles.diagnose.diagnose import Triage
from ndld_flow.records.document import Record
from ndld_flow.records.profile import Profile
from ndld_flow.runner.sweep.plan_sweep import Estimate, PlannedPoint, PlannedStep, SweepPlan
from ndld_flow.step import Foresight

if TYPE_CHECKING:
    from ndld_flow.runner.measure_model import Profiled
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


class SweepOutline(Record):
    """The work of a sweep, from `ndld-flow plan`."""

    method: str
    """The search, such as `grid`."""
    point_count: int | None
    """Upper bound of the points to try; None where it is unknown."""
    excluded_count: int | None
    """Points that `exclude:` removes; None where it is unknown."""
    points: tuple[PlannedPoint, ...]
    """Points that are known in advance: the next points of some searches depend on results."""
    steps: tuple[PlannedStep, ...]
    """The steps of the recipe over all known points."""
    remeasured: tuple[int, ...] | None
    """Points that will be measured again at the end; None where they are not known yet."""
    estimate: Estimate | None
    """Duration of the work that is not stored; None when no such step ever ran here."""


class ProfileOutput(Record):
    """A profile and its summary, from `ndld-flow profile`."""

    profile: Profile
    triage: Triage


def describe_plan(plan: Sequence[Decision] | SweepPlan, foreseen: Sequence[Foresight] = ()) -> object:
    """Return a plan as `ndld-flow plan` prints it; `foreseen` has an entry for each decision."""
    if isinstance(plan, SweepPlan):
        return SweepOutline(
            method=plan.sweep.section.method,
            point_count=plan.point_count,
            excluded_count=plan.excluded_count,
            points=plan.points,
            steps=plan.steps,
            remeasured=plan.again,
            estimate=plan.estimate,
        )
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
        for decision, seen in zip(plan, foreseen, strict=True)
    ]


def describe_profile(profiled: Profiled) -> ProfileOutput:
    """Return a profile and its summary as `ndld-flow profile` prints them."""
    return ProfileOutput(profile=profiled.profile, triage=profiled.triage())
