"""Local functions: created from nodes and repeated blocks, called, inlined, renamed, deleted, given attributes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.models.files import load_model
from ndld_flow.models.nodes import free_name
from ndld_flow.records.layer_arithmetic import PRECISION_KEY
from tests.support.editing_fixtures import edit, operations_of, parse, run, same_outputs, text_of
from tests.support.message_files import CheckMessage
from tests.support.models import Array, tfm_model

BLOCKS = """g (float[2, 4] x) => (float[2, 4] y)
<float[4, 4] w0 = {0.5, -1, 0.25, 2, 1, 0.5, -0.5, 1, 0.75, 1, 1.5, -2, 0.1, 0.2, 0.3, -0.4},
 float[4, 4] w1 = {1, 0.5, -0.5, 1, 0.5, -1, 0.25, 2, 0.1, 0.2, 0.3, -0.4, 0.75, 1, 1.5, -2}, float[4] b = {1, 2, 3, 4}>
{
  [mm0] m0 = MatMul (x, w0)
  [add0] a0 = Add (m0, b)
  [act0] r0 = LeakyRelu <alpha = 0.1> (a0)
  [res0] h0 = Add (r0, x)
  [mm1] m1 = MatMul (h0, w1)
  [add1] a1 = Add (m1, b)
  [act1] r1 = LeakyRelu <alpha = 0.3> (a1)
  [res1] y = Add (r1, h0)
}"""
FIRST_BLOCK = ["mm0", "add0", "act0", "res0"]
X = {"x": np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)}
TFM_FEEDS = {"ids": np.arange(10).reshape(2, 5), "mask": np.ones((2, 5), np.int64)}


def apply(model: str | onnx.ModelProto, word: str, **settings_: Any) -> EditedModel:
    """One operation by itself, with the notes it leaves."""
    proto = parse(model) if isinstance(model, str) else model
    edited = EditedModel(ir.serde.deserialize_model(proto), Path("model.onnx"))
    for entry in operations_of([{word: settings_}]):
        entry.operation.apply(edited)
    return edited


def refusal(model: str | onnx.ModelProto, word: str, **settings_: Any) -> str:
    with pytest.raises(RequestError) as error:
        apply(model, word, **settings_)
    assert "\n" not in str(error.value)
    return str(error.value)


def functions_of(model: onnx.ModelProto) -> str:
    return "\n".join(onnx.printer.to_text(function).strip() for function in model.functions)


def calls(model: onnx.ModelProto, op_type: str) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == op_type]


def names_are_unique(model: onnx.ModelProto) -> bool:
    edited = ir.serde.deserialize_model(model)
    graphs = [*edited.graphs(), *(f.graph for f in edited.functions.values())]
    nodes = [node.name for graph in graphs for node in graph if node.name]
    values = [v.name for g in graphs for v in (*g.inputs, *g.initializers.values(), *(o for n in g for o in n.outputs))]
    return len(nodes) == len(set(nodes)) and len(values) == len(set(values))


def checked(before: str | onnx.ModelProto, after: onnx.ModelProto, feeds: Mapping[str, Array] = X) -> onnx.ModelProto:
    """Valid, with the same outputs and no name twice."""
    onnx.checker.check_model(after, full_check=True)
    assert names_are_unique(after)
    same_outputs(parse(before) if isinstance(before, str) else before, after, feeds)
    return after


def test_a_selection_and_its_repeats_become_calls_of_one_function() -> None:
    result = checked(BLOCKS, edit(BLOCKS, {"make_function": {"function": "model::Block", "select": FIRST_BLOCK}}))
    assert text_of(result).endswith(
        "{\n   [Block] h0 = model.Block <alpha: float = 0.1> (x, w0, b)\n"
        "   [Block_2] y = model.Block <alpha: float = 0.3> (h0, w1, b)\n}"
    )
    assert functions_of(result) == (
        '<\n  domain: "model",\n  opset_import: ["" : 17]\n>\n'
        "Block (x_2, w0_2, b_2) => (Block_output)\n{\n"
        "   [mm0] m0 = MatMul (x_2, w0_2)\n   [add0] a0 = Add (m0, b_2)\n"
        "   [act0] r0 = LeakyRelu <alpha: float = @alpha> (a0)\n   [res0] Block_output = Add (r0, x_2)\n}"
    )


def test_without_repeats_only_the_selection_is_called() -> None:
    settings_ = {"function": "model::Block", "select": FIRST_BLOCK, "repeats": False}
    result = checked(BLOCKS, edit(BLOCKS, {"make_function": settings_}))
    assert [node.op_type for node in result.graph.node] == ["Block", "MatMul", "Add", "LeakyRelu", "Add"]
    assert not result.functions[0].attribute_proto


def test_inlining_a_created_function_restores_the_model() -> None:
    make = {"make_function": {"function": "model::Block", "select": FIRST_BLOCK, "repeats": False}}
    again = checked(BLOCKS, edit(BLOCKS, make, {"inline_functions": {}}))
    assert text_of(again).partition("{\n   [")[2] == text_of(parse(BLOCKS)).partition("{\n   [")[2]
    assert not again.functions and [opset.domain for opset in again.opset_import] == [""]


def test_a_transformer_layer_becomes_a_function_and_is_inlined_again() -> None:
    model = tfm_model(3)
    nodes, first = len(tfm_model(1).graph.node) - len(tfm_model(0).graph.node), len(tfm_model(0).graph.node) - 2
    layer = [node.name or node.output[0] for node in model.graph.node[first : first + nodes]]
    make = {"make_function": {"function": "model::Layer", "select": layer}}
    result = checked(model, edit(model, make), TFM_FEEDS)
    assert len(calls(result, "Layer")) == 3
    assert len(result.functions[0].output) == 1
    assert len(result.functions[0].node) * 3 + len(result.graph.node) - 3 == len(model.graph.node)
    again = checked(model, edit(model, make, {"inline_functions": {"select": "Layer"}}), TFM_FEEDS)
    assert len(again.graph.node) == len(model.graph.node) and not again.functions


def test_repeats_far_apart_are_found() -> None:
    text = BLOCKS.replace("[mm1] m1 = MatMul (h0, w1)", "[n] n = Neg (h0) [e] e = Exp (n) [mm1] m1 = MatMul (e, w1)")
    text = text.replace("Add (r1, h0)", "Add (r1, e)")
    result = checked(text, edit(text, {"make_function": {"function": "model::Block", "select": FIRST_BLOCK}}))
    assert [node.op_type for node in result.graph.node] == ["Block", "Neg", "Exp", "Block"]


def test_constants_shared_by_all_repeats_move_into_the_function() -> None:
    settings_ = {"function": "model::Block", "select": FIRST_BLOCK, "inside": True}
    result = checked(BLOCKS, edit(BLOCKS, {"make_function": settings_}))
    assert [len(node.input) for node in calls(result, "Block")] == [2, 2]
    assert [initializer.name for initializer in result.graph.initializer] == ["w0", "w1"]
    assert result.functions[0].node[0].op_type == "Constant"


def test_constant_nodes_that_differ_become_tensor_attributes() -> None:
    text = """g (float[2, 4] x) => (float[2, 4] y) {
      [c] c0 = Constant <value = float[1] {2}> () [m] m0 = Mul (x, c0) [r] r0 = Relu (m0)
      c1 = Constant <value = float[1] {3}> () m1 = Mul (r0, c1) y = Relu (m1)
    }"""
    make = {"make_function": {"function": "m::Scale", "select": ["c", "m", "r"]}}
    result = checked(text, edit(text, make))
    assert len(calls(result, "Scale")) == 2 and result.functions[0].attribute_proto[0].t.float_data == [2]
    checked(text, edit(text, make, {"inline_functions": {}}))


def test_long_constants_that_differ_in_the_middle_differ() -> None:
    nodes = []
    for number, middle in enumerate((0, 7)):
        values = np.zeros(2000, np.float32)
        values[1000] = middle
        tensor = onnx.numpy_helper.from_array(values)
        nodes.append(onnx.helper.make_node("Constant", [], [f"c{number}"], f"constant{number}", value=tensor))
        nodes.append(onnx.helper.make_node("Add", ["x", f"c{number}"], [f"y{number}"], f"add{number}"))
    ends = [onnx.helper.make_tensor_value_info(name, 1, [2000]) for name in ("x", "y0", "y1")]
    opsets = [onnx.helper.make_opsetid("", 17)]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    done = edit(model, {"make_function": {"function": "m::Shift", "select": ["constant0", "add0"]}})
    same_outputs(model, done, {"x": np.ones(2000, np.float32)})
    assert len(calls(done, "Shift")) == 2


def test_attributes_that_vary_together_are_merged_and_clashing_names_use_the_node() -> None:
    text = """g (float[2, 4] x) => (float[2, 4] y) {
      [a0] t0 = Softmax <axis = 0> (x) [b0] u0 = Softmax <axis = 0> (t0) [c0] v0 = Softmax <axis = 1> (u0)
      [a1] t1 = Softmax <axis = 1> (v0) [b1] u1 = Softmax <axis = 1> (t1) [c1] y = Softmax <axis = 0> (u1)
    }"""
    make = {"make_function": {"function": "m::Three", "select": ["a0", "b0", "c0"]}}
    result = checked(text, edit(text, make))
    assert [(item.name, item.i) for item in result.functions[0].attribute_proto] == [("a0_axis", 0), ("c0_axis", 1)]
    assert [[(a.name, a.i) for a in node.attribute] for node in calls(result, "Three")] == [
        [("a0_axis", 0), ("c0_axis", 1)],
        [("a0_axis", 1), ("c0_axis", 0)],
    ]


IFS = """g (float[2, 4] x, bool c) => (float[2, 4] y, float[2, 4] z) {
  [neg] n = Neg (x)
  [if0] i = If (c) <then_branch = t0 () => (float[2, 4] o0) { [relu0] p0 = Relu (n) [add0] o0 = Add (p0, x) },
                    else_branch = e0 () => (float[2, 4] q0) { [abs0] q0 = Abs (n) }>
  [exp] y = Exp (i)
  [neg1] n1 = Neg (y)
  [if1] i1 = If (c) <then_branch = t1 () => (float[2, 4] o1) { [relu1] p1 = Relu (n1) [add1] o1 = Add (p1, y) },
                     else_branch = e1 () => (float[2, 4] q1) { [abs1] q1 = Abs (n1) }>
  [exp1] z = Exp (i1)
}"""


@pytest.mark.parametrize("condition", [True, False])
def test_subgraphs_move_along_with_their_captured_tensors(condition: bool) -> None:
    feeds = {**X, "c": np.array(condition)}
    make = {"make_function": {"function": "m::Step", "select": ["neg", "if0", "exp", "relu0"]}}
    result = checked(IFS, edit(IFS, make), feeds)
    assert [node.op_type for node in result.graph.node] == ["Step", "Step"]
    assert [list(node.input) for node in result.graph.node] == [["x", "c"], ["y", "c"]]
    again = checked(IFS, edit(IFS, make, {"inline_functions": {}}), feeds)
    assert len(again.graph.node) == 6


@pytest.mark.parametrize("condition", [True, False])
def test_nodes_of_a_subgraph_become_a_function_that_gets_outer_tensors(condition: bool) -> None:
    feeds = {**X, "c": np.array(condition)}
    make = {"make_function": {"function": "m::Inner", "select": {"scope": "if0/then_branch"}}}
    result = checked(IFS, edit(IFS, make), feeds)
    branch = result.graph.node[1].attribute[0].g
    assert [(node.op_type, list(node.input)) for node in branch.node] == [("Inner", ["n", "x"])]
    assert result.graph.node[4].attribute[0].g.node[0].op_type == "Inner"
    checked(IFS, edit(IFS, make, {"inline_functions": {}}), feeds)


def test_a_block_in_a_function_forwards_the_attributes_of_that_function() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
    g (float[2, 4] x) => (float[2, 4] y) { a = f.Outer <slope = 0.5> (x) y = f.Outer (a) }
    <domain: "f", opset_import: ["" : 17]>
    Outer <slope: float = 0.25> (u) => (v) { [n] n = Neg (u) [l] v = LeakyRelu <alpha: float = @slope> (n) }"""
    make = {"make_function": {"function": "m::Inner", "select": {"scope": "f::Outer"}}}
    result = checked(text, edit(text, make))
    assert {function.name: list(function.attribute) for function in result.functions} == {
        "Outer": [],
        "Inner": ["alpha"],
    }
    checked(text, edit(text, make, {"inline_functions": {"select": "Outer"}}))
    checked(text, edit(text, make, {"inline_functions": {}}))


def test_an_inner_tensor_of_a_repeat_that_is_read_elsewhere_becomes_an_output() -> None:
    text = BLOCKS.replace("=> (float[2, 4] y)", "=> (float[2, 4] y, float[2, 4] a1)")
    result = checked(text, edit(text, {"make_function": {"function": "model::Block", "select": FIRST_BLOCK}}))
    assert [len(node.output) for node in calls(result, "Block")] == [2, 2]
    assert calls(result, "Block")[1].output == ["a1", "y"]


def test_mutually_dependent_repeats_are_not_both_used() -> None:
    text = """g (float[2, 4] x) => (float[2, 4] y) {
      [n0] a0 = Neg (x) [n1] a1 = Neg (x) [r0] e0 = Relu (a1) [r1] e1 = Relu (a0)
      [s0] b0 = Add (a0, e0) [s1] b1 = Add (a1, e1) [t] y = Add (b0, b1)
    }"""
    result = checked(text, edit(text, {"make_function": {"function": "m::F", "select": ["n0", "s0"]}}))
    assert len(calls(result, "F")) == 1


def test_nodes_constrained_to_another_precision_are_no_repeat() -> None:
    model = parse(BLOCKS)
    asked = model.graph.node[6].metadata_props.add()
    asked.key, asked.value = PRECISION_KEY, "fp16"
    result = edit(model, {"make_function": {"function": "m::Block", "select": FIRST_BLOCK}})
    assert len(calls(result, "Block")) == 1


def test_large_weights_stay_on_disk(tmp_path: Path) -> None:
    model = parse(BLOCKS)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    edited = EditedModel(load_model(tmp_path / "m.onnx"), tmp_path / "m.onnx")
    for entry in operations_of([{"make_function": {"function": "m::B", "select": FIRST_BLOCK, "inside": True}}]):
        entry.operation.apply(edited)
    assert all(isinstance(v.const_value, ir.ExternalTensor) for v in edited.model.graph.initializers.values())
    assert [len(node.inputs) for node in edited.model.graph] == [3, 3]


def test_old_models_get_an_ir_version_that_has_functions() -> None:
    model = parse(BLOCKS)
    model.ir_version = 7
    edited = apply(model, "make_function", function="m::B", select=FIRST_BLOCK)
    assert edited.model.ir_version == 9
    (note,) = edited.notes
    assert "7 -> 9" in note


@pytest.mark.parametrize(
    "settings_",
    [
        {"function": "Block", "select": "mm0"},
        {"function": "ai.onnx::Block", "select": "mm0"},
        {"function": "com.microsoft::Gelu", "select": "mm0"},
        {"function": "m::B", "select": ["mm0", "act0"]},
        {"function": "m::B", "select": "nowhere"},
    ],
)
def test_nodes_that_cannot_become_a_function_are_reported(
    settings_: dict[str, Any], check_message: CheckMessage
) -> None:
    check_message(refusal(BLOCKS, "make_function", **settings_))


def test_nodes_of_two_graphs_cannot_become_one(check_message: CheckMessage) -> None:
    message = refusal(IFS, "make_function", function="m::B", select=["neg", "relu0"])
    assert "`scope`" in message
    check_message(message)


FUNCTIONS = """<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
g (float[2, 4] x) => (float[2, 4] y, float[2, 4] z, float[2, 4] w) {
  a = f.Outer (x)
  y, z = f.Twice (a)
  w = f.Same (x)
}
<domain: "f", opset_import: ["" : 17, "f" : 1]>
Outer (u) => (v) { n = f.Leaky <slope = 0.5> (u) v = f.Leaky (n) }
<domain: "f", opset_import: ["" : 17]>
Leaky <slope: float = 0.25> (u) => (v) { v = LeakyRelu <alpha: float = @slope> (u) }
<domain: "f", opset_import: ["" : 17]>
Twice (u) => (v, w) { v = Exp (u) w = Neg (v) }
<domain: "f", opset_import: ["" : 17]>
Same (u) => (v) { v = Identity (u) }
<domain: "f", opset_import: ["" : 17]>
Unused (u) => (v) { v = Abs (u) }"""


def test_all_functions_are_inlined_nested_ones_too() -> None:
    done = checked(FUNCTIONS, edit(FUNCTIONS, {"inline_functions": {}}))
    assert not done.functions
    assert [node.op_type for node in done.graph.node] == ["LeakyRelu", "LeakyRelu", "Exp", "Neg", "Identity"]
    assert [round(node.attribute[0].f, 3) for node in done.graph.node[:2]] == [0.5, 0.25]


def test_an_input_returned_by_a_function_is_copied_to_the_output() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
    g (float[2, 4] x) => (float[2, 4] y, float[2, 4] z) { y, z = f.Same (x) }
    <domain: "f", opset_import: ["" : 17]> Same (u) => (u, v) { v = Neg (u) }"""  # ONNX Runtime does not take this
    done = edit(text, {"inline_functions": {}})
    assert text_of(done).endswith("{\n   z = Neg (x)\n   [y_Identity] y = Identity (x)\n}")


def test_a_copied_output_gets_a_name_that_no_inlined_node_has() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
    g (float[2, 4] x) => (float[2, 4] y, float[2, 4] z) { y, z = f.Same (x) }
    <domain: "f", opset_import: ["" : 17]> Same (u) => (u, v) { [y_Identity] v = Neg (u) }"""
    done = edit(text, {"inline_functions": {}})
    assert [node.name for node in done.graph.node] == ["y_Identity", "y_Identity_2"]


def test_some_functions_are_inlined_in_other_functions_too() -> None:
    done = edit(FUNCTIONS, {"inline_functions": {"select": "f::Leaky"}})
    same_outputs(parse(FUNCTIONS), done, X)
    assert [function.name for function in done.functions] == ["Outer", "Twice", "Same", "Unused"]
    assert [node.op_type for node in done.functions[0].node] == ["LeakyRelu", "LeakyRelu"]


def test_functions_can_be_kept_after_inlining() -> None:
    done = edit(FUNCTIONS, {"inline_functions": {"select": ["Leaky", "Outer"], "keep_unused": True}})
    same_outputs(parse(FUNCTIONS), done, X)
    assert len(done.functions) == 5 and not calls(done, "Outer")


def test_calls_in_subgraphs_are_inlined_and_keep_precision_constraints() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
    g (float[2, 4] x, bool c) => (float[2, 4] y) {
      t = Neg (x)
      y = If (c) <then_branch = a () => (float[2, 4] o) { o = f.F (t) },
                  else_branch = b () => (float[2, 4] p) { p = f.F (x) }>
    }
    <domain: "f", opset_import: ["" : 17]> F (u) => (v) { t = Relu (u) v = Exp (t) }"""
    model = parse(text)
    asked = model.graph.node[1].attribute[0].g.node[0].metadata_props.add()
    asked.key, asked.value = "note", "mine"
    done = edit(model, {"inline_functions": {}})
    onnx.checker.check_model(done, full_check=True)
    assert names_are_unique(done)
    assert [prop.value for prop in done.graph.node[1].attribute[0].g.node[0].metadata_props] == ["mine"]
    for condition in (True, False):
        same_outputs(model, done, {**X, "c": np.array(condition)})


def test_recursive_functions_are_reported() -> None:
    model = parse(FUNCTIONS)
    model.functions[1].node[0].CopyFrom(onnx.helper.make_node("Outer", ["u"], ["v"], domain="f"))
    message = refusal(model, "inline_functions")
    assert "cycle" in message
    assert set(message.partition(": ")[2].split(" -> ")) == {"f::Outer", "f::Leaky"}


def test_a_function_of_another_opset_is_reported(check_message: CheckMessage) -> None:
    model = parse(FUNCTIONS)
    model.functions[4].opset_import[0].version = 13
    assert edit(model, {"inline_functions": {"select": "Unused"}})
    model.functions[2].opset_import[0].version = 13
    message = refusal(model, "inline_functions")
    check_message(message)


def test_unknown_functions_are_reported_with_the_nearest(check_message: CheckMessage) -> None:
    check_message(refusal(FUNCTIONS, "inline_functions", select="f::Outr"))
    check_message(refusal(BLOCKS, "remove_functions", select="x"))
    assert edit(BLOCKS, {"inline_functions": {}})


def test_a_call_is_added_in_the_main_graph_and_in_a_subgraph() -> None:
    call = {"function": "f::Leaky", "inputs": ["y"], "outputs": ["more"], "attributes": {"slope": 2}}
    edited = apply(FUNCTIONS, "call_function", **call)
    node = edited.node("more")
    assert (node.domain, node.op_type, node.name, node.attributes["slope"].as_float()) == ("f", "Leaky", "Leaky", 2.0)
    text = IFS.replace("g (", '<ir_version: 10, opset_import: ["" : 17]>\ng (', 1)
    text += '<domain: "f", opset_import: ["" : 17]> Half (u, unread) => (v) { v = Relu (u) }'
    edited = apply(text, "call_function", function="Half", inputs=["n", ""], scope="if0/then_branch")
    result = edited.graph("if0/then_branch")[-1]
    assert (
        result.op_type == "Half"
        and result.inputs[0] is not None
        and result.inputs[0].name == "n"
        and result.inputs[1] is None
    )
    assert edited.model.opset_imports["f"] == 1 and result.outputs[0].name == "Half_v"


@pytest.mark.parametrize(
    "settings_",
    [
        {"function": "Leaky", "inputs": ["nope"]},
        {"function": "Leaky", "inputs": ["x", "y"]},
        {"function": "Leaky", "inputs": ["x"], "outputs": ["y"]},
        {"function": "Leaky", "inputs": ["x"], "attributes": {"slop": 1}},
        {"function": "Leaky", "inputs": ["x"], "attributes": {"slope": "a"}},
        {"function": "Outer", "inputs": ["u"], "scope": "f::Leaky"},
        {"function": "Outer", "inputs": ["u"], "scope": "f::Outer"},
        {"function": "*", "inputs": ["x"]},
        {"function": "Leaky", "inputs": []},
    ],
)
def test_calls_that_do_not_fit_are_reported(settings_: dict[str, Any], check_message: CheckMessage) -> None:
    check_message(refusal(FUNCTIONS, "call_function", **settings_))


def test_an_output_without_a_name_gets_one() -> None:
    edited = apply(FUNCTIONS, "call_function", function="Leaky", inputs=["x"], outputs=[""])
    assert [value.name for value in edited.model.graph[-1].outputs] == ["Leaky_v"]


@pytest.mark.parametrize("to", ["f::{name:99999999}", "f::{name.__class__}", "f::{0}", "f::{", "f::{name!r}"])
def test_new_function_names_do_not_affect_other_operators(to: str, check_message: CheckMessage) -> None:
    check_message(refusal(FUNCTIONS, "rename_functions", select="*", to=to))


@pytest.mark.parametrize("value", [10**30, -(2**63) - 1, 1e300, {"a": 1}, []])
def test_values_that_onnx_cannot_hold_are_reported(value: object, check_message: CheckMessage) -> None:
    message = refusal(FUNCTIONS, "set_function_attributes", function="Outer", attributes={"more": value})
    check_message(message)


def test_a_call_may_be_added_where_it_creates_no_recursion() -> None:
    edited = apply(FUNCTIONS, "call_function", function="Leaky", inputs=["u"], scope="f::Outer")
    assert len(edited.graph("f::Outer")) == 3


def test_deleted_functions_leave_custom_operators_when_asked(check_message: CheckMessage) -> None:
    message = refusal(FUNCTIONS, "remove_functions", select="f::*y")
    check_message(message)
    edited = apply(FUNCTIONS, "remove_functions", select=["Leaky"], leave_calls=True)
    assert [key[1] for key in edited.model.functions] == ["Outer", "Twice", "Same", "Unused"]
    (note,) = edited.notes
    assert note.startswith("2 calls")
    assert not apply(FUNCTIONS, "remove_functions", select=["Unused"]).notes
    assert not apply(FUNCTIONS, "remove_functions", select=["*"], leave_calls=True).model.functions


def test_renamed_functions_are_called_by_their_new_name() -> None:
    done = edit(FUNCTIONS, {"rename_functions": {"select": "f::*", "to": "pkg.mine::{name}_2"}})
    same_outputs(parse(FUNCTIONS), done, X)
    assert {node.domain for node in done.graph.node} == {"pkg.mine"}
    assert {opset.domain for opset in done.opset_import} == {"", "pkg.mine"}
    assert {opset.domain for opset in done.functions[0].opset_import} == {"", "pkg.mine"}


def test_functions_cannot_share_a_name(check_message: CheckMessage) -> None:
    message = refusal(FUNCTIONS, "rename_functions", select="*", to="m::Same")
    assert "'m::Same'" in message
    check_message(refusal(FUNCTIONS, "rename_functions", select="Outer", to="{nam}::x"))


def test_a_node_in_a_function_refers_to_an_attribute_of_it() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
    g (float[2, 4] x) => (float[2, 4] y) { y = f.F (x) }
    <domain: "f", opset_import: ["" : 17]> F (u) => (w) { [l] v = LeakyRelu <alpha = 0.5> (u) [s] w = Softmax (v) }"""
    set_ = {
        "function": "f::F",
        "attributes": {"axis": 0},
        "references": {"l": {"alpha": "slope"}, "s": {"axis": "axis"}},
    }
    done = edit(text, {"set_function_attributes": set_}, {"inline_functions": {}})
    kept = edit(text, {"set_function_attributes": set_})
    assert {item.name: item.f or item.i for item in kept.functions[0].attribute_proto} == {"axis": 0, "slope": 0.5}
    assert kept.ir_version == 9
    np.testing.assert_allclose(run(kept, X)["y"], run(done, X)["y"])
    assert done.graph.node[1].attribute[0].i == 0


@pytest.mark.parametrize(
    "settings_",
    [
        {"references": {"m": {"alpha": "slope"}}},
        {"references": {"v": {"alpa": "slope"}}},
        {"attributes": {"slope": "much"}},
        {"attributes": {"slope": [None]}},
    ],
)
def test_attributes_that_do_not_fit_are_reported(settings_: dict[str, Any], check_message: CheckMessage) -> None:
    check_message(refusal(FUNCTIONS, "set_function_attributes", function="Leaky", **settings_))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_selection_becomes_a_function_and_is_inlined_again_or_refused(data: st.DataObject) -> None:
    ops = data.draw(st.lists(st.sampled_from(["Neg", "Relu", "Add", "Mul"]), min_size=3, max_size=9))
    result, nodes = ["x"], []
    for index, op in enumerate(ops):
        inputs = [data.draw(st.sampled_from(result)) for _ in range(2 if op in ("Add", "Mul") else 1)]
        nodes.append(f"[n{index}] v{index} = {op} ({', '.join(inputs)})")
        result.append(f"v{index}")
    text = f"g (float[2, 4] x) => (float[2, 4] y) {{ {' '.join(nodes)} [last] y = Sum ({', '.join(result)}) }}"
    chosen = sorted(data.draw(st.sets(st.sampled_from(range(len(ops))), min_size=1)))
    make = {"make_function": {"function": "m::F", "select": [f"n{index}" for index in chosen]}}
    try:
        done = edit(text, make)
    except RequestError as error:
        assert "depends on" in str(error)
        return
    checked(text, done)
    again = checked(text, edit(text, make, {"inline_functions": {}}))
    assert len(again.graph.node) == len(ops) + 1


def test_constant_nodes_move_into_the_function_like_initializers() -> None:
    text = """g (float[2] x) => (float[2] y) {
        one = Constant <value = float[1] {1}> () a = Add(x, one) b = Tanh(a)
        same = Constant <value = float[1] {1}> () c = Add(b, same) y = Tanh(c)
    }"""
    result = edit(text, {"make_function": {"function": "f::Step", "select": {"output": ["a", "b"]}, "inside": True}})
    assert [node.op_type for node in result.graph.node] == ["Step", "Step"]
    assert [node.op_type for node in result.functions[0].node] == ["Constant", "Add", "Tanh"]
    assert len(result.functions[0].input) == 1
    same_outputs(parse(text), result, {"x": np.array([1, 2], np.float32)})


def test_outputs_of_calls_keep_their_shapes() -> None:
    text = """g (float[N, 4] x, int64[2] s) => (float[A, B] y) <float[7, 9] r> {
        r = Reshape(x, s) t = Neg(r) y = Tanh(t)
    }"""
    result = edit(text, {"make_function": {"function": "f::Part", "select": {"output": ["r", "t"]}}})
    assert "(float[7,9] y)" in text_of(result) or "(float[A,B] y)" in text_of(result)
    widened = edit(result, {"set_shapes": {"shapes": {"x": ["N", 8]}}})
    assert "float[7,9] Part_output" not in text_of(widened), "what a local function makes follows its inputs"


class _Counting(set[str]):
    """Names in use that count the questions about them."""

    asked = 0

    def __contains__(self, name: object) -> bool:
        self.asked += 1
        return super().__contains__(name)


def test_names_of_many_copies_are_found_at_once() -> None:
    new, others, count = set[str](), _Counting(["t", "t_3"]), 2000
    names = [free_name("t", new, others) for _ in range(count)]
    assert names[:3] == ["t_2", "t_4", "t_5"]
    assert len(new) == count and new.isdisjoint({"t", "t_3"})
    assert others.asked < 30 * count
