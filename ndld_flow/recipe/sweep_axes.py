"""A sweep's axes, from the recipe and from the command line: their names, the keys they set, and the values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from ndld_flow.base.errors import Problem, RecipeError
from ndld_flow.base.places import change_value, find_value, split_key
from ndld_flow.base.text import suggest
from ndld_flow.recipe.composed import Composed
from ndld_flow.recipe.config_files import list_choices
from ndld_flow.recipe.overrides import AxisError, find_axis, read_axis, read_choices, read_one_value
from ndld_flow.recipe.sweep_section import AxisForm
from ndld_flow.recipe.validate import Mistakes
from ndld_flow.sweep_search.space import Axis, Choices, Numbers, key_of, values_of

ROOTS = ("model", "models", "inputs", "runtime", "steps", "gates")
"""Keys at the recipe's root that a sweep may vary. A key that begins with any other word names a step."""
MAX_KEY = 300
FIXED = ("name", "description", "steps_from", "defaults", "sweep")


@dataclass(frozen=True)
class SweptAxis:
    """One axis of a sweep."""

    name: str
    """As written in the recipe: `speed.threads`, or the name of an axis of variants."""
    keys: tuple[str, ...]
    """The keys that it sets, from the recipe's root: `steps.speed.threads`."""
    axis: Axis
    variants: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)
    """Variants of the axis, if it has any: name -> key from the root -> value."""

    @property
    def place(self) -> str:
        """The axis's place in the recipe."""
        return f"sweep.over.{self.name}"

    def changes(self, value: JsonValue) -> dict[str, JsonValue]:
        """Return the settings of a value of this axis, by key from the root."""
        return dict(self.variants[str(value)]) if self.variants else {self.keys[0]: value}

    def samples(self) -> Iterator[tuple[str, JsonValue]]:
        """Yield the values to check in advance, each with its place: all listed values, or the ends of a range."""
        if isinstance(self.axis, Choices):
            names = self.variants or range(len(self.axis.values))
            yield from ((f"{self.place}.{name}", value) for name, value in zip(names, self.axis.values, strict=True))
        else:
            count = values_of(self.axis).count
            ends = (self.axis.low, self.axis.high) if count is None else (0, count - 1)
            for end in dict.fromkeys(ends):
                yield self.place, values_of(self.axis).value(end)


def read_axes(
    over: Mapping[str, AxisForm], values: Mapping[str, Any], folders: Sequence[Path], mistakes: Mistakes
) -> list[SweptAxis]:
    """Return the axes of `over:`, in its order, for a recipe with these values and folders of config groups."""
    axes = []
    for name, form in over.items():
        axis = _read_axis(name, form, values, folders, mistakes)
        if axis is not None:
            axes.append(axis)
            seen: set[str] = set()
            for place, value in axis.samples():
                if key_of(value) in seen:
                    mistakes.add(place, f"the value {value!r} is given twice", "give each value once")
                seen.add(key_of(value))
    _refuse_overlaps(axes, mistakes)
    return axes


def find_root_key(key: str, values: Mapping[str, Any]) -> str:
    """Return a key from the recipe's root: `speed.threads` -> `steps.speed.threads`. Raises AxisError."""
    if len(key) > MAX_KEY:
        raise AxisError(f"a key has at most {MAX_KEY} characters")
    if "@" in key or "/" in key:
        group = key.partition("@")[0]
        raise AxisError(f"there is no config group `{group}`", f"its files belong in configs/{group}/")
    head, _, rest = key.partition(".")
    steps = [str(name) for name in values["steps"]] if isinstance(values.get("steps"), dict) else []
    if head == "steps":
        name = rest.partition(".")[0]
        if name not in steps:
            raise AxisError(f"there is no step `{name}`", suggest(name, steps))
        return key
    if head in ROOTS:
        return key
    if head in steps:
        return f"steps.{key}"
    if head in FIXED:
        raise AxisError(f"`{head}` cannot vary", f"a sweep varies {', '.join(ROOTS)}")
    form = "" if rest else "a key is STEP.SETTING, such as `speed.threads`; "
    raise AxisError(f"there is no step `{head}`", form + suggest(head, [*steps, *ROOTS]))


def first_choices(over: object, folders: Sequence[Path]) -> dict[str, str]:
    """Return the first file of each axis that is a config group; `read_axes` reports those that cannot be read."""
    chosen = {}
    for name, form in over.items() if isinstance(over, dict) else ():
        if known := list_choices(str(name), folders):
            with suppress(AxisError):
                chosen[str(name)] = read_choices(form, known)[0]
    return chosen


def _read_axis(
    name: str, form: AxisForm, values: Mapping[str, Any], folders: Sequence[Path], mistakes: Mistakes
) -> SweptAxis | None:
    place = f"sweep.over.{name}"
    if known := list_choices(name, folders):
        try:
            return SweptAxis(name, (name,), Choices(name, read_choices(form, known)))
        except AxisError as error:
            mistakes.add(place, error.what, error.hint)
            return None
    if isinstance(form, dict):
        variants = {each: _read_variant(f"{place}.{each}", changes, values, mistakes) for each, changes in form.items()}
        keys = dict.fromkeys(key for changes in variants.values() for key in changes)
        return SweptAxis(name, tuple(keys), Choices(name, tuple(variants)), variants)
    try:
        key = find_root_key(name, values)
        if isinstance(form, str):
            axis = read_axis(name, form)
        elif isinstance(form, list):
            axis = Choices(name, tuple(form))
        else:
            axis = Numbers(name, form.low, form.high, form.step, form.integer, form.log)
        return SweptAxis(name, (key,), axis)
    except AxisError as error:
        mistakes.add(place, error.what, error.hint)
        return None


def _read_variant(
    place: str, changes: Mapping[str, JsonValue], values: Mapping[str, Any], mistakes: Mistakes
) -> dict[str, JsonValue]:
    settings: dict[str, JsonValue] = {}
    for key, value in changes.items():
        try:
            root = find_root_key(key, values)
        except AxisError as error:
            mistakes.add(f"{place}.{key}", error.what, error.hint)
            continue
        if any(overlap(root, other) for other in settings):
            mistakes.add(f"{place}.{key}", "another key of this variant also sets it", "set each key once")
        settings[root] = value
    return settings


def _refuse_overlaps(axes: list[SweptAxis], mistakes: Mistakes) -> None:
    """Report pairs of axes that set the same key, or one of which sets a part of the other's value."""
    keys = sorted((tuple(key.split(".")), place) for place, axis in enumerate(axes) for key in axis.keys)
    around, holder = None, 0
    for key, place in keys:
        if around is None or key[: len(around)] != around:
            around, holder = key, place
        elif holder != place:
            first, second = sorted((holder, place))
            what = f"`{'.'.join(key)}` is also set by `{axes[first].name}`"
            mistakes.add(axes[second].place, what, "let one axis set it; variants set several keys together")


def overlap(key: str, other: str) -> bool:
    """Return whether two keys are equal, or one is inside the other."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


OVER = "sweep.over."


@dataclass(frozen=True)
class GivenAxis:
    """An override that defines or removes an axis."""

    key: str
    """The axis, or the key that it sets; in `sweep.over` also a part of an axis, such as `speed.threads.to`."""
    form: JsonValue
    """Text in Hydra's grammar, a list, or a mapping; None removes the axis."""
    override: str
    in_section: bool = False
    """True if it was written as `sweep.over.KEY=...`."""


def read_axis_override(override: str, multirun: bool) -> GivenAxis | None:
    """Return the axis that an override defines; None for any other override. Raises RecipeError."""
    key = override.lstrip("+~").partition("=")[0]
    try:
        if key.startswith(OVER):
            form: JsonValue = None
            if not override.startswith("~"):  # several values stay text; anything else is parsed
                form = override.partition("=")[2] if find_axis(override) is not None else read_one_value(override)
            return GivenAxis(key.removeprefix(OVER), form, override, in_section=True)
        axis = find_axis(override) if multirun else None
    except AxisError as error:
        raise RecipeError([Problem(f'override "{override}"', "", error.what, error.hint)]) from None
    if axis is not None and key.partition(".")[0] == "sweep":
        hint = "quote text with commas, and write several as [a,b]"
        what = "this controls the sweep and cannot vary"
        raise RecipeError([Problem(f'override "{override}"', key, what, hint)])
    return GivenAxis(*axis, override) if axis is not None else None


def read_pin(override: str, values: Mapping[str, Any]) -> GivenAxis | None:
    """Return the axis that an override with one value pins to that value."""
    key, assigns, _ = override.lstrip("+").partition("=")
    over = find_value(values, ("sweep", "over"))
    if not assigns or not isinstance(over, dict) or _find_name(key, {str(name): 0 for name in over}, values) is None:
        return None
    try:
        return GivenAxis(key, [read_one_value(override)], override)
    except AxisError:
        return None  # composition reports it


def add_axes(composed: Composed, given: Sequence[GivenAxis]) -> tuple[Composed, Callable[[str], str]]:
    """Return the recipe with the command line's axes in its `sweep:`, and the origin of each value.

    Raises RecipeError for unknown names.
    """
    section = composed.values.get("sweep") or {}
    over = (section.get("over") or {}) if isinstance(section, dict) else None
    if not isinstance(over, dict):
        return composed, composed.where
    written = find_value(composed.written, ("sweep", "over"))
    over = {str(name): _as_written(form, written, name) for name, form in over.items()}
    overrides: dict[str, str] = {}
    for axis in given:
        try:
            name, over = _with_axis(axis, over, composed.values)
        except (AxisError, ValueError) as error:
            hint = error.hint if isinstance(error, AxisError) else ""
            raise RecipeError([Problem(f'override "{axis.override}"', "", str(error), hint)]) from None
        overrides[f"sweep.over.{name}"] = axis.override
        section = _without_missing_exclusions(section, name, over.get(name), composed.values)
    values = {**composed.values, "sweep": {**section, "over": over}}

    def where(dotted: str) -> str:
        for place, override in overrides.items():
            if f"{dotted}.".startswith(f"{place}."):
                return f'override "{override}"'
        return composed.where(dotted)

    return replace(composed, values=values), where


def _find_name(key: str, over: Mapping[str, Any], values: Mapping[str, Any]) -> str | None:
    """Return the axis of this name, or the axis of this key."""
    if key in over:
        return key
    return next((name for name in over if _root_key(name, values) == _root_key(key, values)), None)


def _root_key(key: str, values: Mapping[str, Any]) -> str:
    try:
        return find_root_key(key, values)
    except AxisError:
        return key


def _with_axis(axis: GivenAxis, over: dict[str, Any], values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the changed axis, and all axes with the change."""
    if axis.in_section:
        return _with_part(axis, over, values)
    name = _find_name(axis.key, over, values) or axis.key
    form = over.get(name)
    if isinstance(form, dict) and form and all(isinstance(value, dict) for value in form.values()):
        read = read_axis(name, axis.form) if isinstance(axis.form, str) else Choices(name, tuple(axis.form or ()))  # type: ignore[arg-type]
        chosen = [str(value) for value in read.values] if isinstance(read, Choices) else []
        for variant in chosen:
            if variant not in form:
                raise AxisError(f"`{name}` has no variant `{variant}`", suggest(variant, form))
        if not chosen:
            raise AxisError(f"the variants of `{name}` have names", suggest("", form))
        return name, {**over, name: {variant: form[variant] for variant in chosen}}
    return name, {**over, name: axis.form}


def _with_part(axis: GivenAxis, over: dict[str, Any], values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    name, rest = split_key(over, axis.key.split("."))
    if name in over and rest:
        return name, change_value(over, axis.key.split("."), axis.form)
    axis_name = _find_name(axis.key, over, values)
    if axis.form is None:
        if axis_name is None:
            raise AxisError(f"there is no axis `{axis.key}`", suggest(axis.key, over))
        return axis_name, {name: form for name, form in over.items() if name != axis_name}
    return axis_name or axis.key, {**over, axis_name or axis.key: axis.form}


def _without_missing_exclusions(
    section: Mapping[str, Any], name: str, form: JsonValue, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the section without exclusions of values that the command line's axis lacks."""
    rules = section.get("exclude")
    if not isinstance(rules, list) or not isinstance(form, list | str | dict):
        return dict(section)
    try:
        axis = read_axis(name, form) if isinstance(form, str) else Choices(name, tuple(form))
    except AxisError:
        return dict(section)
    known = values_of(axis)

    def narrow(rule: dict[str, Any]) -> dict[str, Any] | None:
        key = _find_name(name, rule, values)
        if key is None:
            return rule
        is_single = not isinstance(rule[key], list) or known.position(rule[key]) is not None
        left = [value for value in ([rule[key]] if is_single else rule[key]) if known.position(value) is not None]
        return {**rule, key: left[0] if is_single else left} if left else None

    narrowed = [narrow(rule) if isinstance(rule, dict) else rule for rule in rules]
    return {**section, "exclude": [rule for rule in narrowed if rule is not None]}


def _as_written(form: object, written: object, name: object) -> object:
    """Return an axis whose values keep their `${...}`, which each point resolves itself."""
    other = written.get(name) if isinstance(written, dict) else None
    if isinstance(form, dict) and isinstance(other, dict) and all(isinstance(value, dict) for value in form.values()):
        return {key: other[key] if isinstance(other.get(key), dict) else value for key, value in form.items()}
    return other if isinstance(form, list) and isinstance(other, list) else form
