"""Recipes of programs: arguments and results of `api.run` and `api.plan`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from ndld_flow import api
from ndld_flow.base.errors import RecipeError, RequestError
from ndld_flow.execution.events import RunFinished, SweepFinished
from ndld_flow.execution.request import Placement
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.sweep.plan_sweep import SweepPlan
from tests.support.command_line import ndld_flow
from tests.support.message_files import CheckMessage
from tests.support.sweep_toys import RECIPE as SWEEP_RECIPE
from tests.support.sweep_toys import make_sweep_toy
from tests.support.toys import RECIPE, make_toy


@pytest.fixture
def recipe(in_folder: Path) -> dict[str, Any]:
    """A recipe whose files are in the current directory, and which is itself in none."""
    make_toy(in_folder).recipe.unlink()
    values: dict[str, Any] = yaml.safe_load(RECIPE)
    return values | {"model": Path("model.onnx"), "steps_from": ("steps/stamp.py",)}


@pytest.fixture
def swept(in_folder: Path) -> dict[str, Any]:
    make_sweep_toy(in_folder).recipe.unlink()
    values: dict[str, Any] = yaml.safe_load(SWEEP_RECIPE)
    return values


def test_a_run_of_a_dictionary_returns_metrics_artifacts_and_the_report(recipe: dict[str, Any]) -> None:
    first = api.run(recipe, trust=True)
    assert isinstance(first, RunFinished)
    assert first.passed
    assert (first.metrics["second.length"].value, first.metrics["second.length"].unit) == (4.0, "")
    assert set(first.artifacts) == {"first", "second", "aside"}
    assert first.artifacts["second"] == f"{first.folder}/second/model.onnx"
    assert Path(first.artifacts["second"]).is_file()
    assert Path(first.report).is_file()
    again = api.run(recipe, trust=True)
    assert again.nothing_to_do
    assert (again.folder, again.metrics, again.artifacts) == (first.folder, first.metrics, first.artifacts)


def test_the_folder_of_a_dictionary_repeats_its_run(recipe: dict[str, Any], tmp_path: Path) -> None:
    finished = api.run(recipe, ["steps.first.word=z"], trust=True)
    folder = Path(finished.folder)
    record = read_run_record(folder)
    assert record.command == ("ndld-flow", "run", str(Path("outputs/runs/toy") / record.id / "recipe.yaml"), "--trust")
    assert (folder / "command.txt").read_text() == f"cd {shlex.quote(str(Path.cwd()))}\n{shlex.join(record.command)}\n"
    repeated = ndld_flow(*record.command[1:], cwd=tmp_path)
    assert repeated.returncode == 0
    assert "nothing to do" in repeated.stdout
    assert yaml.safe_load((folder / "recipe.yaml").read_text())["steps"]["first"]["word"] == "z"


def test_a_mistake_in_a_dictionary_has_its_path_and_no_line(
    recipe: dict[str, Any], check_message: CheckMessage
) -> None:
    recipe["steps"]["first"]["wrod"] = "x"
    with pytest.raises(RecipeError) as caught:
        api.plan(recipe, trust=True)
    check_message(caught.value)


def test_a_dictionary_must_hold_plain_data(recipe: dict[str, Any], check_message: CheckMessage) -> None:
    with pytest.raises(RecipeError) as caught:
        api.run({**recipe, "steps": {"first": {"step": "stamp", "word": object()}}}, trust=True)
    check_message(caught.value)
    endless: dict[str, Any] = {}
    endless["steps"] = endless
    with pytest.raises(RecipeError) as caught:
        api.run(endless)
    check_message(caught.value)


def test_code_that_a_dictionary_names_needs_trust(recipe: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="--trust"):
        api.run(recipe)


@pytest.mark.thorough
def test_a_sweep_of_a_dictionary_returns_its_best_point(swept: dict[str, Any]) -> None:
    finished = api.run(swept, trust=True)
    assert isinstance(finished, SweepFinished)
    assert finished.best is not None
    metric = finished.metrics["speed.ms"]
    assert (metric.value, metric.unit) == (4.0, "ms")  # 12 ms by 4 threads, and 1 ms for rows
    point = Path(finished.folder) / f"points/{finished.best:04}"
    assert set(finished.artifacts) == {"base", "tint", "speed"}
    assert all(Path(path).is_file() and Path(path).is_relative_to(point) for path in finished.artifacts.values())
    command = read_run_record(point).command
    assert command == ("ndld-flow", "run", str(point.absolute() / "recipe.yaml"), "--trust")
    again = api.run(swept, trust=True)
    assert again.nothing_to_do
    assert (again.metrics, again.artifacts) == (finished.metrics, finished.artifacts)


@pytest.mark.thorough
def test_a_dictionary_is_swept_in_worker_processes(swept: dict[str, Any], isolated_steps: None) -> None:
    finished = api.run(swept, trust=True, place=Placement(jobs=2))
    assert finished.passed


def test_overrides_sweep_over_a_dictionary(recipe: dict[str, Any], check_message: CheckMessage) -> None:
    planned = api.plan(recipe, ["steps.first.word=a,b,c"], trust=True, multirun=True)
    assert isinstance(planned, SweepPlan)
    assert planned.point_count == 3
    decisions = api.plan(recipe, trust=True)
    assert isinstance(decisions, list)
    assert [decision.step.name for decision in decisions] == ["first", "second", "aside"]
    with pytest.raises(RequestError) as caught:
        api.sweep(recipe, trust=True)
    check_message(caught.value)


def test_the_best_point_of_a_dictionary_has_no_text_to_edit(
    swept: dict[str, Any], in_folder: Path, check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as caught:
        api.run(swept, trust=True, apply="best.yaml")
    check_message(caught.value)
    assert not (in_folder / "outputs/sweeps").exists()
