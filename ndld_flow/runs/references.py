"""Find the subject of a reference: runs, steps of runs, models, profile files, folders of exports."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.drawing.graph import DrawnGraph
from ndld_flow.profiles.compare.intervals import applies
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.build import Build
from ndld_flow.records.document import read_document
from ndld_flow.records.key_parts import ArtifactRecord
from ndld_flow.records.measurement import Metric
from ndld_flow.records.model_diff import PARTS, GraphChange, Part
from ndld_flow.records.noise import Noise
from ndld_flow.records.outcomes import is_complete
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import RUN_RECORD, RunDocuments, read_run, read_run_record
from ndld_flow.records.run_record import RunRecord, RunStep, SourceRecord
from ndld_flow.runs.outputs import NoPointError, Outputs, has_record
from ndld_flow.store.kinds import Onnx

SubjectKind = Literal["run", "profile", "build", "trtexec", "trex", "onnxruntime"]


@dataclass(frozen=True)
class FoundProfile:
    """One profile of a subject."""

    step: str
    """The step that wrote it; empty for a file."""
    profile: Profile
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Other metrics of the profiled model in the run: size, nodes, accuracy."""

    @property
    def name(self) -> str:
        return self.step or self.profile.label


@dataclass(frozen=True)
class FoundSubject:
    """The subject of a reference."""

    reference: str
    kind: SubjectKind
    label: str
    profiles: tuple[FoundProfile, ...]
    run_id: str = ""

    def only(self, profile: FoundProfile) -> FoundSubject:
        """Return this subject with one of its profiles."""
        label = f"{self.label}:{profile.name}" if len(self.profiles) > 1 else self.label
        return replace(self, label=label, profiles=(profile,))


def find_subjects(references: Sequence[str], outputs: Outputs) -> list[FoundSubject]:
    """Read the subjects of references; a single run with several profiles means all of them.

    Raises RequestError for a subject that cannot be found or read, or has no profile.
    """
    subjects = [find_subject(reference, outputs) for reference in references]
    for subject in subjects:
        for measured in subject.profiles:
            profile = measured.profile
            if not profile.runs and not any(layer.samples_ms for layer in profile.layers):
                raise RequestError(
                    f"{subject.reference} has {len(profile.layers)} layers but no times, so there is nothing to "
                    "compare. Measure the engine with the step `profile`, or use trtexec's --exportTimes and "
                    f"--exportProfile; `ndld-flow report {subject.run_id or subject.reference}` shows its layers, and "
                    "`ndld-flow diff` compares two engines without times."
                )
    if len(subjects) == 1:
        subjects = [subjects[0].only(profile) for profile in subjects[0].profiles]
        if len(subjects) == 1:
            raise RequestError(
                f"{references[0]} has only one profile. Name a second subject to compare it with: a run, tag or id, a "
                "profile file, or a folder of trtexec exports."
            )
    return _with_own_labels(subjects)


def find_subject(reference: str, outputs: Outputs) -> FoundSubject:
    """Read the subject of `PATH`, `RUN` or `RUN:STEP`. Raises RequestError as `find_subjects` does."""
    if is_profile_file(reference):
        from ndld_flow.profiles.read.read_profile import read_profile, recognize

        path = Path(reference)
        profile = read_profile(path)
        label = path.name or path.resolve().name
        if label in (Profile.file_name, Build.file_name):
            label = path.resolve().parent.name
        return FoundSubject(reference, recognize(path) or "profile", label, (FoundProfile("", profile),))
    head, colon, step = reference.rpartition(":")
    # Tags, recipes and ids contain no colon; the path of a run's folder may.
    if not colon or has_record(Path(reference)):
        documents = read_run(outputs.find(reference))
        return _subject_of_run(reference, documents, documents.of(Profile) or _engines(documents))
    documents = read_run(outputs.find(head))
    found = {**documents.of(Profile), **_engines(documents)}
    if found and step not in found:
        run = documents.run
        message = f"{reference}: run {run.recipe_name}/{run.id} has no profile `{step}`"
        raise UnknownNameError(message, step, found)
    return _subject_of_run(reference, documents, {name: found[name] for name in found if name == step})


def is_profile_file(reference: str) -> bool:
    """Return whether a reference is a path other than the folder of a run or a sweep."""
    path = Path(reference)
    return path.exists() and not has_record(path)


def find_profile(reference: str, outputs: Outputs) -> Profile:
    """Return the only profile of a reference. Raises RequestError as `find_subjects` does, and for several."""
    subject = find_subject(reference, outputs)
    if len(subject.profiles) > 1:
        names = ", ".join(f"{reference}:{profile.name}" for profile in subject.profiles)
        raise RequestError(f"{reference} contains several profiles. Name one: {names}.")
    return subject.profiles[0].profile


def _engines(documents: RunDocuments) -> dict[str, Profile]:
    return {step: build.as_profile() for step, build in documents.of(Build).items()}


def _subject_of_run(reference: str, documents: RunDocuments, profiles: Mapping[str, Profile]) -> FoundSubject:
    run = documents.run
    if not profiles:
        problems = " ".join(documents.unreadable)
        raise RequestError(f"{reference}: run {run.id} has no profile to compare. {problems}".strip())
    found_profiles = [
        FoundProfile(step, profile, _known_metrics(documents, step)) for step, profile in profiles.items()
    ]
    # `model:base`: the recipe's name in place of a run's id or path.
    name, colon, step = reference.partition(":")
    label = f"{run.recipe_name}{colon}{step}" if run.id.startswith(Path(name).name) else reference
    label = label if is_complete(run.outcome) else f"{label} (the run did not finish)"
    return FoundSubject(reference, "run", label, tuple(found_profiles), f"{run.recipe_name}/{run.id}")


def _known_metrics(documents: RunDocuments, step: str) -> dict[str, Metric]:
    """Return size and nodes of the profiled model, and the metrics of accuracy checks of it."""
    steps = {step.name: step for step in documents.run.steps}
    record = steps[step].record
    model = record.parents.get("from", "") if record else ""
    metrics = _model_metrics(documents.run, model, steps.get(model))
    for check, accuracy in documents.of(Accuracy).items():
        checked = steps[check].record
        if accuracy.candidate == model and checked is not None:
            metrics |= {f"{check}.{name}": metric for name, metric in checked.metrics.items()}
    return metrics


def _model_metrics(run: RunRecord, name: str, made_by: RunStep | None) -> dict[str, Metric]:
    if made_by is None or made_by.record is None:
        source = run.models.get(name, run.source)
        return {"model.bytes": Metric(value=source.artifact.size_bytes, unit="bytes")}
    metrics = {"model.bytes": Metric(value=made_by.record.artifact.size_bytes, unit="bytes")}
    if made_by.record.change is not None:
        metrics["model.nodes"] = Metric(value=made_by.record.change.after.node_count)
    return metrics


def _with_own_labels(subjects: Sequence[FoundSubject]) -> list[FoundSubject]:
    """Make labels unique: two files may have the same name, and a subject may be compared with itself.

    Equal labels get the folder of their file, or become the reference; if they are still equal, they get numbers.
    """
    times = Counter(subject.label for subject in subjects)
    longer = [
        subject.reference if subject.kind == "run" else "/".join(Path(subject.reference).parts[-2:])
        for subject in subjects
    ]
    by_place = [
        label if times[subject.label] > 1 else subject.label for subject, label in zip(subjects, longer, strict=True)
    ]
    again, seen = Counter(by_place), Counter[str]()
    apart = []
    for subject, label in zip(subjects, by_place, strict=True):
        seen[label] += 1
        apart.append(replace(subject, label=f"{label} ({seen[label]})" if again[label] > 1 else label))
    return apart


def find_noise(outputs: Outputs, profile: Profile) -> Noise | None:
    """Return the noise of a profile's machine, backend and provider; None if none was learned. Raises FormatError."""
    return next((noise for noise in read_noise(outputs) if applies(noise, profile)), None)


def read_noise(outputs: Outputs) -> Iterator[Noise]:
    """Yield learned noise. Raises FormatError for files of another version, which must not be ignored or
    overwritten."""
    for path in sorted(outputs.noise.glob("*.json")):
        # `ndld-flow noise` rewrites damaged files.
        with contextlib.suppress(OSError, ValidationError):
            yield read_document(Noise, path)


SOURCE = "source"


def diff_subjects(
    before: str, after: str, outputs: Outputs, *, parts: Collection[Part] | None = None, compare_values: bool = True
) -> tuple[GraphChange, DrawnGraph | None]:
    """Return the differences of the model `after` from the model `before`, and the region that changed.

    Each is a model's file, `RUN:STEP`, `RUN:source`, or a run alone, which means its last model. Raises RequestError
    for a model that cannot be found, ModelError for one that cannot be read.
    """
    wanted = PARTS if parts is None else parts
    paths = [find_model(reference, outputs) for reference in (before, after)]
    from ndld_flow.graph.diff.diff_models import changed_region, diff_sides, match_sides
    from ndld_flow.models.files import load_structure, summarize_model

    older, newer = (load_structure(path) for path in paths)
    summaries = summarize_model(older), summarize_model(newer)
    sides = match_sides(older, newer)
    diff = diff_sides(sides, compare_values=compare_values and "weights" in wanted).only(wanted)
    change = GraphChange(before=summaries[0], after=summaries[1], diff=diff)
    return change, changed_region(sides, diff) if "nodes" in wanted else None


def find_model(reference: str, outputs: Outputs) -> Path:
    """Return the file of a reference's model. Raises RequestError as `diff_subjects` does."""
    path = Path(reference)
    if path.is_file():
        return path
    if (path / Onnx.main).is_file():
        return path / Onnx.main
    head, colon, step = reference.rpartition(":")
    # Tags, recipes and ids contain no colon; the path of a run's folder may.
    if not colon or (path / RUN_RECORD).is_file():
        folder, step = _run_folder(reference, outputs), ""
    else:
        folder = outputs.find(head)
    run = read_run_record(folder)
    written = {name: record.artifact for name, record in run.records.items() if record.artifact.kind == Onnx.kind}
    models: dict[str, SourceRecord | ArtifactRecord] = {SOURCE: run.source, **run.models, **written}
    chosen = step or next(reversed(written), SOURCE)
    if chosen not in models:
        message = f"{reference}: run {run.recipe_name}/{run.id} has no model `{chosen}`"
        raise UnknownNameError(message, chosen, models)
    found = models[chosen]
    if isinstance(found, SourceRecord):
        return _unchanged(reference, found, outputs)
    # In the store equal models are one file.
    for place in (outputs.store.object_folder(found.digest), folder / chosen):
        if (place / Onnx.main).is_file():
            return place / Onnx.main
    raise RequestError(f"{reference}: its model is no longer stored. Run the recipe again to rebuild it.")


def _run_folder(reference: str, outputs: Outputs) -> Path:
    try:
        return outputs.find(reference)
    except NoPointError:
        raise
    except RequestError as error:
        if "/" in reference or reference.endswith(".onnx"):
            raise RequestError(
                f"{reference}: there is neither a model file nor a run of this name. Check the path."
            ) from None
        raise error from None


def _unchanged(reference: str, source: SourceRecord, outputs: Outputs) -> Path:
    """Return the path of a run's source model. Raises RequestError if it has changed since."""
    path, digests = Path(source.path), outputs.store.digests
    for file in source.artifact.files:
        kept = path if file.path == Onnx.main else path.parent / file.path
        if not kept.is_file() or digests.digest(kept) != file.digest:
            raise RequestError(
                f"{reference}: {kept} has changed since the run. Name a model file, or run the recipe again."
            )
    return path
