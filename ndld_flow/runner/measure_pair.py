"""Measure two profiles of runs again, against each other, with a generated recipe."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.profiles.compare.measured import Rules
from ndld_flow.records.comparison import Comparison
from ndld_flow.records.document import read_document
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import read_run
from ndld_flow.runner.events import Listener, ignore
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.references import FoundSubject
from ndld_flow.runner.run import run_recipe
from ndld_flow.runner.state import Request
from ndld_flow.store.files import temporary_folder
from ndld_flow.store.kinds import ComparisonDocument, Onnx

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
    measurement takes part. Raises RequestError for a profile of no run here, or one that cannot be measured again, and
    raises as `run_recipe` does.
    """
    origins = [_find_origin(subject, outputs) for subject in pair]
    if origins[0].inputs != origins[1].inputs:
        raise RequestError(
            f"{pair[0].label} and {pair[1].label} were measured with different `inputs:`, so they cannot be measured "
            "against each other. Profile both in one recipe."
        )
    with temporary_folder() as aside:
        recipe = aside / "compare.yaml"  # YAML contains JSON
        recipe.write_text(json.dumps(_write_recipe(origins, gates, rules)), encoding="utf-8")
        folder = Path(run_recipe(Request(recipe, outputs=outputs.root, force=("all",)), listener).folder)
    comparison = read_document(Comparison, folder / "decide" / ComparisonDocument.main)
    subjects = tuple(
        subject.model_copy(update={"label": found.label, "location": found.reference, "run_id": found.run_id})
        for subject, found in zip(comparison.subjects, pair, strict=True)
    )
    profiles = read_run(folder).profiles
    return comparison.model_copy(update={"subjects": subjects}), [profiles[step] for step in _STEPS]


def _find_origin(subject: FoundSubject, outputs: Outputs) -> _Origin:
    (found,) = subject.profiles
    if not subject.run_id or found.profile.backend != "onnxruntime":
        raise RequestError(
            f"{subject.label} cannot be measured again: only what the step `profile` of a run here measured in ONNX "
            "Runtime can. Compare without --measure, or write a recipe with `compare_profiles`."
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
        raise RequestError(f"{subject.label} cannot be measured again: its model {path} is no longer there.")
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
