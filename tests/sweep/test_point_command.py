"""A point of a sweep as a command: its overrides set exactly the point's values."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from ndld_flow import api
from ndld_flow.recipe.compose import compose_recipe
from ndld_flow.recipe.overrides import read_one_value
from ndld_flow.recipe.places import change_value
from ndld_flow.recipe.validate import expand_shorthands
from ndld_flow.sweep.run_sweep import NoOverrideError, point_overrides
from tests.support.sweep_toys import SweepToy, make_sweep_toy
from tests.support.typed_api import plan_once

ANY_TEXT = st.text(max_size=8) | st.text("a1.'\\\"$ {}[]:,=()#/-+e\n\t", max_size=8)
ANY_VALUE: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | ANY_TEXT
    | st.sampled_from(["true", "Null", "nan", "-inf", "1_000", "1e5", "0x1", "a,b", "range(1,3)", "'", "\\", "\\'"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("aB1_. :'\\/-é", max_size=4) | st.sampled_from(["true", "x:0"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=20)
@given(ANY_VALUE)
def test_any_value_is_read_back(value: JsonValue) -> None:
    try:
        *reset, override = point_overrides({"steps.a.b": value}, {})
    except NoOverrideError:
        assert "{" in json.dumps(value), "only keys of mappings may have no words"
        return
    assert reset == (["steps.a.b=null"] if isinstance(value, dict) else [])
    assert json.dumps(read_one_value(override)) == json.dumps(value)


RECIPE: dict[str, Any] = {
    "model": {"source": "m.onnx", "blake3": "0"},
    "inputs": {"images.0": {"shape": [1, 2]}, "x:0": {"shape": [1]}, "1": {"shape": [1]}, "y": {"range": [0, 1]}},
    "steps": {"a": {"step": "edit", "block": {"p": 1, "q": {"r": 2}}, "list": [{"names": {"a/b": "c"}}, 3]}},
    "gates": ["a.b >= 1"],
}
CHANGES: list[tuple[str, JsonValue]] = [
    ("inputs.images.0.shape", [2, 2]),
    ("inputs.images.0.shape.0", 7),
    ("inputs.x:0.shape", [3]),
    ("inputs.x:0", {"data": "ones"}),
    ("inputs.1.shape", [4]),
    ("inputs.new.shape", [1]),
    ("inputs", {"z": {}}),
    ("model", "other.onnx"),
    ("model", {"source": "other.onnx"}),
    ("steps.a.block", {}),
    ("steps.a.block", {"q": {"x": "true"}}),
    ("steps.a.block.q.r", None),
    ("steps.a.list", []),
    ("steps.a.list.0", {"names": {}}),
    ("steps.a.list.0.names.a/b", "d e"),
    ("steps.a.list.1", "'quoted', \\'"),
    ("gates.0", "a.b >= 2"),
    ("steps.a.word", "${steps.a.step}"),
    ("steps.a.é", 1),
]


@pytest.mark.representatives("steps.a.block-value9", "steps.a.list-value12", "steps.a.list.0-value13")
@pytest.mark.parametrize(("key", "value"), CHANGES)
def test_a_key_is_read_back(tmp_path: Path, key: str, value: JsonValue) -> None:
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(RECIPE))
    wanted = change_value(RECIPE, key.split("."), value)
    try:
        overrides = point_overrides({key: value}, RECIPE)
    except NoOverrideError:
        assert key in ("inputs.images.0.shape.0", "inputs.x:0", "steps.a.é")
        return
    assert expand_shorthands(compose_recipe(tmp_path / "r.yaml", overrides).written) == expand_shorthands(wanted)


HARD = """
name: toy
model: model.onnx
inputs: {"x:0": {shape: [1]}}
steps_from: [steps/dye.py, steps/gauge.py]
steps:
  tint: {step: dye, colour: red, seconds: 0}
  speed: {step: gauge, threads: 1, order: '${steps.tint.colour}', limit: 100}
sweep:
  over:
    tint.colour: [rows, "it's, 'two' \\\\"]
    inputs.x:0.shape: [[1], [2]]
    mode: {plain: {}, far: {speed: {step: gauge, threads: '${steps.speed.limit}', limit: 3}}}
  together: 1
  winners: 0
"""


def test_the_commands_of_points_repeat_them(in_folder: Path) -> None:
    toy = make_sweep_toy(in_folder, HARD)
    record, _ = toy.run("steps.tint.weight=2.5", "~sweep.over.inputs.x:0.shape")
    assert [point.values for point in record.points] == [
        {"tint.colour": colour, "mode": mode} for colour in ("rows", "it's, 'two' \\") for mode in ("plain", "far")
    ]
    for point in record.points:
        folder = toy.outputs / "sweeps" / "toy" / record.id / point.folder
        assert _decide(toy, folder / "command.txt") == ["reused", "reused"]
        planned = plan_once(folder / "recipe.yaml", outputs=toy.outputs, trust=True)
        assert [decision.reason.text for decision in planned] == ["reused", "reused"]
    again = api.sweep(Path(folder.parent.parent / "recipe.yaml"), outputs=toy.outputs, trust=True)
    assert again.nothing_to_do


def test_a_point_that_overrides_cannot_express_is_repeated_by_its_recipe(in_folder: Path) -> None:
    toy = make_sweep_toy(in_folder, HARD.replace("inputs.x:0.shape: [[1], [2]]", "inputs.x:0: [{data: ones}]"))
    record, _ = toy.run("mode=plain", "tint.colour=rows")
    folder = toy.outputs / "sweeps" / "toy" / record.id / "points" / "0001"
    command = shlex.split((folder / "command.txt").read_text())
    assert str(folder.resolve() / "recipe.yaml") in command
    assert _decide(toy, folder / "command.txt") == ["reused", "reused"]


def _decide(toy: SweepToy, command: Path) -> list[str]:
    """Return the plan of a point's command."""
    words = shlex.split(command.read_text().partition("\n")[2])
    assert words[:2] == ["ndld-flow", "run"]
    assert words[-3:] == ["--outputs", str(toy.outputs), "--trust"]
    planned = plan_once(words[2], words[3:-3], outputs=toy.outputs, trust=True)
    return [decision.reason.text for decision in planned]
