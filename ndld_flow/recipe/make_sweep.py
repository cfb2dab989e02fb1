"""From a composed recipe to a checked sweep, or to all of its mistakes at once."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from pydantic import ValidationError

from ndld_flow.base.errors import Problem, RecipeError
from ndld_flow.recipe.check_section import Axes, check_section, read_exclusions
from ndld_flow.recipe.check_values import ValueCheck
from ndld_flow.recipe.compose import Composed
from ndld_flow.recipe.gates import Gate, parse_expression, parse_gate
from ndld_flow.recipe.given_axes import GivenAxis, add_axes
from ndld_flow.recipe.points import Objective, Sweep
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.sweep_axes import read_axes
from ndld_flow.recipe.sweep_section import Sentences, SweepSection
from ndld_flow.recipe.validate import Checker, Known, Mistakes, check_sentence, known_steps
from ndld_flow.recipe.variations import Variations, open_variations
from ndld_flow.sweep_search.numbered_space import count_points
from ndld_flow.sweep_search.search import Direction, Saturation, SearchOptions
from ndld_flow.sweep_search.space import Assignment, Space


def make_sweep(composed: Composed, given: Sequence[GivenAxis], trust: bool) -> Sweep:
    """Check a recipe's sweep together with the axes of the command line.

    `trust` as in `validate_recipe`. Raises RecipeError with every problem found, those of the recipe itself included.
    """
    composed, where = add_axes(composed, given)
    mistakes = Mistakes(where)
    checker = Checker(composed.file.path, trust)
    base = _check_base(composed, checker, mistakes)
    known = frozenset((problem.path, problem.what) for problem in mistakes.problems)
    section = _read_section(composed.values["sweep"])
    if section is None:
        raise RecipeError(mistakes.in_order())
    variations = open_variations(composed, checker)
    axes = Axes(read_axes(section.over, variations.written, mistakes), list(composed.values["sweep"]["over"]))
    steps = known_steps(variations.written.get("steps"), base.steps if base is not None else ())
    goals = _read_goals(section, steps, _varying(axes), mistakes)
    space = Space(tuple(axis.axis for axis in axes.read), read_exclusions(section, axes, mistakes))
    check_section(section, axes, _step_names(variations), mistakes)
    if not mistakes.problems and count_points(space) == 0:
        mistakes.add("sweep.exclude", "everything is excluded", "leave a point to try")
    start = ValueCheck(axes.read, space, variations, base, known).check(mistakes)
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
        variations=variations,
        where=where,
    )


def _of_override(problem: Problem) -> Problem:
    """Return a problem of a command-line axis under its key, since it is not in the recipe."""
    given = problem.where.startswith("override")
    return replace(problem, path=problem.path.removeprefix("sweep.over.")) if given else problem


def _check_base(composed: Composed, checker: Checker, mistakes: Mistakes) -> Recipe | None:
    try:
        return checker.check(composed.values, mistakes.where)
    except RecipeError as error:
        mistakes.problems += error.problems
        return None


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


def _varying(axes: Axes) -> set[str]:
    """Return the names of the steps whose settings differ between points."""
    keys = (key.split(".") for axis in axes.read for key in axis.keys)
    return {words[1] for words in keys if words[0] == "steps" and len(words) > 1}


def _read_goals(section: SweepSection, steps: Known, varying: Collection[str], mistakes: Mistakes) -> Goals:
    """Return objectives, those to minimize first, and constraints.

    A metric that only some points return is no mistake: the others fail for want of it, by name.
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
        if (gate := check_sentence(place, text, parse_gate, steps, mistakes, varying))
    ]
    return tuple(objectives), tuple(constraints)


def _step_names(variations: Variations) -> list[str]:
    entries = variations.written.get("steps")
    return list(entries) if isinstance(entries, dict) else []


def _placed(place: str, given: Sentences) -> Iterator[tuple[str, str]]:
    """Return each condition with its place in the recipe."""
    if isinstance(given, str):
        yield place, given
    else:
        yield from ((f"{place}.{index}", text) for index, text in enumerate(given))


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
