"""`rebuild`: the engines of a run are built again and compared, and nothing of the new ones remains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.runtimes.tensorrt.library import find_library
from ndld_flow.store.kinds import Engine
from tests.support.command_line import ndld_flow
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


def hide_layers(lock: dict[str, Any]) -> None:
    lock |= {"engine_digest": "another", "layers_basis": "network as parsed"}


def test_an_engine_is_reproduced(engine_folder: Path) -> None:
    rebuilt = api.rebuild("rtx", times=2)
    assert [(engine.step, engine.attempt) for engine in rebuilt.engines] == [("engine", 1), ("engine", 2)]
    assert {engine.comparison.verdict for engine in rebuilt.engines} == {"identical"}, "with the shapes of the recipe"
    assert rebuilt.is_reproduced
    assert not list(Path("outputs/store/building").glob("*"))
    assert ndld_flow("rebuild", "rtx", "--check", cwd=Path()).returncode == 0


@pytest.mark.parametrize(
    ("how", "code", "shown"),
    [
        (move_layer, 1, ("different", "1 layer missing: a layer of before", "1 layer added")),
        (lambda lock: lock.update(engine_digest="another"), 0, ("equal", "the bytes differ")),
        (hide_layers, 4, ("undecided", "nothing shows that the engines are equal")),
    ],
    ids=["layers", "bytes", "unknown layers"],
)
def test_a_check_judges_engines_that_differ(
    engine_folder: Path, how: Callable[[dict[str, Any]], object], code: int, shown: tuple[str, ...]
) -> None:
    change(engine_folder / Engine.lock, how)
    done = ndld_flow("rebuild", "rtx", "--check", cwd=Path())
    assert done.returncode == code
    assert all(text in " ".join(done.stdout.split()) for text in shown)


def test_causes_of_a_difference_are_named(engine_folder: Path) -> None:
    def age(lock: dict[str, Any]) -> None:
        lock["request"] |= {"version": "1.6.1.120", "driver": "580.1"}
        lock["engine_digest"] = "another"

    change(engine_folder / Engine.lock, age)
    (engine,) = api.rebuild("rtx").engines
    assert any("and was TensorRT-RTX 1.6.1.120" in cause for cause in engine.comparison.causes)
    assert any(cause.startswith("the driver is unknown") for cause in engine.comparison.causes)


def test_two_engines_are_compared_by_any_name(engine_folder: Path) -> None:
    change(engine_folder / Engine.lock, move_layer)
    again = Path(api.run({**RECIPE, "name": "again"}, ["steps.engine.optimization_level=0"]).folder) / "engine"
    for before in (
        "rtx:engine",
        str(engine_folder),
        str(engine_folder / Engine.lock),
    ):
        compared = api.diff_engines(before, "again:engine")
        assert compared is not None
        assert compared.verdict == "different"
        assert compared.causes == ("`optimization_level` is 0, and was not set",)
    same = ndld_flow("diff", str(again), "again:engine", "--exit-code", cwd=Path())
    assert (same.returncode, same.stdout.split(": ")[1].split(",")[0]) == (0, "identical")
    assert ndld_flow("diff", "rtx:engine", "again:engine", "--exit-code", cwd=Path()).returncode == 1
    assert api.diff_engines("model.onnx", "rtx:source") is None
    with pytest.raises(RequestError, match="name two engines, or two models"):
        api.diff_engines("model.onnx", "rtx:engine")


def test_the_model_of_the_run_is_built(engine_folder: Path) -> None:
    with Path("model.onnx").open("ab") as model:
        model.write(b"x")
    with pytest.raises(RequestError, match="has changed since the run"):
        api.rebuild("rtx")


@pytest.mark.parametrize("setting", [{"plugins": ["evil.so"]}, {"library": "evil"}])
def test_code_of_a_record_needs_trust(engine_folder: Path, setting: dict[str, Any]) -> None:
    change(engine_folder / Engine.build, lambda build: build["options"].update(setting))
    with pytest.raises(RequestError, match="--trust"):
        api.rebuild("rtx")


def test_timings_of_the_run_are_not_used(engine_folder: Path) -> None:
    change(engine_folder / Engine.build, lambda build: build["options"].update(timing_cache_file="gone", attempt=3))
    assert api.rebuild("rtx").is_reproduced


def test_a_run_without_engines_is_refused(in_folder: Path) -> None:
    make_cnn(in_folder / "model.onnx")
    api.run({"name": "none", "model": "model.onnx", "steps": {"sanitize": {}}})
    with pytest.raises(RequestError, match="no step of it built one"):
        api.rebuild("none")
