"""The contract of every search method. Methods are discovered, so that a new one is tested without a change here."""

from __future__ import annotations

import itertools

import pytest

from ndld_flow.sweep_search.search import METHODS, Direction, SearchMethod, SearchOptions, Trial, find_method
from ndld_flow.sweep_search.searches import make_search
from ndld_flow.sweep_search.space import Assignment, Choices, Numbers, Space
from tests.support.message_files import CheckMessage
from tests.support.search_spaces import identities, play, points_of

SPACE = Space((Choices("kind", tuple("abcd")), Numbers("n", 1, 3, integer=True)), ({"kind": ("b",), "n": (2, 3)},))


def answer(point: Assignment) -> Trial:
    return Trial(point, (float(len(str(point["n"])) + (point["kind"] == "c")),))


every_method = pytest.mark.parametrize("method", METHODS)


@every_method
def test_a_method_has_a_sentence_as_its_help(method: str) -> None:
    assert METHODS[method].endswith(".") and "\n" not in METHODS[method]
    assert isinstance(find_method(method), SearchMethod)


@every_method
def test_points_are_of_the_space_and_come_once_and_the_same_again(method: str) -> None:
    options = SearchOptions(method, ("minimize",), seed=3)
    first, again = (play(make_search(SPACE, options), answer, itertools.repeat(4)) for _ in range(2))
    assert identities(first) == identities(again)
    assert len({*identities(first)}) == len(first) > 1
    assert {*identities(first)} <= {*identities(points_of(SPACE))}


@every_method
def test_a_search_ends_with_its_budget_and_reports_it(method: str) -> None:
    search = make_search(SPACE, SearchOptions(method, ("minimize",), points=3))
    assert len(play(search, answer, itertools.repeat(2))) == 3
    assert search.size == 3 and search.stopped_because.endswith("points: the budget")
    assert search.ask(1) == []


@every_method
def test_a_method_needs_the_objectives_that_it_declares(method: str, check_message: CheckMessage) -> None:
    declared = find_method(method)
    both: tuple[Direction, ...] = ("minimize", "maximize")
    for count, refused in ((0, declared.adapts), (2, declared.one_objective)):
        options = SearchOptions(method, both[:count], points=3)
        if refused:
            with pytest.raises(ValueError) as caught:
                make_search(SPACE, options)
            check_message(caught.value)
        else:
            make_search(SPACE, options)


@every_method
def test_a_method_that_does_not_count_takes_any_number_between_two_bounds(method: str) -> None:
    if not find_method(method).counts:
        [point] = make_search(Space((Numbers("n", 0.0, 1.0),)), SearchOptions(method, ("minimize",), seed=5)).ask(1)
        value = point["n"]
        assert isinstance(value, float) and 0 <= value <= 1
