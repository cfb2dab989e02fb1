"""Mistakes of those who come from other tools, each with its hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from ndld_flow.base.errors import RecipeError
from tests.support.command_line import ndld_flow
from tests.support.message_files import CheckMessage
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
    "recipe",
    [
        f"onnx: model.onnx\n{SPEED}",
        f"model: {{path: model.onnx}}\n{SPEED}",
        "model: model.onnx\nservices: {lint: {}}",
        "model: model.onnx\nsteps: [lint]",
        "model: model.onnx\nsteps: {a: {uses: lint}}",
        "model: model.onnx\nsteps: {a: {type: lint}}",
        "model: model.onnx\nsteps: {a: {step:lint}}",
        "model: model.onnx\nsteps: {benchmark: {}}",
        "model: model.onnx\nsteps: {lint: {needs: source}}",
        "model: model.onnx\nsteps: {lint: {if: always()}}",
        "model: model.onnx\nsteps: {lint: {timeout-minutes: 5}}",
        "model: model.onnx\nsteps: {lint: {with: {skip: []}}}",
        "model: model.onnx\nsteps: {speed: {step: profile, iterations: 3}}",
        "model: model.onnx\nsteps: {speed: {step: profile, runtime: trt}}",
        "model: model.onnx\nsteps: {speed: {step: profile, backend: trt}}",
        'model: model.onnx\nsteps: {speed: {step: profile, passes: "3"}}',
        "model: model.onnx\nsteps: {half: {step: convert_fp16, keep_io: 'yes'}}",
        "model: model.onnx\nsteps: {1: {step: lint}}",
        f"model: model.onnx\ninputs: {{x: {{shape: 1x3x8x8}}}}\n{SPEED}",
        f"model: model.onnx\ninputs: {{x: [1, 3, 8, 8]}}\n{SPEED}",
        f"model: model.onnx\n{SPEED}\ngates: [speed.latency <= 5 ms]",
        f"model: model.onnx\n{SPEED}\ngates: speed.latency.median <= 5 ms",
        f"model: model.onnx\n{SPEED}\nmatrix: {{threads: [1, 2]}}",
        f"model: ${{{{ env.MODEL }}}}\n{SPEED}",
        f"model: ${{env:MODEL}}\n{SPEED}",
    ],
)
def test_forms_of_other_tools_get_the_right_hint(folder: Path, recipe: str, check_message: CheckMessage) -> None:
    check_message(hints(folder, recipe))


@pytest.mark.parametrize(
    "override",
    [
        "speed.passes=3",
        "passes=3",
        "steps.speed.passes:3",
        "steps.speed.passes",
        "other.yaml",
        "steps.speed.threads=1,2",
    ],
)
def test_overrides_of_other_forms_get_the_right_hint(folder: Path, override: str, check_message: CheckMessage) -> None:
    check_message(hints(folder, f"model: model.onnx\n{SPEED}", override))


@pytest.mark.parametrize(
    "arguments",
    [
        ["model.onnx"],
        ["r.yaml"],
        ["run", "model.onnx"],
        ["benchmark", "model.onnx"],
        ["convert", "model.onnx"],
        ["optimise", "model.onnx"],
        ["run", "r.yaml", "--fp16"],
        ["run", "--onnx=model.onnx"],
        ["plan", "r.yaml", "--steps.speed.passes=3"],
        ["profile", "model.onnx", "--iterations=10"],
        ["profile", "model.onnx", "iterations=10"],
        ["run", "r.yaml", "model=$MODEL"],
    ],
)
def test_commands_of_other_tools_get_the_right_hint(
    folder: Path, arguments: list[str], check_message: CheckMessage
) -> None:
    (folder / "r.yaml").write_text(f"model: model.onnx\n{SPEED}")
    done = ndld_flow(*arguments, cwd=folder)
    assert done.returncode == 2
    check_message(done.stderr)
