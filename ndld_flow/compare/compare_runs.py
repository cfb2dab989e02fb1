"""Compare runs, profile files and exports, measured again if requested, and runs that apply a finding."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from uuid import uuid4

from pydantic import JsonValue

from ndld_flow.base.errors import NdldFlowError, RequestError, UnknownNameError
from ndld_flow.base.garbage_collection import paused_garbage_collection
from ndld_flow.execution.listener import Listener, ignore
from ndld_flow.execution.request import recipe_of, request_recipe
from ndld_flow.profiles.compare.comparison import compare
from ndld_flow.profiles.compare.measured import Measured, Rules
from ndld_flow.profiles.diagnose.diagnose import diagnose
from ndld_flow.profiles.diagnose.subject import Insight, RecipeChange, is_applied
from ndld_flow.recipe.apply_point import ChangedRecipe, change_file, change_record
from ndld_flow.recipe.load import load_sweep
from ndld_flow.recipe.recipe import SOURCE, Recipe
from ndld_flow.recipe.resolved import resolve_recipe
from ndld_flow.records.comparison import Comparison, Subject, Verdict
from ndld_flow.records.document import Record, read_document
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import COMPARISON_PAGE, read_run
from ndld_flow.records.run_record import RunRecord
from ndld_flow.runner.run_folder import write_comparison
from ndld_flow.runs.disk import explaining_disk
from ndld_flow.runs.outputs import LATEST, Outputs
from ndld_flow.runs.references import FoundProfile, FoundSubject, find_noise, find_subject, find_subjects
from ndld_flow.store.files import building_folder, point_to, write_text_atomically
from ndld_flow.store.kinds import Onnx
from ndld_flow.sweep.run_request import run_alone

UNNAMED = "profile"
"""The common name of profiles with different names: it stays the same in a history if a file is renamed."""


@dataclass(frozen=True)
class Pairing:
    """Profiles by their common name."""

    sections: dict[str, list[tuple[int, FoundProfile]]]
    """Name -> (position of the subject, its profile), the base's first; at least two."""
    left_out: tuple[str, ...]
    """Sentences about profiles without a partner."""


def pair_profiles(subjects: Sequence[FoundSubject]) -> Pairing:
    """Pair profiles by the names of their steps; if every subject has only one, pair those.

    Raises RequestError if a subject has nothing in common with the first.
    """
    if all(len(subject.profiles) == 1 for subject in subjects):
        only = [(index, subject.profiles[0]) for index, subject in enumerate(subjects)]
        names = {profile.name for _, profile in only}
        return Pairing({names.pop() if len(names) == 1 else UNNAMED: only}, ())
    sections: dict[str, list[tuple[int, FoundProfile]]] = {}
    named = [{profile.name: profile for profile in reversed(subject.profiles)} for subject in subjects]
    for name in [profile.name for profile in subjects[0].profiles]:
        sections[name] = [(index, profiles[name]) for index, profiles in enumerate(named) if name in profiles]
    paired = {name: members for name, members in sections.items() if len(members) > 1}
    known = {index for members in paired.values() for index, _ in members}
    for index, subject in enumerate(subjects[1:], 1):
        if index not in known:
            base, other = (", ".join(profile.name for profile in each.profiles) for each in (subjects[0], subject))
            raise RequestError(
                f"{subject.label} has no profile with the same name as one of {subjects[0].label}: {other} against "
                f"{base}. "
                f"Name the profiles to compare, such as {subjects[0].label}:{subjects[0].profiles[0].name}."
            )
    return Pairing(paired, tuple(_left_out(subjects, paired)))


def _left_out(subjects: Sequence[FoundSubject], paired: dict[str, list[tuple[int, FoundProfile]]]) -> list[str]:
    taken = {(index, profile.name) for members in paired.values() for index, profile in members}
    return [
        f"{subject.label}: profile {profile.name} has no partner"
        for index, subject in enumerate(subjects)
        for profile in subject.profiles
        if (index, profile.name) not in taken
    ]


@dataclass(frozen=True)
class Compared:
    """A comparison and its folder."""

    comparison: Comparison
    profiles: list[list[Profile]]
    """For each profile comparison, its profiles in the order of its subjects."""
    folder: Path

    @property
    def report(self) -> Path:
        return self.folder / COMPARISON_PAGE

    def _repr_html_(self) -> str:
        from ndld_flow.report.exports.notebook_html import comparison_html

        return comparison_html(self.comparison, str(self.report))


def compare_runs(
    references: Sequence[str],
    gates: Sequence[str] = (),
    rules: Rules | None = None,
    *,
    outputs: Path = Path("outputs"),
    to: Path | None = None,
    measure: Listener | None = None,
) -> Compared:
    """Compare the subjects of references with the first, and write report, data and pictures into a folder.

    `references`: runs, tags, ids, `RUN:STEP`, profile files, folders of trtexec or TREx exports. `gates`: conditions
    such as `latency.min <= +5 %`. `to`: the output folder; by default a new one in `outputs/comparisons/`. Noise from
    `learn_noise` is used unless the rules have their own. With `measure`, a listener for events, two profiles are
    measured again, against each other, until they are decided. Raises RequestError for a subject that cannot be found,
    read or measured, and for an invalid gate.
    """
    kept = Outputs(outputs)
    if measure is not None:
        subjects = find_subjects(references, kept)
        if [len(subject.profiles) for subject in subjects] != [1, 1]:
            raise RequestError(
                "only two profiles can be measured against each other: name them as RUN:STEP, the base first."
            )
        comparison, profiles = measure_pair(subjects, gates, rules or Rules(metric="latency.median"), kept, measure)
        return _write(comparison, [profiles], kept, to)
    with paused_garbage_collection():
        return _compare(references, gates, rules or Rules(), kept, to)


def _compare(references: Sequence[str], gates: Sequence[str], rules: Rules, kept: Outputs, to: Path | None) -> Compared:
    subjects = find_subjects(references, kept)
    pairing = pair_profiles(subjects)
    if rules.noise is None:
        profiles = (each.profile for members in pairing.sections.values() for _, each in members)
        noise = next((noise for profile in profiles if (noise := find_noise(kept, profile))), None)
        rules = replace(rules, noise=noise)
    sections = {
        name: [Measured(index, each.step, each.profile, each.metrics) for index, each in members]
        for name, members in pairing.sections.items()
    }
    comparison = compare([_subject(subject) for subject in subjects], sections, rules, gates, pairing.left_out)
    return _write(comparison, [[profiled.profile for profiled in members] for members in sections.values()], kept, to)


def _write(comparison: Comparison, profiles: list[list[Profile]], kept: Outputs, to: Path | None) -> Compared:
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid4().hex[:6]}"
    folder = to or kept.root / "comparisons" / name
    with explaining_disk(f"comparison of {', '.join(subject.label for subject in comparison.subjects)}", folder):
        with nullcontext(folder) if to is not None else building_folder(folder) as built:
            write_text_atomically(built / comparison.file_name, comparison.to_json())
            write_comparison(comparison, profiles, built)
        if to is None:
            point_to(folder.parent / LATEST, folder)
    return Compared(comparison, profiles, folder)


def _subject(subject: FoundSubject) -> Subject:
    return Subject(
        label=subject.label,
        location=subject.reference,
        kind=subject.kind,
        run_id=subject.run_id,
        measured_at=subject.profiles[0].profile.measured_at,
    )


_STEPS = ("base", "speed")
_MODELS = ("source", "candidate")


@dataclass(frozen=True)
class _Origin:
    """The model, inputs and options of a profile."""

    model: dict[str, JsonValue]
    inputs: JsonValue
    options: dict[str, JsonValue]


def measure_pair(
    pair: Sequence[FoundSubject], gates: Sequence[str], rules: Rules, outputs: Outputs, listener: Listener = ignore
) -> tuple[Comparison, list[Profile]]:
    """Run a recipe with both models and the settings of their profiles, and return its comparison.

    The models are profiled in turns, and rounds follow until the gates and the verdict are decided, so that no earlier
    measurement is used. Raises RequestError for a profile that is not of a run here or cannot be measured again, and
    raises like `run_alone`.
    """
    origins = [_find_origin(subject, outputs) for subject in pair]
    if origins[0].inputs != origins[1].inputs:
        raise RequestError(
            f"{pair[0].label} and {pair[1].label} were measured with different `inputs:`, so they cannot be measured "
            "against each other. Profile both in one recipe."
        )
    recipe = _write_recipe(origins, gates, rules)
    request = request_recipe(recipe, outputs=outputs.root, force=("all",))
    folder = Path(run_alone(request, listener).folder)
    comparison = read_document(Comparison, folder / "decide" / Comparison.file_name)
    subjects = tuple(
        subject.model_copy(update={"label": found.label, "location": found.reference, "run_id": found.run_id})
        for subject, found in zip(comparison.subjects, pair, strict=True)
    )
    profiles = read_run(folder).of(Profile)
    return comparison.model_copy(update={"subjects": subjects}), [profiles[step] for step in _STEPS]


def _find_origin(subject: FoundSubject, outputs: Outputs) -> _Origin:
    (found,) = subject.profiles
    if not subject.run_id or found.profile.runs_engine:
        raise RequestError(
            f"{subject.label} cannot be measured again: only what the step `profile` of a run here measured without "
            "an engine can. Compare without --measure, or write a recipe with `compare_profiles`."
        )
    run = read_run(outputs.find(subject.run_id)).run
    records = {step.name: step.record for step in run.steps}
    record = records[found.step]
    assert record is not None  # it has a profile
    name = record.parents["from"]
    model_record = records.get(name)
    source = run.models.get(name, run.source)
    artifact = source.artifact if model_record is None else model_record.artifact
    path = source.path if model_record is None else str(outputs.store.object_folder(artifact.digest) / Onnx.main)
    if not Path(path).is_file():
        raise RequestError(f"{subject.label} cannot be measured again: its model {path} no longer exists.")
    model: dict[str, JsonValue] = {"source": str(Path(path).absolute()), "blake3": artifact.digest}
    return _Origin(model, run.recipe.get("inputs", {}), found.profile.options)


def _write_recipe(origins: Sequence[_Origin], gates: Sequence[str], rules: Rules) -> dict[str, JsonValue]:
    profiles: dict[str, JsonValue] = {
        step: {**origin.options, "step": "profile", "from": model}
        for step, model, origin in zip(_STEPS, _MODELS, origins, strict=True)
    }
    decide: dict[str, JsonValue] = {
        "step": "compare_profiles",
        "base": _STEPS[0],
        "from": _STEPS[1],
        "gates": list(gates),
        "metric": rules.metric,
        "threshold": rules.threshold,
        "allow": [*map(str, sorted(rules.allow))],
    }
    return {
        "name": "compare",
        "description": "Two profiles of earlier runs, measured again against each other",
        "model": origins[0].model,
        "models": {_MODELS[1]: origins[1].model},
        "inputs": origins[0].inputs,
        "steps": {**profiles, "decide": decide},
    }


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
    machine = next(each.target for each in run.steps if each.name == step)
    if machine and not options.show_only:
        raise RequestError(
            f"{step} was measured on {machine}, and the effect can only be measured on this machine. Give --show for "
            "the change, and run the recipe there."
        )
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
    compared = _compare_change(f"{outputs.find(subject.run_id)}:{step}", f"{after.folder}:{step}", outputs, listener)
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
        none = "none of its findings has a change that can be applied"
        raise UnknownNameError(f"{reference} has no finding `{finding}` to apply", finding, known, none)
    if len(named) > 1:
        steps = ", ".join(f"{reference}:{step}" for step, _, _ in named)
        raise RequestError(f"{reference}: several profiles have the finding `{finding}`. Name one: {steps}.")
    return named[0]


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


def _compare_change(before: str, after: str, outputs: Outputs, listener: Listener) -> Compared:
    """Compare two profiles, measured again in turns; those of engines as they were measured."""
    rules = Rules(metric="latency.median", allow=frozenset(("threads", "options", "model")))
    subjects = [find_subject(reference, outputs) for reference in (before, after)]
    engines = any(found.profile.runs_engine for subject in subjects for found in subject.profiles)
    again = None if engines else listener
    rules = replace(rules, metric="latency.min") if engines else rules
    return compare_runs((before, after), (), rules, outputs=outputs.root, measure=again)
