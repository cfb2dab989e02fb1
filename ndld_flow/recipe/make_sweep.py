"""Turn a composed recipe into a checked sweep, or report all of its mistakes at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue, ValidationError

from ndld_flow.base.errors import Problem, RecipeError
from ndld_flow.base.places import find_value
from ndld_flow.base.text import suggest
from ndld_flow.recipe.composed import Composed
from ndld_flow.recipe.config_files import choose, find_folders
from ndld_flow.recipe.gates import Gate, parse_constraint, parse_expression
from ndld_flow.recipe.overrides import AxisError
from ndld_flow.recipe.points import Changes, Objective, Sweep, Variations, open_variations
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.sweep_axes import GivenAxis, SweptAxis, add_axes, find_root_key, first_choices, overlap, read_axes
from ndld_flow.recipe.sweep_section import Sentences, SweepSection, sentences
from ndld_flow.recipe.validate import Checker, Known, Mistakes, check_sentence, check_step_names, known_steps
from ndld_flow.sweep_search.search import Direction, Saturation, SearchOptions, find_method, list_methods
from ndld_flow.sweep_search.space import Assignment, Choices, NumberedSpace, Space, values_of

_NO_OBJECTIVE_HINT = "name the objective with `minimize:` or `maximize:`"


@dataclass(frozen=True)
class Axes:
    """Axes of a sweep, without those that could not be read."""

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
    """Report the mistakes of a section with these axes, in a recipe with these steps."""
    if not axes.named:
        mistakes.add("sweep", "nothing varies", "list settings and their values in `over:`, or give them after `-m`")
    _check_objectives(section, axes, mistakes)
    _check_counting(section, axes, mistakes)
    if isinstance(section.timeout, dict):
        check_step_names("sweep.timeout", section.timeout, steps, mistakes)


def _check_objectives(section: SweepSection, axes: Axes, mistakes: Mistakes) -> None:
    count = len(sentences(section.minimize) + sentences(section.maximize))
    method = find_method(section.method)
    if method.adapts and not count:
        mistakes.add("sweep.method", f"`{section.method}` searches for the best point", _NO_OBJECTIVE_HINT)
    if method.one_objective and count > 1:
        others = list_methods(lambda other: other.adapts and not other.one_objective)
        mistakes.add("sweep.method", f"`{section.method}` optimizes one objective", f"give one, or use {others}")
    if section.saturation is None:
        return
    if not count:
        mistakes.add("sweep.saturation", "there is no objective that could saturate", _NO_OBJECTIVE_HINT)
    if section.saturation.along:
        axes.find_or_report(section.saturation.along, "sweep.saturation.along", mistakes)


def _check_counting(section: SweepSection, axes: Axes, mistakes: Mistakes) -> None:
    """Report axes over real intervals, which have no next value, for methods that count values."""
    endless = [axis for axis in axes.read if values_of(axis.axis).count is None]
    if not find_method(section.method).counts:
        if endless and section.points is None and section.time is None:
            what = f"`{endless[0].name}` takes any number, so there is no last point"
            mistakes.add("sweep.method", what, "give a budget: `points:` or `time:`")
        return
    for axis in endless:
        what = f"`{section.method}` cannot try every number between two bounds"
        others = list_methods(lambda other: not other.counts)
        mistakes.add(axis.place, what, f"give a `step`, or use {others}")


def _read_exclusion(
    place: str, rule: Mapping[str, JsonValue], axes: Axes, mistakes: Mistakes
) -> dict[str, tuple[JsonValue, ...]]:
    if not rule:
        mistakes.add(place, "this names no axis, so it would exclude everything", "give axes and their values")
    exclusion: dict[str, tuple[JsonValue, ...]] = {}
    for name, given in rule.items():
        axis = axes.find_or_report(name, f"{place}.{name}", mistakes)
        if axis is None:
            continue
        is_single = not isinstance(given, list) or values_of(axis.axis).position(given) is not None
        values = [given] if is_single or not isinstance(given, list) else given
        for value in values:
            if values_of(axis.axis).position(value) is None:
                listed = axis.axis.values if isinstance(axis.axis, Choices) else ()
                hint = suggest(str(value), list(map(str, listed))) if listed else ""
                mistakes.add(f"{place}.{name}", f"{value!r} is not a value of `{name}`", hint)
        exclusion[axis.name] = tuple(values)
    return exclusion


MAX_TRIED = 5000
"""Maximum number of values that all axes together may list."""


@dataclass(frozen=True)
class ValueCheck:
    """Tries values of axes in a recipe."""

    axes: Sequence[SweptAxis]
    space: Space
    variations: Variations
    base: Recipe | None
    """The recipe itself; None if it has mistakes of its own, and `known` has them."""
    known: frozenset[tuple[str, str]]

    def check(self, mistakes: Mistakes) -> Assignment | None:
        """Report the problems of values, each once; return the recipe's own value on each axis.

        A value is a mistake if the recipe is invalid with it, both with the recipe's own other values and in the first
        point that has it. Invalid combinations are found when the sweep runs. Returns None if the recipe itself is not
        a point.
        """
        if sum(len(axis.axis.values) for axis in self.axes if isinstance(axis.axis, Choices)) > MAX_TRIED:
            mistakes.add("sweep.over", f"all axes together may list {MAX_TRIED:,} values", "give ranges: `from`, `to`")
            return None
        start = {axis.name: self._check_axis(axis, mistakes) for axis in self.axes}
        known = {name: value[0] for name, value in start.items() if value}
        return known if len(known) == len(start) else None

    def _check_axis(self, axis: SweptAxis, mistakes: Mistakes) -> list[JsonValue]:
        """Check the values of an axis; return the recipe's own value on it, if it is one of them."""
        places_by_problem: dict[Problem, list[str]] = {}
        own = []
        samples = list(axis.samples())
        for place, value in samples:
            recipe, problems = self._try(axis.changes(value))
            if problems and self._try_first(axis, value):
                for problem in (_of_value(each, axis, value) for each in problems):
                    places_by_problem.setdefault(replace(problem, path=""), []).append(f"{place}{problem.path}")
            elif recipe is not None and self.base is not None and _work_of(recipe) == _work_of(self.base):
                own.append(value)
        for problem, places in places_by_problem.items():
            everywhere = len(places) == len(samples) > 1
            mistakes.add(axis.place if everywhere else places[0], problem.what, problem.hint)
        return own[:1] or self._own_number(axis)

    def _try(self, changes: Changes) -> tuple[Recipe | None, list[Problem]]:
        """Return the recipe with changes, or the problems that the changes cause."""
        try:
            return self.variations.recipe(changes), []
        except RecipeError as error:
            return None, [problem for problem in error.problems if (problem.path, problem.what) not in self.known]

    def _try_first(self, axis: SweptAxis, value: JsonValue) -> list[Problem]:
        """Return the problems of the first point that has a value; none if no point has it."""
        narrowed = tuple(
            Choices(each.name, (value if each is axis else next(value for _, value in each.samples()),))
            for each in self.axes
        )
        points = NumberedSpace(replace(self.space, axes=narrowed))
        if not points.count:
            return []
        point = points.point(points.place(0))
        return self._try({key: each for other in self.axes for key, each in other.changes(point[other.name]).items()})[
            1
        ]

    def _own_number(self, axis: SweptAxis) -> list[JsonValue]:
        """Return the recipe's number on an axis of numbers, if the axis contains it."""
        if isinstance(axis.axis, Choices) or self.base is None:
            return []
        value = _own_value(self.base, axis.keys[0])
        position = values_of(axis.axis).position(value)
        return [] if position is None else [values_of(axis.axis).value(position)]


def _of_value(problem: Problem, axis: SweptAxis, value: JsonValue) -> Problem:
    """Return a problem that a value causes as a problem of the value; its path is relative to the value's place."""
    for key in axis.keys:
        if overlap(problem.path, key):  # of a variant, the key that is wrong
            return replace(problem, where="", path=f".{key.removeprefix('steps.')}" if axis.variants else "")
    shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    return replace(problem, where="", path="", what=f"with {shown}, {problem.path}: {problem.what}")


def _work_of(recipe: Recipe) -> object:
    """Return all that decides what a recipe does."""
    return [gate.text for gate in recipe.gates], recipe.steps, recipe.models, recipe.file.inputs


def _own_value(base: Recipe, key: str) -> JsonValue:
    """Return the recipe's value at a key, including the defaults of steps."""
    words = key.split(".")
    for step in base.steps if words[0] == "steps" else ():
        if step.name == words[1]:
            value: JsonValue = find_value(step.settings, words[2:])
            return value
    return find_value(base.file.model_dump(mode="json"), words)  # type: ignore[no-any-return]


def _check_size(space: Space, mistakes: Mistakes) -> None:
    try:
        if NumberedSpace(space).size == 0:
            mistakes.add("sweep.exclude", "everything is excluded", "leave a point to try")
    except ValueError as error:
        mistakes.add("sweep.over", str(error).rstrip("."))


def make_sweep(
    composed: Composed, given: Sequence[GivenAxis], trust: bool, compose: Callable[[Sequence[str]], Composed]
) -> Sweep:
    """Check a recipe's sweep together with the axes of the command line.

    `trust` as in `validate_recipe`; `compose` composes the recipe with further overrides, which choose other files of
    config groups. Raises RecipeError with every problem found, those of the recipe itself included.
    """
    composed, where = add_axes(composed, given)
    folders = find_folders(composed.file.path)
    choices = first_choices(find_value(composed.values, ("sweep", "over")), folders)

    def compose_choices(chosen: Mapping[str, str]) -> Composed:
        found = compose([choose(group, choice, composed.file.values) for group, choice in chosen.items()])
        return replace(found, values={**found.values, "sweep": composed.values["sweep"]})

    composed = compose_choices(choices) if choices else composed
    mistakes = Mistakes(where)
    checker = Checker(composed.file.path, trust)
    try:
        base = checker.check(composed.values, mistakes.where)
    except RecipeError as error:
        mistakes.problems += error.problems
        base = None
    known = frozenset((problem.path, problem.what) for problem in mistakes.problems)
    section = _read_section(composed.values["sweep"])
    if section is None:
        raise RecipeError(mistakes.in_order())
    variations = replace(open_variations(composed, checker), choices=choices, compose=compose_choices)
    axes = Axes(read_axes(section.over, variations.written, folders, mistakes), list(composed.values["sweep"]["over"]))
    steps = known_steps(variations.written.get("steps"), base.steps if base is not None else ())
    keys = (key.split(".") for axis in axes.read for key in axis.keys)
    varying = {words[1] for words in keys if words[0] == "steps" and len(words) > 1}
    goals = _read_goals(section, steps, varying, mistakes)
    rules = [
        _read_exclusion(f"sweep.exclude.{index}", rule, axes, mistakes) for index, rule in enumerate(section.exclude)
    ]
    space = Space(
        tuple(axis.axis for axis in axes.read),
        tuple(rule for rule, given in zip(rules, section.exclude, strict=True) if len(rule) == len(given) > 0),
    )
    entries = variations.written.get("steps")
    check_section(section, axes, list(entries) if isinstance(entries, dict) else [], mistakes)
    for index, gate in enumerate(base.gates if base is not None else ()):
        if gate.history:
            hint = "leave it out with the override `~gates`, or compare with a number or another step"
            mistakes.add(f"gates.{index}", f"{gate.text!r}: points of a sweep have no history", hint)
    if not mistakes.problems:
        _check_size(space, mistakes)
    start = ValueCheck(axes.read, space, variations, base, known).check(mistakes)
    short = _read_short(section, axes, variations, mistakes)
    if mistakes.problems or base is None:
        raise RecipeError([_of_override(problem) for problem in mistakes.in_order()])
    return Sweep(
        base=replace(base, written=variations.written),
        section=section,
        space=space,
        options=_options(section, axes, goals, start),
        objectives=goals[0],
        constraints=goals[1],
        axes=tuple(axes.read),
        short=short,
        variations=variations,
        where=where,
    )


def _read_short(section: SweepSection, axes: Axes, variations: Variations, mistakes: Mistakes) -> Changes:
    """Return the settings of first measurements, by key from the root."""
    short: dict[str, JsonValue] = {}
    for key, value in section.short.items():
        place = f"sweep.short.{key}"
        try:
            root = find_root_key(key, variations.written)
        except AxisError as error:
            mistakes.add(place, error.what, error.hint)
            continue
        swept = next((axis for axis in axes.read if any(overlap(root, each) for each in axis.keys)), None)
        if swept is not None:
            mistakes.add(place, f"the axis `{swept.name}` sets it too", "remove it from one of the two")
        short[root] = value
    if short and not section.winners:
        mistakes.add("sweep.short", "without `winners`, nothing is measured with the recipe's own settings")
    if short and not mistakes.problems:
        try:
            variations.recipe(short)
        except RecipeError as error:
            for problem in error.problems:
                mistakes.add(f"sweep.short.{problem.path.removeprefix('steps.')}", problem.what, problem.hint)
    return short


def _of_override(problem: Problem) -> Problem:
    """Return a problem of a command-line axis under its key, since it is not in the recipe."""
    given = problem.where.startswith("override")
    return replace(problem, path=problem.path.removeprefix("sweep.over.")) if given else problem


def _read_section(values: object) -> SweepSection | None:
    """Return the readable part of a section; the check of the recipe reports the rest."""
    try:
        return SweepSection.model_validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        places = [detail["loc"] for detail in error.errors(include_url=False)]
        if not isinstance(values, dict) or not all(places):
            return None
        axes = {str(place[1]) for place in places if place[0] == "over" and len(place) > 1}
        sound = {key: value for key, value in values.items() if key not in {place[0] for place in places} - {"over"}}
        if not axes:
            sound.pop("over", None)
        elif isinstance(values.get("over"), dict):
            sound["over"] = {name: form for name, form in values["over"].items() if name not in axes}
        return _read_section(sound)


Goals = tuple[tuple[Objective, ...], tuple[Gate, ...]]


def _read_goals(section: SweepSection, steps: Known, varying: Collection[str], mistakes: Mistakes) -> Goals:
    """Return objectives, those to minimize first, and constraints.

    A metric that only some points return is not a mistake: the others fail, and the message names the metric.
    """
    both: list[tuple[Direction, Sentences]] = [("minimize", section.minimize), ("maximize", section.maximize)]
    objectives = [
        Objective(text, direction, expression)
        for direction, given in both
        for place, text in _placed(f"sweep.{direction}", given)
        if (expression := check_sentence(place, text, parse_expression, steps, mistakes, varying))
    ]
    constraints = [
        gate
        for place, text in _placed("sweep.subject_to", section.subject_to)
        if (gate := check_sentence(place, text, parse_constraint, steps, mistakes, varying))
    ]
    return tuple(objectives), tuple(constraints)


def _placed(place: str, given: Sentences) -> list[tuple[str, str]]:
    """Return each condition with its place in the recipe."""
    return [(place, given)] if isinstance(given, str) else [(f"{place}.{i}", text) for i, text in enumerate(given)]


def _options(section: SweepSection, axes: Axes, goals: Goals, start: Assignment | None) -> SearchOptions:
    saturation = None
    if section.saturation is not None:
        along = axes.find(section.saturation.along)
        saturation = Saturation(section.saturation.gain, section.saturation.points, along.name if along else "")
    return SearchOptions(
        method=section.method,
        directions=tuple(objective.direction for objective in goals[0]),
        points=section.points,
        seed=section.seed,
        start=start,
        saturation=saturation,
    )
