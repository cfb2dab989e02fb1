"""Find the two models that a person wants set against each other, and tell what is different."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.records.model_diff import PARTS, ModelDiff, Part
from ndld_flow.records.run_record import RunRecord, SourceRecord
from ndld_flow.records.step_record import ArtifactRecord, RunStep
from ndld_flow.report.run_folder import RUN_RECORD, read_run_record
from ndld_flow.runner.runs import NoPointError, Outputs
from ndld_flow.store.kinds import Onnx

SOURCE = "source"


def diff_subjects(
    before: str, after: str, outputs: Outputs, *, parts: Collection[Part] | None = None, compare_values: bool = True
) -> ModelDiff:
    """What is different in the model that `after` names.

    Each is a model's file, `RUN:STEP`, `RUN:source`, or a run alone, which stands for the last model it made. Raises
    RequestError for what cannot be found, ModelError for what cannot be read.
    """
    wanted = PARTS if parts is None else parts
    paths = [find_model(reference, outputs) for reference in (before, after)]
    from ndld_flow.graph.diff.diff_models import diff_models
    from ndld_flow.models.files import load_model

    one, other = (load_model(path) for path in paths)
    return diff_models(one, other, compare_values=compare_values and "weights" in wanted).only(wanted)


def find_model(reference: str, outputs: Outputs) -> Path:
    """The file of the model that a reference names. Raises RequestError as `diff_subjects` does."""
    path = Path(reference)
    if path.is_file():
        return path
    if (path / Onnx.main).is_file():
        return path / Onnx.main
    head, colon, step = reference.rpartition(":")
    # No tag, recipe or id holds a colon; the path of a run's folder may.
    if not colon or (path / RUN_RECORD).is_file():
        folder, step = _run_folder(reference, outputs), ""
    else:
        folder = outputs.find(head)
    run = read_run_record(folder)
    models = _models(run)
    chosen = step or _last_made(run)
    if chosen not in models:
        said = f"{reference}: run {run.recipe_name}/{run.id} made no model `{chosen}`"
        raise RequestError(f"{said}; {suggest(chosen, models)}")
    made = models[chosen]
    if isinstance(made, SourceRecord):
        return _unchanged(reference, made, outputs)
    return _stored(reference, made, outputs, folder / chosen)


def _run_folder(reference: str, outputs: Outputs) -> Path:
    try:
        return outputs.find(reference)
    except NoPointError:
        raise
    except RequestError as error:
        if "/" in reference or reference.endswith(".onnx"):
            raise RequestError(f"{reference}: there is no such model file, and no such run. Check the path.") from None
        raise error from None


def _models(run: RunRecord) -> dict[str, SourceRecord | ArtifactRecord]:
    """Everything in a run that is a model, by the name that steps read it by."""
    made = {step.name: artifact for step in run.steps if (artifact := _made_model(step)) is not None}
    return {SOURCE: run.source, **run.models, **made}


def _made_model(step: RunStep) -> ArtifactRecord | None:
    artifact = step.record.artifact if step.record is not None else None
    return artifact if artifact is not None and artifact.kind == Onnx.kind else None


def _last_made(run: RunRecord) -> str:
    return next((step.name for step in reversed(run.steps) if _made_model(step) is not None), SOURCE)


def _stored(reference: str, artifact: ArtifactRecord, outputs: Outputs, copied: Path) -> Path:
    """In the store, where equal models are one file; else as the run's folder keeps it."""
    for folder in (outputs.store.object_folder(artifact.digest), copied):
        if (folder / Onnx.main).is_file():
            return folder / Onnx.main
    raise RequestError(f"{reference}: its model is not kept any more. Run the recipe again to make it anew.")


def _unchanged(reference: str, source: SourceRecord, outputs: Outputs) -> Path:
    """A run's own models lie where they were read; they may have been changed since."""
    path, digests = Path(source.path), outputs.store.digests
    for file in source.artifact.files:
        kept = path if file.path == Onnx.main else path.parent / file.path
        if not kept.is_file() or digests.digest(kept) != file.digest:
            raise RequestError(
                f"{reference}: {kept} is not any more what the run read. Name a model file, or run the recipe again."
            )
    return path
