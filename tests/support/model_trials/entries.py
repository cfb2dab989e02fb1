"""What is tried on a model: an entry of a recipe for every step of the registry, and every verb that takes a model."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from ndld_flow import api
from ndld_flow.base.settings import fields_of
from ndld_flow.graph.edit.catalogue import find_operation, operation_names
from ndld_flow.recipe.step_types import StepType
from ndld_flow.store.kinds import Onnx
from tests.support.model_trials.subjects import Subject

SLOW = ("profile", "find_precision", "compare_profiles", "build_engine", "noise", "init")
"""Steps and verbs that measure, search or build."""
RUN_MODELS = ("build_engine", "check_accuracy", "compare_profiles", "find_precision", "inspect_activations", "profile")
"""Steps that run a model, and are left out where only another runtime loads it."""
_OF_RUNS = ("runs",)
"""Verbs that select runs by their model."""
WITHOUT_WEIGHTS = ("api.inspect", "api.draw", "api.diff", "api.ops")
"""Verbs that need no weights."""
_CHECKS_IN_PROCESSES = ("onnxruntime", "channel_scales", "polygraphy")
_BRIEF = {
    "runs": 1,
    "passes": 2,
    "duration": "1 ms",
    "warmup": "1 ms",
    "warmup_passes": 1,
    "budget": "1 s",
    "stable": "0 %",
}
VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "apply_precision": {"apply_precision": {"from": "constrain_precision"}},
    "build_engine": {"build_engine": {"optimization_level": 0}},
    "check_accuracy": {"check_accuracy": {"candidate": "sanitize"}},
    "compare_profiles": {"compare_profiles": {"from": "profile", "base": "profile", "rounds": 0}},
    "constrain_precision": {
        "constrain_precision": {"op_types": {"MatMul": "fp16", "Conv": "fp16"}, "allow_empty": True}
    },
    "convert_fp16": {"convert_fp16": {}, "convert_fp16_io": {"keep_io": False}},
    "find_precision": {"find_precision": {"time": "2 s", "trials": 5}},
    "lint": {"lint": {"time_limit": "20 s"}},
    "profile": {"profile": _BRIEF},
    "run_tool": {"run_tool": {"command": ["true"], "in_place": True}},
}
"""Step -> name of an entry in the recipe -> its settings; other steps run with the least settings."""
EDITS: Mapping[str, Mapping[str, Any]] = {
    "rename_nodes": {"select": "*", "to": "n_{index}"},
    "rename_tensors": {"select": "*", "to": "t_{index}", "keep_io": True, "allow_empty": True},
}
"""Operation of `edit` -> settings that suit every model."""
OF_SOME_MODELS = ("add_nms", "add_postprocessing", "add_preprocessing", "make_batch_dynamic")
"""Operations of `edit` for images, boxes or batches, which other models do not have."""
"""Parts of messages for models on which the request means nothing; they count as accepted."""
_AFTER_FP16 = "quantize"


@cache
def recipe_entries(with_slow: bool, in_full: bool = True) -> dict[str, dict[str, Any]]:
    """Return the entries of a recipe with every step of the registry; a lint that fails ends a run, so it is last.

    Unless `in_full`, without the checks that start a process each, and take as long as all other steps.
    """
    entries: dict[str, dict[str, Any]] = {}
    for found in sorted(
        api.steps(), key=lambda found: (found.cls.stops_run, found.cls.kinds()[0] is not Onnx, found.name)
    ):
        if with_slow or found.name not in SLOW:
            for name, settings in _variants(found).items():
                entries[name] = {"step": found.name, found.cls.read_key: "source", **settings}
    if not in_full:
        entries["lint"]["skip"] = list(_CHECKS_IN_PROCESSES)
    return dict(sorted(entries.items(), key=lambda item: _rank(item[1], entries)))


def _rank(entry: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> tuple[bool, int]:
    """Sort entries after those that they read."""
    read = [
        entries[value]
        for value in entry.values()
        if isinstance(value, str) and value in entries and entries[value] is not entry
    ]
    depth = 1 + max((_rank(other, entries)[1] for other in read), default=0)
    return entry["step"] == "lint", depth


def closure(entries: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, dict[str, Any]]:
    """Return an entry after all that it reads."""
    entry = dict(entries[name])
    read = [value for key, value in entry.items() if key != "step" and isinstance(value, str) and value in entries]
    return {**{k: v for other in read for k, v in closure(entries, other).items()}, name: entry}


def _variants(found: StepType) -> Mapping[str, Mapping[str, Any]]:
    """Return the entries of a step: those listed, or one for each of its modes."""
    if found.name == "edit":
        return {f"edit_{name}": {"operations": [{name: settings}]} for name, settings in _plain_operations().items()}
    if found.name in VARIANTS:
        return VARIANTS[found.name]
    fields = fields_of(found.cls)
    least = {"allow_empty": True} if "allow_empty" in fields else {}
    values = get_args(fields["mode"].annotation) if "mode" in fields else ()
    modes: dict[str, dict[str, Any]] = {f"{found.name}_{value}": {**least, "mode": value} for value in values}
    if found.name == _AFTER_FP16:
        modes |= {f"{name}_after_fp16": {**settings, "from": "convert_fp16"} for name, settings in modes.items()}
    return modes or {found.name: least}


def _plain_operations() -> dict[str, Mapping[str, Any]]:
    """Return the operations of `edit` that need no settings, allowed to select nothing, and some others."""
    operations: dict[str, Mapping[str, Any]] = {}
    for name in set(operation_names()) - set(OF_SOME_MODELS):
        operation = find_operation(name)
        assert operation is not None
        settings = {"allow_empty": True} if "allow_empty" in fields_of(operation) else {}
        with contextlib.suppress(ValidationError):
            operation.model_validate(settings)
            operations[name] = settings
    return {**operations, **EDITS}


def verbs(with_slow: bool, with_noise: bool) -> list[str]:
    """Return the functions of `api` that take a model, and `diff`, which takes two; `noise` takes a minute."""
    names = [name for name in dir(api) if inspect.isfunction(getattr(api, name))]
    taking = [
        name for name in names if "model" in inspect.signature(getattr(api, name)).parameters and name not in _OF_RUNS
    ]
    left_out = (*(() if with_slow else SLOW), *(() if with_noise else ("noise",)))
    return [f"api.{name}" for name in [*taking, "diff"] if name not in left_out]


def call_verb(name: str, subject: Subject, recipe_inputs: Mapping[str, Any], folder: Path) -> None:
    """Call a function of `api` on a model, with settings that keep it short."""
    name = name.removeprefix("api.")
    path, function = str(subject.path), getattr(api, name)
    settings = [f"{key}={value}" for key, value in _BRIEF.items() if key not in ("budget", "stable")]
    shapes = [f"{key}:{{data:'{value['data']}',shape:{value['shape']}}}" for key, value in recipe_inputs.items()]
    inputs = [f"inputs={{{','.join(shapes)}}}"] if all(map(str.isidentifier, recipe_inputs)) and shapes else []
    if name == "diff":
        function(path, path, page=folder / "diff.html")
    elif name == "draw":
        function(path, folder / "model.svg")
        function(path, folder / "model.html")
    elif name == "ops":
        function(model=path)
    elif name == "profile":
        function(path, [*settings, *inputs], outputs=folder / "outputs")
    elif name == "noise":
        function(path, [*settings[1:], *inputs], comparisons=3, outputs=folder / "outputs")
    elif name == "init":
        function(path, folder / "recipe.yaml", overwrite=True)
    else:
        function(path)
