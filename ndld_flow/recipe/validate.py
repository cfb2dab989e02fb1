"""From a composed dictionary to a recipe, or to all of its mistakes at once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from ndld_flow.artifacts.kinds import Artifact, Onnx
from ndld_flow.discovery import StepType, StepTypes, find_step_files
from ndld_flow.errors import Problem, RecipeError, RequestError
from ndld_flow.nearest import say_nearest
from ndld_flow.recipe.compose import Composed
from ndld_flow.recipe.gates import Gate, GateError, parse_gate
from ndld_flow.recipe.messages import explain_mistakes
from ndld_flow.recipe.recipe import SOURCE, Recipe, RecipeFile, RecipeStep
from ndld_flow.step import Held, Reads, RunsCode

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass
class _Mistakes:
    """Collects problems, each with the place it stands."""

    composed: Composed
    problems: list[Problem] = field(default_factory=list)

    def add(self, dotted: str, what: str, hint: str = "") -> None:
        self.problems.append(Problem(self.composed.where(dotted), dotted, what, hint))


def validate_recipe(composed: Composed, trust: bool = False) -> Recipe:
    """Check everything that can be checked without the model.

    `trust` allows the code that the recipe names: `steps_from:` and settings marked `RunsCode`. Raises RecipeError with
    every problem found.
    """
    mistakes = _Mistakes(composed)
    values = _expand_shorthands(composed.values)
    file = _check_top_level(values, mistakes)
    types = _find_types(values, composed, trust, mistakes)
    models = _check_model_names(values, mistakes)
    steps = _check_steps(values.get("steps"), models, types, mistakes)
    if not trust:
        _refuse_code(steps, mistakes)
    gates = _check_gates(values.get("gates"), values.get("steps"), mistakes)
    if mistakes.problems or file is None:
        order = {problem: index for index, problem in enumerate(mistakes.problems)}
        raise RecipeError(sorted(mistakes.problems, key=lambda problem: (_line(problem), order[problem])))
    name = file.name or re.sub(r"[^A-Za-z0-9._-]+", "-", composed.file.path.stem).strip("-.") or "recipe"
    return Recipe(name, composed.file.path, file, tuple(steps), tuple(gates))


def _line(problem: Problem) -> int:
    line = problem.where.rpartition(":")[2]
    return int(line) if line.isdigit() else 10**9


def _expand_shorthands(values: Mapping[str, Any]) -> dict[str, Any]:
    """`model: path` means `model: {source: path}`; a step without settings may be left empty."""
    expanded = dict(values)
    if isinstance(expanded.get("model"), str):
        expanded["model"] = {"source": expanded["model"]}
    if isinstance(expanded.get("models"), dict):
        models = expanded["models"].items()
        expanded["models"] = {name: {"source": model} if isinstance(model, str) else model for name, model in models}
    if isinstance(expanded.get("steps"), dict):
        expanded["steps"] = {name: {} if entry is None else entry for name, entry in expanded["steps"].items()}
    return expanded


def _check_top_level(values: dict[str, Any], mistakes: _Mistakes) -> RecipeFile | None:
    try:
        # JSON, because strict validation of JSON takes a list for a tuple and still refuses "10" for 10
        return RecipeFile.model_validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        _add_all(error, RecipeFile, values, [], mistakes)
        mistakes.problems = [_hint_at_step(problem, values) for problem in mistakes.problems]
        return None


def _hint_at_step(problem: Problem, values: Mapping[str, Any]) -> Problem:
    """A step's name where a top-level key should be was meant as `steps.NAME`."""
    steps = values.get("steps")
    if isinstance(steps, dict) and problem.path in steps:
        return replace(problem, hint=f"did you mean `steps.{problem.path}`?")
    return problem


def _add_all(
    error: ValidationError, model: type[BaseModel], data: object, prefix: Sequence[str], mistakes: _Mistakes
) -> None:
    for dotted, what, hint in explain_mistakes(error, model, data):
        mistakes.add(".".join([*prefix, dotted] if dotted else prefix), what, hint)


def _find_types(values: Mapping[str, Any], composed: Composed, trust: bool, mistakes: _Mistakes) -> StepTypes:
    names = values.get("steps_from")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return StepTypes()
    files = find_step_files(names, composed.file.path.absolute().parent)
    if files and not trust:
        what = f"this recipe runs Python code of its own: {', '.join(str(file) for file in files)}"
        mistakes.add("steps_from", what, "read that code, then allow it with --trust")
        return StepTypes()
    return StepTypes(files)


def _check_model_names(values: Mapping[str, Any], mistakes: _Mistakes) -> list[str]:
    """Names of the recipe's models; `source`, which steps read unless told otherwise, is the last."""
    named, steps = values.get("models"), values.get("steps")
    names = [str(name) for name in named] if isinstance(named, dict) else []
    for name in names:
        if not NAME.fullmatch(name) or name == SOURCE:
            mistakes.add(f"models.{name}", f"`{name}` cannot name a model", "letters, digits and _, not `source`")
        elif isinstance(steps, dict) and name in steps:
            mistakes.add(f"models.{name}", f"`{name}` names a step too", "steps read both by name: rename one")
    return [*names, SOURCE]


def _check_steps(entries: object, models: Sequence[str], types: StepTypes, mistakes: _Mistakes) -> list[RecipeStep]:
    steps: list[RecipeStep] = []
    made: dict[str, type[Artifact] | None] = dict.fromkeys(models, Onnx)
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        if isinstance(entry, dict):
            step = _check_step(str(name), dict(entry), types, made, mistakes)
            made[str(name)] = step.step.kinds()[1] if step else None
            steps += [step] if step else []
    return steps


def _check_step(
    name: str,
    entry: dict[str, Any],
    types: StepTypes,
    made: Mapping[str, type[Artifact] | None],
    mistakes: _Mistakes,
) -> RecipeStep | None:
    prefix = f"steps.{name}"
    if not NAME.fullmatch(name) or name == SOURCE:
        mistakes.add(prefix, f"`{name}` cannot name a step", "letters, digits and _, not `source`")
        return None
    found = _find_type(name, entry, types, mistakes)
    if found is None:
        return None
    reads, sound = _resolve_reads(prefix, entry, found, made, mistakes)
    settings = {key: value for key, value in entry.items() if key not in ("step", found.cls.read_key)}
    try:
        step = found.cls.model_validate_json(json.dumps(settings, default=str))
    except ValidationError as error:
        _add_all(error, found.cls, settings, ["steps", name], mistakes)
        return None
    for held in step.held(Reads):
        if held.place[0] not in reads:  # a setting inside another, known only now
            sound &= _add_read(f"{prefix}.{held.dotted}", held, made, mistakes)
            reads[held.dotted] = held.value
    return RecipeStep(name, found, step, reads) if sound else None


def _add_read(dotted: str, held: Held[Reads], made: Mapping[str, type[Artifact] | None], mistakes: _Mistakes) -> bool:
    trouble = _check_read(str(held.place[-1]), held.mark.kind, held.value, made)
    if trouble:
        mistakes.add(dotted, *trouble)
    return not trouble


def _refuse_code(steps: Sequence[RecipeStep], mistakes: _Mistakes) -> None:
    for step in steps:
        for held in step.step.held(RunsCode):
            shown = ", ".join(map(str, held.value)) if isinstance(held.value, tuple) else held.value
            what = f"this step runs code that the recipe names: {shown}"
            mistakes.add(f"steps.{step.name}.{held.dotted}", what, "make sure of that code, then allow it with --trust")


def _find_type(name: str, entry: Mapping[str, Any], types: StepTypes, mistakes: _Mistakes) -> StepType | None:
    word = entry.get("step", name)
    try:
        found = types.find(word) if isinstance(word, str) else None
    except RequestError as error:
        mistakes.add(f"steps.{name}", str(error))
        return None
    if found is None:
        known = types.names()
        if "step" in entry:
            mistakes.add(f"steps.{name}.step", f"there is no step type {word!r}", say_nearest(str(word), known))
        else:
            hint = say_nearest(name, known).replace("known:", "say `step: TYPE`, one of:")
            mistakes.add(f"steps.{name}", f"`{name}` is no step type and there is no `step:`", hint)
    return found


def _resolve_reads(
    prefix: str,
    entry: Mapping[str, Any],
    found: StepType,
    made: Mapping[str, type[Artifact] | None],
    mistakes: _Mistakes,
) -> tuple[dict[str, str], bool]:
    """What the step reads -> the step that makes it; and whether all of it is there."""
    wanted: dict[str, tuple[type[Artifact], Any]] = {}
    kind = found.cls.kinds()[0]
    own = found.cls.read_key
    wanted[own] = (kind, entry.get(own) or _nearest_maker(kind, made))
    for setting, mark in found.cls.marked(Reads).items():
        name = entry.get(setting, found.cls.model_fields[setting].default)
        if name is not None:  # a step may read something only if it is told to
            wanted[setting] = (mark.kind, name)
    reads: dict[str, str] = {}
    for key, (kind, name) in wanted.items():
        trouble = _check_read(key, kind, name, made)
        if trouble:
            mistakes.add(f"{prefix}.{key}", *trouble)
        else:
            reads[key] = name
    return reads, len(reads) == len(wanted)


def _nearest_maker(kind: type[Artifact], made: Mapping[str, type[Artifact] | None]) -> str | None:
    makers = [name for name, made_kind in made.items() if made_kind is not None and issubclass(made_kind, kind)]
    return makers[-1] if makers else None


def _check_read(
    key: str, kind: type[Artifact], name: object, made: Mapping[str, type[Artifact] | None]
) -> tuple[str, str] | None:
    if name is None:
        return f"no step before this one makes what it reads ({kind.kind})", f"name one with `{key}:`"
    if not isinstance(name, str):
        return f"expected the name of a step, found {name!r}", ""
    if name not in made:
        return f"there is no step `{name}` before this one", say_nearest(name, made)
    makes = made[name]
    if makes is not None and not issubclass(makes, kind):
        fitting = [step for step, made_kind in made.items() if made_kind is not None and issubclass(made_kind, kind)]
        return f"`{name}` makes {makes.kind}, but {kind.kind} is read here", say_nearest("", fitting)
    return None


def _check_gates(gates: object, steps: object, mistakes: _Mistakes) -> list[Gate]:
    if not isinstance(gates, list):
        return []
    known = list(steps) if isinstance(steps, dict) else []
    return [gate for index, text in enumerate(gates) if (gate := _check_gate(index, text, known, mistakes))]


def _check_gate(index: int, text: object, steps: Sequence[str], mistakes: _Mistakes) -> Gate | None:
    dotted = f"gates.{index}"
    if not isinstance(text, str):
        return None  # the top level's check tells
    try:
        gate = parse_gate(text)
    except GateError as error:
        mistakes.add(dotted, f"{text!r}: {error}")
        return None
    for name in gate.names:
        step = name.partition(".")[0]
        if step not in steps:
            mistakes.add(dotted, f"{text!r}: there is no step `{step}`", say_nearest(step, steps))
            return None
    return gate
