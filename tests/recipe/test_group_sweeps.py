"""Sweeps over the files of a config group, as in the first multirun example of Hydra's tutorial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RecipeError
from ndld_flow.recipe.apply_point import apply_point
from ndld_flow.recipe.load import load_sweep
from ndld_flow.recipe.points import Sweep
from tests.support.command_line import ndld_flow
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn

RECIPE = """\
name: my
defaults:
  - precision: none
  - profiling@steps.speed: quick
  - _self_
model: model.onnx
steps:
  speed: {step: profile}
"""
GROUPS = {
    "precision/none": "# @package _global_\nsteps: {}\n",
    "precision/fp16": "# @package _global_\nsteps:\n  half: {step: convert_fp16}\n",
    "precision/int8": "# @package _global_\nsteps:\n  small: {step: quantize, mode: dynamic}\n",
    "profiling/quick": "passes: 5\n",
    "profiling/long": "passes: 500\n",
}


@pytest.fixture
def recipe(in_folder: Path) -> Path:
    make_cnn(Path("model.onnx"))
    for name, text in GROUPS.items():
        path = Path("configs", f"{name}.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    path = Path("my.yaml")
    path.write_text(RECIPE)
    return path


def load(recipe: Path, *overrides: str) -> Sweep:
    sweep = load_sweep(recipe, overrides, multirun=True)
    assert isinstance(sweep, Sweep)
    return sweep


def steps_at(sweep: Sweep, **point: Any) -> list[str]:
    return [step.name for step in sweep.point(point).steps]


def test_each_file_of_a_group_is_a_point_with_its_steps_in_front(recipe: Path) -> None:
    sweep = load(recipe, "precision=none,fp16")
    assert [axis.values for axis in sweep.space.axes] == [("none", "fp16")]  # type: ignore[union-attr]
    assert steps_at(sweep, precision="none") == ["speed"]
    assert steps_at(sweep, precision="fp16") == ["half", "speed"]
    assert sweep.point({"precision": "fp16"}).steps[1].reads["from"] == "half", "and not the source"


def test_glob_selects_the_files_of_a_group(recipe: Path) -> None:
    (axis,) = load(recipe, "precision=glob(*)").space.axes
    assert axis.values == ("fp16", "int8", "none")  # type: ignore[union-attr]
    (axis,) = load(recipe, "precision=glob(*,exclude=int*)").space.axes
    assert axis.values == ("fp16", "none")  # type: ignore[union-attr]


def test_a_group_of_a_step_varies_together_with_a_setting(recipe: Path) -> None:
    sweep = load(recipe, "profiling@steps.speed=quick,long", "steps.speed.threads=1,2", "precision=none,fp16")
    point: dict[str, Any] = {"profiling@steps.speed": "long", "steps.speed.threads": 2, "precision": "fp16"}
    speed = sweep.point(point).steps[-1].settings
    assert (speed["passes"], speed["threads"]) == (500, 2)
    assert sweep.point({**point, "profiling@steps.speed": "quick"}).steps[-1].settings["passes"] == 5


def test_a_recipe_may_list_a_group_as_an_axis_and_choose_without_a_default(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("  - precision: none\n", "") + "sweep: {over: {precision: [fp16, int8]}}\n")
    sweep = load(recipe)
    assert steps_at(sweep, precision="int8") == ["speed", "small"] or steps_at(sweep, precision="int8")[0] == "small"
    assert sweep.variations.split_choices({"precision": "int8"})[0] == ("+precision=int8",)


@pytest.mark.parametrize("in_recipe", [True, False])
def test_an_axis_chooses_the_file_of_a_group_that_the_recipe_leaves_open(
    recipe: Path, in_recipe: bool, check_message: CheckMessage
) -> None:
    text = RECIPE.replace("precision: none", "precision: ???")
    recipe.write_text(text + ("sweep: {over: {precision: [fp16, int8]}}\n" if in_recipe else ""))
    sweep = load(recipe, *([] if in_recipe else ["precision=fp16,int8"]), "steps.speed.threads=1")
    assert [steps_at(sweep, precision=name) for name in ("fp16", "int8")] == [["half", "speed"], ["small", "speed"]]
    recipe.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load(recipe, "steps.speed.threads=1,2")
    check_message(caught.value)


def test_the_best_point_becomes_a_recipe_of_its_own(recipe: Path) -> None:
    sweep = load(recipe, "precision=none,fp16", "steps.speed.threads=1,2")
    chosen, settings = sweep.variations.split_choices({"precision": "fp16", "steps.speed.threads": 2})
    Path("best.yaml").write_text(apply_point(recipe, settings, [*sweep.plain_overrides, *chosen]))
    best = load_sweep(Path("best.yaml"))
    assert not isinstance(best, Sweep)
    assert {step.name for step in best.steps} == {"half", "speed"}


@pytest.mark.parametrize("override", ["precision=none,fp8", "speed@steps.speed=quick,long", "precision=glob(x*)"])
def test_a_file_that_no_group_has_is_named(recipe: Path, override: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(recipe, override)
    assert override.partition("=")[0].partition("@")[0] in str(caught.value)


def test_missing_values_are_all_named_with_their_places(recipe: Path) -> None:
    recipe.write_text("model: ???\nsteps:\n  speed:\n    step: profile\n    threads: ???\n")
    with pytest.raises(RecipeError) as caught:
        load_sweep(recipe)
    assert [problem.path for problem in caught.value.problems] == ["model", "steps.speed.threads"]
    assert load_sweep(recipe, ["model=model.onnx", "steps.speed.threads=1"])


def test_the_files_of_a_recipe_are_listed_in_their_order(recipe: Path) -> None:
    listed = api.list_files(recipe, ["precision=int8"])
    assert [*listed] == ["precision: int8", "profiling@steps.speed: quick", "_self_"]
    assert listed["precision: int8"].resolve() == Path("configs/precision/int8.yaml").resolve()


def test_hydras_own_flags_name_what_to_write(recipe: Path) -> None:
    for flags, instead in (("--config-name=my", "RECIPE.yaml"), ("--cfg=job", "--print"), ("--info=all", "--defaults")):
        refused = ndld_flow("run", str(recipe), flags, cwd=Path())
        assert refused.returncode == 2
        assert instead in refused.stderr
    assert ndld_flow("run", str(recipe), "hydra.sweeper=x", cwd=Path()).returncode == 2
