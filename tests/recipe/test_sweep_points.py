"""Points of a sweep: checked recipes that differ from the recipe in what the point sets, and in nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ndld_flow.recipe.load import load_sweep
from ndld_flow.recipe.points import Sweep
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.resolved import write_yaml
from ndld_flow.sweep_search.searches import make_search
from ndld_flow.sweep_search.space import NumberedSpace
from tests.support.recipes import load_recipe
from tests.support.toys import RECIPE, STAMP


@pytest.fixture
def folder(in_folder: Path) -> Path:
    (in_folder / "steps").mkdir()
    (in_folder / "steps" / "stamp.py").write_text(STAMP)
    return in_folder


def load(folder: Path, text: str, *overrides: str, multirun: tuple[str, ...] = ()) -> Sweep:
    (folder / "toy.yaml").write_text(text)
    recipe = load_sweep(folder / "toy.yaml", [*overrides, *multirun], multirun=bool(multirun), trust=True)
    assert isinstance(recipe, Sweep)
    return recipe


def content_of(recipe: Recipe) -> list[Any]:
    """Return everything that a run of it depends on."""
    steps = [(step.name, step.type.name, step.settings, step.reads) for step in recipe.steps]
    return [recipe.name, recipe.file, steps, [gate.text for gate in recipe.gates]]


SWEEP = """\
sweep:
  over:
    first.word: [a, z]
    second.seconds: {from: 0, to: 1, step: 0.25}
    variant:
      plain: {}
      far: {aside.from: first, aside.word: 'true', gates: []}
    model: [model.onnx, 'new:20']
"""

AXES: dict[str, st.SearchStrategy[Any]] = {
    "first.word": st.sampled_from(["a", "z"]),
    "second.seconds": st.sampled_from([0.0, 0.25, 1.0]),
    "variant": st.sampled_from(["plain", "far"]),
    "model": st.sampled_from(["model.onnx", "new:20"]),
}


@settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries(AXES))
def test_a_point_equals_the_recipe_with_its_values_as_overrides(folder: Path, point: dict[str, Any]) -> None:
    sweep = load(folder, RECIPE + SWEEP)
    changes = sweep.changes(point)
    assert set(changes) == {"steps.first.word", "steps.second.seconds", "model"} | (
        {"steps.aside.from", "steps.aside.word", "gates"} if point["variant"] == "far" else set()
    )
    overrides = [f"{key}={_quoted(value)}" for key, value in changes.items()]
    assert content_of(sweep.point(point)) == content_of(
        load_recipe(folder / "toy.yaml", ["~sweep", *overrides], trust=True)
    )


def _quoted(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


def test_the_order_of_points_does_not_matter(folder: Path) -> None:
    """Checks of one point are not reused for another."""
    text = RECIPE + SWEEP.replace("[a, z]", "[a, z, y]").replace("{}", "{second.from: source}")
    sweep = load(folder, text)
    numbered = NumberedSpace(sweep.space)
    points = [numbered.point(numbered.place(number)) for number in range(numbered.count)]
    there = [content_of(sweep.point(point)) for point in points]
    fresh = load(folder, text)
    back = [content_of(fresh.point(point)) for point in reversed(points)]
    assert there == back[::-1]
    assert len({json.dumps(item[2], sort_keys=True) for item in there}) == 3 * 5 * 2


def test_interpolations_follow_the_point(folder: Path) -> None:
    text = RECIPE.replace("word: b", "word: 'not ${steps.first.word}'")
    sweep = load(folder, text + "sweep: {over: {first.word: [a, z], aside.word: ['${steps.second.word}', c]}}\n")
    point = sweep.point({"first.word": "z", "aside.word": "${steps.second.word}"})
    assert [step.settings["word"] for step in point.steps] == ["z", "not z", "not z"]
    assert sweep.changes({"first.word": "z", "aside.word": "c"})["steps.aside.word"] == "c"
    assert [step.settings["word"] for step in sweep.base.steps] == ["a", "not a", "c"]
    again = load(folder, write_yaml(sweep.resolve({"source": "0" * 64}), "resolved"))
    assert content_of(again.point({"first.word": "z", "aside.word": "${steps.second.word}"}))[2] == content_of(point)[2]


def test_a_step_type_chosen_by_interpolation_can_vary(folder: Path) -> None:
    text = RECIPE.replace("aside: {step: stamp, from: source, word: c}", "aside: '${steps.first}'")
    sweep = load(folder, text + "sweep: {over: {aside.word: [p, q], first.seconds: [1, 2]}}\n")
    point = sweep.point({"aside.word": "q", "first.seconds": 2})
    assert (point.steps[2].settings["word"], point.steps[0].settings["word"]) == ("q", "a")


def test_a_whole_step_and_nested_settings_can_vary(folder: Path) -> None:
    text = """\
model: new:20
inputs: {images.0: {shape: [1]}}
steps:
  fill: {step: edit, operations: [{rename_nodes: {names: {a: b}}}]}
  check: {step: lint}
sweep:
  over:
    fill.operations.0.rename_nodes.names.a: [b, c]
    check: [{step: lint, fail_on: warning}, {step: sanitize}]
    inputs.images.0.shape: [[1], [2]]
"""
    (folder / "edit.yaml").write_text(text)
    sweep = load_sweep(folder / "edit.yaml")
    assert isinstance(sweep, Sweep)
    point = sweep.point(
        {"fill.operations.0.rename_nodes.names.a": "c", "check": {"step": "sanitize"}, "inputs.images.0.shape": [2]}
    )
    assert [step.type.name for step in point.steps] == ["edit", "sanitize"]
    assert '"a": "c"' in json.dumps(point.steps[0].settings)
    assert point.file.inputs["images.0"].shape == (2,)


@pytest.mark.representatives(
    "second.from: [first, source]-start6",
    "first.seconds: {from: 1, to: 4}-None",
    "first.word: [z, a], first.seconds: [7]-None",
)
@pytest.mark.parametrize(
    ("over", "start"),
    [
        ("first.word: [z, a]", {"first.word": "a"}),
        ("first.word: [z, y]", None),
        ("first.seconds: [5, 0.0]", {"first.seconds": 0.0}),
        ("first.seconds: {from: 0, to: 4}", {"first.seconds": 0}),
        ("first.seconds: {from: 1, to: 4}", None),
        ("aside.from: [first, source]", {"aside.from": "source"}),
        ("second.from: [first, source]", {"second.from": "first"}),
        ("variant: {one: {first.word: z}, two: {}}", {"variant": "two"}),
        ("variant: {one: {first.word: z}, two: {first.word: a, second.word: b}}", {"variant": "two"}),
        ("first.word: [z, a], first.seconds: [7]", None),
    ],
)
def test_the_recipes_own_point_is_found(folder: Path, over: str, start: dict[str, Any] | None) -> None:
    assert load(folder, RECIPE + f"sweep: {{over: {{{over}}}}}\n").options.start == start


@pytest.mark.parametrize("method", ["grid", "random"])
def test_searches_propose_valid_recipes(folder: Path, method: str) -> None:
    sweep = load(folder, RECIPE + SWEEP, multirun=(f"sweep.method={method}", "sweep.points=9"))
    points = make_search(sweep.space, sweep.options).ask(9)
    assert len(points) == 9
    for point in points:
        recipe = sweep.point(point)
        assert recipe.file.sweep is None
        assert recipe.name == sweep.base.name
