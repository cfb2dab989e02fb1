"""Write the recipe change that a finding suggests, run the changed recipe, and compare it with the run before."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ndld_flow.base.errors import NdldFlowError, RequestError
from ndld_flow.base.text import suggest
from ndld_flow.execution.listener import Listener
from ndld_flow.execution.request import recipe_of, request_recipe
from ndld_flow.profiles.compare.measured import Rules
from ndld_flow.profiles.diagnose.diagnose import diagnose
from ndld_flow.profiles.diagnose.recipe_change import RecipeChange, is_applied
from ndld_flow.profiles.diagnose.subject import Insight
from ndld_flow.recipe.apply_point import ChangedRecipe, change_file, change_record
from ndld_flow.recipe.load import load_sweep
from ndld_flow.recipe.recipe import SOURCE, Recipe
from ndld_flow.recipe.resolved import resolve_recipe
from ndld_flow.records.comparison import Verdict
from ndld_flow.records.document import Record
from ndld_flow.records.run_folder import read_run
from ndld_flow.records.run_record import RunRecord
from ndld_flow.runner.compare_runs import Compared, compare_runs
from ndld_flow.runner.run import run_alone
from ndld_flow.runs.outputs import Outputs
from ndld_flow.runs.references import FoundSubject, find_subject
from ndld_flow.store.files import write_text_atomically

_NO_FILE = "the run has no recipe file that still gives its recipe"


class OfferedChange(Record):
    """A finding that can be applied to the recipe of its run."""

    finding: str
    """Name of the finding."""
    step: str
    """The step that profiled."""
    title: str
    saving: float
    """Estimated saving as a share of the latency, 0 to 1."""
    change: str
    """The change in words: ``insert `sanitize: {fuse: true}` ``."""


class AppliedChange(Record):
    """A finding whose change was written into a recipe, and its measured effect."""

    offer: OfferedChange
    recipe: str
    """Path of the changed recipe; empty if it was only shown."""
    note: str = ""
    """The reason why the recipe was written in full, without comments; empty if only the change was written."""
    diff: str
    """Unified diff of the recipe."""
    run: str = ""
    """`RECIPE/ID` of the run of the changed recipe; empty if nothing was measured, as the following."""
    verdict: Verdict | Literal[""] = ""
    why: str = ""
    """The figures behind the verdict."""
    report: str = ""
    """Page of the comparison."""


@dataclass(frozen=True)
class Options:
    """The destination of a changed recipe, and whether to measure it."""

    to: Path | None = None
    """File to write; by default one next to the recipe, with the finding in its name."""
    overwrite: bool = False
    show_only: bool = False
    """Write and measure nothing."""
    trust: bool = False


def offered_changes(reference: str, outputs: Outputs) -> tuple[OfferedChange, ...]:
    """Return the findings on the profiles of a run whose change its recipe does not have yet.

    `reference` is `RUN` or `RUN:STEP`. Raises RequestError for anything else than a run with profiles.
    """
    subject = find_subject(reference, outputs)
    return tuple(_offer(step, insight) for step, insight, _ in _changes(subject, _record_of(subject, outputs)))


def apply_finding(
    reference: str, finding: str, outputs: Outputs, options: Options, listener: Listener
) -> AppliedChange:
    """Write the change of a finding into the recipe of its run, run that, and compare both profiles.

    Raises RequestError for a finding that the run does not have or that several of its profiles have, and for a file
    that exists; and raises as `run_alone` does.
    """
    subject = find_subject(reference, outputs)
    run = _record_of(subject, outputs)
    step, insight, change = _choose(reference, finding, _changes(subject, run))
    _refuse_target(run, step, options)
    path, overrides = recipe_of(run)
    if path is not None and not _gives(run, path, overrides, trust=options.trust):
        path = None
    recipe = _changed_recipe(run, step, change, path, overrides)
    target = options.to or new_file(run, path, finding)
    before, changed = (text.replace("\r\n", "\n").splitlines(keepends=True) for text in (recipe.before, recipe.after))
    applied = AppliedChange(
        offer=_offer(step, insight),
        recipe="" if options.show_only else str(target),
        note=recipe.reason,
        diff="".join(difflib.unified_diff(before, changed, "before", str(target))),
    )
    if options.show_only:
        return applied
    if target.exists() and not options.overwrite:
        raise RequestError(f"{target}: the file exists. Choose another with --to, or give --overwrite.")
    write_text_atomically(target, recipe.after)
    request = request_recipe(target, outputs=outputs.root, trust=options.trust)
    after = run_alone(request, listener)
    compared = _compare(f"{outputs.find(subject.run_id)}:{step}", f"{after.folder}:{step}", outputs, listener)
    verdict = compared.comparison
    return applied.model_copy(
        update={"run": after.run, "verdict": verdict.verdict, "why": verdict.why, "report": str(compared.report)}
    )


_Change = tuple[str, Insight, RecipeChange]


def _changes(subject: FoundSubject, run: RunRecord) -> tuple[_Change, ...]:
    return tuple(
        (found.step, insight, insight.change)
        for found in subject.profiles
        for insight in diagnose(found.profile)
        if insight.change is not None and not is_applied(insight.change, run, found.step)
    )


def _record_of(subject: FoundSubject, outputs: Outputs) -> RunRecord:
    if not subject.run_id or any(not found.step for found in subject.profiles):
        raise RequestError(
            f"{subject.reference} is not a run, so there is no recipe to change. Name a run that profiled: a tag, an "
            "id, `latest`, or RUN:STEP."
        )
    return read_run(outputs.find(subject.run_id)).run


def _offer(step: str, insight: Insight) -> OfferedChange:
    assert insight.change is not None  # only those are offered
    return OfferedChange(
        finding=insight.name, step=step, title=insight.title, saving=insight.score, change=insight.change.text
    )


def _choose(reference: str, finding: str, changes: Sequence[_Change]) -> _Change:
    named = [change for change in changes if change[1].name == finding]
    if not named:
        known = sorted({insight.name for _, insight, _ in changes})
        hint = suggest(finding, known) if known else "none of its findings has a change that can be applied"
        raise RequestError(f"{reference} has no finding `{finding}` to apply; {hint}")
    if len(named) > 1:
        steps = ", ".join(f"{reference}:{step}" for step, _, _ in named)
        raise RequestError(f"{reference}: several profiles have the finding `{finding}`. Name one: {steps}.")
    return named[0]


def _refuse_target(run: RunRecord, step: str, options: Options) -> None:
    """Refuse to measure here what another machine measured."""
    target = next(each.target for each in run.steps if each.name == step)
    if target and not options.show_only:
        raise RequestError(
            f"{step} was measured on {target}, and the effect can only be measured on this machine. Give --show for "
            "the change, and run the recipe there."
        )


def _changed_recipe(
    run: RunRecord, step: str, change: RecipeChange, path: Path | None, overrides: Sequence[str]
) -> ChangedRecipe:
    record = next(each.record for each in run.steps if each.name == step)
    assert record is not None  # it has a profile
    source = record.parents.get("from", SOURCE)
    if path is None:
        return change_record(run.recipe, change, step, source, _NO_FILE)
    return change_file(path, overrides, change, step, source, run.recipe)


def _gives(run: RunRecord, path: Path, overrides: Sequence[str], *, trust: bool) -> bool:
    """Return whether a recipe's file and overrides still give the recipe that ran."""
    digests = {SOURCE: run.source.artifact.digest, **{name: each.artifact.digest for name, each in run.models.items()}}
    try:
        recipe = load_sweep(path, overrides, trust=trust)
        return isinstance(recipe, Recipe) and resolve_recipe(recipe, digests) == run.recipe
    except (NdldFlowError, KeyError):
        return False


def new_file(run: RunRecord, path: Path | None, finding: str) -> Path:
    """Return a new file next to the recipe, or in the current directory if the run's recipe is in no file.

    Records may be of strangers: their names must not lead out of the directory.
    """
    if path is not None:
        return path.with_name(f"{path.stem}.{finding}.yaml")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", run.recipe_name).strip("-.") or "recipe"
    return Path(f"{name[:100]}.{finding}.yaml")


def _compare(before: str, after: str, outputs: Outputs, listener: Listener) -> Compared:
    """Compare two profiles, measured again in turns; those of engines as they were measured."""
    rules = Rules(metric="latency.median", allow=frozenset(("threads", "options", "model")))
    subjects = [find_subject(reference, outputs) for reference in (before, after)]
    engines = any(found.profile.runs_engine for subject in subjects for found in subject.profiles)
    again = None if engines else listener
    rules = replace(rules, metric="latency.min") if engines else rules
    return compare_runs((before, after), (), rules, outputs=outputs.root, measure=again)
