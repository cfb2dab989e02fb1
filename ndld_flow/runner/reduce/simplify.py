"""Recipes with only the steps that a failure needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ndld_flow.recipe.gates import parse_gate
from ndld_flow.recipe.recipe import SOURCE, Recipe, RecipeStep
from ndld_flow.records.run_record import RunRecord
from ndld_flow.runner.reduce.failure import Failure
from ndld_flow.store.kinds import Onnx

_OF_SAMPLES = ("data", "inputs", "samples", "steps", "loader")
"""Settings of steps on the samples that they read: all read the values of the part's inputs instead."""
Steps = Mapping[str, Mapping[str, Any]]


def shorten_recipe(recipe: Recipe, record: RunRecord, failure: Failure) -> dict[str, Any]:
    """Return a recipe with only the steps that its failure needs, and without model and inputs."""
    by_name = {step.name: step for step in recipe.steps}
    gate = failure.where if failure.kind == "gate" else ""
    # An error between two steps, such as of a gate on a metric that was not recorded, may concern any of them.
    failing = failing_steps(failure, by_name) or list(by_name)
    reads = {name: [read for read in step.reads.values() if read in by_name] for name, step in by_name.items()}
    needed = _closure(failing, reads)
    steps = {name: _settings(step, record) for name, step in by_name.items() if name in needed}
    others = {key: value for key, value in record.recipe.items() if key in ("models", "runtime", "steps_from")}
    return {
        **others,
        "name": "reduced",
        "steps": steps,
        "gates": [gate] if gate else recipe.file.gates if not failure.where else [],
    }


def measure_quickly(short: Mapping[str, Any]) -> dict[str, Any]:
    """Return a short recipe whose profiles measure no longer than a comparison of a latency with a bound needs.

    A profile whose other metrics a gate reads stays as it is.
    """
    steps = {
        name: {**settings, **{key: value for key, value in _QUICK.items() if _is_less(value, settings.get(key))}}
        if settings["step"] == "profile" and _reads_latency_only(name, short["gates"])
        else settings
        for name, settings in short["steps"].items()
    }
    return {**short, "steps": steps}


_QUICK = {
    "runs": 1,
    "passes": 3,
    "duration": 200.0,
    "stable": 0.0,
    "warmup_passes": 1,
    "warmup": 0.0,
    "layer_passes": 0,
}
_QUICK_METRICS = ("median", "mean", "min", "max", "p90", "p95", "p99")


def measure_as(full: Mapping[str, Any], quick: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe that measures quickly with the measurements of another one."""
    steps = {}
    for name, settings in quick["steps"].items():
        others = {key: value for key, value in settings.items() if key not in _QUICK}
        steps[name] = others | {key: value for key, value in full["steps"][name].items() if key in _QUICK}
    return {**quick, "steps": steps}


def _is_less(value: float, given: object) -> bool:
    return not isinstance(given, int | float) or value < given


def _reads_latency_only(name: str, gates: Iterable[str]) -> bool:
    known = {f"{name}.latency.{word}" for word in _QUICK_METRICS}
    read = [metric for gate in gates for metric in parse_gate(gate).names if metric.partition(".")[0] == name]
    return known.issuperset(read)


def failing_steps(failure: Failure, known: Iterable[str]) -> list[str]:
    """Return the steps at which a recipe fails: those of a gate, or the step of a check or an error."""
    if failure.kind == "gate":
        names = [name.partition(".")[0] for name in parse_gate(failure.where).names]
    else:
        names = failure.where.split(" and ")
    return [name for name in names if name in known]


def _closure(start: Iterable[str], reads: Mapping[str, Iterable[str]]) -> set[str]:
    waiting, needed = list(start), set[str]()
    while waiting:
        name = waiting.pop()
        needed.add(name)
        waiting += [read for read in reads[name] if read not in needed]
    return needed


def _settings(step: RecipeStep, record: RunRecord) -> dict[str, Any]:
    """Return a step's settings that differ from their defaults, with absolute paths, and the results that it reads.

    The recipe's `custom_operators:` are among the settings of the steps that use them.
    """
    resolved = record.recipe["steps"]
    assert isinstance(resolved, Mapping)
    full = resolved[step.name]
    assert isinstance(full, Mapping)
    fields = {field.alias or name: (name, field) for name, field in type(step.step).model_fields.items()}
    unchanged = [
        key
        for key, (name, field) in fields.items()
        if not field.is_required() and getattr(step.step, name) == field.get_default(call_default_factory=True)
    ]
    given = [key for key in full if key not in (*unchanged, *_OF_SAMPLES)]
    reads = {key: name for key, name in step.reads.items() if key in full}
    return {"step": step.type.name, **{key: full[key] for key in given}, **reads}


def models_between(recipe: Recipe, short: Mapping[str, Any], failing: Iterable[str]) -> list[str]:
    """Return the steps of a short recipe that only change the model, the last first; no step at which it fails."""
    kinds = {step.name: step.type.cls.kinds() for step in recipe.steps}
    return [name for name in reversed(short["steps"]) if kinds[name] == (Onnx, Onnx) and name not in set(failing)]


def bypass(recipe: Recipe, short: Mapping[str, Any], name: str, failing: Iterable[str]) -> dict[str, Any] | None:
    """Return a recipe without a step: what read its result reads its source; None if a step then compares a model with
    itself."""
    step = next(step for step in recipe.steps if step.name == name)
    source = short["steps"][name].get(step.type.cls.read_key, SOURCE)
    return _with_read(recipe, short, name, source, failing)


def start_at(recipe: Recipe, short: Mapping[str, Any], name: str, failing: Iterable[str]) -> dict[str, Any] | None:
    """Return a recipe whose model is the result of a step, without the steps before it; None as for `bypass`."""
    return _with_read(recipe, short, name, SOURCE, failing)


def _with_read(
    recipe: Recipe, short: Mapping[str, Any], name: str, source: str, failing: Iterable[str]
) -> dict[str, Any] | None:
    keys = {step.name: list(step.own_reads) for step in recipe.steps}
    steps = {
        other: {key: source if key in keys[other] and value == name else value for key, value in settings.items()}
        for other, settings in short["steps"].items()
        if other != name
    }
    reads = {other: [settings[key] for key in keys[other] if key in settings] for other, settings in steps.items()}
    if any(len(set(found)) < len(found) for found in reads.values()):
        return None
    needed = _closure(failing, {other: [read for read in found if read in steps] for other, found in reads.items()})
    return {**short, "steps": {other: settings for other, settings in steps.items() if other in needed}}


def files_in(value: Any) -> Iterator[str]:  # noqa: ANN401 - plain data
    """Yield the absolute paths of existing files in nested plain data."""
    if isinstance(value, str) and value.startswith("/") and Path(value).exists():
        yield value
    for part in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from files_in(part)
