"""A sweep's axes: what each is called, which of the recipe's keys it sets, and to what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from ndld_flow.base.text import suggest
from ndld_flow.recipe.override_grammar import AxisError, read_axis
from ndld_flow.recipe.sweep_section import AxisForm, NumberRange
from ndld_flow.recipe.validate import Mistakes
from ndld_flow.sweep_search.axis_values import key_of, values_of
from ndld_flow.sweep_search.space import Axis, Choices, Numbers

ROOTS = ("model", "models", "inputs", "steps", "gates")
"""Keys at the recipe's root that a sweep may vary. Any other word that a key begins with is a step."""
MAX_KEY = 300
FIXED = ("name", "description", "steps_from", "defaults", "sweep")


@dataclass(frozen=True)
class SweptAxis:
    """One axis of a sweep."""

    name: str
    """As the recipe says it: `speed.threads`, or the name of an axis of variants."""
    keys: tuple[str, ...]
    """What it sets, from the recipe's root: `steps.speed.threads`."""
    axis: Axis
    variants: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)
    """Of an axis of variants: name -> key from the root -> value."""

    @property
    def place(self) -> str:
        """The axis's place in the recipe."""
        return f"sweep.over.{self.name}"

    def changes(self, value: JsonValue) -> dict[str, JsonValue]:
        """Return the settings of a value of this axis, by key from the root."""
        return dict(self.variants[str(value)]) if self.variants else {self.keys[0]: value}

    def samples(self) -> Iterator[tuple[str, JsonValue]]:
        """Return values to check beforehand, each with its place: all listed values, the ends of a range."""
        if isinstance(self.axis, Choices):
            names = self.variants or range(len(self.axis.values))
            yield from ((f"{self.place}.{name}", value) for name, value in zip(names, self.axis.values, strict=True))
        else:
            count = values_of(self.axis).count
            ends = (self.axis.low, self.axis.high) if count is None else (0, count - 1)
            for end in dict.fromkeys(ends):
                yield self.place, values_of(self.axis).value(end)


def read_axes(over: Mapping[str, AxisForm], values: Mapping[str, Any], mistakes: Mistakes) -> list[SweptAxis]:
    """Return the axes of `over:`, in its order, for a recipe with these values."""
    axes = []
    for name, form in over.items():
        axis = _read_axis(name, form, values, mistakes)
        if axis is not None:
            axes.append(axis)
            _refuse_repetition(axis, mistakes)
    _refuse_overlaps(axes, mistakes)
    return axes


def find_root_key(key: str, values: Mapping[str, Any]) -> str:
    """Return a key from the recipe's root: `speed.threads` -> `steps.speed.threads`. Raises AxisError."""
    if len(key) > MAX_KEY:
        raise AxisError(f"a key has at most {MAX_KEY} characters")
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


def _read_axis(name: str, form: AxisForm, values: Mapping[str, Any], mistakes: Mistakes) -> SweptAxis | None:
    place = f"sweep.over.{name}"
    if isinstance(form, dict):
        variants = {each: _read_variant(f"{place}.{each}", changes, values, mistakes) for each, changes in form.items()}
        keys = dict.fromkeys(key for changes in variants.values() for key in changes)
        return SweptAxis(name, tuple(keys), Choices(name, tuple(variants)), variants)
    try:
        key = find_root_key(name, values)
        return SweptAxis(name, (key,), _read_values(name, form))
    except AxisError as error:
        mistakes.add(place, error.what, error.hint)
        return None


def _read_values(name: str, form: list[JsonValue] | str | NumberRange) -> Axis:
    if isinstance(form, str):
        return read_axis(name, form)
    if isinstance(form, list):
        return Choices(name, tuple(form))
    return Numbers(name, form.low, form.high, form.step, form.integer, form.log)


def _read_variant(
    place: str, changes: Mapping[str, JsonValue], values: Mapping[str, Any], mistakes: Mistakes
) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    for key, value in changes.items():
        try:
            root = find_root_key(key, values)
        except AxisError as error:
            mistakes.add(f"{place}.{key}", error.what, error.hint)
            continue
        if any(overlap(root, other) for other in found):
            mistakes.add(f"{place}.{key}", "another key of this variant sets it too", "set each key once")
        found[root] = value
    return found


def _refuse_repetition(axis: SweptAxis, mistakes: Mistakes) -> None:
    seen: set[str] = set()
    for place, value in axis.samples():
        if key_of(value) in seen:
            mistakes.add(place, f"the value {value!r} is given twice", "give each value once")
        seen.add(key_of(value))


def _refuse_overlaps(axes: list[SweptAxis], mistakes: Mistakes) -> None:
    """Report two axes that set the same key, or of which one sets part of the other's."""
    keys = sorted((tuple(key.split(".")), place) for place, axis in enumerate(axes) for key in axis.keys)
    around, holder = None, 0
    for key, place in keys:
        if around is None or key[: len(around)] != around:
            around, holder = key, place
        elif holder != place:
            first, second = sorted((holder, place))
            what = f"`{'.'.join(key)}` is set by `{axes[first].name}` too"
            mistakes.add(axes[second].place, what, "let one axis set it; variants set several keys together")


def overlap(key: str, other: str) -> bool:
    """Return whether two keys are equal, or one is inside the other."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")
