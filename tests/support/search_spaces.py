"""Spaces of all kinds for tests of searches, and how to play through a search."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hypothesis import strategies as st
from pydantic import JsonValue

from ndld_flow.sweep_search.search import Search, Trial
from ndld_flow.sweep_search.space import Assignment, Axis, Choices, Numbers, Space, key_of

Answer = Callable[[Assignment], Trial]

LISTED: tuple[JsonValue, ...] = (
    1,
    2,
    4.5,
    8,
    True,
    False,
    None,
    "",
    "x",
    [1, 3],
    [4, 3],
    {"a": [None]},
    {"b": 0, "a": 1},
)
STEPPED: tuple[tuple[Numbers, tuple[JsonValue, ...]], ...] = (
    (Numbers("", 1, 3, integer=True), (1, 2, 3)),
    (Numbers("", 10, 35, step=10, integer=True), (10, 20, 30)),
    (Numbers("", 0.1, 0.4, step=0.1), (0.1, 0.2, 0.3, 0.4)),
    (Numbers("", -1, -1, integer=True), (-1,)),
    (Numbers("", 2, 2), (2,)),
    (Numbers("", 1, 4, integer=True, log=True), (1, 2, 3, 4)),
    (Numbers("", 0.5, 2.5, step=1, log=True), (0.5, 1.5, 2.5)),
)
"""Axes, and the values they have."""


def values_on(axis: Axis) -> tuple[JsonValue, ...]:
    """Return the values of an axis: those listed, or those given next to it above."""
    if isinstance(axis, Choices):
        return axis.values
    return next(values for like, values in STEPPED if _unnamed(axis) == like)


def _unnamed(axis: Numbers) -> Numbers:
    return Numbers("", axis.low, axis.high, axis.step, axis.integer, axis.log)


@st.composite
def axes(draw: st.DrawFn, name: str) -> Axis:
    if draw(st.booleans()):
        return Choices(name, tuple(draw(st.lists(st.sampled_from(LISTED), max_size=3, unique_by=key_of, min_size=1))))
    axis, _ = draw(st.sampled_from(STEPPED))
    return Numbers(name, axis.low, axis.high, axis.step, axis.integer, axis.log)


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """Up to 3 axes of 1 to 4 values, up to 4 exclusions, some of them of values that are not there."""
    swept = tuple(draw(axes(name)) for name in "abc"[: draw(st.integers(0, 3))])
    by_name = {axis.name: values_on(axis) for axis in swept}
    named = st.dictionaries(st.sampled_from(sorted(by_name)), st.integers(0, 30), min_size=1) if swept else st.nothing()
    exclude = tuple(
        {name: _some(by_name[name], which) for name, which in rule.items()}
        for rule in draw(st.lists(named, max_size=4 if swept else 0))
    )
    return Space(swept, exclude)


def _some(values: tuple[JsonValue, ...], which: int) -> tuple[JsonValue, ...]:
    return (*(value for bit, value in enumerate(values) if which >> bit & 1), "nowhere")


def points_of(space: Space) -> list[Assignment]:
    """Return all points that are not excluded, the last axis fastest, by trying every combination."""
    names = [axis.name for axis in space.axes]
    combinations = itertools.product(*(values_on(axis) for axis in space.axes))
    every: Iterator[dict[str, Any]] = (dict(zip(names, values, strict=True)) for values in combinations)
    return [point for point in every if not any(_is_met(named, point) for named in space.exclude)]


def _is_met(named: Any, point: Assignment) -> bool:
    return all(key_of(point[name]) in set(map(key_of, values)) for name, values in named.items())


def identities(points: Iterable[Assignment]) -> list[str]:
    return [json.dumps(point, sort_keys=True) for point in points]


def some_answer(point: Assignment) -> Trial:
    """A seeded answer for each point: a few fail, some are refused, some break a constraint, many are equal."""
    chance = random.Random(json.dumps(point, sort_keys=True))
    kind, height = chance.random(), chance.choice((1.0, 1.5, 2.0, math.nan, 7.25))
    if kind < 0.1:
        return Trial(point, None)
    if kind < 0.2:
        return Trial(point, None, violation=chance.random() + 0.1)
    return Trial(point, (height, -height), violation=0.5 if kind < 0.3 else 0.0)


def play(search: Search, answer: Answer, counts: Iterable[int]) -> list[Assignment]:
    """Return all points that a search proposes, in batches of a given size."""
    asked: list[Assignment] = []
    for count in counts:
        points = search.ask(count)
        if not points:
            return asked
        assert len(points) <= count
        search.tell([answer(point) for point in points])
        asked += points
    return asked
