"""Edits of a model's interface: inputs, outputs, types, shapes, dimensions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from pydantic import ValidationError

from ndld_flow.base.errors import ModelError, RequestError, UnknownNameError
from ndld_flow.inputs import InputSpec
from tests.support import models
from tests.support.editing_fixtures import edit, edit_path, parse, run, same_outputs, text_of
from tests.support.message_files import CheckMessage

TWO = """g (float[N, 4] x, float[N, 4] m) => (float[N, 4] y, float[N, 4] z) <float[4] w = {1, 2, 3, 4}> {
    [add] h = Add(x, w)
    [relu] y = Relu(h)
    [mul] z = Mul(h, m)
}"""
FEEDS = {"x": np.arange(8, dtype=np.float32).reshape(2, 4) - 4, "m": np.full((2, 4), 2, dtype=np.float32)}
BRANCHES = """g (bool c, float[2] x) => (float[2] y) {
    h = Abs(x)
    [choice] y = If(c) <then_branch = t () => (float[2] p) { inner = Neg(h) p = Relu(inner) },
               else_branch = e () => (float[2] q) { q = Identity(h) }>
}"""


def names(values: object) -> list[str]:
    return [value.name for value in values]  # type: ignore[attr-defined]


def types(model: onnx.ModelProto) -> dict[str, str]:
    """`float32[N,4]` for each input and output."""
    reason = {}
    for value in (*model.graph.input, *model.graph.output):
        tensor = value.type.tensor_type
        dims = [dim.dim_param or (str(dim.dim_value) if dim.HasField("dim_value") else "?") for dim in tensor.shape.dim]
        reason[value.name] = f"{onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)}[{','.join(dims)}]"
    return reason


# --- inputs ----------------------------------------------------------------------------------------------------------


def test_an_input_is_added_after_the_others() -> None:
    model = edit(
        TWO, {"add_inputs": {"inputs": {"mask": {"dtype": "bool", "shape": ["N", None, 3]}, "s": {"dtype": "int64"}}}}
    )
    assert names(model.graph.input) == ["x", "m", "mask", "s"]
    assert types(model)["mask"] == "bool[N,?,3]"
    assert types(model)["s"] == "int64[]"


def test_an_input_cannot_take_an_existing_name_even_of_a_subgraph(check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        edit(BRANCHES, {"add_inputs": {"inputs": {"inner": {"dtype": "float"}}}})
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        edit(TWO, {"add_inputs": {"inputs": {"k": {"dtype": "flaot32"}}}})
    check_message(caught.value)


@pytest.mark.parametrize("dim", [-1, 2**63, "", "12"])
def test_invalid_sizes_and_names_of_dimensions_are_refused(dim: object) -> None:
    operations: list[object] = [
        {"add_inputs": {"inputs": {"k": {"dtype": "bool", "shape": [dim]}}}},
        {"set_shapes": {"shapes": {"x": [dim, 4]}}},
        {"add_outputs": {"select": "h", "shape": [dim]}},
        {"free_dims": {"axes": {0: "12"}}},
        {"rename_dims": {"names": {"N": ""}}},
    ]
    for operation in operations:
        with pytest.raises(ValidationError):
            edit(TWO, operation)


def test_inputs_and_outputs_have_names(check_message: CheckMessage) -> None:
    for operation in (
        {"add_inputs": {"inputs": {"": {"dtype": "bool"}}}},
        {"rename_tensors": {"names": {"x": ""}}},
        {"rename_tensors": {"names": {"y": ""}}},
    ):
        with pytest.raises(ValidationError) as caught:
            edit(TWO, operation)
        check_message(caught.value)


def test_making_inputs_of_old_models_constant_raises_the_ir_version() -> None:
    old = """<ir_version: 3, opset_import: ["" : 9]>
    g (float[2] x, float[2] k, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { h = Add(x, w) y = Mul(h, k) }"""
    for removed in ({"select": "k", "replace_by": 2}, {"select": "w"}):
        model = edit(old, {"remove_inputs": removed})
        assert (model.ir_version, len(model.graph.input)) == (4, 2)


def test_texts_replace_an_input() -> None:
    text = "g (string[2] s, float[1] x) => (string[2] t, float[1] y) { t = Identity(s) y = Relu(x) }"
    for given in (["a", "b"], "a"):
        fixed = edit(text, {"remove_inputs": {"select": "s", "replace_by": given}})
        assert run(fixed, {"x": np.ones(1, np.float32)})["t"].tolist() == ["a", given[-1]]


def test_an_unused_input_is_removed_and_a_used_one_only_with_a_value(check_message: CheckMessage) -> None:
    unused = "g (float[2] x, float[2] k) => (float[2] y) { y = Relu(x) }"
    assert names(edit(unused, {"remove_inputs": {"select": "k"}}).graph.input) == ["x"]
    with pytest.raises(RequestError) as caught:
        edit(TWO, {"remove_inputs": {"select": "m"}})
    check_message(caught.value)


def test_an_input_becomes_a_constant() -> None:
    fixed = edit(
        TWO, {"set_shapes": {"shapes": {"m": [2, 4]}}}, {"remove_inputs": {"select": ["m"], "replace_by": 2.0}}
    )
    assert names(fixed.graph.input) == ["x"]
    result, wanted = run(fixed, {"x": FEEDS["x"]}), run(parse(TWO), FEEDS)
    np.testing.assert_array_equal(result["z"], wanted["z"])


def test_an_input_becomes_the_contents_of_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", FEEDS["m"])
    operation = {"remove_inputs": {"select": ["m"], "replace_by_file": str(tmp_path / "m.npy")}}
    np.testing.assert_array_equal(run(edit(TWO, operation), {"x": FEEDS["x"]})["z"], run(parse(TWO), FEEDS)["z"])


@pytest.mark.parametrize(
    "settings",
    [
        {"replace_by": 2.0},
        {"replace_by": [1.0, 2.0]},
        {"replace_by": [["a", "b", "c", "d"]]},
        {"select": "k"},
    ],
)
def test_a_value_of_another_type_or_shape_is_refused(settings: dict[str, object], check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        edit(TWO, {"remove_inputs": {"select": "m", **settings}})
    check_message(caught.value)


def test_an_input_with_a_default_becomes_that_constant() -> None:
    default = "g (float[4] x, float[4] w) => (float[4] y) <float[4] w = {1, 2, 3, 4}> { y = Add(x, w) }"
    model = edit(default, {"remove_inputs": {"select": "w"}})
    assert names(model.graph.input) == ["x"]
    assert names(model.graph.initializer) == ["w"]


# --- outputs ---------------------------------------------------------------------------------------------------------


def test_any_tensor_of_the_main_graph_becomes_an_output() -> None:
    model = edit(TWO, {"add_outputs": {"select": "?"}})
    assert names(model.graph.output) == ["y", "z", "h"], "patterns mean what nodes make, and outputs stay"
    assert types(model)["h"] == "float32[N,4]"
    np.testing.assert_array_equal(run(model, FEEDS)["h"], FEEDS["x"] + [1, 2, 3, 4])


def test_an_input_or_an_initializer_becomes_an_output_when_it_is_named() -> None:
    model = edit(TWO, {"add_outputs": {"select": ["x", "w"]}})
    np.testing.assert_array_equal(run(model, FEEDS)["w"], [1, 2, 3, 4])
    np.testing.assert_array_equal(run(model, FEEDS)["x"], FEEDS["x"])


def test_a_tensor_of_a_subgraph_is_refused_with_the_reason(check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        edit(BRANCHES, {"add_outputs": {"select": "inner"}})
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        edit(BRANCHES, {"add_outputs": {"select": "hh"}})
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        edit(TWO, {"add_outputs": {"select": "y"}})
    check_message(caught.value)


def test_types_that_cannot_be_inferred_must_be_declared(check_message: CheckMessage) -> None:
    custom = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[2] x) => (float[2] y) { h = own.Op(x) y = own.Op(h) }"""
    with pytest.raises(RequestError) as caught:
        edit(custom, {"add_outputs": {"select": "h"}})
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        edit(custom, {"add_outputs": {"select": "h", "dtype": "fp16"}})
    check_message(caught.value)
    model = edit(custom, {"add_outputs": {"select": "h", "dtype": "fp16", "shape": ["n"]}})
    assert types(model)["h"] == "float16[n]"


def test_removing_an_output_removes_what_only_it_needed() -> None:
    model = edit(TWO, {"remove_outputs": {"select": "z"}})
    assert names(model.graph.node) == ["add", "relu"]
    assert names(model.graph.input) == ["x", "m"], "inputs are the model's promise to who calls it"
    kept = edit(TWO, {"remove_outputs": {"select": "z", "prune": False}})
    assert names(kept.graph.node) == ["add", "relu", "mul"]
    alone = edit(
        TWO,
        {"remove_outputs": {"select": ["y"]}},
        {"add_outputs": {"select": "h"}},
        {"remove_outputs": {"select": "z"}},
    )
    assert names(alone.graph.node) == ["add"]


def test_removing_an_output_prunes_inputs_of_subgraphs() -> None:
    text = BRANCHES.replace("(float[2] y) {", "(float[2] y, float[2] o) <float[2] w = {1, 2}> { o = Neg(x)").replace(
        "h = Abs(x)", "h = Add(x, w)"
    )
    model = edit(text, {"remove_outputs": {"select": "y"}})
    assert [node.op_type for node in model.graph.node] == ["Neg"]
    assert not model.graph.initializer


def test_the_last_output_cannot_be_removed(check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        edit(TWO, {"remove_outputs": {"select": "*"}})
    check_message(caught.value)


# --- names and order -------------------------------------------------------------------------------------------------


def test_names_are_exchanged_simultaneously() -> None:
    model = edit(TWO, {"rename_tensors": {"names": {"x": "m", "m": "x"}}}, {"rename_tensors": {"names": {"y": "out"}}})
    assert text_of(model).replace(" \n", "\n") == (
        """g (float[N,4] m, float[N,4] x) => (float[N,4] out, float[N,4] z)
   <float[4] w =  {1,2,3,4}, float[4] w, float[N,4] h>
{
   [add] h = Add (m, w)
   [relu] out = Relu (h)
   [mul] z = Mul (h, x)
}"""
    )


def test_a_renamed_input_is_read_by_its_new_name_in_subgraphs_too() -> None:
    text = BRANCHES.replace("Identity(h)", "Identity(x)")
    model = edit(text, {"rename_tensors": {"names": {"x": "image"}}})
    for choice in (True, False):
        feeds = {"c": np.array(choice), "image": np.array([-1, 2], dtype=np.float32)}
        before = run(parse(text), {"c": feeds["c"], "x": feeds["image"]})
        np.testing.assert_array_equal(run(model, feeds)["y"], before["y"])


def test_a_name_that_is_taken_or_unknown_is_refused(check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        edit(BRANCHES, {"rename_tensors": {"names": {"y": "inner"}}})
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        edit(TWO, {"rename_tensors": {"names": {"x": "a", "m": "a"}}})
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        edit(TWO, {"rename_tensors": {"names": {"yy": "a"}}})
    check_message(caught.value)


def test_inputs_and_outputs_are_reordered(check_message: CheckMessage) -> None:
    model = edit(TWO, {"reorder": {"inputs": ["m", "*"]}}, {"reorder": {"outputs": ["z", "y"]}})
    assert names(model.graph.input) == ["m", "x"]
    assert names(model.graph.output) == ["z", "y"]
    with pytest.raises(RequestError) as refused:
        edit(TWO, {"reorder": {"outputs": ["z"]}})
    check_message(refused.value)
    with pytest.raises(RequestError) as refused:
        edit(TWO, {"reorder": {"outputs": ["z", "z", "*"]}})
    check_message(refused.value)
    with pytest.raises(UnknownNameError) as unknown:
        edit(TWO, {"reorder": {"inputs": ["w", "*"]}})
    check_message(unknown.value)


# --- types -----------------------------------------------------------------------------------------------------------


def test_casts_at_inputs_and_outputs_keep_inner_types() -> None:
    model = edit(TWO, {"set_dtypes": {"dtypes": {"x": "int32", "z": "float16"}}})
    assert types(model) == {"x": "int32[N,4]", "m": "float32[N,4]", "y": "float32[N,4]", "z": "float16[N,4]"}
    result = run(model, FEEDS | {"x": FEEDS["x"].astype(np.int32)})
    wanted = run(parse(TWO), FEEDS)
    np.testing.assert_array_equal(result["y"], wanted["y"])
    np.testing.assert_array_equal(result["z"], wanted["z"].astype(np.float16))


def test_readers_of_a_converted_output_keep_its_former_type() -> None:
    model = edit(
        "g (float[2] x) => (float[2] y, float[2] z) { y = Exp(x) z = Neg(y) }",
        {"set_dtypes": {"dtypes": {"y": "float16"}}},
    )
    feeds = {"x": np.array([0.1, 3.3], dtype=np.float32)}
    np.testing.assert_array_equal(run(model, feeds)["z"], -np.exp(feeds["x"]))
    assert run(model, feeds)["y"].dtype == np.float16


def test_an_input_that_a_subgraph_reads_is_cast_for_it() -> None:
    text = BRANCHES.replace("Identity(h)", "Identity(x)")
    model = edit(text, {"set_dtypes": {"dtypes": {"x": "float64"}}})
    feeds = {"c": np.array(False), "x": np.array([-1, 2], dtype=np.float64)}
    np.testing.assert_array_equal(run(model, feeds)["y"], feeds["x"].astype(np.float32))


def test_without_casts_the_whole_model_must_agree(check_message: CheckMessage) -> None:
    plain = "g (float[N] x) => (float[N] y) { h = Relu(x) y = Neg(h) }"
    model = edit(plain, {"set_dtypes": {"dtypes": {"x": "float16", "y": "float16"}, "cast": False}})
    assert model.graph.value_info[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    assert run(model, {"x": np.ones(2, dtype=np.float16)})["y"].dtype == np.float16
    with pytest.raises(ModelError) as caught:
        edit(plain, {"set_dtypes": {"dtypes": {"x": "float16"}, "cast": False}})
    check_message(caught.value)


@pytest.mark.parametrize(
    "dtypes",
    [
        {"q": "float16"},
        {"x": "int2"},
        {"x": "half"},
    ],
)
def test_invalid_types_are_refused(dtypes: dict[str, str], check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        edit(TWO, {"set_dtypes": {"dtypes": dtypes}})
    check_message(caught.value)


def test_casts_of_old_opsets_have_their_old_form() -> None:
    old = '<ir_version: 3, opset_import: ["" : 5]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    model = edit(old, {"set_dtypes": {"dtypes": {"x": "float16"}}})
    assert model.graph.node[0].attribute[0].s == b"FLOAT"


# --- shapes ----------------------------------------------------------------------------------------------------------


def test_shapes_of_inputs_are_set_and_propagated() -> None:
    model = edit(TWO, {"set_shapes": {"shapes": {"x": [3, 4]}}})
    assert types(model) == {"x": "float32[3,4]", "m": "float32[3,4]", "y": "float32[3,4]", "z": "float32[3,4]"}
    free = edit(TWO, {"set_shapes": {"shapes": {"x": ["rows", 4], "m": [None, 4]}}})
    assert types(free)["x"] == "float32[rows,4]"
    assert types(free)["y"] == "float32[rows,4]"


def test_invalid_shapes_are_refused(check_message: CheckMessage) -> None:
    with pytest.raises(ModelError) as broken:
        edit(TWO, {"set_shapes": {"shapes": {"x": ["N", 5]}}})
    check_message(broken.value)
    with pytest.raises(RequestError) as refused:
        edit(TWO, {"set_shapes": {"shapes": {"x": [1]}}})
    check_message(refused.value)
    with pytest.raises(UnknownNameError) as unknown:
        edit(TWO, {"set_shapes": {"shapes": {"w": [4]}}})
    check_message(unknown.value)


def test_dimensions_are_renamed_everywhere(check_message: CheckMessage) -> None:
    text = """g (float[N, 4] x) => (float[N, 4] y) <float[N, 4] h> { h = Relu(x) y = Neg(h) }"""
    model = edit(text, {"rename_dims": {"names": {"N": "batch"}}})
    assert "N" not in text_of(model).replace("Neg", "")
    assert types(model)["y"] == "float32[batch,4]"
    with pytest.raises(UnknownNameError) as caught:
        edit(text, {"rename_dims": {"names": {"M": "batch"}}})
    check_message(caught.value)


def test_a_dimension_in_an_expression_is_renamed() -> None:
    model = parse(
        "g (float[N, 4] x) => (float[N, 4] y) { y = own.Op(x) }".join(
            ['<ir_version: 8, opset_import: ["" : 17, "own" : 1]> ', ""]
        )
    )
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "floor(p.N.1/2) + N"
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "p.N.1"
    assert types(edit(model, {"rename_dims": {"names": {"p.N.1": "h", "N": "b"}}}))["y"] == "float32[floor(h/2) + b,4]"


def test_dimensions_are_fixed_by_name_the_rest_by_one_number_or_from_the_recipe(
    tmp_path: Path, check_message: CheckMessage
) -> None:
    text = "g (float[N, C, ?] x, float[N] m) => (float[N, C, ?] y) { y = Relu(x) }".replace("?", "K")
    model = edit(text, {"set_shapes": {"dims": {"N": 2}, "all": 7}})
    assert types(model) == {"x": "float32[2,7,7]", "m": "float32[2]", "y": "float32[2,7,7]"}
    assert types(edit(text, {"set_shapes": {"dims": {"N": 2}}}))["x"] == "float32[2,C,K]"
    source = models.save(parse(text), tmp_path / "model.onnx")
    edit_path(source, tmp_path / "out.onnx", "set_shapes", inputs={"x": InputSpec(shape=(1, 3, 5))})
    assert types(onnx.load(tmp_path / "out.onnx"))["y"] == "float32[1,3,5]"
    with pytest.raises(RequestError) as refused:
        edit(text, "set_shapes")
    check_message(refused.value)
    with pytest.raises(UnknownNameError) as unknown:
        edit(text, {"set_shapes": {"dims": {"Q": 1}}})
    check_message(unknown.value)


def test_dimensions_without_a_name_are_fixed_too() -> None:
    model = parse("g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    assert types(edit(model, {"set_shapes": {"all": 4}}))["x"] == "float32[4,4]"


def test_dimensions_become_dynamic_again(check_message: CheckMessage) -> None:
    fixed = "g (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) <float[1, 3, 8, 8] h> { h = Relu(x) y = Neg(h) }"
    model = edit(fixed, {"free_dims": {"axes": {0: "batch", -1: None}}})
    assert types(model) == {"x": "float32[batch,3,8,?]", "y": "float32[batch,3,8,?]"}
    assert run(model, {"x": np.zeros((5, 3, 8, 2), dtype=np.float32)})["y"].shape == (5, 3, 8, 2)
    with pytest.raises(RequestError) as caught:
        edit(fixed, {"free_dims": {"axes": {4: "n"}}})
    check_message(caught.value)


def test_inner_sizes_that_stay_fixed_are_reported(tmp_path: Path) -> None:
    text = "g (float[1, 4] x) => (float[2, 2] y) <int64[2] s = {2, 2}> { [here] y = Reshape(x, s) }"
    source = models.save(parse(text), tmp_path / "model.onnx")
    change = edit_path(source, tmp_path / "out.onnx", {"free_dims": {"axes": {0: "batch"}}})
    assert "[2, 2]: Reshape 'here' produces [2, 2]" in str(change.notes)


def test_shapes_are_inferred_again_and_contradictions_refused(check_message: CheckMessage) -> None:
    wrong = "g (float[N, 4] x) => (float[N, 4] y) <float[3] h> { h = Relu(x) y = Neg(h) }"
    model = edit(wrong, {"infer_shapes": {"strict": True}})
    assert "float[N,4] h" in text_of(model)
    assert "float[N,4] h" in text_of(edit(wrong, "remove_shapes", "infer_shapes"))
    broken = "g (float[2, 3] x) => (float[2, 3] y) { y = MatMul(x, x) }"
    with pytest.raises(ModelError) as caught:
        edit(broken, {"infer_shapes": {"strict": True}})
    check_message(caught.value)
    edit(broken, "infer_shapes")


def test_dropped_shapes_are_not_written_and_later_edits_work_without_them() -> None:
    bare = edit(TWO, "remove_shapes")
    assert names(bare.graph.value_info) == ["w"] and types(bare) == types(parse(TWO))
    same_outputs(parse(TWO), bare, FEEDS)
    negated = {"add_node": {"op_type": "Neg", "inputs": ["h"], "outputs": ["n"]}}
    shown = edit(TWO, "remove_shapes", negated, {"add_outputs": {"select": ["n", "h"]}})
    assert types(shown)["h"] == types(shown)["n"] == "float32[N,4]"
    inner = edit(BRANCHES, {"remove_nodes": {"select": {"op_type": "Relu"}, "bridge": True}}, "remove_shapes")
    assert not any(g.g.value_info for node in inner.graph.node for g in node.attribute)


def test_every_tensor_has_its_actual_shape() -> None:
    model = edit(models.cnn_model(), {"set_shapes": {"all": 16}}, "infer_shapes")
    shapes = {value.name: value.type.tensor_type.shape.dim for value in (*model.graph.value_info, *model.graph.output)}
    names = [name for node in model.graph.node for name in node.output if name]
    assert all(name in shapes and all(dim.HasField("dim_value") for dim in shapes[name]) for name in names)


@pytest.mark.parametrize("make", [models.cnn_model, models.ctrl_model, models.func_model, models.sparse_model])
def test_interface_edits_of_all_kinds_of_models_can_be_reverted(make: object, tmp_path: Path) -> None:
    model = make()  # type: ignore[operator]
    there = {value.name: f"in_{index}" for index, value in enumerate(model.graph.input)}
    back = {new: old for old, new in there.items()}
    after = edit(
        model,
        {"rename_tensors": {"names": there}},
        {"reorder": {"outputs": ["*"]}},
        {"rename_tensors": {"names": back}},
    )
    feeds = {
        value.name: np.random.default_rng(0)
        .random([d.dim_value or 16 for d in value.type.tensor_type.shape.dim])
        .astype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        for value in model.graph.input
    }
    same_outputs(model, after, feeds)


def test_summaries_and_suggestions_show_the_shapes_of_tensors(
    caplog: pytest.LogCaptureFixture, check_message: CheckMessage
) -> None:
    caplog.set_level("INFO")
    edit(TWO, {"add_outputs": {"select": "h"}}, {"cut": {"select": {"after": "h"}}})
    assert "1 output added: h: [N, 4]" in caplog.text
    assert "2 nodes" in caplog.text and ": x: [N, 4] -> h: [N, 4]" in caplog.text
    with pytest.raises(RequestError) as caught:
        edit(TWO, {"add_outputs": {"select": "mm"}})
    check_message(caught.value)
    long = TWO.replace("float[N, 4] x", f"float[{'N' * 200}, 4] x")
    edit(long, {"extract": {"outputs": "h"}})
    assert "NNN…NNN" in caplog.text
    assert "N" * 100 not in caplog.text
