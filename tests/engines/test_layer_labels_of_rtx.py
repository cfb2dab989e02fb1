"""Precisions and findings of engines that TensorRT-RTX really compiles: of half precision, and of our own Q/DQ."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from ndld_flow.profiles.diagnose.diagnose import insights_of_engine
from ndld_flow.profiles.diagnose.subject import EngineSubject, is_product
from ndld_flow.records.build import Build
from ndld_flow.records.profile import Layer
from ndld_flow.runtimes.tensorrt.library import find_library
from tests.support.command_line import ndld_flow
from tests.support.models import GraphBuilder

pytestmark = pytest.mark.skipif(not find_library("tensorrt_rtx").found, reason="builds with TensorRT-RTX")

RECIPE = """\
name: labels
model: model.onnx
inputs: {x: {data: random}}
steps:
  half: {step: convert_fp16, from: source}
  int8: {step: quantize, from: source, target: tensorrt}
  sums: {step: quantize, from: source, target: tensorrt, op_types: [Conv, Add]}
  of_half: {step: build_engine, from: half, backend: tensorrt_rtx, compute_capabilities: ["8.6"]}
  of_int8: {step: build_engine, from: int8, backend: tensorrt_rtx, compute_capabilities: ["8.6"]}
  of_sums: {step: build_engine, from: sums, backend: tensorrt_rtx, compute_capabilities: ["8.6"]}
"""


def residual_network() -> onnx.ModelProto:
    """Two convolutions, and around the second an addition that goes on into a third."""
    builder = GraphBuilder()

    def conv(name: str) -> str:
        return builder.op("Conv", name, builder.weight(64, 64, 3, 3), builder.weight(64), pads=[1, 1, 1, 1])

    first = builder.op("Relu", conv("x"))
    added = builder.op("Relu", builder.op("Add", conv(first), first))
    conv(added)
    builder.nodes[-1].output[0] = "y"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64, 16, 16]) for name in ("x", "y")]
    return builder.model(ends[:1], ends[1:])


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Build]:
    folder = tmp_path_factory.mktemp("labels")
    onnx.save(residual_network(), folder / "model.onnx")
    (folder / "recipe.yaml").write_text(RECIPE)
    ran = ndld_flow("run", "recipe.yaml", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    latest = folder / "outputs" / "runs" / "labels" / "latest"
    names = ("of_half", "of_int8", "of_sums")
    return {name: Build.model_validate_json((latest / name / "build.json").read_bytes()) for name in names}


def products(build: Build) -> list[Layer]:
    return [layer for layer in build.layers if is_product(layer)]


def rules(build: Build) -> set[str]:
    return {item.name for item in insights_of_engine(EngineSubject(build.as_profile(), build))}


@pytest.mark.thorough
def test_convolutions_compute_in_the_type_of_their_operands(builds: dict[str, Build]) -> None:
    """RTX writes what INT8 convolutions compute as FP32, and rescales it in the next kernel."""
    assert {layer.precision for layer in products(builds["of_half"])} == {"float16"}
    of_int8 = products(builds["of_int8"])
    assert len(of_int8) == 3
    assert {(layer.precision, layer.weights_dtype) for layer in of_int8} == {("int8", "int8")}
    assert {layer.output_precision for layer in of_int8} == {"float32"}
    assert {layer.groups for layer in of_int8} == {1}


@pytest.mark.thorough
def test_which_circuit_multiplies_is_not_known_before_the_gpu_is(builds: dict[str, Build]) -> None:
    assert {layer.unit for build in builds.values() for layer in products(build)} == {""}
    assert builds["of_int8"].as_profile().tensor_cores is None


@pytest.mark.thorough
def test_following_the_advice_settles_it(builds: dict[str, Build]) -> None:
    """`Add` in `op_types` quantizes the residual: the finding goes, and with it a tensor in floating point."""
    assert "unquantized_residual" in rules(builds["of_int8"])
    assert "unquantized_residual" not in rules(builds["of_sums"])
    assert not any("quanti" in rule for rule in rules(builds["of_half"]))
    assert "single_precision_only" not in rules(builds["of_int8"])
