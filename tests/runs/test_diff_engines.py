"""`diff` and `compare` of two engines, and of an engine that is built again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.records.build import EngineLock
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.runtimes.tensorrt.library import find_library
from tests.support.command_line import ndld_flow
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn

pytestmark = pytest.mark.skipif(
    not find_library("tensorrt_rtx").found, reason=f"builds with TensorRT-RTX: {find_library('tensorrt_rtx').missing}"
)

RECIPE = {
    "name": "rtx",
    "model": "model.onnx",
    "inputs": {"x": {"shape": [2, 3, 16, 16]}},
    "steps": {"engine": {"step": "build_engine", "backend": "tensorrt_rtx", "compute_capabilities": ["8.6"]}},
}


@pytest.fixture
def engine_folder(in_folder: Path) -> Path:
    """The folder of the engine of a run in the current directory."""
    make_cnn(in_folder / "model.onnx")
    return Path(api.run(RECIPE).folder) / "engine"


def change(file: Path, how: Callable[[dict[str, Any]], object]) -> None:
    tree = json.loads(file.read_text())
    how(tree)
    file.unlink()
    file.write_text(json.dumps(tree))


def move_layer(lock: dict[str, Any]) -> None:
    lock["engine_digest"] = "another"
    lock["layers"]["a layer of before"] = lock["layers"].popitem()[1]


def test_a_build_is_reproduced(engine_folder: Path) -> None:
    api.tag("rtx", "first")
    again = Path(api.run(RECIPE, ["steps.engine.attempt=2"]).folder)
    assert read_run_record(again).steps[0].outcome == "done", "the engine of the first run was reused"
    done = ndld_flow("compare", "first:engine", "rtx:engine", cwd=Path())
    assert done.returncode == 0, done.stdout + done.stderr
    compared = api.diff_engines("first:engine", "rtx:engine")
    assert compared is not None
    assert compared.causes == ()


def test_two_engines_are_compared_by_any_name(engine_folder: Path, check_message: CheckMessage) -> None:
    change(engine_folder / EngineLock.file_name, move_layer)
    again = Path(api.run({**RECIPE, "name": "again"}, ["steps.engine.optimization_level=0"]).folder) / "engine"
    for before in (
        "rtx:engine",
        str(engine_folder),
        str(engine_folder / EngineLock.file_name),
    ):
        compared = api.diff_engines(before, "again:engine")
        assert compared is not None
        assert compared.verdict == "different"
        (cause,) = compared.causes
        assert cause.startswith("`optimization_level` is 0,")
    same = ndld_flow("diff", str(again), "again:engine", "--exit-code", cwd=Path())
    assert (same.returncode, same.stdout.split(": ")[1].split(",")[0]) == (0, "identical")
    assert ndld_flow("diff", "rtx:engine", "again:engine", "--exit-code", cwd=Path()).returncode == 1
    assert api.diff_engines("model.onnx", "rtx:source") is None
    with pytest.raises(RequestError) as caught:
        api.diff_engines("model.onnx", "rtx:engine")
    check_message(caught.value)
