"""The recipes that are shipped, on the real models."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.errors import RecipeError
from ndld_flow.recipe.load import load_recipe
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.runner.events import RunFinished

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "pipelines").glob("*.yaml"))
MODELS = {"quickstart": "det", "ppocr_rec": "rec", "silero_vad": "silero"}
QUIET = ("~steps.base", "~steps.speed")
"""Measuring is tested elsewhere."""


@pytest.fixture
def checkout(in_folder: Path) -> Path:
    for name in ("pipelines", "configs"):
        shutil.copytree(ROOT / name, in_folder / name)
    return in_folder


def run(sample_model: Callable[[str], Path], recipe: str, *overrides: str) -> RunFinished:
    """Run a shipped recipe without measuring, its model taken from the tests' cache."""
    path = Path("pipelines") / f"{recipe}.yaml"
    return api.run(path, [f"model.source={sample_model(MODELS[recipe])}", *QUIET, *overrides])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_sound_and_uses_the_presets(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    recipe = load_recipe(path)
    assert recipe.gates
    assert recipe.file.description
    profiled = [step for step in recipe.steps if step.type.name == "profile"]
    # What decides is measured as the step does by itself: a preset is added to it, and replaced elsewhere.
    enough, preset = ((5, 100), "+profiling") if path.stem == "ci" else ((3, 30), "profiling")
    assert [(step.settings["runs"], step.settings["passes"]) for step in profiled] == [enough] * 2
    thorough = load_recipe(path, [f"{preset}@steps.speed=thorough"])
    assert next(step for step in thorough.steps if step.name == "speed").settings["passes"] == 500
    with pytest.raises(RecipeError, match="profiling/fast"):
        load_recipe(path, [f"{preset}@steps.speed=fast"])


@pytest.mark.parametrize("recipe", MODELS)
def test_every_recipe_passes(checkout: Path, sample_model: Callable[[str], Path], recipe: str) -> None:
    done = run(sample_model, recipe)
    assert done.passed, done.verdict


def test_the_block_of_the_quickstart_is_what_saves_the_model(
    checkout: Path, sample_model: Callable[[str], Path]
) -> None:
    bare = ("~steps.sanitize", "steps.half.block.op_types=[]")
    assert not run(sample_model, "quickstart", *bare).passed
    accuracy = Accuracy.model_validate_json(Path("outputs/runs/quickstart/latest/agree/accuracy.json").read_text())
    assert accuracy.outputs[0].metrics["cosine"] < 0.9
    assert run(sample_model, "quickstart", "~steps.sanitize").passed
    assert run(sample_model, "quickstart", "steps.half.block={values_outside: {}}", "~steps.sanitize").passed
    assert run(sample_model, "quickstart", "steps.half.block.op_types=[]").passed, "sanitize cures it too"
