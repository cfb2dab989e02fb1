"""Layers with a kernel in Python, on the stand-in of `tensorrt.plugin`, whose device memory is the host's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import onnx
import pytest
from pydantic import ValidationError

from ndld_flow import api
from ndld_flow.base.errors import BackendError, ModelError, RecipeError, RequestError
from ndld_flow.engines import foresight
from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.engines.foresight import foresee_build
from ndld_flow.execution.events import RunFinished
from ndld_flow.records.build import Build
from ndld_flow.runtimes.tensorrt import settings
from ndld_flow.steps.build_engine import BuildEngine
from ndld_flow.steps.check_accuracy import CheckAccuracy
from ndld_flow.store.kinds import Engine, Onnx
from tests.support import models_run
from tests.support.engine_standins import Standins, make_standins
from tests.support.message_files import CheckMessage
from tests.support.models_run import run_step

HELPER = "FACTOR = 3\n"
REGISTERED = """
import ctypes
import numpy as np
import tensorrt.plugin as trtp
from factors import FACTOR

@trtp.register("acme::Scaled")
def describe(x: trtp.TensorDesc, bias: float) -> trtp.TensorDesc:
    return x.like()
"""
CALLED = """
@trtp.impl("acme::Scaled")
def compute(x: trtp.Tensor, bias: float, outputs: tuple[trtp.Tensor], stream: int) -> None:
    read, write = (
        np.ctypeslib.as_array(ctypes.cast(each.data_ptr, ctypes.POINTER(ctypes.c_float)), each.shape)
        for each in (x, outputs[0])
    )
    write[...] = FACTOR * read + bias
"""
COMPILED = """
@trtp.aot_impl("acme::Scaled")
def compile_kernel(
    x: trtp.TensorDesc, outputs: tuple[trtp.TensorDesc], tactic: int
) -> tuple[str, bytes, trtp.KernelLaunchParams, trtp.SymIntExprs]:
    return "scaled", b".version 8.0", trtp.KernelLaunchParams(), trtp.SymIntExprs(1)
"""


def write_model(path: Path, **attributes: Any) -> Path:
    """Write `y = Relu(Scaled(x))`, found by the node's domain."""
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in ("x", "h", "y")]
    nodes = [
        onnx.helper.make_node("Scaled", ["x"], ["h"], name="scaled", domain="acme", bias=1.0, **attributes),
        onnx.helper.make_node("Relu", ["h"], ["y"], name="relu"),
    ]
    graph = onnx.helper.make_graph(nodes, "g", values[:1], values[2:], value_info=values[1:2])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("acme", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def standins(tmp_path_factory: pytest.TempPathFactory) -> Standins:
    return make_standins(tmp_path_factory)


@pytest.fixture
def library(standins: Standins, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(standins.cudart), prepend=os.pathsep)
    monkeypatch.setenv("STANDIN_COMPUTES", "1")
    return standins.library("tensorrt", "10.9")


def build(folder: Path, library: Path, code: str, release: str = "", **attributes: Any) -> tuple[Path, Build]:
    (folder / "factors.py").write_text(HELPER)
    (folder / "scaled.py").write_text(code)
    settings = {"backend": "tensorrt", "library": str(library), "plugins": [str(folder / "scaled.py")]}
    ran = run_step(BuildEngine, write_model(folder / "m.onnx", **attributes), folder / "built", settings)
    return ran.out / Engine.main, Build.model_validate_json((ran.out / Build.file_name).read_text())


def computes(folder: Path, library: Path, engine: Path, expected: str, **settings: Any) -> bool:
    """Return whether an engine's outputs are those of a model in ONNX Runtime."""
    runtime = {"backend": "tensorrt", "library": str(library), "engine_file": str(engine), **settings}
    path = folder / f"ran-{len([*folder.glob('ran-*')])}"
    plain = models_run.write_model(folder / "plain.onnx", f"g (float[2, 3] x) => (float[2, 3] y) {{ {expected} }}")
    reference = {"reference": Onnx(plain, "plain", "other")}
    return run_step(CheckAccuracy, folder / "m.onnx", path, {"runtime": runtime}, artifacts=reference).result.passed


def test_an_engine_calls_its_layer_in_python(library: Path, tmp_path: Path) -> None:
    engine, record = build(tmp_path, library, REGISTERED + CALLED)
    assert record.layers_basis == "engine inspector", "the inspector's runtime has the plugins too"
    assert "scaled" in {layer.name for layer in record.layers}
    given = {"plugins": [str(tmp_path / "scaled.py")]}
    right = "f = Constant <value = float {3}> () o = Constant <value = float {1}> () m = Mul(x, f) a = Add(m, o)"
    assert computes(tmp_path, library, engine, f"{right} y = Relu(a)", **given)
    assert not computes(tmp_path, library, engine, f"{right} y = Relu(m)", **given)
    chosen = settings.TensorrtSettings(backend="tensorrt", engine="engine")
    assert settings._plugins(chosen, record) == (tmp_path / "scaled.py",), "those of the build"
    assert settings._plugins(chosen.model_copy(update={"plugins": (Path("/a.py"),)}), record) == (Path("/a.py"),)
    with pytest.raises(BackendError, match=r"acme::Scaled"):
        computes(tmp_path, library, engine, f"{right} y = Relu(a)")


def test_a_compiled_layer_needs_no_python_later(library: Path, tmp_path: Path, standins: Standins) -> None:
    engine, record = build(tmp_path, library, REGISTERED + CALLED + COMPILED)
    assert "PREFER_AOT_PYTHON_PLUGINS" in record.network_flags
    assert b'"kernels": ["scaled"]' in engine.read_bytes()
    (tmp_path / "one").mkdir()
    engine, _ = build(tmp_path / "one", library, REGISTERED + CALLED + COMPILED, aot=0)
    assert b'"kernels": []' in engine.read_bytes(), "the node's attribute goes before the preference"
    (tmp_path / "old").mkdir()
    older = standins.library("tensorrt", "10.8")
    _, record = build(tmp_path / "old", older, REGISTERED + CALLED)
    assert record.network_flags == (), "that release has no such flag"


def test_mistakes_in_the_file_are_named_with_their_line(
    library: Path, tmp_path: Path, check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as refused:
        build(tmp_path, library, REGISTERED + "\n\n\n" + CALLED.replace("Scaled", "Scled"))
    check_message(refused.value)
    (tmp_path / "two").mkdir()
    with pytest.raises(ModelError) as broken:
        build(tmp_path / "two", library, REGISTERED.replace("acme", "other") + CALLED.replace("acme", "other"))
    check_message(broken.value)


@pytest.mark.thorough
def test_a_change_beside_the_file_builds_and_profiles_again(
    library: Path, in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (foresight, settings):
        monkeypatch.setattr(module, "has_nvidia_gpu", lambda: True)
    common = {"backend": "tensorrt", "library": str(library)}
    quick = {"runs": 1, "passes": 3, "duration": 0, "stable": 0, "warmup": 0, "layer_passes": 0}
    recipe = {
        "name": "r",
        "model": str(write_model(in_folder / "m.onnx")),
        "custom_operators": {"acme::Scaled": {"plugin": "scaled.py"}},
        "steps": {
            "engine": {"step": "build_engine", **common},
            "speed": {"step": "profile", **common, "engine": "engine", **quick},
        },
    }
    (in_folder / "r.yaml").write_text(json.dumps(recipe))
    (in_folder / "scaled.py").write_text(REGISTERED + CALLED)
    (in_folder / "factors.py").write_text(HELPER)
    with pytest.raises(RecipeError, match="--trust"):
        api.run(in_folder / "r.yaml")

    def run() -> RunFinished:
        finished = api.run(in_folder / "r.yaml", trust=True)
        assert isinstance(finished, RunFinished)
        assert finished.exit_code == 0
        return finished

    first = run()
    assert run().nothing_to_do
    (in_folder / "factors.py").write_text(HELPER.replace("3", "4"))
    second = run()
    assert {name for name, path in second.artifacts.items() if path != first.artifacts[name]} == {"engine", "speed"}


def test_where_it_cannot_work_is_refused_before_building(
    standins: Standins, tmp_path: Path, check_message: CheckMessage
) -> None:
    (tmp_path / "scaled.py").write_text("")
    with pytest.raises(ValidationError) as caught:
        BuildSettings(version_compatible=True, plugins=(tmp_path / "scaled.py",))
    check_message(caught.value)
    rtx = standins.library("tensorrt_rtx", "1.7")
    settings = {"backend": "tensorrt_rtx", "library": str(rtx), "plugins": [str(tmp_path / "scaled.py")]}
    problems = foresee_build(BuildSettings.model_validate_json(json.dumps(settings))).problems
    assert any("kernel in Python" in problem for problem in problems)
