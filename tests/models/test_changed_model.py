"""The check of changed models: defects of the source pass, new ones do not, and ONNX Runtime loads the result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.base.errors import ModelError
from ndld_flow.models import changed_model
from ndld_flow.models.changed_model import check_changed_model, load_failure
from ndld_flow.models.files import load_model, repairs_of, save_model
from tests.support.message_files import CheckMessage

LOG = logging.getLogger("test")
X = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
RELU = helper.make_node("Relu", ["x"], ["y"], name="relu")
WEIGHT = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
MATMUL = helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")
NORM = helper.make_node("SimplifiedLayerNormalization", ["x", "s"], ["y"], axis=-1, name="norm")
SCALE = numpy_helper.from_array(np.ones(4, np.float32), "s")
PLUGIN = helper.make_node("GridSample_TRT", ["x"], ["y"], name="plugin")


def write(
    path: Path, nodes: Sequence[onnx.NodeProto], weights: Sequence[onnx.TensorProto] = (), opset: int = 17
) -> Path:
    graph = helper.make_graph(nodes, "graph", [X], [Y], weights)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)]), path)
    return path


def _add_nonsense(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("nonsense", 1))


def _declare_without_shape(model: onnx.ModelProto) -> None:
    model.graph.value_info.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))


def _shrink_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 5


def _rename_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Relo"


DEFECTS: dict[str, Callable[[onnx.ModelProto], object]] = {
    "graph name": lambda model: model.graph.ClearField("name"),
    "input shape": lambda model: model.graph.input[0].type.tensor_type.ClearField("shape"),
    "output shape": lambda model: model.graph.output[0].type.tensor_type.ClearField("shape"),
    "opset": lambda model: model.ClearField("opset_import"),
    "value info": _declare_without_shape,
    "attribute": _add_nonsense,
    "operator": _rename_operator,
    "shapes": _shrink_output,
}


def edit(path: Path, target: Path, defect: str) -> Path:
    """Write a copy of a model with a defect."""
    model = onnx.load(path)
    DEFECTS[defect](model)
    onnx.save(model, target)
    return target


@pytest.mark.parametrize(
    "change", ["output shape", "input shape", "value info", "graph name", "attribute", "operator", "shapes"]
)
def test_a_defect_of_the_source_passes_and_a_new_one_does_not(tmp_path: Path, change: str) -> None:
    good = write(tmp_path / "good.onnx", [RELU])
    bad = edit(good, tmp_path / "bad.onnx", change)
    check_changed_model(bad, bad, LOG)
    if change not in ("graph name", "value info"):  # neither has an effect
        with pytest.raises(ModelError):
            check_changed_model(good, bad, LOG)


def test_remaining_defects_are_logged_with_their_remedy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad = edit(write(tmp_path / "a.onnx", [RELU]), tmp_path / "bad.onnx", "output shape")
    check_changed_model(bad, bad, LOG)
    (message,) = (record.message for record in caplog.records)
    assert message.startswith("output 'y' ") and "`sanitize`" in message


def test_a_defect_of_the_source_does_not_excuse_another(tmp_path: Path, check_message: CheckMessage) -> None:
    bad = edit(write(tmp_path / "a.onnx", [RELU]), tmp_path / "bad.onnx", "output shape")
    worse = edit(bad, tmp_path / "worse.onnx", "attribute")
    with pytest.raises(ModelError) as caught:
        check_changed_model(bad, worse, LOG)
    check_message(caught.value)


def test_a_result_that_onnx_runtime_does_not_load_is_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    source = write(tmp_path / "source.onnx", [RELU])
    target = write(tmp_path / "target.onnx", [helper.make_node("Acme", ["x"], ["y"], domain="com.microsoft")])
    target_model = onnx.load(target)
    target_model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(target_model, target)
    onnx.checker.check_model(target, full_check=True)
    check_changed_model(target, target, LOG)
    with pytest.raises(ModelError) as caught:
        check_changed_model(source, target, LOG)
    check_message(caught.value)


RANK_BY_SIZE = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[1, n] x, bool b) => (float y)
<float[1, 4, 1] w = {1, 1, 1, 1}, float[1, 4, 1] r = {1, 1, 1, 1}, int64[1] four = {4}, int64[1] one = {1},
 int64[3] three_dims = {-1, 1, 1}, int64[4] four_dims = {-1, 1, 1, 1}>
{
  y = If (b) <
    then_branch = then () => (float a) {
      s = Shape(x)
      k = Gather(s, one)
      is_long = Equal(k, four)
      c = If (is_long) <
        then_branch = long () => (float[p, q, o, j] c4) { c4 = Reshape(x, four_dims) },
        else_branch = short () => (float[p, q, o] c3) { c3 = Reshape(x, three_dims) }
      >
      l, h, d = LSTM<hidden_size = 1>(c, w, r)
      a = ReduceMean<keepdims = 0>(l)
    },
    else_branch = otherwise () => (float z) { z = ReduceMax<keepdims = 0>(x) }
  >
}
"""
"""With four columns the LSTM has an input of rank 4, which only optimizations show; silero-vad has such a branch."""


@pytest.mark.parametrize(("size", "is_loaded"), [(3, True), (4, False)])
def test_a_result_that_onnx_runtime_cannot_optimize_is_refused(
    size: int, is_loaded: bool, tmp_path: Path, check_message: CheckMessage
) -> None:
    model, source, target = onnx.parser.parse_model(RANK_BY_SIZE), tmp_path / "source.onnx", tmp_path / "target.onnx"
    onnx.save(model, source)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = size
    onnx.save(model, target)
    assert load_failure(target) is None
    check_changed_model(target, target, LOG)
    if is_loaded:
        check_changed_model(source, target, LOG)
    else:
        with pytest.raises(ModelError) as caught:
            check_changed_model(source, target, LOG)
        check_message(caught.value)


def test_a_second_defect_of_the_same_kind_must_load(tmp_path: Path, check_message: CheckMessage) -> None:
    source = write(tmp_path / "source.onnx", [NORM], [SCALE])
    first = helper.make_node("SimplifiedLayerNormalization", ["x", "s"], ["t"], axis=-1, name="first")
    without_scale = helper.make_node("SimplifiedLayerNormalization", ["t"], ["y"], axis=-1, name="second")
    target = write(tmp_path / "target.onnx", [first, without_scale], [SCALE])
    with pytest.raises(ModelError) as caught:
        check_changed_model(source, target, LOG)
    check_message(caught.value)


def test_a_missing_kernel_is_excused_where_types_change(tmp_path: Path) -> None:
    source = write(tmp_path / "source.onnx", [RELU])
    nodes = [
        helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16),
        helper.make_node("Relu", ["b"], ["r"], name="relu"),
        helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
    ]
    target = write(tmp_path / "target.onnx", nodes)
    failure = load_failure(target)
    assert failure is not None and failure.only_kernels and "relu" in failure.message
    check_changed_model(source, target, LOG, new_types=True)
    with pytest.raises(ModelError, match="relu"):
        check_changed_model(source, target, LOG)


@pytest.mark.parametrize(("node", "weights"), [(NORM, [SCALE]), (PLUGIN, [])], ids=["a runtime's", "plugin"])
def test_an_operation_may_add_operators_that_onnx_does_not_know(
    tmp_path: Path, node: onnx.NodeProto, weights: list[onnx.TensorProto]
) -> None:
    source = write(tmp_path / "source.onnx", [RELU])
    check_changed_model(source, write(tmp_path / "target.onnx", [node], weights), LOG)


@pytest.mark.parametrize("external", [False, True])
def test_large_models_load_without_their_weights(
    tmp_path: Path, external: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_model, "_LIGHT_BYTES", 0)
    source = write(tmp_path / "source.onnx", [MATMUL], [numpy_helper.from_array(np.ones((4, 512), np.float32), "w")])
    model = onnx.load(source)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 512
    onnx.save(model, source, save_as_external_data=external, size_threshold=0)
    assert load_failure(source) is None
    model.graph.node[0].input[0] = "nothing"
    onnx.save(model, source)
    failure = load_failure(source)
    assert failure is not None and "nothing" in failure.message


def test_names_and_imports_are_repaired(tmp_path: Path) -> None:
    good = write(tmp_path / "good.onnx", [RELU, helper.make_node("Gelu", ["y"], ["g"], domain="com.microsoft")])
    model = load_model(edit(good, tmp_path / "bad.onnx", "graph name"))
    first, second = repairs_of(model)
    assert "graph" in first and model.graph.name == "graph"
    assert "operators of 'com.microsoft'" in second
    save_model(model, tmp_path / "saved.onnx")
    onnx.checker.check_model(tmp_path / "saved.onnx")
    assert repairs_of(load_model(tmp_path / "saved.onnx")) == []


@pytest.mark.parametrize(("imports", "version"), [([], 18), ([("com.microsoft", 1)], 26)], ids=["none", "another"])
def test_the_version_of_a_missing_default_domain(tmp_path: Path, imports: list[tuple[str, int]], version: int) -> None:
    """Without any, the IR version decides; otherwise it is ONNX Runtime's newest, which ONNX Runtime assumes too."""
    source = edit(write(tmp_path / "source.onnx", [RELU]), tmp_path / "bad.onnx", "opset")
    model = onnx.load(source)
    model.opset_import.extend(helper.make_opsetid(*item) for item in imports)
    onnx.save(model, source)
    assert load_model(source).opset_imports[""] == version


CRASHING = """<ir_version: 8, opset_import: ["": 17]>
    g (float16[n, t, 8] x) => (float16[t, n, 4] y, float16[n, t, 8] z) {
        z = Relu (x)  e = Transpose <perm = [1, 0, 2]> (x)  [product] y = MatMul (e, W)
    }"""


def test_a_model_that_crashes_onnx_runtime_does_not_crash_the_step(tmp_path: Path, check_message: CheckMessage) -> None:
    model = onnx.parser.parse_model(CRASHING)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((8, 4), np.float16), "W"))
    source, crashing = tmp_path / "source.onnx", tmp_path / "crashing.onnx"
    onnx.save(model, crashing)
    failure = load_failure(crashing, optimize=True)
    if failure is None:
        pytest.skip("this release of ONNX Runtime loads the model")
    assert failure.crashed
    assert "SIGSEGV" in failure.message
    assert load_failure(crashing) is None, "another process loads the next model"
    plain = onnx.parser.parse_model(CRASHING.replace("MatMul (e, W)", "Identity (e)").replace("t, n, 4", "t, n, 8"))
    onnx.save(plain, source)
    with pytest.raises(ModelError) as caught:
        check_changed_model(source, crashing, logging.getLogger(__name__), new_types=True)
    check_message(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crashing.onnx", "source.onnx"]
