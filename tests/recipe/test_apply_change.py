"""Changes that findings suggest, written into a recipe's text: comments stay, and no other step reads another model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ndld_flow.profiles.diagnose.subject import FUSE, AddedStep, RecipeChange
from ndld_flow.recipe.apply_point import change_file, change_record

TEXT = """\
# Heading.
name: toy
model: model.onnx

steps:
  sanitize: {fuse: false}   # cleaned

  # the speed as it is
  base: {step: profile, threads: 64}   # many threads
  block:
    step: profile
    threads: 1   # one
  half: {step: convert_fp16}
  fast: {step: profile}
"""
RECORDED: Mapping[str, Any] = {
    "name": "toy",
    "model": "model.onnx",
    "steps": {
        "sanitize": {"step": "sanitize", "from": "source", "fuse": False},
        "base": {"step": "profile", "from": "sanitize", "threads": 64},
        "block": {"step": "profile", "from": "sanitize", "threads": 1},
        "half": {"step": "convert_fp16", "from": "sanitize"},
        "fast": {"step": "profile", "from": "half"},
    },
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text(TEXT)
    return path


def test_a_setting_is_written_in_place(recipe: Path) -> None:
    changed = change_file(recipe, (), RecipeChange({"threads": 2}), "base", "sanitize", RECORDED)
    assert changed.after == TEXT.replace("threads: 64", "threads: 2")
    assert (changed.before, changed.reason) == (TEXT, "")


def test_a_step_is_inserted_above_the_comment_of_the_profile(recipe: Path) -> None:
    after = change_file(recipe, (), FUSE, "base", "sanitize", RECORDED).after
    assert "sanitize_2: {step: sanitize" in after
    for comment in ("# Heading.", "# cleaned", "# many threads", "# one"):
        assert comment in after
    assert yaml.safe_load(after)["steps"]["base"] == {"step": "profile", "threads": 64, "from": "sanitize_2"}


def test_later_steps_keep_reading_the_model_that_they_read(recipe: Path) -> None:
    """Without `from:` they would read the inserted step; `fast` reads another step, and stays as it is."""
    steps = yaml.safe_load(change_file(recipe, (), FUSE, "base", "sanitize", RECORDED).after)["steps"]
    assert (steps["block"]["from"], steps["half"]["from"]) == ("sanitize", "sanitize")
    assert "from" not in steps["fast"]


def test_a_check_is_inserted_where_outputs_may_change(recipe: Path) -> None:
    change = RecipeChange(steps=(AddedStep("convert_fp16"),), needs_check=True)
    steps = yaml.safe_load(change_file(recipe, (), change, "block", "sanitize", RECORDED).after)["steps"]
    assert list(steps)[2:5] == ["convert_fp16", "check_accuracy", "block"]
    assert steps["check_accuracy"] == {"reference": "sanitize", "candidate": "convert_fp16"}
    assert steps["block"]["from"] == "convert_fp16"


def test_overrides_of_the_run_are_written_too(recipe: Path) -> None:
    changed = change_file(
        recipe, ("steps.block.threads=3",), RecipeChange({"threads": 2}), "base", "sanitize", RECORDED
    )
    steps = yaml.safe_load(changed.after)["steps"]
    assert (steps["base"]["threads"], steps["block"]["threads"]) == (2, 3)
    assert "# one" in changed.after


def test_line_ends_stay(recipe: Path) -> None:
    recipe.write_bytes(TEXT.replace("\n", "\r\n").encode())
    after = change_file(recipe, (), FUSE, "base", "sanitize", RECORDED).after
    assert after.count("\r\n") == after.count("\n") > 10


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (TEXT + "sweep: {over: {steps.base.threads: [1, 2]}}\n", "it has a `sweep:`"),
        (TEXT.replace("base: {", "base: &same {").replace("fast: {step: profile}", "fast: *same"), "values"),
    ],
)
def test_a_recipe_that_cannot_be_changed_in_place_is_written_in_full(recipe: Path, text: str, why: str) -> None:
    recipe.write_text(text)
    changed = change_file(recipe, (), RecipeChange({"threads": 2}), "base", "sanitize", RECORDED)
    assert why in changed.reason
    assert yaml.safe_load(changed.after)["steps"]["base"]["threads"] == 2
    assert "# toy.yaml could not" in changed.after


def test_a_recorded_recipe_is_changed_without_a_file() -> None:
    changed = change_record(RECORDED, FUSE, "fast", "half", "there is no file")
    steps = yaml.safe_load(changed.after)["steps"]
    assert list(steps)[-2:] == ["sanitize_2", "fast"]
    assert steps["sanitize_2"] == {"step": "sanitize", "from": "half", "fuse": True}
    assert yaml.safe_load(changed.before) == RECORDED
