"""Nodes are added, inserted, replaced, copied, removed, wired and named."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.node_groups import Neighbourhood
from ndld_flow.graph.edit.operations.connections import RenameTensors
from ndld_flow.graph.edit.operations.nodes import InsertNode, RenameNodes
from tests.support.editing_fixtures import by, edit, parse, run, same_outputs, text_of
from tests.support.message_files import CheckMessage

CHAIN = """g (float[N, 4] x) => (float[N, 4] z) <float[4] b = {1, -2, 3, -4}>
{ [first] y = Relu (x)  [mid] w = Add (y, b)  [drop] d = Dropout (w)  [last] z = Sigmoid (d) }"""
"""Reads its input through four nodes; no two of them do the same."""

NESTED = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
g (float[2] x, bool c) => (float[2] z) <float[2] b = {1, 2}>
{
    [pre] y = Relu (x)
    [branch] u = If (c) <
        then_branch = yes () => (float[2] yo) { [plus] ya = Add (y, b)  [yneg] yo = Neg (ya) },
        else_branch = no () => (float[2] no) { [minus] na = Sub (y, b)  [nneg] no = Neg (na) }>
    [call] v = local.Twice (u)
    [post] z = Tanh (v)
}
<domain: "local", opset_import: ["" : 17]>
Twice (y) => (b) { [inner] t = Neg (y)  [post] b = Add (t, y) }
"""

X = np.array([[-1, 2, -3, 4], [5, -6, 7, -8]], np.float32)
NESTED_FEEDS = [{"x": np.array([-1, 2], np.float32), "c": np.array(c)} for c in (True, False)]


def refused(model: str, *operations: object) -> str:
    with pytest.raises(RequestError) as error:
        edit(model, *operations)
    assert "\n" not in str(error.value)
    return str(error.value)


def nodes_of(model: onnx.ModelProto) -> list[str]:
    """The main graph's nodes in ONNX's text form, attributes and all."""
    return [line.strip() for line in text_of(model).partition("{\n")[2].splitlines()[:-1]]


def all_names(model: onnx.ModelProto) -> tuple[Counter[str], Counter[str]]:
    """Names of nodes and of tensors of the main graph and its subgraphs."""
    nodes: Counter[str] = Counter()
    values: Counter[str] = Counter()

    def enter(graph: onnx.GraphProto) -> None:
        values.update({value.name for value in (*graph.input, *graph.initializer)})
        for node in graph.node:
            nodes[node.name] += 1
            values.update(filter(None, node.output))
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    enter(attribute.g)

    enter(model.graph)
    return nodes, values


# ---------------------------------------------------------------------------------------------------------- adding


def test_an_added_node_gets_generated_names() -> None:
    result = edit(
        CHAIN, {"add_node": {"op_type": "Relu", "inputs": ["y"]}}, {"add_node": {"op_type": "Relu", "inputs": ["y"]}}
    )
    assert nodes_of(result)[-2:] == ["[Relu] Relu_Y = Relu (y)", "[Relu_2] Relu_2_Y = Relu (y)"]
    same_outputs(parse(CHAIN), result, {"x": X})


def test_generated_names_are_deterministic_identifiers() -> None:
    operation = {"add_node": {"op_type": "TopK", "inputs": ["x", "k"], "attributes": {"axis": 0}}}
    text = "g (float[4] x, int64[1] k) => (float[4] z) { [TopK] TopK_Values = Relu (x)  z = Relu (TopK_Values) }"
    first, second = edit(text, operation), edit(text, operation)
    assert first.SerializeToString() == second.SerializeToString()
    assert nodes_of(first)[-1].startswith("[TopK_2] TopK_2_Values, TopK_2_Indices = TopK")
    nodes, values = all_names(first)
    assert all(re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) for name in (*values, *nodes) if name)


def test_an_added_node_has_given_names_optional_inputs_and_attributes() -> None:
    result = edit(
        "g (float[N, 4] x, float six) => (float[N, 4] z) { z = Relu (x) }",
        {"add_node": {"op_type": "Clip", "inputs": ["z", "", "six"], "outputs": ["capped"], "name": "cap"}},
        {"add_node": {"op_type": "Cast", "inputs": ["capped"], "attributes": {"to": "fp16"}}},
    )
    assert nodes_of(result)[1:] == [
        '[cap] capped = Clip (z, "", six)',
        "[Cast] Cast_output = Cast <to: int = 10> (capped)",
    ]


def test_a_custom_node_declares_its_output_types() -> None:
    node = {
        "op_type": "Fused",
        "domain": "com.acme",
        "inputs": ["x"],
        "outputs": ["q"],
        "types": {"q": "float16[N, 2, ?]"},
    }
    result = edit(CHAIN, {"add_node": {**node, "attributes": {"mode": "fast", "k": [1, 2], "s": "[0.5]", "t": "'1'"}}})
    assert {opset.domain: opset.version for opset in result.opset_import} == {"": 17, "com.acme": 1}
    [info] = [info for info in result.graph.value_info if info.name == "q"]
    assert info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    [fused] = [node for node in result.graph.node if node.op_type == "Fused"]
    outcome = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in fused.attribute}
    assert {key: list(v) if not isinstance(v, bytes) else v for key, v in outcome.items()} == {
        "mode": b"fast",
        "k": [1, 2],
        "s": [0.5],
        "t": b"1",
    }


def test_an_operator_of_onnx_runtime_is_added() -> None:
    result = edit(
        CHAIN,
        {"add_node": {"op_type": "QuickGelu", "domain": "com.microsoft", "inputs": ["y"], "outputs": ["gelu"]}},
        {"rewire": {"tensor": "y", "read": "gelu"}},
    )
    assert not np.array_equal(run(result, {"x": X})["z"], run(parse(CHAIN), {"x": X})["z"])


def test_a_call_of_a_local_function_is_added_in_a_subgraph() -> None:
    result = edit(
        NESTED,
        {
            "add_node": {
                "op_type": "Twice",
                "domain": "local",
                "inputs": ["ya"],
                "outputs": ["tw"],
                "scope": "branch/then_branch",
            }
        },
        {"connect": {"select": "yneg", "input": 0, "tensor": "tw"}},
    )
    outputs = [run(result, feeds)["z"] for feeds in NESTED_FEEDS]
    assert np.array_equal(outputs[0], np.zeros(2, np.float32)), "Twice gives 0"
    same_outputs(parse(NESTED), result, NESTED_FEEDS[1])


def test_a_node_is_added_in_a_function() -> None:
    result = edit(
        NESTED,
        {
            "add_node": {
                "op_type": "Gelu",
                "domain": "com.microsoft",
                "inputs": ["t"],
                "scope": "local::Twice",
                "name": "g",
            }
        },
    )
    [function] = result.functions
    assert [node.name for node in function.node][-1] == "g"
    assert "com.microsoft" in {opset.domain for opset in function.opset_import}


@pytest.mark.parametrize(
    "node",
    [
        {"op_type": "EfficientNMS_TRT", "attributes": {"class_agnostic": 1}},
        {"op_type": "GridSampler", "attributes": {"plugin_version": "1"}},
        {"op_type": "SimplifiedLayerNormalization", "inputs": ["x", "b"], "attributes": {"axis": -1}},
    ],
    ids=["named", "marked", "ONNX Runtime's"],
)
def test_operators_of_runtimes_are_added_to_the_default_domain(node: dict[str, Any]) -> None:
    added = {"inputs": ["x"], "outputs": ["new"], "name": "new", "types": {"new": "float32[N, 4]"}, **node}
    result = edit(CHAIN, {"add_node": added}, {"add_outputs": {"select": ["new"]}})
    [new] = [node for node in result.graph.node if node.name == "new"]
    assert (new.op_type, new.domain) == (node["op_type"], "")


@pytest.mark.parametrize(
    "node",
    [
        {"op_type": "Relo", "inputs": ["x"]},
        {"op_type": "FusedConv", "inputs": ["x"]},
        {"op_type": "QuikGelu", "domain": "com.microsoft"},
        {"op_type": "Gelu", "inputs": ["x"]},
        {"op_type": "Upsample", "inputs": ["x", "b"]},
        {"op_type": "Add", "inputs": ["x"]},
        {"op_type": "Add", "inputs": ["x", ""]},
        {"op_type": "Relu", "inputs": ["x", "y"]},
        {"op_type": "Concat", "attributes": {"axis": 0}},
        {"op_type": "Concat", "inputs": ["x"]},
        {"op_type": "Relu", "inputs": ["x"], "outputs": ["p", "q"]},
        {"op_type": "Relu", "inputs": ["X"]},
        {"op_type": "Relu", "inputs": ["x"], "outputs": ["y"]},
        {"op_type": "Split", "inputs": ["x"], "outputs": ["p", "p"]},
        {"op_type": "Relu", "inputs": ["x"], "name": "mid"},
        {"op_type": "Gather", "inputs": ["x", "b"]},
        {"op_type": "Elu", "inputs": ["x"], "attributes": {"alhpa": 1}},
        {"op_type": "Elu", "inputs": ["x"], "attributes": {"alpha": "one"}},
        {"op_type": "F", "domain": "a.b", "types": {"u": "int8[]"}, "outputs": ["v"]},
        {"op_type": "Relu", "inputs": ["x"], "scope": "sub"},
    ],
)
def test_invalid_additions_are_refused(node: dict[str, Any], check_message: CheckMessage) -> None:
    check_message(refused(CHAIN, {"add_node": node}))


def test_contradictory_types_are_refused(check_message: CheckMessage) -> None:
    text = "g (float[2] x, int64[2] i) => (float[2] y) { y = Relu (x) }"
    message = refused(text, {"add_node": {"op_type": "Add", "inputs": ["x", "i"]}})
    check_message(message)


# ------------------------------------------------------------------------------------------------------- inserting


def test_a_node_is_inserted_after_a_tensor_for_all_readers() -> None:
    result = edit(NESTED, {"insert_node": {"op_type": "Abs", "after": "y", "name": "abs", "output": "a"}})
    assert "[abs] a = Abs (y)" in nodes_of(result)
    assert "Add (a, b)" in text_of(result)
    assert "Sub (a, b)" in text_of(result)
    for feeds in NESTED_FEEDS:
        same_outputs(parse(NESTED), result, feeds)


def test_inserting_after_an_output_keeps_the_name_of_the_output() -> None:
    result = edit(CHAIN, {"insert_node": {"op_type": "Neg", "after": "z"}})
    assert nodes_of(result)[-2:] == ["[last] z_before = Sigmoid (d)", "[Neg] z = Neg (z_before)"]
    assert np.array_equal(run(result, {"x": X})["z"], -run(parse(CHAIN), {"x": X})["z"])


def test_a_node_is_inserted_after_each_of_several_tensors(check_message: CheckMessage) -> None:
    result = edit(CHAIN, {"insert_node": {"op_type": "Abs", "after": ["y", "z"]}})
    assert [node.op_type for node in result.graph.node].count("Abs") == 2
    assert [output.name for output in result.graph.output] == [output.name for output in parse(CHAIN).graph.output]
    with pytest.raises(ValidationError) as caught:
        InsertNode.model_validate({"op_type": "Abs", "after": ("y", "z"), "name": "abs"})
    check_message(caught.value)


def test_a_node_is_inserted_after_an_input_for_some_readers() -> None:
    text = "g (float[2] x) => (float[2] y, float[2] z) { [a] y = Relu (x)  [b] z = Tanh (x) }"
    result = edit(text, {"insert_node": {"op_type": "Neg", "after": "x", "readers": "b"}})
    assert nodes_of(result) == ["[a] y = Relu (x)", "[Neg] Neg_Y = Neg (x)", "[b] z = Tanh (Neg_Y)"]


def test_the_tensor_goes_to_the_input_given_by_the_recipe() -> None:
    result = edit(CHAIN, {"insert_node": {"op_type": "Sub", "after": "y", "inputs": ["b", "{tensor}"]}})
    assert "[Sub] Sub_C = Sub (b, y)" in nodes_of(result)


def test_a_node_is_inserted_before_an_input_of_each_selected_node() -> None:
    operation = {"insert_node": {"op_type": "Neg", "before": ["plus", "minus"], "input": "B"}}
    result = edit(NESTED, operation)
    assert text_of(result).count("= Neg (b)") == 2
    assert not [name for name, count in all_names(result)[0].items() if count > 1]
    assert np.array_equal(run(result, NESTED_FEEDS[0])["z"], run(parse(NESTED), NESTED_FEEDS[1])["z"])


@pytest.mark.parametrize(
    "settings_",
    [
        {"op_type": "Neg", "after": "y", "readers": "last"},
        {"op_type": "Neg", "after": "yy"},
        {"op_type": "Neg", "before": "drop", "input": "ratio"},
        {"op_type": "Neg", "before": "drop", "input": "seed"},
        {"op_type": "Neg", "after": "y", "inputs": ["x"]},
    ],
)
def test_invalid_insertions_are_refused(settings_: dict[str, Any], check_message: CheckMessage) -> None:
    check_message(refused(CHAIN, {"insert_node": settings_}))


@pytest.mark.parametrize(
    "settings_",
    [
        {},
        {"after": "y", "before": "n"},
        {"after": "y", "input": 1},
        {"before": "y", "output": "v"},
    ],
)
def test_contradictory_positions_are_reported_before_a_run(
    settings_: dict[str, Any], check_message: CheckMessage
) -> None:
    with pytest.raises(ValueError) as caught:
        InsertNode.model_validate({"op_type": "Neg", **settings_})
    check_message(caught.value)


# ------------------------------------------------------------------------------------------- replacing an operator


def test_replacing_an_operator_keeps_name_and_connections() -> None:
    result = edit(CHAIN, {"replace_op": {"select": "first", "op_type": "LeakyRelu", "attributes": {"alpha": 1}}})
    assert nodes_of(result)[0] == "[first] y = LeakyRelu <alpha: float = 1> (x)"


def test_attributes_supported_by_the_new_operator_are_kept() -> None:
    text = """g (float[1, 1, 4, 4] x) => (float[1, 1, 2, 2] y)
    { [p] y = AveragePool <kernel_shape = [3, 3], count_include_pad = 1> (x) }"""
    result = edit(text, {"replace_op": {"select": "p", "op_type": "MaxPool"}})
    assert nodes_of(result) == ["[p] y = MaxPool <kernel_shape: ints = [3, 3]> (x)"]
    custom = edit(text, {"replace_op": {"select": "p", "op_type": "MyPool", "domain": "com.acme"}})
    assert "count_include_pad" in nodes_of(custom)[0]


@pytest.mark.parametrize(
    "settings_",
    [
        {"select": "first", "op_type": "Add"},
        {"select": "mid", "op_type": "Relu"},
        {"select": "first", "op_type": "Cast"},
        {"select": "first", "op_type": "Relue"},
    ],
)
def test_operators_that_do_not_fit_are_refused(settings_: dict[str, Any], check_message: CheckMessage) -> None:
    check_message(refused(CHAIN, {"replace_op": settings_}))


# -------------------------------------------------------------------------------------------------------- removing


def test_nodes_are_bridged() -> None:
    result = edit(CHAIN, {"remove_nodes": {"select": {"op_type": "Dropout"}, "bridge": True}})
    assert nodes_of(result) == ["[first] y = Relu (x)", "[mid] w = Add (y, b)", "[last] z = Sigmoid (w)"]
    same_outputs(parse(CHAIN), result, {"x": X})


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        (["drop", "last"], ["[first] y = Relu (x)", "[mid] z = Add (y, b)"]),
        (["first", "drop", "last"], ["[mid] z = Add (x, b)"]),
        (["first", "mid", "drop", "last"], ["[Identity] z = Identity (x)"]),
    ],
)
def test_outputs_keep_their_names(chosen: list[str], left: list[str]) -> None:
    result = edit(CHAIN, {"remove_nodes": {"select": chosen, "bridge": True}})
    assert nodes_of(result) == left
    assert [value.name for value in result.graph.output] == ["z"]


def test_a_second_output_of_the_same_tensor_keeps_its_name() -> None:
    text = "g (float[2] x) => (float[2] y, float[2] z) { y = Relu (x)  [id] z = Identity (y) }"
    result = edit(text, {"remove_nodes": {"select": "id", "bridge": True}})
    assert [value.name for value in result.graph.output] == ["y", "z"]
    same_outputs(parse(text), result, {"x": np.ones(2, np.float32)})


def test_the_bridge_replaces_the_output_that_is_read() -> None:
    header = '<ir_version: 8, opset_import: ["": 17, "my": 1]>'
    text = header + "g (float[2] x) => (float[2] y) { [pair] a, b = my.Pair (x)  [last] y = Relu (b) }"
    result = edit(text, {"remove_nodes": {"select": "pair", "bridge": True}})
    assert nodes_of(result) == ["[last] y = Relu (x)"]


@pytest.mark.parametrize(
    ("body", "reads"),
    [
        ("m = Add (b, x)  y = Relu (m)", "x"),  # not the constant
        ("m = Where (c, x, x)  y = Relu (m)", "x"),  # not the condition, which is no float
        ("m = Mul (s, x)  y = Relu (m)", "x"),  # the shape of the output
    ],
)
def test_the_bridge_is_the_input_most_like_the_output(body: str, reads: str) -> None:
    text = (
        f"g (float[2, 2] x, bool[2, 2] c, float[1] s) => (float[2, 2] y) <float[2, 2] b = {{1, 2, 3, 4}}> {{ {body} }}"
    )
    proto = onnx.shape_inference.infer_shapes(parse(text))
    result = edit(proto, {"remove_nodes": {"select": "m", "bridge": True}})
    assert [list(node.input) for node in result.graph.node] == [[reads]]


def test_the_bridge_can_be_chosen() -> None:
    result = edit(CHAIN, {"remove_nodes": {"select": "mid", "bridge": True, "through": "B"}})
    assert "[drop] d = Dropout (b)" in nodes_of(result)


def test_nodes_in_subgraphs_and_functions_are_bridged() -> None:
    result = edit(NESTED, {"remove_nodes": {"select": ["plus", "yneg", "nneg", "inner"], "bridge": True}})
    assert "[Identity] yo = Identity (y)" in text_of(result)
    assert "[minus] no = Sub (y, b)" in text_of(result)
    assert [node.name for node in result.functions[0].node] == ["post"]
    x = NESTED_FEEDS[0]["x"]
    expected = np.tanh(2 * np.maximum(x, 0)).astype(np.float32)
    np.testing.assert_allclose(run(result, NESTED_FEEDS[0])["z"], expected, rtol=1e-6)


def test_removing_a_node_removes_its_bodies() -> None:
    result = edit(
        NESTED,
        {"rewire": {"tensor": "u", "read": "y"}},
        {"remove_nodes": {"select": ["branch", "plus"]}},
    )
    assert [node.name for node in result.graph.node] == ["pre", "call", "post"]


@pytest.mark.parametrize(
    "settings_",
    [
        {"select": "drop"},
        {"select": "last"},
        {"select": "lost"},
        {"select": "mid", "bridge": True, "through": "C"},
        {"select": "mid", "bridge": True, "through": 7},
    ],
)
def test_invalid_removals_are_refused(settings_: dict[str, Any], check_message: CheckMessage) -> None:
    check_message(refused(CHAIN, {"remove_nodes": settings_}))


def test_a_node_without_inputs_has_no_bridge(check_message: CheckMessage) -> None:
    text = "g () => (float y) { [k] c = Constant <value_float = 1.0> ()  y = Relu (c) }"
    check_message(refused(text, {"remove_nodes": {"select": "k", "bridge": True}}))


def test_a_node_with_subgraphs_has_no_natural_bridge(check_message: CheckMessage) -> None:
    message = refused(NESTED, {"remove_nodes": {"select": "branch", "bridge": True}})
    check_message(message)


def test_a_reader_in_a_body_is_named(check_message: CheckMessage) -> None:
    message = refused(NESTED, {"remove_nodes": {"select": "pre"}})
    check_message(message)


def test_an_empty_selection_may_be_allowed() -> None:
    result = edit(CHAIN, {"remove_nodes": {"select": "nope", "allow_empty": True}})
    assert text_of(result) == text_of(edit(CHAIN))


# --------------------------------------------------------------------------------------------------------- copying


def test_copies_read_each_other_and_share_the_rest() -> None:
    result = edit(
        CHAIN,
        {"copy_nodes": {"select": ["mid", "drop"], "prefix": "twin_"}},
        {"connect": {"select": "last", "input": 0, "tensor": "twin_d"}},
    )
    assert "[twin_mid] twin_w = Add (y, b)" in nodes_of(result)
    assert "[twin_drop] twin_d = Dropout (twin_w)" in nodes_of(result)
    same_outputs(parse(CHAIN), result, {"x": X})


def test_a_copy_in_a_body_reads_the_copy_outside() -> None:
    result = edit(NESTED, {"copy_nodes": {"select": ["pre", "plus"]}})
    assert "[copy_plus] copy_ya = Add (copy_y, b)" in text_of(result)


def test_copies_of_bodies_have_unique_names() -> None:
    result = edit(
        NESTED,
        {"copy_nodes": {"select": ["pre", "branch"]}},
        {"copy_nodes": {"select": ["pre", "branch"]}},
        {"rewire": {"tensor": "u", "read": "copy_u_2"}},
        {"remove_nodes": {"select": "branch"}},
        {"remove_nodes": {"select": "pre"}},
    )
    for names in all_names(result):
        assert not [name for name, count in names.items() if count > 1]
    for feeds in NESTED_FEEDS:
        same_outputs(parse(NESTED), result, feeds)


# ---------------------------------------------------------------------------------------------------------- wiring


def test_optional_and_variadic_inputs_are_extended() -> None:
    text = """g (float[1, 2] x, float lo, float hi) => (float[1, 2] y, float[N, 2] z)
    { [clip] y = Clip (x)  [cat] z = Concat <axis = 0> (x) }"""
    result = edit(
        text,
        {"connect": {"select": "clip", "input": "max", "tensor": "hi"}},
        {"connect": {"select": "cat", "input": "inputs", "tensor": "y"}},
        {"connect": {"select": "cat", "input": 2, "tensor": "x"}},
    )
    assert nodes_of(result) == ['[clip] y = Clip (x, "", hi)', "[cat] z = Concat <axis: int = 0> (x, y, x)"]
    back = edit(
        result,
        {"disconnect": {"select": "clip", "input": "max"}},
        {"disconnect": {"select": "cat", "input": 1}},
        {"disconnect": {"select": "cat", "input": "inputs"}},
    )
    assert nodes_of(back) == ["[clip] y = Clip (x)", "[cat] z = Concat <axis: int = 0> (x)"]


def test_one_tensor_is_connected_to_many_nodes_in_many_graphs() -> None:
    result = edit(NESTED, {"connect": {"select": ["plus", "minus"], "input": "B", "tensor": "x"}})
    assert "Add (y, x)" in text_of(result)
    assert "Sub (y, x)" in text_of(result)


@pytest.mark.parametrize(
    "operation",
    [
        {"connect": {"select": "first", "input": 0, "tensor": "d"}},
        {"connect": {"select": "first", "input": 0, "tensor": "y"}},
        {"connect": {"select": "mid", "input": "b", "tensor": "x"}},
        {"connect": {"select": "mid", "input": 2, "tensor": "x"}},
        {"connect": {"select": "mid", "input": -1, "tensor": "x"}},
        {"connect": {"select": "mid", "input": 1, "tensor": "xx"}},
        {"disconnect": {"select": "mid", "input": 0}},
        {"disconnect": {"select": "mid", "input": "B"}},
        {"rewire": {"tensor": "b", "read": "x", "readers": "last"}},
        {"rewire": {"tensor": "z", "read": "x"}},
    ],
)
def test_invalid_connections_are_refused(operation: dict[str, Any], check_message: CheckMessage) -> None:
    check_message(refused(CHAIN, operation))


@pytest.mark.parametrize(
    "operation",
    [
        {"connect": {"select": "post", "input": 0, "tensor": "ya"}},
        {"connect": {"select": "plus", "input": 0, "tensor": "na"}},
        {"connect": {"select": "inner", "input": 0, "tensor": "x"}},
        {"connect": {"select": "plus", "input": 0, "tensor": "u"}},
        {"rewire": {"tensor": "y", "read": "ya", "scope": "branch/then_branch"}},
    ],
)
def test_connections_respect_scopes(operation: dict[str, Any], check_message: CheckMessage) -> None:
    check_message(refused(NESTED, _in_main(operation)))


def _in_main(operation: dict[str, Any]) -> dict[str, Any]:
    """Two nodes are called `post`: mean the main graph's."""
    [(word, options)] = operation.items()
    return (
        {word: {**options, "select": {"name": "post", "scope": ""}}} if options.get("select") == "post" else operation
    )


def test_all_readers_read_another_tensor() -> None:
    result = edit(
        NESTED,
        {"add_node": {"op_type": "Abs", "inputs": ["y"], "outputs": ["a"]}},
        {"rewire": {"tensor": "y", "read": "a"}},
    )
    assert "Abs (y)" in text_of(result), "what the new tensor is made of is left"
    assert "Add (a, b)" in text_of(result)
    assert "Sub (a, b)" in text_of(result)


def test_selected_nodes_that_do_not_read_the_tensor_are_skipped() -> None:
    text = """g (float[2] x, float lo) => (float[2] a, float[2] b, float[2] c)
    { [none] a = Clip (x)  [low] b = Clip (x, lo)  [high] c = Clip (x, "", lo) }"""
    result = edit(text, {"disconnect": {"select": {"op_type": "Clip"}, "input": "min"}})
    assert nodes_of(result) == ["[none] a = Clip (x)", "[low] b = Clip (x)", '[high] c = Clip (x, "", lo)']


def test_unselected_readers_and_producers_of_the_new_tensor_are_skipped() -> None:
    text = """g (float[2] x) => (float[2] b, float[2] c, float[2] d, float[2] a)
    { [maker] a = Neg (x)  [other] b = Abs (x)  [one] c = Relu (x)  [two] d = Tanh (x) }"""
    result = edit(text, {"rewire": {"tensor": "x", "read": "a", "readers": ["maker", "one", "two"]}})
    assert nodes_of(result) == [
        "[maker] a = Neg (x)",
        "[other] b = Abs (x)",
        "[one] c = Relu (a)",
        "[two] d = Tanh (a)",
    ]


def test_outputs_are_rewired_under_their_names() -> None:
    result = edit(CHAIN, {"rewire": {"tensor": "z", "read": "w", "outputs": True}})
    assert "[mid] z = Add (y, b)" in nodes_of(result)
    assert "[last] z_before = Sigmoid (d)" in nodes_of(result)
    result = edit(CHAIN, {"rewire": {"tensor": "z", "read": "x", "outputs": True}})
    assert "[Identity] z = Identity (x)" in nodes_of(result)


def test_an_output_that_is_also_an_input_is_rewired(check_message: CheckMessage) -> None:
    text = "g (float[2] x) => (float[2] x, float[2] y) { y = Relu (x) }"
    for operation in (
        {"rewire": {"tensor": "x", "read": "y", "outputs": True}},
        {"insert_node": {"op_type": "Neg", "after": "x"}},
    ):
        check_message(refused(text, operation))


def test_replacing_a_tensor_with_itself_is_refused(check_message: CheckMessage) -> None:
    check_message(refused(CHAIN, {"rewire": {"tensor": "y", "read": "y"}}))


def test_connecting_many_nodes_searches_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = 0
    result = Neighbourhood.__init__

    def counted(self: Neighbourhood, model: ir.Model) -> None:
        nonlocal built
        built += 1
        result(self, model)

    monkeypatch.setattr(Neighbourhood, "__init__", counted)
    lines = " ".join(f"a{i} = Add (y, x)" for i in range(50))
    text = f"g (float[2] x) => (float[2] y) {{ y = Relu (x)  r = Neg (x)  {lines} }}"
    edit(text, {"connect": {"select": {"op_type": "Add"}, "input": "B", "tensor": "r"}})
    assert built < 10


# ---------------------------------------------------------------------------------------------------------- naming


def test_names_are_made_from_templates() -> None:
    result = edit(
        CHAIN,
        {"rename_nodes": {"select": {"op_type": ["Relu", "Add"]}, "to": "/net/{op_type}.{index:02}"}},
        {"rename_nodes": {"select": r"/^(d)(r)op$/", "to": "{2}{1}_{name}_{output}"}},
        {"rename_nodes": {"select": "/net/*", "to": "{stem}{{}}"}},
    )
    assert [node.name for node in result.graph.node] == ["00{}", "01{}", "rd_drop_d", "last"]


def test_equal_names_get_numbers() -> None:
    result = edit(NESTED, {"rename_nodes": {"select": {"op_type": "Neg"}, "to": "post"}})
    assert sorted(all_names(result)[0]) == sorted(
        ["pre", "branch", "call", "post", "plus", "minus", "post_2", "post_3"]
    )
    assert [node.name for node in result.functions[0].node] == ["post_2", "post"]


def test_names_are_exchanged() -> None:
    result = edit(
        CHAIN,
        {"rename_nodes": {"names": {"first": "last", "last": "first"}}},
        {"rename_tensors": {"names": {"x": "y", "y": "x", "b": "z", "z": "b"}}},
    )
    assert nodes_of(result)[:2] == ["[last] x = Relu (y)", "[mid] w = Add (x, z)"]
    wanted, outcome = run(parse(CHAIN), {"x": X}), run(result, {"y": X})
    assert np.array_equal(wanted["z"], outcome["b"])


def test_tensors_of_outer_graphs_are_renamed_where_they_are_read() -> None:
    result = edit(NESTED, {"rename_tensors": {"select": "*", "to": "t", "keep_io": True}})
    assert not [name for name, count in all_names(result)[1].items() if count > 1]
    for feeds in NESTED_FEEDS:
        same_outputs(parse(NESTED), result, feeds)


def test_tensors_are_renamed_by_pattern_and_scope() -> None:
    result = edit(
        NESTED,
        {"rename_tensors": {"select": "/^(.)a$/", "to": "{op_type}_{1}"}},
        {"rename_tensors": {"select": "*", "to": "f_{name}", "scope": "local::Twice"}},
        {"rename_tensors": {"select": ["x", "b"], "to": "{op_type}"}},
    )
    assert [value.name for value in result.graph.input] == ["input", "c"]
    assert [value.name for value in result.graph.initializer] == ["initializer"]
    assert "[plus] Add_y = Add (y, initializer)" in text_of(result)
    assert list(result.functions[0].output) == ["f_b"]


@pytest.mark.parametrize(
    "operation",
    [
        {"rename_nodes": {"names": {"frist": "a"}}},
        {"rename_nodes": {"names": {"first": "mid"}}},
        {"rename_nodes": {"names": {"first": "a", "mid": "a"}}},
        {"rename_tensors": {"names": {"x": "w"}}},
        {"rename_tensors": {"select": "q*", "to": "a"}},
        {"rename_tensors": {"select": "x", "to": "a{1}"}},
    ],
)
def test_invalid_names_are_refused(operation: dict[str, Any], check_message: CheckMessage) -> None:
    check_message(refused(CHAIN, operation))


def test_an_ambiguous_name_is_refused(check_message: CheckMessage) -> None:
    text = NESTED.replace("[inner]", "[pre]")
    check_message(refused(text, {"rename_nodes": {"names": {"pre": "a"}}}))


@pytest.mark.parametrize(
    "options",
    [
        {"select": "*", "to": "{nam}"},
        {"select": "*", "to": "a{"},
        {"select": "*"},
        {"select": "*", "to": "a", "names": {"a": "b"}},
        {"names": {"a": ""}},
        {},
    ],
)
def test_templates_are_checked_before_a_run(options: dict[str, Any], check_message: CheckMessage) -> None:
    for operation in (RenameNodes, RenameTensors):
        with pytest.raises(ValueError) as caught:
            operation.model_validate(options)
        check_message(caught.value)


def test_duplicate_node_names_become_unique() -> None:
    text = "g (float[2] x) => (float[2] y) { [same] a = Relu(x) [same] b = Tanh(a) [same_2] y = Neg(b) }"
    assert [node.name for node in edit(text, "name_all").graph.node] == ["same", "same_3", "same_2"]


def test_all_nodes_get_names() -> None:
    proto = parse("g (float[2] a) => (float[2] z) { b = Relu (a)  c, mask = Dropout (b)  z = Tanh (c) }")
    assert [node.name for node in edit(proto, "name_all").graph.node] == ["Relu_b", "Dropout_c", "Tanh_z"]
    for value, name in {"a": "in.0", "b": "m.1", "c": "m_1", "z": "/out"}.items():
        _rename_proto(proto, value, name)
    result = edit(proto, {"name_all": {"c_identifiers": True}})
    assert [value.name for value in (*result.graph.input, *result.graph.output)] == ["in_0", "_out"]
    assert [list(node.output) for node in result.graph.node] == [["m_1"], ["m_1_2", "mask"], ["_out"]]
    kept = edit(proto, {"name_all": {"c_identifiers": True, "keep_io": True}})
    assert [value.name for value in (*kept.graph.input, *kept.graph.output)] == ["in.0", "/out"]
    same_outputs(proto, kept, {"in.0": np.ones(2, np.float32)})


def _rename_proto(proto: onnx.ModelProto, old: str, new: str) -> None:
    for value in (*proto.graph.input, *proto.graph.output):
        value.name = new if value.name == old else value.name
    for node in proto.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]


def test_an_omitted_output_stays_omitted() -> None:
    proto = parse(
        """g (float[2, 1, 3] x, float[1, 12, 3] w, float[1, 12, 3] r) => (float[1, 1, 3] h)
        { v, h = LSTM <hidden_size = 3> (x, w, r) }"""
    )
    proto.graph.node[0].output[0] = ""
    result = edit(proto, {"name_all": {"c_identifiers": True}}, {"rename_tensors": {"select": "*", "to": "n_{name}"}})
    assert list(result.graph.node[0].output) == ["", "n_h"]


def test_quantization_annotations_are_renamed_too() -> None:
    proto = parse(CHAIN)
    note = proto.graph.quantization_annotation.add(tensor_name="y")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="b")
    result = edit(proto, {"rename_tensors": {"names": {"b": "scale", "y": "act"}}})
    [noted] = result.graph.quantization_annotation
    assert (noted.tensor_name, noted.quant_parameter_tensor_names[0].value) == ("act", "scale")


def test_the_order_of_initializers_is_kept() -> None:
    text = """g (float[2] x) => (float[2] y) <float[2] p = {1, 2}, float[2] q = {3, 4}, float[2] r = {5, 6}>
    { y = Sum (x, p, q, r) }"""
    result = edit(text, {"rename_tensors": {"names": {"p": "q", "q": "p"}}})
    assert [tensor.name for tensor in result.graph.initializer] == ["q", "p", "r"]
    assert "Sum (x, q, p, r)" in text_of(result)


# ----------------------------------------------------------------------------------------------------- free names


def test_unused_names_are_updated_by_each_change() -> None:
    def change(edited: EditedModel) -> None:
        assert edited.fresh_name("first") == "first_2"
        assert edited.fresh_name("first") == "first_3", "handed out, and not given yet"
        node = edited.node("first")
        node.name = "renamed"
        assert edited.fresh_name("first") == "first", "free again"
        edited.names().add("given")
        assert edited.fresh_name("given") == "given_2"
        assert edited.fresh_name("renamed") == "renamed_2"
        assert edited.fresh_name("1/a b") == "_1_a_b"

    edit(CHAIN, by(change))


def test_an_operation_finds_names_given_by_the_previous_one() -> None:
    def sneak(edited: EditedModel) -> None:
        edited.fresh_name("other")
        edited.node("mid").name = "Relu"

    result = edit(CHAIN, by(sneak), {"add_node": {"op_type": "Relu", "inputs": ["x"]}})
    assert sorted(node.name for node in result.graph.node) == ["Relu", "Relu_2", "drop", "first", "last"]


def test_generating_many_names_searches_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(edited: EditedModel) -> None:
        seen = 0
        initializers = ir.Graph.initializers

        def counted(graph: ir.Graph) -> Any:
            nonlocal seen
            seen += 1
            return initializers.fget(graph)  # type: ignore[attr-defined]

        with monkeypatch.context() as patched:
            patched.setattr(ir.Graph, "initializers", property(counted))
            assert len({edited.fresh_name("Relu") for _ in range(3000)}) == 3000
        assert seen == 1

    edit(CHAIN, by(change))


# ---------------------------------------------------------------------------------------------------- all together

_OPERATIONS = st.sampled_from(
    [
        {"add_node": {"op_type": "Abs", "inputs": ["y"]}},
        {"insert_node": {"op_type": "Neg", "after": "y"}},
        {"insert_node": {"op_type": "Abs", "before": {"name": "*", "input": "y"}, "input": 0}},
        {"copy_nodes": {"select": "*"}},
        {"copy_nodes": {"select": {"op_type": "If"}, "prefix": "p"}},
        {"remove_nodes": {"select": {"op_type": "Neg"}, "bridge": True, "allow_empty": True}},
        {"remove_nodes": {"select": {"op_type": ["Abs", "Relu"]}, "bridge": True, "allow_empty": True}},
        {"remove_nodes": {"select": {"op_type": "If", "position": "first"}, "bridge": True, "allow_empty": True}},
        {"rewire": {"tensor": "y", "read": "x", "allow_empty": True}},
        {"rewire": {"tensor": "z", "read": "y", "outputs": True, "allow_empty": True}},
        {"connect": {"select": {"op_type": "Sub"}, "input": "A", "tensor": "x", "allow_empty": True}},
        {"replace_op": {"select": {"op_type": ["Relu", "Neg"]}, "op_type": "Tanh", "allow_empty": True}},
        {"rename_nodes": {"select": "*", "to": "{op_type}"}},
        {"rename_tensors": {"select": "*", "to": "v.{stem}", "keep_io": True}},
        {"rename_tensors": {"select": "/./", "to": "y", "keep_io": True}},
        {"name_all": {"c_identifiers": True, "keep_io": True}},
    ]
)


@settings(max_examples=20, deadline=None)
@given(st.lists(_OPERATIONS, min_size=1, max_size=6))
def test_any_list_of_edits_gives_a_valid_model_or_an_error(operations: list[dict[str, Any]]) -> None:
    try:
        result = edit(NESTED, *operations)
    except ModelError:
        raise
    except RequestError as error:
        assert str(error).startswith("operations[")
        return
    for names in all_names(result):
        assert not [name for name, count in names.items() if name and count > 1]
    assert [value.name for value in result.graph.output] == ["z"]
    for feeds in NESTED_FEEDS:
        run(
            result, {name: feed for name, feed in feeds.items() if name in {value.name for value in result.graph.input}}
        )


def test_a_pattern_that_gives_an_empty_name_is_refused(check_message: CheckMessage) -> None:
    for word in ("rename_nodes", "rename_tensors"):
        with pytest.raises(RequestError) as caught:
            edit(CHAIN, {word: {"select": "/(no)?[a-z]/", "to": "{1}"}})
        check_message(caught.value)


def test_an_input_index_beyond_the_next_is_refused(check_message: CheckMessage) -> None:
    custom = """<ir_version: 8, opset_import: ["" : 17, "acme" : 1]>
    g (float[2] x) => (float[2] y) { [foo] h = acme.Foo (x)  y = Relu (h) }"""
    with pytest.raises(RequestError) as caught:
        edit(custom, {"connect": {"select": "foo", "input": 10**9, "tensor": "x"}})
    check_message(caught.value)


@pytest.mark.parametrize(
    ("op_type", "attributes", "wanted"),
    [("ArgMax", {"axis": 1}, "int64[N,1] z"), ("Cast", {"to": "uint8"}, "uint8[N,4] z"), ("Shape", {}, "int64[2] z")],
)
def test_an_output_gets_the_type_of_what_is_inserted_before_it(
    op_type: str, attributes: dict[str, object], wanted: str
) -> None:
    after = edit(CHAIN, {"insert_node": {"op_type": op_type, "attributes": attributes, "after": "z"}})
    assert wanted in text_of(after)
