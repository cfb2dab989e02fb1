"""Rewrite rules from text: matches, mismatches, and replacements."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndld_flow.base.errors import RequestError
from ndld_flow.records.layer_arithmetic import PRECISION_KEY
from tests.graph.test_edit_functions import X, apply, names_are_unique, refusal
from tests.support.editing_fixtures import edit, parse, run, same_outputs, text_of
from tests.support.message_files import CheckMessage
from tests.support.models import tfm_model

SWISH = {
    "pattern": "(x) => (y) { s = Sigmoid(x)  y = Mul(x, s) }",
    "replacement": "(x) => (y) { y = com.microsoft.QuickGelu <alpha = 1.0> (x) }",
}
SCALE = {
    "pattern": "(x) => (y) { c = Constant <value = float {0.5}> () y = Mul(x, c) }",
    "replacement": "(x) => (y) { c = Constant <value = float {2}> () y = Div(x, c) }",
}


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def rewritten(text: str | onnx.ModelProto, **rule: Any) -> onnx.ModelProto:
    """The model after a rule: valid, no name twice, and with the same interface."""
    before = parse(text) if isinstance(text, str) else text
    after = edit(before, {"rewrite": rule})
    onnx.checker.check_model(after, full_check=True)
    assert names_are_unique(after)
    assert [value.name for value in after.graph.output] == [value.name for value in before.graph.output]
    return after


def test_swish_becomes_a_contrib_operator_in_either_order() -> None:
    text = """g (float[2, 4] x) => (float[2, 4] y) {
      [a] s = Sigmoid (x) [b] t = Mul (x, s) [c] u = Sigmoid (t) [d] y = Mul (u, t)
    }"""
    after = rewritten(text, **SWISH)
    assert text_of(after).partition("{\n")[2] == (
        "   [b_QuickGelu] t = com.microsoft.QuickGelu <alpha: float = 1> (x)\n"
        "   [d_QuickGelu] y = com.microsoft.QuickGelu <alpha: float = 1> (t)\n}"
    )
    assert {opset.domain: opset.version for opset in after.opset_import} == {"": 17, "com.microsoft": 1}
    np.testing.assert_allclose(run(after, X)["y"], run(parse(text), X)["y"], rtol=1e-5)
    assert ops(rewritten(text, **SWISH, commutative=False)) == ["QuickGelu", "Sigmoid", "Mul"]


def test_matches_are_counted_and_no_match_is_an_error(check_message: CheckMessage) -> None:
    message = refusal("g (float[2, 4] x) => (float[2, 4] y) { y = Relu (x) }", "rewrite", **SWISH)
    assert "skipped" not in message
    check_message(message)
    assert apply("g (float[2, 4] x) => (float[2, 4] y) { y = Relu (x) }", "rewrite", **SWISH, allow_empty=True)


@pytest.mark.parametrize("condition", [True, False])
def test_subgraphs_and_functions_are_searched(condition: bool) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
    g (float[2, 4] x, bool c) => (float[2, 4] y) <float[2, 4] t> {
      t = f.F (x)
      y = If (c) <then_branch = a () => (float[2, 4] o) { s = Sigmoid (t) o = Mul (t, s) },
                  else_branch = b () => (float[2, 4] p) { p = Relu (t) }>
    }
    <domain: "f", opset_import: ["" : 17]> F (u) => (v) { z = Sigmoid (u) v = Mul (u, z) }"""
    model = parse(text)
    after = edit(model, {"rewrite": SWISH})
    assert [node.op_type for node in after.functions[0].node] == ["QuickGelu"]
    assert {opset.domain for opset in after.functions[0].opset_import} == {"", "com.microsoft"}
    assert [node.op_type for node in after.graph.node[1].attribute[0].g.node] == ["QuickGelu"]
    feeds = {**X, "c": np.array(condition)}
    np.testing.assert_allclose(run(after, feeds)["y"], run(model, feeds)["y"], rtol=1e-5)


def test_inner_tensors_with_other_readers_prevent_a_match_unless_allowed(check_message: CheckMessage) -> None:
    read = "g (float[2, 4] x) => (float[2, 4] y, float[2, 4] z) { s = Sigmoid (x) y = Mul (x, s) z = Neg (s) }"
    handed = "g (float[2, 4] x) => (float[2, 4] y, float[2, 4] s) { s = Sigmoid (x) y = Mul (x, s) }"
    captured = """g (float[2, 4] x, bool c) => (float[2, 4] y, float[2, 4] z) {
      s = Sigmoid (x) y = Mul (x, s)
      z = If (c) <then_branch = a () => (float[2, 4] o) { o = Neg (s) },
                  else_branch = b () => (float[2, 4] p) { p = Neg (x) }>
    }"""
    for text in (read, handed, captured):
        message = refusal(text, "rewrite", **SWISH)
        check_message(message)
        after = rewritten(text, **SWISH, allow_shared=True)
        assert {"Sigmoid", "QuickGelu"} <= set(ops(after))
        feeds = {**X, "c": np.array(True)} if "bool c" in text else X
        for name, array in run(parse(text), feeds).items():
            np.testing.assert_allclose(run(after, feeds)[name], array, rtol=1e-5)


@pytest.mark.parametrize(
    "constant",
    ["<float c = {0.5}>", "<float[1] c = {0.5}>", "<float[1, 1] c = {0.500001}>"],
)
def test_constants_match_initializers_by_value(constant: str) -> None:
    text = f"g (float[2, 4] x) => (float[2, 4] y) {constant} {{ y = Mul (c, x) }}"
    after = rewritten(text, **SCALE)
    assert ops(after) == ["Constant", "Div"] and not after.graph.initializer
    np.testing.assert_allclose(run(after, X)["y"], run(parse(text), X)["y"], rtol=1e-5)


def test_constants_match_all_forms_of_constant_nodes() -> None:
    text = """g (float[2, 4] x) => (float[2, 4] y) {
      c = Constant <value_float = 0.5> () d = Constant <value_floats = [0.5]> () a = Mul (x, c) y = Mul (a, d)
    }"""
    assert ops(rewritten(text, **SCALE)) == ["Constant", "Div", "Constant", "Div"]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2, 4] x) => (float[2, 4] y) <float c = {0.51}> { y = Mul (x, c) }",
        "g (float[2, 4] x) => (float[2, 4] y) <float[4] c = {0.5, 0.5, 0.5, 0.5}> { y = Mul (x, c) }",
        "g (float[2, 4] x, float c) => (float[2, 4] y) { y = Mul (x, c) }",
        "g (float[4] x) => (float[1, 4] y) <float[1, 1] c = {0.5}> { y = Mul (x, c) }",
        "g (float[2, 4] x, float c) => (float[2, 4] y) <float c = {0.5}> { y = Mul (x, c) }",
    ],
)
def test_other_constants_do_not_match(text: str, check_message: CheckMessage) -> None:
    check_message(refusal(text, "rewrite", **SCALE))


def test_constants_match_within_the_precision_of_their_dtype() -> None:
    text = "g (float16[2, 4] x) => (float16[2, 4] y) <float16[1] c = {0}> { y = Mul (x, c) }"
    model = parse(text)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array([1.702], np.float16), "c"))
    rule = {
        "pattern": "(x) => (y) { c = Constant <value = float {1.702}> () y = Mul(x, c) }",
        "replacement": "(x) => (y) { y = Neg (x) }",
    }
    assert ops(edit(model, {"rewrite": rule})) == ["Neg"]


TRANSPOSES = {
    "pattern": "(x) => (y) { t = Transpose <perm = $perm> (x)  y = Softmax <axis = $axis> (t) }",
    "replacement": "(x) => (y) { u = Transpose <perm = $perm> (x)  y = LogSoftmax <axis = $axis> (u) }",
}


def test_attribute_variables_are_carried_over_with_defaults() -> None:
    text = """g (float[2, 4] x) => (float[4, 2] y, float[4, 2] z) {
      a = Transpose <perm = [1, 0]> (x) y = Softmax (a) b = Transpose (x) z = Softmax <axis = 0> (b)
    }"""
    after = rewritten(text, **TRANSPOSES)
    attributes = [
        {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in n.attribute}
        for n in after.graph.node
    ]
    assert attributes == [{"perm": [1, 0]}, {"axis": -1}, {}, {"axis": 0}]


def test_a_repeated_variable_is_one_value() -> None:
    rule = {
        "pattern": "(x) => (y) { a = Softmax <axis = $axis> (x) y = Softmax <axis = $axis> (a) }",
        "replacement": "(x) => (y) { y = Softmax <axis = $axis> (x) }",
    }
    text = """g (float[2, 4] x) => (float[2, 4] y, float[2, 4] z) {
      a = Softmax <axis = 0> (x) y = Softmax <axis = 0> (a) b = Softmax (x) z = Softmax <axis = 0> (b)
    }"""
    assert ops(rewritten(text, **rule)) == ["Softmax", "Softmax", "Softmax"]


def test_named_attributes_must_be_equal_and_others_are_ignored() -> None:
    rule = {
        "pattern": "(x) => (y) { y = LeakyRelu <alpha = 0.01> (x) }",
        "replacement": "(x) => (y) { y = Relu (x) }",
    }
    text = """g (float[2, 4] x) => (float[2, 4] y) {
      a = LeakyRelu (x) b = LeakyRelu <alpha = 0.01> (a) y = LeakyRelu <alpha = 0.2> (b)
    }"""
    assert ops(rewritten(text, **rule)) == ["Relu", "Relu", "LeakyRelu"]
    loose = {"pattern": "(x) => (y) { y = Softmax (x) }", "replacement": "(x) => (y) { y = Relu (x) }"}
    text = "g (float[2, 4] x) => (float[2, 4] y) { a = Softmax (x) y = Softmax <axis = 0> (a) }"
    assert ops(rewritten(text, **loose)) == ["Relu", "Relu"]
    assert ops(rewritten(text, **loose, exact_attributes=True)) == ["Relu", "Softmax"]


@pytest.mark.representatives("where9-0", "where5-1", "where3-1")
@pytest.mark.parametrize(
    ("where", "count"),
    [
        ({"constants": {"c": 2}}, 1),
        ({"constants": {"c": [1, 2, 3, 4]}}, 1),
        ({"constants": {"c": None}}, 2),
        ({"ranks": {"c": 1}}, 1),
        ({"ranks": {"x": 2}}, 3),
        ({"shapes": {"c": [4]}}, 1),
        ({"shapes": {"x": [2, None]}}, 3),
        ({"shapes": {"x": [2, 5]}}, 0),
        ({"dtypes": {"x": "float32"}}, 3),
        ({"dtypes": {"x": ["float16", "int8"]}}, 0),
        ({"single_use": ["c"]}, 2),
    ],
)
def test_conditions_restrict_matches(where: dict[str, Any], count: int) -> None:
    text = """g (float[2, 4] x, float[2, 4] z) => (float[2, 4] y) <float s = {2}, float[4] v = {1, 2, 3, 4}> {
      a = Sub (x, s) b = Sub (a, v) c = Sub (b, z) y = Add (c, z)
    }"""
    rule = {
        "pattern": "(x, c) => (y) { y = Sub (x, c) }",
        "replacement": "(x, c) => (y) { n = Neg (c) y = Add (x, n) }",
    }
    after = edit(text, {"rewrite": {**rule, "where": where, "allow_empty": True}})
    assert ops(after).count("Neg") == count
    same_outputs(parse(text), after, {**X, "z": X["x"] * 2})


def test_conditions_on_attributes_restrict_matches() -> None:
    text = (
        "g (float[2, 4] x) => (float[2, 4] y) { a = Softmax <axis = 0> (x) b = Softmax <axis = 1> (a) y = Softmax (b) }"
    )
    rule = {"pattern": "(x) => (y) { y = Softmax <axis = $axis> (x) }", "replacement": "(x) => (y) { y = Relu (x) }"}
    assert ops(rewritten(text, **rule, where={"attributes": {"axis": [1, -1]}})) == ["Softmax", "Relu", "Relu"]
    assert ops(rewritten(text, **rule, where={"attributes": {"axis": 0}})) == ["Relu", "Softmax", "Softmax"]


SPLIT = {
    "pattern": "(x) => (a, b) { a, b = Split <axis = 0> (x) }",
    "replacement": """(x) => (a, b) {
        zero = Constant <value_ints = [0]> ()  one = Constant <value_ints = [1]> ()
        two = Constant <value_ints = [2]> ()
        a = Slice (x, zero, one)  b = Slice (x, one, two)
    }""",
}


def test_a_replacement_may_have_several_outputs_and_constants() -> None:
    text = "g (float[2, 4] x) => (float[1, 4] p, float[1, 4] y) { p, q = Split <axis = 0> (x) y = Neg (q) }"
    after = rewritten(text, **SPLIT)
    assert ops(after) == ["Constant", "Constant", "Constant", "Slice", "Slice", "Neg"]
    same_outputs(parse(text), after, X)


def test_matches_that_would_create_a_cycle_are_skipped(check_message: CheckMessage) -> None:
    rule = {
        "pattern": "(x, z) => (a, b) { a = Neg (x) t = Relu (x) b = Add (t, z) }",
        "replacement": "(x, z) => (a, b) { a, b = custom.Both (x, z) }",
    }
    text = "g (float[2, 4] x) => (float[2, 4] y) { a = Neg (x) e = Exp (a) t = Relu (x) y = Add (t, e) }"
    check_message(refusal(text, "rewrite", **rule))
    apart = "g (float[2, 4] x) => (float[2, 4] y, float[2, 4] a) { a = Neg (x) t = Relu (x) y = Add (t, x) }"
    assert ops(edit(apart, {"rewrite": rule})) == ["Both"]


def test_matches_do_not_overlap_and_new_nodes_are_not_rewritten() -> None:
    rule = {
        "pattern": "(x) => (y) { a = Relu (x) y = Relu (a) }",
        "replacement": "(x) => (y) { a = Relu (x) y = Relu (a) }",
    }
    text = "g (float[2, 4] x) => (float[2, 4] y) { a = Relu (x) b = Relu (a) c = Relu (b) d = Relu (c) y = Relu (d) }"
    after = rewritten(text, **rule)
    assert ops(after) == ["Relu"] * 5 and len({node.name for node in after.graph.node}) == 5
    same_outputs(parse(text), after, X)


@pytest.mark.parametrize(
    "pattern",
    [
        "(x) => (y) { a = Relu (x) b = Relu (x) y = Add (a, b) }",  # two nodes are not one
        "(x, z) => (y) { a = Relu (x) y = Add (a, z) }",  # an input is not made inside
    ],
)
def test_matched_nodes_are_distinct_and_inputs_come_from_outside(pattern: str, check_message: CheckMessage) -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y) { r = Relu (x) y = Add (r, r) }"
    message = refusal(text, "rewrite", pattern=pattern, replacement="(x) => (y) { y = Neg (x) }")
    assert "skipped" not in message
    check_message(message)


def test_matches_are_limited_by_number_and_selection() -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y) { [a] p = Relu (x) [b] q = Relu (p) [c] y = Relu (q) }"
    rule = {"pattern": "(x) => (y) { y = Relu (x) }", "replacement": "(x) => (y) { y = Abs (x) }"}
    assert ops(rewritten(text, **rule, limit=2)) == ["Abs", "Abs", "Relu"]
    assert ops(rewritten(text, **rule, select=["b"])) == ["Relu", "Abs", "Relu"]


def test_inputs_may_be_passed_through_and_unused_inputs_are_removed() -> None:
    rule = {"pattern": "(x, c) => (y) { y = Add (x, c) }", "replacement": "(x) => (x) { }"}
    text = (
        "g (float[2, 4] x) => (float[2, 4] y) <float[4] w = {1, 2, 3, 4}> { n = Neg (w) a = Add (x, n) y = Relu (a) }"
    )
    after = rewritten(text, **rule)
    assert ops(after) == ["Relu"] and not after.graph.initializer
    after = rewritten("g (float[2, 4] x) => (float[2, 4] y) <float[4] w = {1, 2, 3, 4}> { y = Add (x, w) }", **rule)
    assert ops(after) == ["Identity"]


def test_consecutive_matches_are_connected() -> None:
    rule = {"pattern": "(x) => (y) { y = Identity (x) }", "replacement": "(x) => (x) { }"}
    text = "g (float[2, 4] x) => (float[2, 4] y) { a = Identity (x) b = Identity (a) c = Identity (b) y = Relu (c) }"
    assert text_of(rewritten(text, **rule)).endswith("{\n   y = Relu (x)\n}")


def test_equal_precision_constraints_are_kept_and_conflicts_prevent_a_match(check_message: CheckMessage) -> None:
    model = parse("g (float[2, 4] x) => (float[2, 4] y) { s = Sigmoid (x) y = Mul (x, s) }")
    for node, precision in zip(model.graph.node, ("fp16", "fp32"), strict=True):
        asked = node.metadata_props.add()
        asked.key, asked.value = PRECISION_KEY, precision
    check_message(refusal(model, "rewrite", **SWISH))
    del model.graph.node[1].metadata_props[:]
    (node,) = edit(model, {"rewrite": SWISH}).graph.node
    assert [(item.key, item.value) for item in node.metadata_props] == [(PRECISION_KEY, "fp16")]


def test_optional_inputs_match_when_both_omit_them() -> None:
    rule = {"pattern": "(x, h) => (y) { y = Clip (x, , h) }", "replacement": "(x, h) => (y) { y = Min (x, h) }"}
    text = "g (float[2, 4] x, float h) => (float[2, 4] y) { a = Clip (x, , h) b = Clip (a, h, h) y = Clip (b, h) }"
    assert ops(rewritten(text, **rule)) == ["Min", "Clip", "Clip"]


GELU = {
    "pattern": """(x) => (y) {
        root = Constant <value = float {1.4142135}> ()  one = Constant <value = float {1}> ()
        half = Constant <value = float {0.5}> ()
        d = Div (x, root)  e = Erf (d)  p = Add (e, one)  m = Mul (x, p)  y = Mul (m, half)
    }""",
    "replacement": "(x) => (y) { y = com.microsoft.Gelu (x) }",
}


def test_gelu_is_found_in_all_layers_of_a_transformer() -> None:
    model = tfm_model(3)
    after = rewritten(model, **GELU)
    assert ops(after).count("Gelu") == 3 and "Erf" not in ops(after)
    feeds = {"ids": np.arange(10).reshape(2, 5), "mask": np.ones((2, 5), np.int64)}
    np.testing.assert_allclose(run(after, feeds)["hidden"], run(model, feeds)["hidden"], rtol=1e-4, atol=1e-5)


def test_many_commutative_nodes_are_matched_quickly() -> None:
    steps = " ".join(f"h{i + 1} = Add (h{i}, m{i}) m{i + 1} = Mul (h{i + 1}, h{i})" for i in range(12))
    pattern = f"(h0, m0) => (h12) {{ {steps.rpartition(' m12')[0]} }}"
    swapped = " ".join(f"h{i + 1} = Add (m{i}, h{i}) m{i + 1} = Mul (h{i}, h{i + 1})" for i in range(12))
    text = f"g (float[2, 4] h0, float[2, 4] m0) => (float[2, 4] h12) {{ {swapped.rpartition(' m12')[0]} }}"
    after = rewritten(text, pattern=pattern, replacement="(h0, m0) => (y) { y = Sub (h0, m0) }")
    assert ops(after) == ["Sub"]


@pytest.mark.parametrize(
    "change",
    [
        {"pattern": "(x) => (y) { y = Relu(x }"},
        {"pattern": "(x) => (y) { y = Relu(z) }"},
        {"pattern": "(x) => (z) { y = Relu(x) }"},
        {"pattern": "(x) => (y) { y = Relu(x) y = Relu(x) }"},
        {"pattern": "(x) => (x) { y = Relu(x) }"},
        {"pattern": "(x, z) => (y, w) { y = Relu(x) w = Relu(z) }"},
        {"replacement": "(z) => (y) { y = Relu(z) }"},
        {"replacement": "(x) => (y, x) { y = Relu(x) }"},
        {"replacement": "(x) => (y) { y = Elu <alpha = $a> (x) }"},
        {"where": {"ranks": {"z": 1}}},
        {"where": {"attributes": {"axis": 1}}},
        {"where": {"dtypes": {"x": "flot32"}}},
    ],
)
def test_malformed_rules_are_reported(change: dict[str, Any], check_message: CheckMessage) -> None:
    rule = {"pattern": "(x) => (y) { y = Relu(x) }", "replacement": "(x) => (y) { y = Abs(x) }", **change}
    if "y, w" in rule["pattern"]:
        rule["replacement"] = "(x, z) => (y, w) { y = Abs(x) w = Abs(z) }"
    check_message(refusal("g (float[2, 4] x) => (float[2, 4] y) { y = Relu (x) }", "rewrite", **rule))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_rewriting_random_graphs_keeps_outputs(data: st.DataObject) -> None:
    result, nodes = ["x"], []
    for index in range(data.draw(st.integers(2, 9))):
        op = data.draw(st.sampled_from(["Neg", "Abs", "Sub", "Add"]))
        inputs = [data.draw(st.sampled_from(result)) for _ in range(2 if op in ("Sub", "Add") else 1)]
        nodes.append(f"v{index} = {op} ({', '.join(inputs)})")
        result.append(f"v{index}")
    text = f"g (float[2, 4] x) => (float[2, 4] y) {{ {' '.join(nodes)} y = Sum ({', '.join(result)}) }}"
    shared = data.draw(st.booleans())
    rules = [
        ("(a, b) => (y) { n = Neg (b) y = Add (a, n) }", "(a, b) => (y) { y = Sub (a, b) }"),
        ("(a, b) => (y, n) { n = Neg (b) y = Add (a, n) }", "(a, b) => (y, n) { n = Neg (b) y = Sub (a, b) }"),
        ("(a) => (y) { n = Abs (a) y = Abs (n) }", "(a) => (y) { y = Abs (a) }"),
        ("(a, b) => (y) { y = Sub (a, b) }", "(b, a) => (y) { n = Neg (b) y = Add (a, n) }"),
        ("(a) => (y) { n = Neg (a) y = Neg (n) }", "(a) => (a) { }"),
    ]
    pattern, replacement = data.draw(st.sampled_from(rules))
    rule = {"pattern": pattern, "replacement": replacement, "allow_shared": shared}
    try:
        after = rewritten(text, **rule)
    except RequestError as error:
        assert "pattern has no match" in str(error)
        return
    same_outputs(parse(text), after, X)


RELU = "g (float[2, 4] x) => (float[2, 4] y) <float[1] c = {1}> { t = Relu (x) y = Add (t, c) }"
TANH = "(x) => (y) { y = Tanh(x) }"


@pytest.mark.parametrize(
    ("pattern", "replacement", "where"),
    [
        ("", TANH, {}),
        ("(x) => (y) { y = Relu(x) } more", TANH, {}),
        ("(x, u) => (y) { y = Relu(x) }", "(u) => (y) { y = Neg(u) }", {}),
        ("(x, x) => (y) { y = Add(x, x) }", TANH, {}),
        ("(x) => (y, y) { y = Relu(x) }", TANH, {}),
        ("(x) => (y) { y = Relu(x) }", "(x) => (y) { y = Elu<alpha = $a>(x) }", {}),
        ("(x, c) => (y) { y = Add(x, c) }", TANH, {"constants": {"c": [1, [2]]}}),
        ("(x, c) => (y) { y = Add(x, c) }", TANH, {"constants": {"c": "one"}}),
    ],
)
def test_contradictory_rules_are_reported(
    pattern: str, replacement: str, where: dict[str, object], check_message: CheckMessage
) -> None:
    check_message(refusal(RELU, "rewrite", pattern=pattern, replacement=replacement, where=where))
