"""Checks across a sweep's settings: methods, budgets, names of axes and of steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from ndld_flow.base.text import suggest
from ndld_flow.recipe.sweep_axes import SweptAxis
from ndld_flow.recipe.sweep_section import SweepSection, sentences
from ndld_flow.recipe.validate import Mistakes
from ndld_flow.sweep_search.axis_values import values_of
from ndld_flow.sweep_search.space import Choices

LOOKS = "name the objective with `minimize:` or `maximize:`"


@dataclass(frozen=True)
class Axes:
    """A sweep's axes, as far as they could be read."""

    read: Sequence[SweptAxis]
    named: Sequence[str]
    """The names of all axes, including those that could not be read, whose problems are reported."""

    def find(self, name: str) -> SweptAxis | None:
        """Return the axis of this name, or the one that sets only this key."""
        named = [axis for axis in self.read if axis.name == name]
        keyed = [axis for axis in self.read if axis.keys in ((name,), (f"steps.{name}",)) and not axis.variants]
        return next(iter([*named, *keyed]), None)

    def find_or_report(self, name: str, place: str, mistakes: Mistakes) -> SweptAxis | None:
        """Return the axis as `find` does; report an unknown name as a problem at this place."""
        axis = self.find(name)
        if axis is None and name not in self.named:
            mistakes.add(place, f"there is no axis `{name}`", suggest(name, self.named))
        return axis


def check_section(section: SweepSection, axes: Axes, steps: Sequence[str], mistakes: Mistakes) -> None:
    """Add what is wrong with a section whose axes are these, in a recipe with these steps."""
    if not axes.named:
        mistakes.add("sweep", "nothing varies", "name settings and their values in `over:`, or give them after `-m`")
    _check_objectives(section, axes, mistakes)
    _check_counting(section, axes, mistakes)
    if isinstance(section.timeout, dict):
        _check_steps("sweep.timeout", section.timeout, steps, mistakes)
    _check_steps("sweep.needs", section.needs, steps, mistakes)


def read_exclusions(
    section: SweepSection, axes: Axes, mistakes: Mistakes
) -> tuple[Mapping[str, tuple[JsonValue, ...]], ...]:
    """Return the excluded combinations: for each axis of a rule, its excluded values."""
    rules = [
        _read_exclusion(f"sweep.exclude.{index}", rule, axes, mistakes) for index, rule in enumerate(section.exclude)
    ]
    return tuple(rule for rule, given in zip(rules, section.exclude, strict=True) if len(rule) == len(given) > 0)


def _check_objectives(section: SweepSection, axes: Axes, mistakes: Mistakes) -> None:
    count = len([*sentences(section.minimize), *sentences(section.maximize)])
    if section.method in ("tpe", "hill_climb") and not count:
        mistakes.add("sweep.method", f"`{section.method}` looks for the best", LOOKS)
    if section.method == "hill_climb" and count > 1:
        mistakes.add("sweep.method", "`hill_climb` climbs towards one objective", "give one, or use `method: tpe`")
    if section.saturation is None:
        return
    if not count:
        mistakes.add("sweep.saturation", "there is no objective that could saturate", LOOKS)
    if section.saturation.along:
        axes.find_or_report(section.saturation.along, "sweep.saturation.along", mistakes)


def _check_counting(section: SweepSection, axes: Axes, mistakes: Mistakes) -> None:
    """Report axes over real intervals, which have no next value, for methods that count values."""
    endless = [axis for axis in axes.read if values_of(axis.axis).count is None]
    if section.method in ("random", "tpe"):
        if endless and section.points is None and section.time is None:
            what = f"`{endless[0].name}` takes any number, so there is no last point"
            mistakes.add("sweep.method", what, "give a budget: `points:` or `time:`")
        return
    for axis in endless:
        what = f"any number between two bounds is too many for `{section.method}`"
        mistakes.add(axis.place, what, "give a `step`, or use `method: random` or `method: tpe`")


def _check_steps(place: str, named: Iterable[str], steps: Sequence[str], mistakes: Mistakes) -> None:
    for name in named:
        if name not in steps:
            mistakes.add(f"{place}.{name}", f"there is no step `{name}`", suggest(name, steps))


def _read_exclusion(
    place: str, rule: Mapping[str, JsonValue], axes: Axes, mistakes: Mistakes
) -> dict[str, tuple[JsonValue, ...]]:
    if not rule:
        mistakes.add(place, "this names no axis, so it would exclude everything", "name axes and their values")
    found: dict[str, tuple[JsonValue, ...]] = {}
    for name, given in rule.items():
        axis = axes.find_or_report(name, f"{place}.{name}", mistakes)
        if axis is None:
            continue
        one = not isinstance(given, list) or values_of(axis.axis).position(given) is not None
        values = [given] if one or not isinstance(given, list) else given
        for value in values:
            if values_of(axis.axis).position(value) is None:
                mistakes.add(f"{place}.{name}", f"{value!r} is no value of `{name}`", _say_values(axis, value))
        found[axis.name] = tuple(values)
    return found


def _say_values(axis: SweptAxis, value: JsonValue) -> str:
    if not isinstance(axis.axis, Choices):
        return ""
    return suggest(str(value), [str(known) for known in axis.axis.values])
