"""A machine's drift between measurement sessions does not decide which points are measured again."""

from __future__ import annotations

from ndld_flow.sweep_search.ranking import Contender, Goal, choose_winners, remove_session_drift

GOALS = [Goal("minimize", 0.03)]


def contenders(values: list[float | None]) -> list[Contender]:
    return [Contender(number, value is not None, (value,)) for number, value in enumerate(values, 1)]


def test_the_best_of_a_slow_session_is_found() -> None:
    # The second session was twice as slow; point 4 is the best by far.
    points = contenders([10.0, 12.0, 14.0, 12.0, 24.0, 28.0])
    session = {1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 2}
    assert choose_winners(points, GOALS, 1)[0] == 1
    assert choose_winners(remove_session_drift(points, session), GOALS, 1) == [4]


def test_points_without_a_value_stay_as_they_are() -> None:
    points = contenders([None, 2.0, 0.0])
    steady = remove_session_drift(points, {1: None, 2: 1, 3: 2})
    assert [point.objectives for point in steady] == [(None,), (1.0,), (0.0,)]
