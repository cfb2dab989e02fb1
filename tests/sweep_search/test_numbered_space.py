"""The points of a space are in the order of a grid, without excluded ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from ndld_flow.sweep_search.space import Choices, NumberedSpace, Numbers, Space, values_of
from tests.support.message_files import CheckMessage
from tests.support.search_spaces import STEPPED, identities, points_of, spaces


@settings(deadline=None, max_examples=20)
@given(space=spaces())
def test_numbers_follow_the_grid_without_excluded_points(space: Space) -> None:
    numbered = NumberedSpace(space)
    places = [numbered.place(number) for number in range(numbered.count)]
    assert identities(map(numbered.point, places)) == identities(points_of(space))
    whole = NumberedSpace(Space(space.axes))
    every = [whole.place(number) for number in range(whole.count)]
    assert [place for place in every if not numbered.excludes(place)] == places
    assert (NumberedSpace(space).size, NumberedSpace(space).excluded_count) == (len(places), len(every) - len(places))


def test_more_than_a_million_points_are_refused(check_message: CheckMessage) -> None:
    axes = (Numbers("a", 1, 1000, integer=True), Numbers("b", 1, 1000, integer=True))
    assert NumberedSpace(Space(axes)).size == 1_000_000
    with pytest.raises(ValueError) as caught:
        NumberedSpace(Space((*axes, Choices("c", (1, 2)))))
    check_message(caught.value)


def test_continuous_axes_have_no_count() -> None:
    space = Space((Choices("a", (1, 2)), Numbers("b", 0, 1)), ({"a": (1,)},))
    assert (NumberedSpace(space).size, NumberedSpace(space).excluded_count) == (None, None)
    nothing = Space(space.axes, ({"a": (1, 2)},))
    assert (NumberedSpace(nothing).size, NumberedSpace(nothing).excluded_count) == (0, None)
    a_number = NumberedSpace(Space(space.axes, ({"b": (0.5,)},)))
    assert a_number.excludes((0, 0.5))
    assert not a_number.excludes((0, 0.25))


@pytest.mark.parametrize(("axis", "expected"), STEPPED)
def test_steps_of_ranges_are_exact(axis: Numbers, expected: tuple[float, ...]) -> None:
    values = values_of(axis)
    shown = [values.value(position) for position in range(values.count or 0)]
    assert shown == list(expected)
    assert [type(value) for value in shown] == [type(value) for value in expected] or axis == Numbers("", 2, 2)
    assert [values.position(value) for value in shown] == list(range(len(shown)))
    assert [values.nearest(values.share(position)) for position in range(len(shown))] == list(range(len(shown)))


def test_a_value_that_is_not_on_the_axis_has_no_position() -> None:
    stepped, between, listed = (
        values_of(Numbers("a", 10, 30, step=10)),
        values_of(Numbers("a", 1, 2)),
        Choices("a", (1,)),
    )
    assert [stepped.position(value) for value in (10, 20.0, 25, 0, 40, True, "10", None)] == [0, 1, *[None] * 6]
    assert [between.position(value) for value in (1, 1.5, 2, 2.5, True, "1")] == [1, 1.5, 2, None, None, None]
    assert [values_of(listed).position(value) for value in (1, 1.0, True, "1")] == [0, 0, None, None]


@pytest.mark.parametrize("log", [False, True])
def test_numbers_between_bounds_have_few_digits_and_stay_inside(log: bool) -> None:
    axis = values_of(Numbers("a", 0.123456789, 12.3456789, log=log))
    shares = [n / 200 for n in range(201)]
    numbers = [float(axis.nearest(share)) for share in shares]
    assert all(0.123456789 <= number <= 12.3456789 for number in numbers)
    assert max(len(repr(number)) for number in numbers[1:-1]) <= 8
    assert [axis.share(number) for number in numbers] == pytest.approx(shares, abs=1e-4)


def test_an_exclusion_without_an_axis_excludes_everything() -> None:
    assert NumberedSpace(Space((Choices("a", (1, 2)),), ({},))).size == 0


def test_a_value_listed_twice_is_one_value() -> None:
    assert NumberedSpace(Space((Choices("a", (1, 2, 1, True, [1], [1.0])),))).size == 4


@pytest.mark.parametrize(
    "space",
    [
        Space((Choices("a", ()),)),
        Space((Choices("threads", (1,)),), ({"thread": (1,)},)),
    ],
)
def test_an_invalid_space_is_reported(space: Space, check_message: CheckMessage) -> None:
    with pytest.raises(ValueError) as caught:
        NumberedSpace(space)
    check_message(caught.value)
