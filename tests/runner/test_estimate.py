"""Estimated durations of sweeps, from earlier durations of their steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndld_flow import api
from ndld_flow.runs.outputs import Outputs
from ndld_flow.sweep.plan_sweep import add_up, read_own_times
from tests.support.sweep_toys import SweepToy, make_sweep_toy
from tests.support.text_facts import numbers_in


def test_times_are_multiplied_by_the_number_of_executions() -> None:
    took = {("clean", "sanitize"): [2.0], ("speed", "profile"): [10.0, 12.0]}
    found = add_up({"clean": ("sanitize", 1), "speed": ("profile", 20)}, took)
    assert found is not None
    assert found.seconds == 2 + 220
    assert found.low_s < 222 < found.high_s
    assert found.unknown == ()
    assert found.text.startswith("about 3 min 42 s (3 min")
    assert found.text.endswith("from earlier runs")


def test_step_types_that_have_not_run_are_reported() -> None:
    todo = {"clean": ("sanitize", 1), "half": ("convert_fp16", 3), "other": ("convert_fp16", 1), "gone": ("lint", 0)}
    found = add_up(todo, {("clean", "sanitize"): [60.0]})
    assert found is not None
    assert (found.unknown, found.step_type_count) == (("convert_fp16",), 2)
    assert numbers_in(found.text.rpartition("; ")[2]) == [1, 2]


def test_without_earlier_times_there_is_no_estimate() -> None:
    assert add_up({"clean": ("sanitize", 4)}, {}) is None
    assert add_up({}, {("clean", "sanitize"): [1.0]}) is None


@given(
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.just("type"), st.floats(0, 1e4)), min_size=1, max_size=4),
    st.lists(st.floats(0, 1e5), min_size=1, max_size=9),
)
def test_the_estimate_lies_between_its_bounds(todo: dict[str, tuple[str, float]], times: list[float]) -> None:
    found = add_up(todo, {(name, "type"): times for name in todo})
    if any(count > 0 for _, count in todo.values()):
        assert found is not None
        assert 0 <= found.low_s <= found.seconds <= found.high_s


def test_more_known_times_narrow_the_bounds() -> None:
    todo = {"speed": ("profile", 10)}
    single, many = (add_up(todo, {("speed", "profile"): times}) for times in ([10.0], [9.0, 11.0] * 10))
    assert single is not None and many is not None
    assert single.seconds == many.seconds
    assert many.high_s - many.low_s < single.high_s - single.low_s


@pytest.fixture
def toy(in_folder: Path) -> SweepToy:
    return make_sweep_toy(in_folder)


def test_times_of_the_recipe_come_from_its_latest_run_and_sweep(toy: SweepToy) -> None:
    outputs = Outputs(toy.outputs)
    assert read_own_times("toy", outputs) == {}
    toy.run()
    took = read_own_times("toy", outputs)
    assert {key: len(times) for key, times in took.items()} == {
        ("base", "dye"): 1,
        ("tint", "dye"): 2,
        ("speed", "gauge"): 6,
    }
    api.run(toy.recipe, ["~sweep", "steps.tint.colour=blue"], outputs=toy.outputs, trust=True)
    took = read_own_times("toy", outputs)
    assert len(took["tint", "dye"]) == 3
    assert len(took["base", "dye"]) == 2
