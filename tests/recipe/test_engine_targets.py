"""A quantization is for the runtime of the engine that is built of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support.models import make_cnn
from tests.support.recipes import load_recipe

ENGINE = {"step": "build_engine", "backend": "tensorrt_rtx", "from": "clean"}
CLEAN = {"step": "sanitize", "from": "small"}


def target(settings: dict[str, object], *, engine: bool = True) -> str:
    make_cnn(Path("model.onnx"))
    steps = {"small": {"step": "quantize", **settings}, "clean": CLEAN, **({"engine": ENGINE} if engine else {})}
    Path("recipe.yaml").write_text(yaml.safe_dump({"model": "model.onnx", "steps": steps}, sort_keys=False))
    return str(load_recipe(Path("recipe.yaml")).steps[0].step.target)  # type: ignore[attr-defined]


def test_the_engine_that_reads_it_decides_the_target(in_folder: Path) -> None:
    assert target({}) == "tensorrt"
    assert load_recipe(Path("recipe.yaml")).steps[0].step.foresee().notes == ("for TensorRT: symmetric INT8",)
    assert target({"symmetric": True, "activations": "int8"}) == "tensorrt"
    assert target({}, engine=False) == "cpu"
    assert load_recipe(Path("recipe.yaml")).steps[0].step.foresee().notes == ()


@pytest.mark.parametrize(
    "settings",
    [
        {"target": "cpu"},
        {"mode": "dynamic"},
        {"format": "qoperator"},
        {"activations": "uint8"},
        {"symmetric": False},
        {"weights": "uint8"},
        {"optimize": "latency"},
    ],
)
def test_what_is_set_stays(in_folder: Path, settings: dict[str, object]) -> None:
    assert target(settings) == "cpu"
