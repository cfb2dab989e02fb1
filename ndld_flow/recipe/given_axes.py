"""A sweep's axes on the command line: new values, one value, some of the variants, or a removed axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue

from ndld_flow.base.errors import Problem, RecipeError
from ndld_flow.base.text import suggest
from ndld_flow.recipe.compose import Composed
from ndld_flow.recipe.override_grammar import AxisError, find_axis, read_axis, read_one_value
from ndld_flow.recipe.places import change_value, find_value, split_key
from ndld_flow.recipe.sweep_axes import find_root_key
from ndld_flow.sweep_search.axis_values import values_of
from ndld_flow.sweep_search.space import Choices

OVER = "sweep.over."


@dataclass(frozen=True)
class GivenAxis:
    """An override that is about an axis."""

    key: str
    """The axis, or what it sets; below `sweep.over` also a part of an axis, such as `speed.threads.to`."""
    form: JsonValue
    """Text in Hydra's grammar, a list, or a mapping; None: the axis goes."""
    override: str
    in_section: bool = False
    """Whether it was written as `sweep.over.KEY=...`."""


def read_axis_override(override: str, multirun: bool) -> GivenAxis | None:
    """Return the axis that an override defines; None for any other override. Raises RecipeError."""
    key = override.lstrip("+~").partition("=")[0]
    try:
        if key.startswith(OVER):
            form = None if override.startswith("~") else _read_form(override)
            return GivenAxis(key.removeprefix(OVER), form, override, in_section=True)
        found = find_axis(override) if multirun else None
    except AxisError as error:
        raise RecipeError([Problem(f'override "{override}"', "", error.what, error.hint)]) from None
    if found is not None and key.partition(".")[0] == "sweep":
        hint = "quote text that holds commas, and write several as [a,b]"
        what = "this says how to sweep and cannot vary"
        raise RecipeError([Problem(f'override "{override}"', key, what, hint)])
    return GivenAxis(*found, override) if found is not None else None


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


def _read_form(override: str) -> JsonValue:
    """Return the value of `sweep.over.KEY=`: text with several values unchanged, anything else parsed."""
    if find_axis(override) is not None:
        return override.partition("=")[2]
    return read_one_value(override)


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
        return name, {**over, name: _choose_variants(axis, name, form)}
    return name, {**over, name: axis.form}


def _with_part(axis: GivenAxis, over: dict[str, Any], values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    name, rest = split_key(over, axis.key.split("."))
    if name in over and rest:
        return name, change_value(over, axis.key.split("."), axis.form)
    found = _find_name(axis.key, over, values)
    if axis.form is None:
        if found is None:
            raise AxisError(f"there is no axis `{axis.key}`", suggest(axis.key, over))
        return found, {name: form for name, form in over.items() if name != found}
    return found or axis.key, {**over, found or axis.key: axis.form}


def _choose_variants(axis: GivenAxis, name: str, variants: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the variants that the command line names."""
    read = read_axis(name, axis.form) if isinstance(axis.form, str) else Choices(name, tuple(axis.form or ()))  # type: ignore[arg-type]
    chosen = [str(value) for value in read.values] if isinstance(read, Choices) else []
    for one in chosen:
        if one not in variants:
            raise AxisError(f"`{name}` has no variant `{one}`", suggest(one, variants))
    if not chosen:
        raise AxisError(f"`{name}` has variants with names", suggest("", variants))
    return {one: variants[one] for one in chosen}


def _without_missing_exclusions(
    section: Mapping[str, Any], name: str, form: JsonValue, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the section without exclusions of values that the command line's axis does not have."""
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
        one = not isinstance(rule[key], list) or known.position(rule[key]) is not None
        left = [value for value in ([rule[key]] if one else rule[key]) if known.position(value) is not None]
        return {**rule, key: left[0] if one else left} if left else None

    narrowed = [narrow(rule) if isinstance(rule, dict) else rule for rule in rules]
    return {**section, "exclude": [rule for rule in narrowed if rule is not None]}


def _as_written(form: object, written: object, name: object) -> object:
    """Return an axis whose values keep their `${...}`, which each point resolves itself."""
    other = written.get(name) if isinstance(written, dict) else None
    if isinstance(form, dict) and isinstance(other, dict) and all(isinstance(value, dict) for value in form.values()):
        return {key: other[key] if isinstance(other.get(key), dict) else value for key, value in form.items()}
    return other if isinstance(form, list) and isinstance(other, list) else form
