"""Mistakes of those who come from other tools, each with its hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from ndld_flow.base.errors import RecipeError
from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn
from tests.support.recipes import load_recipe

SPEED = "steps: {speed: {step: profile}}"


@pytest.fixture
def folder(in_folder: Path) -> Path:
    make_cnn(in_folder / "model.onnx")
    return in_folder


def hints(folder: Path, text: str, *overrides: str) -> str:
    """Return the problems of a recipe, with their hints."""
    (folder / "r.yaml").write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(folder / "r.yaml", overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("recipe", "hint"),
    [
        (f"onnx: model.onnx\n{SPEED}", 'did you mean "model"?'),
        (f"model: {{path: model.onnx}}\n{SPEED}", 'did you mean "source"?'),
        ("model: model.onnx\nservices: {lint: {}}", 'did you mean "steps"?'),
        ("model: model.onnx\nsteps: [lint]", "without the dash"),
        ("model: model.onnx\nsteps: {a: {uses: lint}}", "write `step: lint` instead"),
        ("model: model.onnx\nsteps: {a: {type: lint}}", "write `step: lint` instead"),
        ("model: model.onnx\nsteps: {a: {step:lint}}", "colon: `step: lint`"),
        ("model: model.onnx\nsteps: {benchmark: {}}", "did you mean `profile`?"),
        ("model: model.onnx\nsteps: {lint: {needs: source}}", "`from: STEP` names"),
        ("model: model.onnx\nsteps: {lint: {if: always()}}", "a step has no condition"),
        ("model: model.onnx\nsteps: {lint: {timeout-minutes: 5}}", "sweep: {timeout: 10 min}"),
        ("model: model.onnx\nsteps: {lint: {with: {skip: []}}}", "settings beside `step:`"),
        ("model: model.onnx\nsteps: {speed: {step: profile, iterations: 3}}", 'did you mean "passes"?'),
        ("model: model.onnx\nsteps: {speed: {step: profile, runtime: trt}}", 'did you mean "backend"?'),
        ("model: model.onnx\nsteps: {speed: {step: profile, backend: trt}}", 'did you mean "tensorrt"?'),
        ('model: model.onnx\nsteps: {speed: {step: profile, passes: "3"}}', "write 3 without quotes"),
        ("model: model.onnx\nsteps: {half: {step: convert_fp16, keep_io: 'yes'}}", "write true"),
        ("model: model.onnx\nsteps: {1: {step: lint}}", "a letter or _, then"),
        (f"model: model.onnx\ninputs: {{x: {{shape: 1x3x8x8}}}}\n{SPEED}", "write [1, 3, 8, 8]"),
        (f"model: model.onnx\ninputs: {{x: [1, 3, 8, 8]}}\n{SPEED}", "write `{shape: [1, 3, 8, 8]}`"),
        (f"model: model.onnx\n{SPEED}\ngates: [speed.latency <= 5 ms]", 'such as "latency.median"'),
        (f"model: model.onnx\n{SPEED}\ngates: speed.latency.median <= 5 ms", "write a list: `gates: [...]`"),
        (f"model: model.onnx\n{SPEED}\nmatrix: {{threads: [1, 2]}}", "`sweep: {over: "),
        (f"model: ${{{{ env.MODEL }}}}\n{SPEED}", "${oc.env:MODEL}"),
        (f"model: ${{env:MODEL}}\n{SPEED}", "${oc.env:MODEL}"),
    ],
)
def test_forms_of_other_tools_get_the_right_hint(folder: Path, recipe: str, hint: str) -> None:
    assert hint in hints(folder, recipe)


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("speed.passes=3", "did you mean `steps.speed`?"),
        ("passes=3", "did you mean `steps.speed.passes`?"),
        ("steps.speed.passes:3", "write steps.speed.passes=3"),
        ("steps.speed.passes", "without spaces around `=`"),
        ("other.yaml", "recipe runs at a time"),
        ("steps.speed.threads=1,2", "add `-m` to sweep over"),
    ],
)
def test_overrides_of_other_forms_get_the_right_hint(folder: Path, override: str, hint: str) -> None:
    assert hint in hints(folder, f"model: model.onnx\n{SPEED}", override)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["model.onnx"], "`ndld-flow init model.onnx` writes"),
        (["r.yaml"], "mean `ndld-flow run r.yaml`?"),
        (["run", "model.onnx"], "`ndld-flow init model.onnx`"),
        (["benchmark", "model.onnx"], "did you mean `profile`?"),
        (["convert", "model.onnx"], "did you mean `convert_fp16`?"),
        (["optimise", "model.onnx"], "did you mean `optimize`?"),
        (["run", "r.yaml", "--fp16"], "precision is a step"),
        (["run", "--onnx=model.onnx"], "a recipe names its model"),
        (["plan", "r.yaml", "--steps.speed.passes=3"], "`steps.speed.passes=VALUE`"),
        (["profile", "model.onnx", "--iterations=10"], "`iterations=VALUE`"),
        (["profile", "model.onnx", "iterations=10"], 'did you mean "passes"?'),
        (["run", "r.yaml", "model=$MODEL"], "${oc.env:MODEL}"),
    ],
)
def test_commands_of_other_tools_get_the_right_hint(folder: Path, arguments: list[str], hint: str) -> None:
    (folder / "r.yaml").write_text(f"model: model.onnx\n{SPEED}")
    done = ndld_flow(*arguments, cwd=folder)
    assert done.returncode == 2
    assert hint in done.stderr
