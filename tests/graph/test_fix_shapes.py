"""Fixed input shapes, and every shape that follows from them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.inputs import InputSpec
from ndld_flow.models.files import check_model, load_model
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.step import Context, Result
from ndld_flow.steps.fix_shapes import FixShapes
from ndld_flow.store.kinds import Onnx
from tests.support import models
from tests.support.message_files import CheckMessage


def fix(source: Path, settings: str, inputs: Mapping[str, InputSpec] | None = None) -> tuple[Path, Result]:
    out = source.parent / "out"
    out.mkdir(exist_ok=True)
    step = FixShapes.model_validate_json(settings)
    context = Context("fixed", inputs or {}, {}, out, logging.getLogger("test"), lambda *_: None, Path())
    return out / "model.onnx", step.run(Onnx(source, "source", ""), out, context)


def dims(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in value.type.tensor_type.shape.dim]


def shapes(path: Path) -> dict[str, list[int | str]]:
    graph = onnx.load(path, load_external_data=False).graph
    return {value.name: dims(value) for value in (*graph.input, *graph.output, *graph.value_info)}


def test_shapes_reach_every_tensor(tmp_path: Path) -> None:
    path, result = fix(models.make_cnn(tmp_path / "source.onnx"), '{"shapes": {"x": [2, 3, 16, 16]}}')
    outcome = shapes(path)
    assert outcome["x"] == [2, 3, 16, 16]
    assert outcome["y"] == [2, 10]
    assert outcome["MaxPool_12_out"] == [2, 16, 8, 8]
    assert all(isinstance(dim, int) for shape in outcome.values() for dim in shape)
    assert result.metrics["dynamic_tensors"] == 0
    assert "x [2, 3, 16, 16]" in result.summary
    check_model(path, full_check=True)


def test_dimensions_named_with_a_question_mark_need_not_be_equal(tmp_path: Path, check_message: CheckMessage) -> None:
    """Paddle's exporters name every dynamic dimension `?`."""
    b = models.GraphBuilder()
    models.rename_output(b, b.op("Conv", "x", b.weight(4, 3, 3, 3), pads=[1, 1, 1, 1]), "y")
    x, y = models.tensor("x", ["?", 3, "?", "?"]), models.tensor("y", ["?", 4, "?", "?"])
    path, result = fix(models.save(b.model([x], [y]), tmp_path / "m.onnx"), '{"shapes": {"x": [1, 3, 32, 64]}}')
    assert shapes(path) | {"x": [1, 3, 32, 64], "y": [1, 4, 32, 64]} == shapes(path)
    assert result.metrics["dynamic_tensors"] == 0
    with pytest.raises(RequestError) as caught:
        fix(models.save(b.model([x], [y]), tmp_path / "m.onnx"), '{"dims": {"?": 1}}')
    check_message(caught.value)


def test_dimensions_of_minus_one_are_dynamic(tmp_path: Path) -> None:
    """Older exporters of Paddle write -1 for every dynamic dimension; ONNX Runtime takes it for any size."""
    b = models.GraphBuilder()
    models.rename_output(b, b.op("Conv", "x", b.weight(4, 3, 3, 3), pads=[1, 1, 1, 1]), "y")
    x, y = models.tensor("x", [-1, 3, -1, -1]), models.tensor("y", [-1, 4, -1, -1])
    model = load_model(models.save(b.model([x], [y]), tmp_path / "m.onnx"))
    infer_shapes(model)
    assert str(model.graph.inputs[0].shape) == "[None,3,None,None]"
    assert [dim for dim in model.graph.outputs[0].shape or () if isinstance(dim, int)] == [4]


def test_outputs_are_unchanged(tmp_path: Path) -> None:
    source = models.make_tfm(tmp_path / "source.onnx")
    path, _ = fix(source, '{"dims": {"batch": 2, "length": 5}}')
    feed: dict[str, Any] = {name: np.ones((2, 5), np.int64) for name in ("ids", "mask")}
    before, after = (
        ort.InferenceSession(str(p), providers=["CPUExecutionProvider"]).run(None, feed)[0] for p in (source, path)
    )
    np.testing.assert_allclose(np.asarray(after), np.asarray(before), atol=1e-6)


def test_a_named_dimension_is_set_wherever_it_appears(tmp_path: Path) -> None:
    path, result = fix(models.make_tfm(tmp_path / "source.onnx"), '{"dims": {"batch": 4}}')
    outcome = shapes(path)
    assert outcome["ids"] == outcome["mask"] == [4, "length"]
    assert outcome["hidden"] == [4, "length", models.TFM_WIDTH]
    assert "still dynamic: ids, mask" in result.summary


def test_a_shape_of_one_input_sets_names_shared_with_other_inputs(tmp_path: Path) -> None:
    path, _ = fix(models.make_tfm(tmp_path / "source.onnx"), '{"shapes": {"ids": [4, 6]}}')
    assert shapes(path)["mask"] == [4, 6]


def test_the_recipe_s_inputs_are_the_default(tmp_path: Path) -> None:
    source = models.make_cnn(tmp_path / "source.onnx")
    path, _ = fix(source, "{}", {"x": InputSpec(min=(1, 3, 16, 16), opt=(3, 3, 16, 16), max=(4, 3, 16, 16))})
    assert shapes(path)["y"] == [3, 10]
    assert FixShapes.uses_inputs


def test_bodies_of_if_are_inferred_again(tmp_path: Path) -> None:
    path, _ = fix(models.make_ctrl(tmp_path / "source.onnx"), '{"shapes": {"x": [6, 4]}}')
    graph = onnx.load(path).graph
    branches = [a.g for node in graph.node if node.op_type == "If" for a in node.attribute]
    assert len(branches) == 4
    for branch in branches:
        inner = [dims(value) for value in branch.value_info if value.type.tensor_type.elem_type == TensorProto.FLOAT]
        assert [6, 4] in inner
    assert shapes(path)["y"] == [6, 4]


def test_outdated_value_info_is_dropped(tmp_path: Path) -> None:
    source = models.make_cnn(tmp_path / "source.onnx")
    proto = onnx.shape_inference.infer_shapes(onnx.load(source))
    for value in (*proto.graph.input, *proto.graph.value_info, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = 7
    onnx.save(proto, source)
    path, _ = fix(source, '{"shapes": {"x": [2, 3, 32, 32]}}')
    assert shapes(path)["MaxPool_12_out"] == [2, 16, 16, 16]
    assert shapes(path)["y"] == [2, 10]


def test_external_data_stays_on_disk(tmp_path: Path) -> None:
    path, _ = fix(models.make_ext(tmp_path / "source.onnx"), '{"shapes": {"x": [5, 256]}}')
    assert shapes(path)["y"] == [5, 256]
    assert path.stat().st_size < 3000


@pytest.mark.parametrize(
    "settings",
    [
        '{"shapes": {"idz": [1, 2]}}',
        '{"dims": {"lenght": 3}}',
        '{"shapes": {"ids": [1, 2, 3]}}',
        '{"shapes": {"ids": [1, 2], "mask": [1, 3]}}',
        '{"shapes": {"ids": [1, 2]}, "dims": {"batch": 9}}',
        "{}",
    ],
)
def test_unknown_names_are_reported_with_the_nearest(
    tmp_path: Path, settings: str, check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as caught:
        fix(models.make_tfm(tmp_path / "source.onnx"), settings)
    check_message(caught.value)


def test_impossible_shapes_are_reported_with_the_node(tmp_path: Path, check_message: CheckMessage) -> None:
    with pytest.raises(ModelError) as error:
        fix(models.make_cnn(tmp_path / "source.onnx"), '{"shapes": {"x": [1, 5, 16, 16]}}')
    check_message(error.value)
    assert "\n" not in str(error.value)


def test_a_model_that_strict_inference_rejects_is_still_fixed(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Add", ["a", "b"], ["z"]),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    weights = [numpy_helper.from_array(np.zeros(n, np.float32), name) for n, name in ((3, "a"), (4, "b"))]
    values = [models.tensor(name, ["n", 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "main", values[:1], values[1:], weights)
    source = models.save(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "source.onnx"
    )
    path, result = fix(source, '{"dims": {"n": 3}}')
    assert shapes(path)["y"] == [3, 4]
    assert result.change is not None
    assert "strict shape inference rejects" in result.change.notes[0]


def test_a_real_model_is_fixed(tmp_path: Path, sample_model: Callable[[str], Path]) -> None:
    out = tmp_path / "source.onnx"
    out.write_bytes(sample_model("det").read_bytes())
    path, result = fix(out, '{"shapes": {"x": [1, 3, 320, 320]}}')
    assert shapes(path)["sigmoid_0.tmp_0"] == [1, 1, 320, 320]
    assert result.metrics["dynamic_tensors"] == 0


def test_only_inputs_with_a_shape_are_fixed(tmp_path: Path, check_message: CheckMessage) -> None:
    source = models.make_tfm(tmp_path / "source.onnx")
    path, _ = fix(source, "{}", {"ids": InputSpec(shape=(2, 5)), "mask": InputSpec(data="ones")})
    assert shapes(path)["ids"] == [2, 5]
    with pytest.raises(RequestError) as caught:
        fix(source, "{}", {"ids": InputSpec(data="ones")})
    check_message(caught.value)
