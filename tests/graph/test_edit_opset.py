"""Edits of versions: opsets up and down, imports of domains, the file format, metadata."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.opsets import convert_opset
from ndld_flow.models.files import load_model, save_model
from tests.support import models
from tests.support.editing_fixtures import edit, edit_path, parse, run, same_outputs
from tests.support.message_files import CheckMessage

X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)


def at(opset: int, graph: str, ir_version: int = 8) -> onnx.ModelProto:
    return parse(f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>\n{graph}')


def opset_of(model: onnx.ModelProto) -> int:
    return next((int(opset.version) for opset in model.opset_import if opset.domain == ""), 1)


def to(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    after = edit(model, {"set_opset": {"to": opset}})
    onnx.checker.check_model(after, full_check=True)
    assert opset_of(after) == opset
    return after


# --- up and down -----------------------------------------------------------------------------------------------------

NODES = {
    "Squeeze": (12, "g (float[2,1,4] x) => (float[2,4] y) { y = Squeeze<axes = [1]>(x) }"),
    "Unsqueeze": (11, "g (float[2,4] x) => (float[2,1,4] y) { y = Unsqueeze<axes = [-2]>(x) }"),
    "ReduceMean": (17, "g (float[2,3,4] x) => (float[2,3,1] y) { y = ReduceMean<axes = [-1], keepdims = 1>(x) }"),
    "ReduceSum": (12, "g (float[2,3,4] x) => (float[2,3] y) { y = ReduceSum<axes = [2], keepdims = 0>(x) }"),
    "Clip": (10, "g (float[2,3] x) => (float[2,3] y) { y = Clip<min = -0.5, max = 0.5>(x) }"),
    "Slice": (9, "g (float[4,3] x) => (float[2,3] y) { y = Slice<axes = [0], starts = [1], ends = [3]>(x) }"),
    "Softmax, last axis": (12, "g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = 2>(x) }"),
    "Split": (12, "g (float[2,4] x) => (float[2,1] y, float[2,3] z) { y, z = Split<axis = 1, split = [1, 3]>(x) }"),
    "Dropout": (11, "g (float[2,4] x) => (float[2,4] y) { y = Dropout<ratio = 0.3>(x) }"),
    "Pad": (10, "g (float[2,4] x) => (float[2,7] y) { y = Pad<pads = [0, 1, 0, 2], value = 3.0>(x) }"),
    "Upsample": (
        8,
        'g (float[1,1,2,2] x) => (float[1,1,4,4] y) { y = Upsample<scales = [1.0,1.0,2.0,2.0], mode = "nearest">(x) }',
    ),
    "BatchNormalization": (
        9,
        """g (float[1,2,2,2] x) => (float[1,2,2,2] y) <float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {0, 1},
        float[2] v = {1, 4}> { y = BatchNormalization(x, s, b, m, v) }""",
    ),
    "Cast, Relu, Add": (9, "g (float[2,4] x) => (double[2,4] y) { a = Relu(x) b = Add(a, x) y = Cast<to = 11>(b) }"),
}


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        value.name: rng.normal(size=[dim.dim_value for dim in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in model.graph.input
    }


@pytest.mark.representatives("Pad", "Split", "Dropout")
@pytest.mark.parametrize("operator", NODES)
def test_upgrading_to_the_newest_runnable_opset_keeps_outputs(operator: str) -> None:
    opset, text = NODES[operator]
    model = at(opset, text)
    same_outputs(model, to(model, 26), feeds_of(model))


@pytest.mark.representatives("Split", "Cast, Relu, Add")
@pytest.mark.parametrize("operator", sorted(set(NODES) - {"Slice", "Pad", "Clip", "Upsample", "Dropout"}))
def test_downgrading_after_upgrading_restores_the_model(operator: str) -> None:
    """Operators that the converter of onnx can downgrade, or that we convert."""
    opset, text = NODES[operator]
    model = at(opset, text)
    down = to(to(model, 26), opset)
    same_outputs(model, down, feeds_of(model))
    assert [node.op_type for node in down.graph.node] == [node.op_type for node in model.graph.node]
    assert not down.graph.initializer or operator == "BatchNormalization", "constants that became attributes are gone"


@pytest.mark.parametrize(
    ("opset", "older", "text"),
    [
        (
            13,
            11,
            """g (float[1,1,2,2] x) => (float[1,1,4,4] y) <float[0] r = {}, float[4] s = {1, 1, 2, 2}>
            { y = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(x, r, s) }""",
        ),
        (22, 20, "g (float[1,1,4,4] x, float[1,2,2,2] grid) => (float[1,1,2,2] y) { y = GridSample(x, grid) }"),
    ],
)
def test_downgrading_below_a_change_of_semantics_keeps_outputs(
    opset: int, older: int, text: str, check_message: CheckMessage
) -> None:
    model = at(opset, text)
    same_outputs(model, to(model, older), feeds_of(model))
    with pytest.raises(RequestError) as caught:
        to(model, older - 1)
    check_message(caught.value)


@pytest.mark.parametrize("node", ["Clip<min = -0.5, max = 0.5>(x)", "Pad<pads = [0, 0, 0, 0], value = 0.5>(x)"])
def test_values_that_become_inputs_have_the_type_of_the_first_input(node: str) -> None:
    model = at(10, f"g (float16[2, 4] x) => (float16[2, 4] y) {{ y = {node} }}")
    feeds = {"x": np.linspace(-2, 2, 8, dtype=np.float16).reshape(2, 4)}
    same_outputs(model, to(model, 13), feeds)
    to(at(10, f"g (double[2, 4] x) => (double[2, 4] y) {{ y = {node} }}"), 13)


def test_only_nodes_with_another_version_change(tmp_path: Path) -> None:
    text = """g (float[2,4] x) => (float[2,4] y, float[2,1] z) {
        [relu] r = Relu(x)
        [mean] m = ReduceMean<axes = [1], keepdims = 1>(r)
        [trig] y = Sin(r)
        [out] z = Neg(m)
    }"""
    model = at(17, text)
    model.graph.node[1].doc_string = "the mean"
    source = models.save(model, tmp_path / "m.onnx")
    edited = EditedModel(load_model(source), source)
    kept = {node.name: node for node in edited.model.graph}
    assert convert_opset(edited, 18) == {"ReduceMean": 1}
    now = {node.name: node for node in edited.model.graph}
    assert [name for name, node in kept.items() if now[name] is not node] == ["mean"]
    assert now["mean"].doc_string == "the mean"
    assert now["mean"].outputs[0].name == "m"
    assert list(now) == ["relu", "mean_Constant", "mean", "trig", "out"]


def test_nodes_in_subgraphs_and_functions_are_converted_too() -> None:
    branches = at(
        12,
        """g (bool c, float[2,1,3] x) => (float[2,3] y) {
            y = If(c) <then_branch = t () => (float[2,3] p) { p = Squeeze<axes = [1]>(x) },
                       else_branch = e () => (float[2,3] q) { a = Neg(x) q = Squeeze<axes = [1]>(a) }>
        }""",
    )
    after = to(branches, 18)
    for choice in (True, False):
        same_outputs(branches, after, {"c": np.array(choice), "x": X[:, :1, :3].copy()})
    function = parse(
        """<ir_version: 8, opset_import: ["" : 12, "own" : 1]> g (float[2,1,3] x) => (float[2,3] y) { y = own.Sq(x) }
        <domain: "own", opset_import: ["" : 12]> Sq (a) => (b) { b = Squeeze<axes = [1]>(a) }"""
    )
    lifted = to(function, 18)
    assert [(opset.domain, opset.version) for opset in lifted.functions[0].opset_import] == [("", 18)]
    same_outputs(function, lifted, {"x": X[:, :1, :3].copy()})


def test_weights_in_external_data_are_not_read(tmp_path: Path) -> None:
    source = models.make_ext(tmp_path / "m.onnx")
    (tmp_path / "out").mkdir()
    change = edit_path(source, tmp_path / "out" / "m.onnx", {"set_opset": {"to": 21}})
    assert change.after.opset == 21
    assert change.after.initializer_bytes == change.before.initializer_bytes
    width = 256
    feeds = {
        value.name: np.ones([d.dim_value or width for d in value.type.tensor_type.shape.dim], dtype=np.float32)
        for value in onnx.load(source, load_external_data=False).graph.input
    }
    same_outputs(source, tmp_path / "out" / "m.onnx", feeds)


@pytest.mark.representatives("tfm_model", "cnn_model")
@pytest.mark.parametrize(
    "make", [models.cnn_model, models.tfm_model, models.ctrl_model, models.func_model, models.sparse_model]
)
def test_upgrading_all_kinds_of_models_keeps_outputs(make: object) -> None:
    model = make()  # type: ignore[operator]
    opset = opset_of(model)
    after = edit(model, {"set_opset": {"to": 22}})
    assert opset < 22
    feeds = {}
    for value in model.graph.input:
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        dims = [dim.dim_value or 8 for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = np.random.default_rng(0).uniform(0, 2, dims).astype(dtype)
    for name, wanted in run(model, feeds).items():
        np.testing.assert_allclose(run(after, feeds)[name], wanted, rtol=1e-5, atol=1e-6)


def test_the_file_format_follows_the_opset() -> None:
    after = edit(at(12, NODES["Squeeze"][1]), {"set_opset": {"to": 21}})
    assert after.ir_version == 10


# --- what cannot be converted ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opset", "text", "target"),
    [
        (20, "g (float[2] x) => (float[2] y) { [gelu] y = Gelu(x) }", 17),
        (13, "g (float[2,3,4] x) => (float[2,3,4] y) { [s] y = Softmax<axis = 1>(x) }", 12),
        (15, "g (float[2,3] x) => (int64[1] y) { [s] y = Shape<start = 1>(x) }", 14),
        (14, "g (uint8[2] x) => (uint8[2] y) { [a] y = Add(x, x) }", 13),
        (13, "g (float[2,3] x, int64[1] k) => (float[2,1] y) { [r] y = ReduceSum(x, k) }", 12),
        (12, "g (float[2] x) => (float[2] y) { y = Relu(x) }", 99),
        (12, "g (float[2] x) => (float[2] y) { [n] y = NoSuchOp(x) }", 13),
    ],
)
def test_operators_that_cannot_be_converted_are_reported_with_the_reason(
    opset: int, text: str, target: int, check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as caught:
        edit(at(opset, text), {"set_opset": {"to": target}})
    check_message(caught.value)


def test_a_refusal_leaves_the_model_unchanged(tmp_path: Path, check_message: CheckMessage) -> None:
    text = """g (float[2,1,4] x) => (float[2,4] y, float[2,1,4] z) <int64[1] axes = {1}> {
        y = Squeeze(x, axes)
        z = Gelu(x)
    }"""
    source = models.save(at(20, text), tmp_path / "m.onnx")
    edited = EditedModel(load_model(source), source)
    with pytest.raises(RequestError) as caught:
        convert_opset(edited, 11)
    check_message(caught.value)
    assert [len(value.uses()) for value in edited.model.graph.inputs] == [2]
    save_model(edited.model, tmp_path / "after.onnx")
    after, before = (onnx.printer.to_text(onnx.load(path)) for path in (tmp_path / "after.onnx", source))
    assert after.partition("{\n")[2] == before.partition("{\n")[2]


def test_a_default_of_an_input_is_not_a_constant(check_message: CheckMessage) -> None:
    text = "g (float[2,1,4] x, int64[1] k) => (float y) <int64[1] k = {1}> { y = Squeeze(x, k) }"
    model = at(13, text)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    with pytest.raises(RequestError) as caught:
        edit(model, {"set_opset": {"to": 12}})
    check_message(caught.value)


def test_a_function_attribute_that_the_conversion_needs_is_reported(check_message: CheckMessage) -> None:
    function = parse(
        """<ir_version: 8, opset_import: ["" : 12, "own" : 1]>
        g (float[2,3] x) => (float[2,3] y) { y = own.S<k = 1>(x) }
        <domain: "own", opset_import: ["" : 12]> S <k> (a) => (b) { [s] b = Softmax<axis: int = @k>(a) }"""
    )
    with pytest.raises(RequestError) as caught:
        edit(function, {"set_opset": {"to": 13}})
    check_message(caught.value)


# --- domains, format, metadata ---------------------------------------------------------------------------------------


def test_a_domain_is_imported() -> None:
    after = edit(at(17, NODES["Cast, Relu, Add"][1]), {"set_opset": {"domain": "com.microsoft", "to": 1}})
    assert {opset.domain: opset.version for opset in after.opset_import} == {"": 17, "com.microsoft": 1}


def test_an_old_ir_version_lists_initializers_as_inputs(check_message: CheckMessage) -> None:
    text = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    after = edit(at(12, text), {"set_ir_version": {"to": 3}})
    assert after.ir_version == 3
    assert [value.name for value in after.graph.input] == ["x", "w"]
    back = edit(after, {"set_ir_version": {"to": 10}}, {"remove_inputs": {"select": "w"}})
    assert [value.name for value in back.graph.input] == ["x"]
    with pytest.raises(RequestError) as caught:
        edit(models.func_model(), {"set_ir_version": {"to": 7}})
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        edit(at(12, text), {"set_ir_version": {"to": 14}})
    check_message(caught.value)


def test_metadata_of_the_model_and_of_nodes_is_set() -> None:
    model = at(17, "g (float[2] x) => (float[2] y) { [a] h = Relu(x) [b] y = Neg(h) }", 10)
    model.metadata_props.add(key="draft", value="yes")
    settings = {"producer_name": "ours", "model_version": 3, "graph_name": "net", "doc_string": "text"}
    after = edit(
        model,
        {"set_metadata": {**settings, "metadata": {"license": "Apache-2.0", "draft": None}}},
        {"set_metadata": {"select": "a", "doc_string": "first", "metadata": {"owner": "me"}}},
    )
    assert (after.producer_name, after.model_version, after.graph.name, after.doc_string) == ("ours", 3, "net", "text")
    assert {entry.key: entry.value for entry in after.metadata_props} == {"license": "Apache-2.0"}
    assert after.graph.node[0].doc_string == "first"
    assert [(entry.key, entry.value) for entry in after.graph.node[0].metadata_props] == [("owner", "me")]
    assert not after.graph.node[1].metadata_props


@pytest.mark.parametrize(
    "settings",
    [{}, {"select": "a", "domain": "d"}],
)
def test_incomplete_or_contradictory_metadata_is_refused(
    settings: dict[str, object], check_message: CheckMessage
) -> None:
    from pydantic import ValidationError

    from ndld_flow.graph.edit.operations.model import SetMetadata

    with pytest.raises(ValidationError) as caught:
        SetMetadata.model_validate(settings)
    check_message(caught.value)
