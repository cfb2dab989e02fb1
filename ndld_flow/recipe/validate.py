"""Turn a composed dictionary into a recipe, or report all of its mistakes at once, in plain words."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from ndld_flow.base.declared_metrics import UNKNOWN, Returns, Wrong, find_metric
from ndld_flow.base.errors import Problem, RecipeError, RequestError
from ndld_flow.base.settings import Settings, describe_settings, fields_of, synonyms_of
from ndld_flow.base.text import find_nearest, lazy_pattern, suggest, visible_name
from ndld_flow.inputs import InputSpec, InputSpecs
from ndld_flow.recipe.calibrated_checks import hold_out_samples
from ndld_flow.recipe.composed import Composed
from ndld_flow.recipe.foreign_forms import OF_RECIPE, OF_STEP, SHORT_VALUES, hint_at_form, hint_at_type, plain_word
from ndld_flow.recipe.gates import Expression, Gate, GateError, parse_gate
from ndld_flow.recipe.recipe import SOURCE, TRITON, Recipe, RecipeFile, RecipeStep
from ndld_flow.recipe.step_types import StepType, StepTypes
from ndld_flow.recipe.targets import HERE, ON, expand_targets, is_host
from ndld_flow.runtimes.one_runtime import OneRuntime, share_operators, share_runtime
from ndld_flow.runtimes.settings import RuntimeSettings
from ndld_flow.step import Reads, Step
from ndld_flow.store.hidden_credentials import HIDDEN, find_redacted, hide_credentials, hide_in_values
from ndld_flow.store.kinds import Artifact, Engine, Onnx

EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "none_required": "nothing (null)",
    "union_tag_not_found": "a mapping with `backend`",
}
BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


Location = tuple[str | int, ...]


def explain_mistakes(error: ValidationError, model: type[BaseModel], data: object) -> Iterator[tuple[str, str, str]]:
    """Yield, for each error in `data`, its dotted path, the value found with the values allowed, and a hint.

    Pydantic reports a value that matches none of several types once per type; here that is one error.
    """
    by_place: dict[Location, list[Mapping[str, Any]]] = {}
    for detail in error.errors(include_url=False):
        by_place.setdefault(_real_location(detail, data), []).append(detail)
    for location, details in by_place.items():
        what, hint = _explain(details[0], location, model) if len(details) == 1 else _explain_choice(details)
        yield ".".join(map(str, location)), what, hint or _describe_setting(model, location)


def _real_location(detail: Mapping[str, Any], data: object) -> Location:
    """Return an error's location without the type names that pydantic inserts."""
    kept: list[str | int] = []
    for part in detail["loc"]:
        inside = part in data if isinstance(data, dict) else isinstance(data, list) and part in range(len(data))
        if inside:
            data = data[part]  # type: ignore[index]
            kept.append(part)
    if detail["type"] == "union_tag_invalid":
        return (*kept, detail["ctx"]["discriminator"].strip("'"))
    return (*kept, detail["loc"][-1]) if detail["type"] == "missing" else tuple(kept)


def _explain_choice(details: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Describe a value that matches none of several types, with a hint for an unquoted `yes` or `off`."""
    words = [
        detail["ctx"]["expected"] if detail["type"] == "literal_error" else EXPECTED.get(detail["type"], detail["msg"])
        for detail in details
    ]
    *most, last = dict.fromkeys(words)
    value = details[0]["input"]
    hint = hint_at_form("bool_type", value, "") if any(detail["type"] == "bool_type" for detail in details) else ""
    return f"expected {', '.join(most)}{' or ' if most else ''}{last}, found {_show(value)}", hint


def _explain(detail: Mapping[str, Any], location: Location, model: type[BaseModel]) -> tuple[str, str]:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        owner = _owner_of(detail, location, model)
        known = [info.alias or name for name, info in fields_of(owner).items()]
        return f"there is no setting `{location[-1]}`", _suggest_setting(str(location[-1]), owner, known)
    if kind == "missing":
        is_item = isinstance(location[-1], int)
        return (f"needs {location[-1] + 1} values or more" if is_item else f"`{location[-1]}` is missing"), ""  # type: ignore[operator]
    if kind in ("literal_error", "union_tag_invalid"):
        allowed, value = context.get("expected") or context["expected_tags"], context.get("tag", value)
        names = [name.strip().strip("'") for name in allowed.replace(" or ", ", ").split(",")]
        hint = suggest(SHORT_VALUES.get(plain_word(str(value)), str(value)), names)
        return f"expected one of {allowed}, found {_show(value)}", (hint if hint.startswith("did you mean") else "")
    if kind in BOUNDS:
        bound, words = BOUNDS[kind]
        return f"must be {words} {context[bound]}, found {_show(value)}", ""
    if kind in EXPECTED:
        return f"expected {EXPECTED[kind]}, found {_show(value)}", hint_at_form(kind, value, str(location[-1]))
    if kind == "value_error":
        return str(context["error"]), ""
    if kind == "string_pattern_mismatch":
        return f"found {_show(value)}, which does not have the form {context['pattern']}", ""
    text = detail["msg"].partition(" after validation")[0]
    return f"{text[0].lower()}{text[1:]}, found {_show(value)}", ""


def _owner_of(detail: Mapping[str, Any], location: Location, model: type[BaseModel]) -> type[BaseModel]:
    """Return the model that lacks a setting."""
    owner = _model_at(model, location[:-1])
    if owner is not RuntimeSettings:
        return owner
    field = fields_of(_model_at(model, location[:-2]))[str(location[-2])]
    # The runtime's name is in pydantic's location, before the setting.
    marks = (mark for mark in field.metadata if isinstance(mark, OneRuntime))
    return next(marks).choices()[str(detail["loc"][-2])]


def _suggest_setting(word: str, model: type[BaseModel], known: Sequence[str]) -> str:
    """Return the setting that other tools call by this word, or the nearest one."""
    synonyms = {plain_word(name): setting for name, setting in synonyms_of(model).items()}
    if plain_word(word) in synonyms:
        return f'did you mean "{synonyms[plain_word(word)]}"?'
    foreign = OF_STEP if issubclass(model, Step) else OF_RECIPE if model is RecipeFile else {}
    return foreign.get(plain_word(word)) or suggest(word, known)


def _describe_setting(model: type[BaseModel], location: Location) -> str:
    """Return the first sentence of the docstring of the setting at (or around) a location."""
    for depth in range(len(location), 0, -1):
        name = str(location[depth - 1])
        at = _model_at(model, location[: depth - 1])
        if name in fields_of(at):
            text = " ".join(describe_settings(at).get(name, "").split()).partition(". ")[0].rstrip(".")
            return f"{name}: {text}" if text else ""
    return ""


def _show(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "nothing" if value is None else str(value).lower()
    text = hide_credentials(repr(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


def _model_at(model: type[BaseModel], location: Location) -> type[BaseModel]:
    """Return the model at a location inside another model."""
    for part in location:
        choose = getattr(model, "model_at_key", None)  # an entry whose only key determines its settings
        model = (choose and choose(str(part))) or model
        info = fields_of(model).get(str(part))
        inner = models_in(info.annotation) if info is not None else []  # a mapping's key is not a field
        model = inner[0] if inner else model
    return model


def models_in(annotation: object) -> list[type[BaseModel]]:
    """Return the models in a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]


INPUTS = "inputs"
"""The setting with a step's own inputs, which every step has that reads any."""
NAME = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
NAME_FORM = "a letter or _, then up to 99 letters, digits and _; not `source`"

Sentence = TypeVar("Sentence", Gate, Expression)
Known = Mapping[str, RecipeStep | None]
"""A recipe's steps by name; None for one that has mistakes of its own."""
_StepPlace = tuple[int, str, str, tuple[Path, ...]]
"""Everything on which the validity of a step depends: number of its readable artifacts, name, settings, files of step
types."""


@dataclass
class Mistakes:
    """Problems, each with its place."""

    where: Callable[[str], str]
    """Dotted path -> `file:line` or `override "..."`."""
    problems: list[Problem] = field(default_factory=list)

    def add(self, dotted: str, what: str, hint: str = "") -> None:
        self.problems.append(Problem(self.where(dotted), visible_name(dotted), visible_name(what), hint))

    def in_order(self) -> list[Problem]:
        """Return the problems in the order of the file, and of discovery on the same line."""
        return sorted(self.problems, key=lambda problem: problem.line)


def validate_recipe(composed: Composed, *, trust: bool) -> Recipe:
    """Check everything that can be checked without the model.

    `trust` allows the code that the recipe names: `steps_from:` and settings marked `RunsCode`. Raises RecipeError with
    every problem found.
    """
    recipe = Checker(composed.file.path, trust).check(composed.values, composed.where)
    return replace(recipe, written=expand_shorthands(composed.written))


@dataclass(frozen=True)
class Checker:
    """Checks a file's recipe with different values. An unchanged step is not checked again."""

    path: Path
    trust: bool = False
    _sound: dict[_StepPlace, RecipeStep] = field(default_factory=dict)
    _places: dict[tuple[int, str, type[Artifact] | None], int] = field(default_factory=dict)
    """Number of the steps before, a step and the kind it produces -> number of the steps up to it."""

    def check(self, values: Mapping[str, Any], where: Callable[[str], str]) -> Recipe:
        """Return the recipe of these values. Raises RecipeError with every problem."""
        mistakes = Mistakes(where)
        values = expand_shorthands(values)
        file = _check_top_level(values, mistakes)
        types = _find_types(values, self, mistakes)
        values, inherited = _share_settings(values, types, mistakes, with_runtime=file is not None)
        models = _check_model_names(values, mistakes)
        steps, misspelt = self._check_steps(values.get("steps"), models, types, mistakes)
        steps = [replace(step, inherited=inherited.get(step.name, frozenset())) for step in steps]
        known = {**known_steps(values.get("steps"), steps), **dict.fromkeys(misspelt)}
        gates = _check_gates(values.get("gates"), known, mistakes)
        _check_exports(values.get("export"), steps, mistakes)
        if isinstance(needs := values.get("needs"), dict):
            check_step_names("needs", needs, list(known_steps(values.get("steps"), ())), mistakes)
        if file is not None:
            _check_states(INPUTS, values.get(INPUTS) or {}, file.inputs, mistakes)
            for step in steps:
                own = step.inputs or {}
                _check_states(f"steps.{step.name}.{INPUTS}", values["steps"][step.name].get(INPUTS), own, mistakes)
            _check_sequences(file, steps, mistakes)
        _refuse_redacted(values, mistakes)
        if file is not None and not mistakes.problems:
            _refuse_unread_inputs(file.inputs, steps, mistakes)
        if mistakes.problems or file is None:
            raise RecipeError(mistakes.in_order())
        steps = _follow_chains(_inherit_inputs(_read_through(steps)))
        steps = hold_out_samples(steps, file.inputs)
        name = name_recipe(self.path, {"name": file.name})
        return Recipe(name, self.path, file, tuple(steps), tuple(gates), where=where)

    def _check_steps(
        self, entries: object, models: Sequence[str], types: StepTypes, mistakes: Mistakes
    ) -> tuple[list[RecipeStep], list[str]]:
        """Return the sound steps, and the names that misspelt ones were to have, which may be read too: one mistake is
        reported once.
        """
        steps: list[RecipeStep] = []
        misspelt: list[str] = []
        kinds: dict[str, type[Artifact] | None] = dict.fromkeys(models, Onnx)
        before = self._number_of(0, kinds)
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            if isinstance(entry, dict):
                place = (before, str(name), json.dumps(entry, default=str), types.files)
                step = self._sound.get(place) or _check_step(str(name), dict(entry), types, kinds, mistakes)
                steps += [step] if step else []
                if step and place not in self._sound and (self.trust or _refuse_code(step, mistakes)):
                    self._sound[place] = step
                kinds[str(name)] = step.step.kinds()[1] if step else None
                before = self._number_of(before, {str(name): kinds[str(name)]})
                if step is None and "step" not in entry and name not in types.names():
                    meant = find_nearest(str(name), types.names())
                    misspelt += [meant] if meant else []
                    kinds |= {meant: None} if meant and meant not in kinds else {}
        return steps, misspelt

    def _number_of(self, before: int, kinds: Mapping[str, type[Artifact] | None]) -> int:
        """Return a number for the readable artifacts: equal if their names and kinds are equal, in order."""
        for name, kind in kinds.items():
            before = self._places.setdefault((before, name, kind), len(self._places) + 1)
        return before


def name_recipe(path: Path, values: Mapping[str, Any]) -> str:
    """Return the name of a recipe: its own, or one from that of its file."""
    return str(values.get("name") or re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-.") or "recipe")


def expand_shorthands(values: Mapping[str, Any]) -> dict[str, Any]:
    """Expand `model: path` to `model: {source: path}`, `inputs: {x: 3}` to `{x: {data: 3}}`, and an empty step to one
    without settings.
    """
    expanded = dict(values)
    _expand_inputs(expanded)
    if isinstance(expanded.get("model"), str):
        expanded["model"] = {"source": expanded["model"]}
    if isinstance(expanded.get("models"), dict):
        models = expanded["models"].items()
        expanded["models"] = {name: {"source": model} if isinstance(model, str) else model for name, model in models}
    if "targets" in expanded:
        expanded["targets"] = expand_targets(expanded["targets"])
    if isinstance(expanded.get("steps"), dict):
        expanded["steps"] = {name: {} if entry is None else entry for name, entry in expanded["steps"].items()}
        for name, entry in expanded["steps"].items():
            if isinstance(entry, dict) and INPUTS in entry:
                expanded["steps"][name] = dict(entry)
                _expand_inputs(expanded["steps"][name])
    return expanded


def _expand_inputs(values: dict[str, Any]) -> None:
    """Expand the `inputs:` of a recipe or of a step in place; a list of numbers is no data, but a shape."""
    if isinstance(values.get(INPUTS), dict):
        values[INPUTS] = {
            name: {"data": spec}
            if isinstance(spec, str | int | float)
            or (isinstance(spec, list) and all(isinstance(item, str) for item in spec))
            else spec
            for name, spec in values[INPUTS].items()
        }


def _check_top_level(values: dict[str, Any], mistakes: Mistakes) -> RecipeFile | None:
    try:
        # JSON, because strict validation of JSON accepts a list for a tuple and still rejects "10" for 10
        return RecipeFile.model_validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        _add_all(error, RecipeFile, values, [], mistakes)
        mistakes.problems = [_hint_at_step(problem, values) for problem in mistakes.problems]
        return None


def _refuse_redacted(values: Mapping[str, Any], mistakes: Mistakes) -> None:
    """Reject the marks that replace credentials in the files of a run: nothing may compute with them.

    Except in the URL of a model: a model that was fetched is found by its digest.
    """
    named = values["models"] if isinstance(values.get("models"), dict) else {}
    models = {"model": values.get("model"), **{f"models.{name}": model for name, model in named.items()}}
    addresses = {f"{name}.source" for name, model in models.items() if isinstance(model, dict)}
    for dotted in find_redacted({key: value for key, value in values.items() if key != "description"}):
        if dotted not in addresses:
            what = f"`{HIDDEN}` replaces a credential, which was removed when this file was written"
            mistakes.add(
                dotted, what, "restore the value; `${oc.env:NAME}` keeps it out of everything that a run writes"
            )


def _hint_at_step(problem: Problem, values: Mapping[str, Any]) -> Problem:
    """Return a hint if a step's name, or a setting of a step, is where a top-level key should be."""
    steps = values.get("steps")
    if not isinstance(steps, dict) or not problem.path or problem.path in RecipeFile.model_fields:
        return problem
    if problem.path in steps:
        return replace(problem, hint=f"did you mean `steps.{problem.path}`?")
    if isinstance(values.get(problem.path), str | int | float):
        types = StepTypes()
        found = ((name, types.find(str((entry or {}).get("step", name)))) for name, entry in steps.items())
        owner = next((name for name, kind in found if kind is not None and problem.path in fields_of(kind.cls)), None)
        return replace(problem, hint=f"did you mean `steps.{owner}.{problem.path}`?") if owner else problem
    return problem


def _add_all(
    error: ValidationError, model: type[BaseModel], data: object, prefix: Sequence[str], mistakes: Mistakes
) -> None:
    for dotted, what, hint in explain_mistakes(error, model, data):
        mistakes.add(".".join([*prefix, dotted] if dotted else prefix), what, hint)


def _find_types(values: Mapping[str, Any], checker: Checker, mistakes: Mistakes) -> StepTypes:
    names = values.get("steps_from")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return StepTypes()
    folder = checker.path.absolute().parent
    files = [(folder / name).resolve() for name in names]
    if files and not checker.trust:
        what = f"this recipe runs Python code of its own: {', '.join(str(file) for file in files)}"
        mistakes.add("steps_from", what, "read that code, then allow it with --trust")
        return StepTypes()
    for index, file in enumerate(files):
        if not file.is_file():
            what = f"there is no file {names[index]}. Paths are relative to the recipe's folder ({folder})"
            mistakes.add(f"steps_from.{index}", what)
    return StepTypes(tuple(file for file in files if file.is_file()))


def _check_model_names(values: Mapping[str, Any], mistakes: Mistakes) -> list[str]:
    """Return the names of the recipe's models; `source`, which steps read by default, is the last."""
    named, steps = values.get("models"), values.get("steps")
    names = [str(name) for name in named] if isinstance(named, dict) else []
    for name in names:
        if not NAME.fullmatch(name) or name == SOURCE:
            mistakes.add(f"models.{name}", f"`{name}` cannot name a model", NAME_FORM)
        elif isinstance(steps, dict) and name in steps:
            mistakes.add(
                f"models.{name}", f"`{name}` is also the name of a step", "steps read both by name: rename one"
            )
    return [*names, SOURCE]


def _read_through(steps: Sequence[RecipeStep]) -> list[RecipeStep]:
    """Add the inputs of the steps that a step reads, as `base/from`, to steps that declare it."""
    reads = {step.name: step.reads for step in steps}
    return [
        replace(
            step,
            reads=step.reads
            | {
                f"{key}/{inner}": name
                for key in step.step.reads_through
                for inner, name in reads.get(step.reads[key], {}).items()
            },
        )
        if step.step.reads_through
        else step
        for step in steps
    ]


def _follow_chains(steps: Sequence[RecipeStep]) -> list[RecipeStep]:
    """Return the steps; each check knows the steps from its reference to its model, and each step whether an engine is
    built from its result.
    """
    known = {step.name: step for step in steps}

    def chain(name: str) -> list[str]:
        """Return a step and those that it is made from, up to a model."""
        found = [name]
        while (step := known.get(found[-1])) is not None:
            found.append(step.reads[step.type.cls.read_key])
        return found

    engines = [step for step in steps if step.type.cls.kinds()[1] is Engine]
    built = {name for step in engines for name in chain(step.reads[step.type.cls.read_key])}

    def settled(step: RecipeStep) -> RecipeStep:
        step = replace(step, step=step.step.for_engine()) if step.name in built else step
        if "reference" not in step.reads:
            return step
        ours, theirs = chain(step.reads[step.type.cls.read_key]), chain(step.reads["reference"])
        apart = [name for name in (*ours, *theirs) if (name in ours) != (name in theirs)]
        is_made_here = bool(apart) and known.keys() >= {*apart}
        return replace(step, step=step.step.after([known[name].step for name in apart])) if is_made_here else step

    return [settled(step) for step in steps]


def _inherit_inputs(steps: Sequence[RecipeStep]) -> list[RecipeStep]:
    """Give a step that repeats the work of others, and has no `inputs:` of its own, those that the others share."""
    own = {step.name: step.inputs for step in steps}
    inherited = []
    for step in steps:
        repeats = step.step.reads_through if step.type.cls.may_read_inputs() else ()
        owners = tuple(dict.fromkeys(step.reads[key] for key in repeats))
        repeated = [own.get(owner) for owner in owners]
        shared = repeated[0] if repeated and all(inputs == repeated[0] for inputs in repeated) else None
        is_heir = step.inputs is None and shared is not None
        inherited.append(replace(step, inputs=shared, inputs_of=owners) if is_heir else step)
    return inherited


def _share_settings(
    values: Mapping[str, Any], types: StepTypes, mistakes: Mistakes, *, with_runtime: bool
) -> tuple[Mapping[str, Any], dict[str, frozenset[str]]]:
    """Return the values with the recipe's runtime, custom operators and environments in the settings of the steps that
    use them, and step -> the names of the settings that it leaves to the recipe's runtime.
    """
    entries, inherited = values.get("steps"), {}
    if not isinstance(entries, dict):
        return values, {}
    runtime = values.get("runtime") if with_runtime else None
    chosen = {"backend": runtime} if isinstance(runtime, str) else runtime
    operators, environments = values.get("custom_operators"), values.get("environments")
    known = environments if isinstance(environments, dict) else {}
    shared = dict(entries)
    for name, entry in entries.items():
        word = entry.get("step", name) if isinstance(entry, dict) else None
        with contextlib.suppress(RequestError):  # the check of the step will report it
            step_type = types.find(word) if isinstance(word, str) else None
            if step_type is None:
                continue
            if chosen is not None and (found := share_runtime(entry, step_type.cls, chosen)) is not None:
                shared[name], inherited[str(name)] = found
            if isinstance(operators, dict):
                shared[name] = share_operators(shared[name], step_type.cls, operators)
            shared[name] = _place_environments(str(name), shared[name], step_type, known, mistakes)
    return {**values, "steps": shared}, inherited


def _place_environments(
    name: str, entry: dict[str, Any], step_type: StepType, known: Mapping[str, Any], mistakes: Mistakes
) -> dict[str, Any]:
    """Return a step's entry with the recipe's environments instead of their names."""
    placed = dict(entry)
    for key in ("environment", "reference_environment"):
        field_info, word = fields_of(step_type.cls).get(key), entry.get(key)
        if field_info is None or field_info.default is not None or not isinstance(word, str):
            continue
        if word in known:
            placed[key] = known[word]
        else:
            hint = suggest(word, known) if known else "define it in `environments:`, as `{now: {onnxruntime: 1.27.0}}`"
            mistakes.add(f"steps.{name}.{key}", f"there is no environment {visible_name(word)!r}", hint)
    return placed


def _refuse_unread_inputs(inputs: Mapping[str, InputSpec], steps: Sequence[RecipeStep], mistakes: Mistakes) -> None:
    """Report the recipe's `inputs:` if every step that reads inputs has its own."""
    reading = [step for step in steps if step.type.cls.may_read_inputs()]
    if reading and all(step.inputs is not None for step in reading):
        owners = ", ".join(step.name for step in reading)
        have = "have `inputs:` of their own" if len(reading) > 1 else "has `inputs:` of its own"
        for name in inputs:
            mistakes.add(f"{INPUTS}.{name}", f"no step reads it: {owners} {have}", "remove it")


def _check_step(
    name: str, entry: dict[str, Any], types: StepTypes, kinds: Mapping[str, type[Artifact] | None], mistakes: Mistakes
) -> RecipeStep | None:
    prefix = f"steps.{name}"
    if not NAME.fullmatch(name) or name == SOURCE:
        mistakes.add(prefix, f"`{name}` cannot name a step", NAME_FORM)
        return None
    step_type = _find_type(name, entry, types, mistakes)
    if step_type is None:
        return None
    reads, sound = _resolve_reads(prefix, entry, step_type, kinds, mistakes)
    settings = {key: value for key, value in entry.items() if key not in ("step", step_type.cls.read_key)}
    target = settings.pop(ON, "")
    if not isinstance(target, str) or not (target in (HERE, "") or NAME.fullmatch(target) or is_host(target)):
        mistakes.add(f"{prefix}.{ON}", f"expected the name of a target, found {visible_name(str(target))!r}")
        return None
    has_inputs = INPUTS in settings and INPUTS not in fields_of(step_type.cls)
    given = settings.pop(INPUTS) if has_inputs else None
    try:
        step = step_type.cls.model_validate_json(json.dumps(settings, default=str))
    except ValidationError as error:
        _add_all(error, step_type.cls, settings, ["steps", name], mistakes)
        return None
    for held in step.held(Reads):
        if held.place[0] not in step_type.cls.marked(Reads):  # a nested setting, known only now
            trouble = _check_read(str(held.place[-1]), held.mark.kind, held.value, kinds)
            if trouble:
                mistakes.add(f"{prefix}.{held.dotted}", *trouble)
            sound &= not trouble
            reads[held.dotted] = held.value
    inputs = _check_own_inputs(prefix, step_type, step, given, mistakes) if has_inputs else None
    owner = () if inputs is None else (name,)
    hidden = {key: shown for key, shown in hide_in_values(settings).items() if shown != settings[key]}
    return RecipeStep(name, step_type, step, reads, inputs, owner, target, hidden=hidden) if sound else None


class _OwnInputs(Settings):
    """The `inputs:` of a step."""

    inputs: InputSpecs


def _check_own_inputs(
    prefix: str, step_type: StepType, step: Step[Any, Any], given: object, mistakes: Mistakes
) -> Mapping[str, InputSpec] | None:
    """Return a step's own `inputs:`; report mistakes in them, and those of a step that reads none."""
    try:
        inputs = _OwnInputs.model_validate_json(json.dumps({INPUTS: given}, default=str)).inputs
    except ValidationError as error:
        _add_all(error, _OwnInputs, {INPUTS: given}, prefix.split("."), mistakes)
        return None
    may_read = step_type.cls.may_read_inputs()
    if not may_read or (inputs and not any(step.used_input(spec) for spec in inputs.values())):
        reads = "reads no inputs with these settings" if may_read else "reads no inputs"
        mistakes.add(f"{prefix}.{INPUTS}", f"`{step_type.name}` {reads}", "remove them")
    return inputs


def _refuse_code(step: RecipeStep, mistakes: Mistakes) -> bool:
    """Return whether a step runs no code that the recipe names."""
    named = step.step.named_code()
    for held in named:
        shown = ", ".join(map(str, held.value)) if isinstance(held.value, tuple) else held.value
        what = f"this step runs code that the recipe names: {shown}"
        mistakes.add(f"steps.{step.name}.{held.dotted}", what, "check that code, then allow it with --trust")
    return not named


def _find_type(name: str, entry: Mapping[str, Any], types: StepTypes, mistakes: Mistakes) -> StepType | None:
    word = entry.get("step", name)
    try:
        step_type = types.find(word) if isinstance(word, str) else None
    except RequestError as error:
        mistakes.add(f"steps.{name}", str(error))
        return None
    if step_type is None:
        known = types.names()
        meant = [known_type.name for known_type in types if plain_word(str(word)) in known_type.cls.also_called]
        if "step" in entry:
            hint = f'did you mean "{meant[0]}"?' if meant else suggest(str(word), known)
            mistakes.add(f"steps.{name}.step", f"there is no step type {word!r}", hint)
        elif meant:
            hint = f"did you mean `{meant[0]}`? Give the step that name, or add `step: {meant[0]}`"
            mistakes.add(f"steps.{name}", f"`{name}` is not a step type and there is no `step:`", hint)
        else:
            hint = hint_at_type(entry, known) or suggest(name, known).replace("known:", "write `step: TYPE`, one of:")
            mistakes.add(f"steps.{name}", f"`{name}` is not a step type and there is no `step:`", hint)
    return step_type


def _resolve_reads(
    prefix: str,
    entry: Mapping[str, Any],
    step_type: StepType,
    kinds: Mapping[str, type[Artifact] | None],
    mistakes: Mistakes,
) -> tuple[dict[str, str], bool]:
    """Return the producer of each artifact that a step reads, and whether all exist."""
    wanted: dict[str, tuple[type[Artifact], Any]] = {}
    kind = step_type.cls.kinds()[0]
    own = step_type.cls.read_key
    makers = [name for name, made_kind in kinds.items() if made_kind is not None and issubclass(made_kind, kind)]
    # `from: no` is false in YAML 1.1, and no omission.
    is_omitted = entry.get(own) in (None, "")
    wanted[own] = (kind, (makers[-1] if makers else None) if is_omitted else entry[own])
    for setting, mark in step_type.cls.marked(Reads).items():
        field_info = fields_of(step_type.cls)[setting]
        name = entry.get(setting, None if field_info.is_required() else field_info.default)
        if name is not None:  # an optional read, or a setting that is missing
            wanted[setting] = (mark.kind, name)
    reads: dict[str, str] = {}
    for key, (kind, name) in wanted.items():
        trouble = _check_read(key, kind, name, kinds)
        if trouble:
            mistakes.add(f"{prefix}.{key}", *trouble)
        else:
            reads[key] = name
    return reads, len(reads) == len(wanted)


def _check_read(
    key: str, kind: type[Artifact], name: object, kinds: Mapping[str, type[Artifact] | None]
) -> tuple[str, str] | None:
    if name is None:
        return f"no earlier step produces what this one reads ({kind.kind})", f"name a step with `{key}:`"
    if not isinstance(name, str):
        return f"expected the name of a step, found {_show(name)}", hint_at_form("string_type", name, "")
    if name not in kinds:
        return f"there is no step `{name}` before this one", suggest(name, kinds)
    makes = kinds[name]
    if makes is not None and not issubclass(makes, kind):
        if issubclass(makes, Engine):
            hint = f"name the model of that engine here, and the engine in the runtime's settings: `engine: {name}`"
            return f"`{name}` produces {makes.kind}, but {kind.kind} is read here", hint
        fitting = [step for step, made_kind in kinds.items() if made_kind is not None and issubclass(made_kind, kind)]
        return f"`{name}` produces {makes.kind}, but {kind.kind} is read here", suggest("", fitting)
    return None


def known_steps(entries: object, steps: Iterable[RecipeStep]) -> Known:
    """Return the steps that conditions may name: the recipe's steps, None for those with mistakes of their own."""
    sound = {step.name: step for step in steps}
    return {str(name): sound.get(str(name)) for name in entries} if isinstance(entries, dict) else {}


def _check_exports(exports: object, steps: Sequence[RecipeStep], mistakes: Mistakes) -> None:
    """Reject exports outside the current directory, and of steps without a model or an engine."""
    if not isinstance(exports, dict):
        return
    kinds = {step.name: step.type.cls.kinds()[1] for step in steps}
    inspected = {step.name for step in steps if step.step.for_inspection}
    exported = [name for name, kind in kinds.items() if issubclass(kind, Onnx | Engine) and name not in inspected]
    for path in (str(value) if key == TRITON else key for key, value in exports.items()):
        if Path(path).is_absolute() or ".." in Path(path).parts:
            mistakes.add(
                "export", f"{path!r} is not inside the current directory", "give it with `-o`, or choose a path inside"
            )
    if TRITON in exports and not exported:
        mistakes.add(f"export.{TRITON}", "no step produces a model or an engine", "add a step that does")
    for path, step in ((path, step) for path, step in exports.items() if path != TRITON and isinstance(step, str)):
        if step in inspected:
            what = f"the engine of `{step}` has `mark_outputs`: it is for inspection only, and fuses layers differently"
            mistakes.add(f"export.{path}", what, "export the engine of a step without it")
        elif step not in exported:
            what = f"no step {step!r} produces a model or an engine"
            mistakes.add(f"export.{path}", what, suggest(step, exported))


def check_step_names(place: str, named: Iterable[str], steps: Sequence[str], mistakes: Mistakes) -> None:
    """Report the keys of a mapping that name no step."""
    for name in named:
        if name not in steps:
            mistakes.add(f"{place}.{name}", f"there is no step `{name}`", suggest(str(name), steps))


def _check_states(prefix: str, values: Mapping[str, Any], inputs: Mapping[str, InputSpec], mistakes: Mistakes) -> None:
    """Reject states whose source cannot be an output, or whose first value is unknown.

    `values` are the `inputs:` of a recipe or of a step as written.
    """
    for name, spec in inputs.items():
        if spec.fed_from in inputs:
            mistakes.add(
                f"{prefix}.{name}.from", f"`{spec.fed_from}` is an input", "`from` names an output of the model"
            )
        if spec.fed_from is not None and values[name].get("data") == "random":
            hint = "give zeros, ones, a number or a file"
            mistakes.add(f"{prefix}.{name}.data", "the first value of an input with `from` must be known", hint)


def _check_sequences(file: RecipeFile, steps: Sequence[RecipeStep], mistakes: Mistakes) -> None:
    """Reject steps that cannot run sequences, and sequences whose number of steps is unknown."""
    for step in steps:
        used = step.used_inputs(file.inputs)
        states = [name for name, spec in used.items() if spec.fed_from is not None]
        runs, dotted = step.type.cls.runs_sequences, f"steps.{step.name}"
        asked = getattr(step.step, "steps", None) if runs else None
        if states and not runs:
            what = f"`{step.type.name}` runs single samples, and the input `{states[0]}` is fed `from` an output"
            mistakes.add(dotted, what, "give it `inputs:` of its own, without `from`")
        elif asked is not None and not states:
            mistakes.add(f"{dotted}.steps", "no input is fed from an output", "write `inputs: {STATE: {from: OUTPUT}}`")
        elif states and asked is None and not _has_items(step, used):
            mistakes.add(
                dotted, "the number of steps of the sequence is unknown", "give `steps: 100`, or data in files"
            )


def _has_items(step: RecipeStep, used: Mapping[str, InputSpec]) -> bool:
    """Return whether files or a loader may determine the number of steps."""
    files = any(spec.data_patterns for spec in used.values() if spec.fed_from is None)
    return files or bool(step.sample_data) or getattr(step.step, "loader", None) is not None


def _check_gates(gates: object, steps: Known, mistakes: Mistakes) -> list[Gate]:
    if not isinstance(gates, list):
        return []
    # The check of the recipe's top level reports a value that is not a string.
    texts = [(index, text) for index, text in enumerate(gates) if isinstance(text, str)]
    parsed = [check_sentence(f"gates.{index}", text, parse_gate, steps, mistakes) for index, text in texts]
    return [gate for gate in parsed if gate is not None]


def check_sentence(
    dotted: str,
    text: str,
    parse: Callable[[str], Sentence],
    steps: Known,
    mistakes: Mistakes,
    varying: Collection[str] = (),
) -> Sentence | None:
    """Return a parsed gate or objective. Report its mistakes and return None if it cannot be parsed, names an unknown
    step or metric, or compares incompatible units. The settings of the steps in `varying` are not final.
    """
    try:
        sentence = parse(text)
    except GateError as error:
        mistakes.add(dotted, f"{text!r}: {error}")
        return None
    before = len(mistakes.problems)
    units: dict[str, str] = {}
    for name in dict.fromkeys(sentence.names):
        step, _, metric = name.partition(".")
        if step not in steps:
            mistakes.add(dotted, f"{text!r}: there is no step `{step}`", suggest(step, steps))
            continue
        known = steps[step]
        declared = known.type.cls.returns if known is not None else None
        returned = None  # it is known only after a run
        if known is not None and declared is not None:
            returned = find_metric(metric, known.step, declared, settled=step not in varying)
        if isinstance(returned, Wrong):
            mistakes.add(dotted, f"{text!r}: step `{step}`: {returned.what}", returned.hint)
        units[name] = returned.unit if isinstance(returned, Returns) else UNKNOWN
    if len(mistakes.problems) > before:
        return None
    try:
        sentence.check_units(units.__getitem__)
    except GateError as error:
        mistakes.add(dotted, f"{text!r}: {error}")
        return None
    return sentence
