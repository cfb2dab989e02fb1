"""`run --print`: the composed recipe as YAML that can be run."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ndld_flow import api
from ndld_flow.base.errors import RecipeError
from ndld_flow.recipe.load import load_sweep
from ndld_flow.recipe.points import Sweep
from tests.support.command_line import ndld_flow
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn
from tests.support.recipes import load_recipe

RECIPE = """\
model: model.onnx
steps:
  base: {step: profile, from: source, passes: 40}
  speed: {step: profile, from: source, passes: "${steps.base.passes}"}
"""


@pytest.fixture
def recipe(in_folder: Path) -> Path:
    make_cnn(in_folder / "model.onnx")
    path = in_folder / "my.yaml"
    path.write_text(RECIPE)
    return path


def test_the_printed_recipe_is_the_composed_one(recipe: Path, in_folder: Path) -> None:
    overrides = ["steps.base.passes=7", "+steps.check.step=lint", "+profiling@steps.speed=quick"]
    printed = in_folder / "elsewhere.yaml"
    printed.write_text(api.compose(recipe, overrides))
    direct, again = load_recipe(recipe, overrides), load_recipe(printed)
    assert (again.name, again.path.name) == (direct.name, "elsewhere.yaml")
    assert [(step.name, step.settings, step.reads) for step in again.steps] == [
        (step.name, step.settings, step.reads) for step in direct.steps
    ]
    assert api.compose(printed) == printed.read_text()


def test_interpolations_are_printed_as_written(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    recipe.write_text(f"{RECIPE}description: ${{oc.env:TOKEN}} ${{oc.env:NOT_THERE}}\n")
    text = api.compose(recipe)
    assert "hunter2" not in text
    assert yaml.safe_load(text)["description"] == "${oc.env:TOKEN} ${oc.env:NOT_THERE}"
    assert yaml.safe_load(text)["steps"]["speed"]["passes"] == "${steps.base.passes}"


def test_passwords_of_addresses_are_not_printed(recipe: Path) -> None:
    text = api.compose(recipe, ["model=https://ann:hunter2@example.com/model.onnx"])
    assert "hunter2" not in text


def test_axes_of_the_command_line_are_in_the_printed_sweep(recipe: Path, in_folder: Path) -> None:
    printed = in_folder / "sweep.yaml"
    printed.write_text(
        api.compose(recipe, ["steps.speed.threads=1,2", "+sweep.minimize=speed.latency.min"], multirun=True)
    )
    sweep = load_sweep(printed)
    assert isinstance(sweep, Sweep)
    assert [axis.keys for axis in sweep.axes] == [("steps.speed.threads",)]


def test_steps_of_files_are_found_from_any_folder(recipe: Path, in_folder: Path) -> None:
    recipe.write_text(f"steps_from: [own/step.py]\n{RECIPE}")
    assert yaml.safe_load(api.compose(recipe))["steps_from"] == [str(in_folder / "own" / "step.py")]


def test_printing_runs_nothing_and_creates_nothing(recipe: Path, in_folder: Path) -> None:
    done = ndld_flow("run", "my.yaml", "--print", "steps.base.passes=3", cwd=in_folder)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["steps"]["base"]["passes"] == 3
    assert sorted(path.name for path in in_folder.iterdir()) == ["model.onnx", "my.yaml"]


def test_a_recipe_that_cannot_be_composed_is_refused(recipe: Path, check_message: CheckMessage) -> None:
    with pytest.raises(RecipeError) as caught:
        api.compose(recipe, ["+no_such_group@steps.base=x"])
    check_message(caught.value)
