"""Engines of models with trained weights and of a transformer, built by TensorRT-RTX and asked for by recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ndld_flow import api
from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.engines.building import build_engine
from ndld_flow.execution.events import RunFinished
from ndld_flow.records.build import Build, ShapeRange
from ndld_flow.records.document import read_document
from ndld_flow.runtimes.tensorrt.library import find_library
from ndld_flow.store.kinds import Engine
from tests.support.engine_builds import Asked, Came, build_all
from tests.support.fp16_checks import agree
from tests.support.message_files import CheckMessage
from tests.support.models import TFM_VOCABULARY, save, tfm_model
from tests.support.toys import Toy, outcomes, started

pytestmark = pytest.mark.skipif(
    not find_library("tensorrt_rtx").found, reason=f"builds with TensorRT-RTX: {find_library('tensorrt_rtx').missing}"
)

AMPERE: dict[str, Any] = {"backend": "tensorrt_rtx", "compute_capabilities": ["8.6"]}
LINE = {axis: [1, 3, 48, 320] for axis in ("min", "opt", "max")}
LINES = {"min": [1, 3, 48, 32], "opt": [4, 3, 48, 640], "max": [8, 3, 48, 1280]}
PICTURE = {"min": [1, 3, 320, 320], "opt": [1, 3, 640, 640], "max": [2, 3, 960, 960]}


@pytest.fixture(scope="module")
def came(sample_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Came]:
    det, rec = sample_model("det"), sample_model("rec")
    fast = AMPERE | {"optimization_level": 0, "max_aux_streams": 0}
    thorough = AMPERE | {
        "optimization_level": 5,
        "max_aux_streams": 2,
        "tf32": False,
        "workspace": "512 MiB",
        "advanced": {"flags": ["STRICT_NANS"]},
    }
    asked = {
        "rec": Asked(rec, fast | {"profiles": [{"x": LINE}, {"x": LINES}]}),
        "fast": Asked(det, fast, {"x": PICTURE}),
        "thorough": Asked(det, thorough, {"x": PICTURE}),
    }
    return build_all(asked, find_library("tensorrt_rtx"), tmp_path_factory.mktemp("real") / "built")


@pytest.mark.thorough
def test_recognition_has_kernels_for_a_line_and_for_many(came: Mapping[str, Came]) -> None:
    build = came["rec"].build
    assert [(profile.basis, profile.inputs["x"]) for profile in build.profiles] == [
        ("profiles[0]", ShapeRange(min=(1, 3, 48, 320), opt=(1, 3, 48, 320), max=(1, 3, 48, 320))),
        ("profiles[1]", ShapeRange(min=(1, 3, 48, 32), opt=(4, 3, 48, 640), max=(8, 3, 48, 1280))),
    ]
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in build.inputs] == [("x", "float32", (-1, 3, -1, -1))]
    assert [tensor.shape for tensor in build.outputs] == [(-1, -1, 6625)]
    assert build.layers_basis == "build log"
    assert 100 < len(build.layers) < build.network_layer_count / 5, "a real compiler fuses most of it"
    nodes = {node for layer in build.layers for node in layer.onnx_nodes}
    assert {"p2o.Conv.0", "p2o.Softmax.2"} <= nodes
    assert build.memory.weights_bytes > 10 * 2**20
    assert build.engine_bytes == len(came["rec"].engine) > build.memory.weights_bytes
    assert build.warnings == build.notes == ()


@pytest.mark.thorough
def test_a_detection_model_is_built_with_flags_and_levels(came: Mapping[str, Came]) -> None:
    fast, thorough = came["fast"].build, came["thorough"].build
    assert fast.flags == ("TF32",)
    assert thorough.flags == ("STRICT_NANS",)
    for build, level, streams in ((fast, 0, 0), (thorough, 5, 2)):
        assert build.applied["builder_optimization_level"] == level
        assert build.applied["max_aux_streams"] == streams
        assert build.profiles[0].inputs["x"].max == (2, 3, 960, 960)
    pools = thorough.applied["memory_pool_limits"]
    assert isinstance(pools, dict)
    assert pools["WORKSPACE"] == 512 * 2**20
    assert came["fast"].engine != came["thorough"].engine


def test_the_error_for_a_refused_if_names_the_log(sample_model: Callable[[str], Path], tmp_path: Path) -> None:
    inputs = {"input": {"shape": [1, 512]}, "state": {"shape": [2, 1, 128]}}
    request = Asked(sample_model("silero"), AMPERE, inputs).request(tmp_path / "build")
    with pytest.raises(BackendError) as raised:
        build_engine(request, lambda *_: None)
    message, log = str(raised.value), tmp_path / "build/caches/build-logs/a-model.log"
    assert "\n" not in message
    assert len(message) < 500 + len(str(log))
    assert ": Assertion" in message
    assert "/_src/" not in message
    assert "part: `sanitize` removes branches" in message
    assert message.endswith(f" The builder's log is {log}.")
    assert "[ERROR] " in log.read_text()


# A transformer, through a recipe ----------------------------------------------------------------------------------

RECIPE = """
name: tfm
model: model.onnx
inputs:
  ids: {min: [1, 1], opt: [2, 16], max: [4, 64], data: zeros}
  mask: {min: [1, 1], opt: [2, 16], max: [4, 64], data: ones}
steps:
  precise: {step: constrain_precision, layers: {"*": fp16}, op_types: {Softmax: fp32, Erf: fp32}}
  engine: {step: build_engine, backend: tensorrt_rtx, compute_capabilities: ["8.6"], typing: obey}
  aside: {step: sanitize, from: source}
gates:
  - engine.engine_bytes <= 4 MiB
  - engine.build_s <= 10 min
"""


@dataclass(frozen=True)
class Transformer:
    """A recipe that ran once."""

    toy: Toy
    first: RunFinished

    @property
    def engine(self) -> Path:
        return Path(self.first.folder, "engine")

    @property
    def build(self) -> Build:
        return read_document(Build, self.engine / Build.file_name)


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Transformer:
    toy = Toy(tmp_path_factory.mktemp("transformer")).write(RECIPE)
    save(tfm_model(layers=1), toy.folder / "model.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(toy.folder)
        done, events = toy.run()
    assert started(events) == ["precise", "engine", "aside"]
    return Transformer(toy, done)


@pytest.fixture
def toy(transformer: Transformer, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """The recipe, where one may run it again."""
    monkeypatch.chdir(transformer.toy.folder)
    return transformer.toy


@pytest.mark.thorough
def test_batch_and_length_stay_free(transformer: Transformer) -> None:
    assert transformer.first.passed, transformer.first.verdict
    build = transformer.build
    assert [(tensor.name, tensor.shape) for tensor in build.inputs] == [("ids", (-1, -1)), ("mask", (-1, -1))]
    assert [tensor.shape for tensor in build.outputs] == [(-1, -1, 32)]
    assert build.profiles[0].inputs["ids"] == ShapeRange(min=(1, 1), opt=(2, 16), max=(4, 64))


@pytest.mark.thorough
def test_the_engine_computes_the_same_as_the_model(transformer: Transformer) -> None:
    typed = transformer.engine / Engine.typed_model
    for batch, length in ((1, 1), (2, 16), (4, 64)):
        ids = np.arange(batch * length).reshape(batch, length) % TFM_VOCABULARY
        agree(transformer.toy.folder / "model.onnx", typed, {"ids": ids, "mask": np.ones_like(ids)}, 1e-2)
    model = onnx.load(typed)
    outcome = {
        constraint.node: (constraint.precision, constraint.outcome) for constraint in transformer.build.constraints
    }
    assert not [constraint.outcome for constraint in transformer.build.constraints if constraint.is_ignored]
    for kind, precision in (("MatMul", "fp16"), ("Softmax", "fp32"), ("Erf", "fp32")):
        assert {outcome[node.name][0] for node in model.graph.node if node.op_type == kind} == {precision}
    asked = [layer for layer in transformer.build.layers if any("MatMul" in node for node in layer.onnx_nodes)]
    assert asked
    assert all(tensor.dtype == "float16" for layer in asked for tensor in layer.outputs)


def test_the_second_run_builds_nothing(toy: Toy) -> None:
    first, _ = toy.run()  # tests that another worker takes over may have changed settings in the latest run
    again, events = toy.run()
    assert again.nothing_to_do
    assert again.folder == first.folder
    assert started(events) == []


@pytest.mark.thorough
def test_a_constraint_rebuilds_the_dependent_engine(transformer: Transformer, toy: Toy) -> None:
    changed = "steps.precise.op_types.Erf=fp16"
    plan = toy.plan(changed)
    assert plan["precise"] == ("settings changed", "op_types.Erf fp32 -> fp16")
    assert plan["engine"][0] == "input changed"
    assert plan["aside"][0] == "reused"
    done, events = toy.run(changed)
    assert done.passed
    assert started(events) == ["precise", "engine"]
    assert outcomes(events)["aside"] == "reused"
    assert Path(done.folder, "engine", Engine.main).read_bytes() != (transformer.engine / Engine.main).read_bytes()


@pytest.mark.thorough
def test_other_gpus_are_another_engine(transformer: Transformer, toy: Toy) -> None:
    other = "steps.engine.compute_capabilities=['8.9']"
    assert toy.plan(other)["engine"][0] == "settings changed"
    done, events = toy.run(other)
    assert started(events) == ["engine"]
    built = Build.model_validate_json(Path(done.folder, "engine", Build.file_name).read_bytes())
    assert built.compute_capabilities == ("8.9",)
    assert built.engine_digest != transformer.build.engine_digest
    assert set(toy.plan().values()) == {("reused", "")}, "the first is still there"


def test_gates_on_engines_decide(transformer: Transformer, toy: Toy) -> None:
    done, events = toy.run("gates=['engine.engine_bytes <= 1 KiB', 'engine.build_s >= 0 s']")
    assert started(events) == []
    assert not done.passed
    assert [(gate.left, gate.passed) for gate in done.gates] == [
        (transformer.build.engine_bytes, False),
        (transformer.build.build_s * 1000, True),
    ]


def test_layers_of_an_engine_are_a_table(transformer: Transformer, toy: Toy, check_message: CheckMessage) -> None:
    table = api.layers(f"{transformer.first.folder}:engine")
    assert list(table["name"]) == [layer.name for layer in transformer.build.layers]
    assert set(table["precision"]) >= {"float16", "unknown"}
    assert api.layers(str(transformer.engine / Build.file_name)).equals(table)
    with pytest.raises(RequestError) as caught:
        api.compare([f"{transformer.first.folder}:engine", transformer.first.folder])
    check_message(caught.value)
