"""Bodies of If, Loop and Scan: added, replaced, copied; nodes wrapped in an If, and branches inlined."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ndld_flow.base.errors import RequestError, UnknownNameError
from tests.support import models
from tests.support.editing_fixtures import Feeds, edit, parse, run
from tests.support.message_files import CheckMessage

X = np.array([1, -2, 3], np.float32)
TWO_IFS = """
agraph (float[3] x, bool flag) => (float[3] y) <float[1] w = {3}> {
  a = Relu(x)
  c = Constant<value_float = 2.0>()
  [first] b = If(flag) <
    then_branch = yes () => (float[3] t) <float[1] inner = {5}> { m = Mul(a, w) [add] t = Add(m, inner) },
    else_branch = no () => (float[3] e) { [neg] e = Neg(a) }>
  [second] y = If(flag) <
    then_branch = yes2 () => (float[3] t2) { t2 = Mul(b, c) },
    else_branch = no2 () => (float[3] e2) { e2 = Identity(b) }>
}"""
LOOP = """
agraph (float[3] x, int64 n) => (float[3] y) <bool yes = {1}, float[1] w = {2}> {
  [loop] y = Loop(n, yes, x) <body = step (int64 i, bool go, float[3] carried) => (bool go_on, float[3] next) {
      go_on = Identity(go)
      next = Mul(carried, w)
    }>
}"""
SCAN = """
agraph (float[3] x, float[4, 3] rows) => (float[3] total, float[4, 3] sums) {
  [scan] total, sums = Scan <num_scan_inputs = 1, body = step (float[3] state, float[3] row)
    => (float[3] next, float[3] out) { next = Add(state, row) out = Identity(next) }> (x, rows)
}"""


def _feeds(flag: bool) -> Feeds:
    return {"x": X, "flag": np.array(flag)}


def _all_names(graph: onnx.GraphProto) -> tuple[list[str], list[str]]:
    """Names of nodes, and of tensors that are made or given, of a graph and its bodies."""
    nodes = [node.name for node in graph.node if node.name]
    values = [value.name for value in (*graph.input, *graph.initializer)]
    values += [name for node in graph.node for name in node.output if name]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                inner = _all_names(attribute.g)
                nodes, values = nodes + inner[0], values + inner[1]
    return nodes, values


def _check_unique(model: onnx.ModelProto) -> None:
    for names in _all_names(model.graph):
        assert sorted(names) == sorted(set(names))


def test_a_body_given_as_text_reads_outer_tensors() -> None:
    text = "skip () => (float[3] t) { u = Sub(x, w) t = Mul(u, c) }"
    model = edit(TWO_IFS, {"set_subgraph": {"scope": "first/else_branch", "text": text}})
    _check_unique(model)
    np.testing.assert_array_equal(run(model, _feeds(False))["y"], (X - 3) * 2)
    np.testing.assert_array_equal(run(model, _feeds(True))["y"], (np.maximum(X, 0) * 3 + 5) * 2)


@pytest.mark.parametrize(
    ("before", "weights", "after"), [(3, "", 3), (3, "<float[1] w = {2}>", 4), (8, "<float[1] w = {2}>", 8)]
)
def test_weights_of_a_subgraph_need_ir_version_4(before: int, weights: str, after: int) -> None:
    model = f"""<ir_version: {before}, opset_import: ["" : 12]> agraph (float[3] x, bool flag) => (float[3] y) {{
      [choice] y = If(flag) <then_branch = a () => (float[3] t) {{ t = Neg(x) }},
                             else_branch = b () => (float[3] e) {{ e = Abs(x) }}> }}"""
    text = f"other () => (float[3] t) {weights} {{ t = Mul(x, {'w' if weights else 'x'}) }}"
    changed = edit(model, {"set_subgraph": {"scope": "choice/then_branch", "text": text}})
    assert changed.ir_version == after


def test_tensors_read_only_by_the_old_body_are_removed() -> None:
    text = "step (int64 k, bool go, float[3] v) => (bool on, float[3] r) { on = Identity(go) r = Neg(v) }"
    model = edit(LOOP, {"set_subgraph": {"scope": "loop/body", "text": text}})
    assert [initializer.name for initializer in model.graph.initializer] == ["yes"]
    np.testing.assert_array_equal(run(model, {"x": X, "n": np.array(3)})["y"], -X)


def test_a_body_is_replaced_by_a_model() -> None:
    other = parse("""agraph (float[3] a, float[3] extra) => (float[3] r) <float[1] w = {7}>
      { [add] s = Add(a, w) r = Mul(s, extra) }""")
    replaced = {"scope": "first/then_branch", "model": "other", "connect": {"extra": "x"}}
    model = edit(TWO_IFS, {"set_subgraph": replaced}, other=other)
    _check_unique(model)
    np.testing.assert_array_equal(run(model, _feeds(True))["y"], (np.maximum(X, 0) + 7) * X * 2)


def test_a_branch_captures_tensors_named_like_its_inputs(check_message: CheckMessage) -> None:
    other = parse("agraph (float[3] a) => (float[3] r) { r = Neg(a) }")
    model = edit(TWO_IFS, {"set_subgraph": {"scope": "first/then_branch", "model": "other"}}, other=other)
    np.testing.assert_array_equal(run(model, _feeds(True))["y"], -np.maximum(X, 0) * 2)
    lost = parse("agraph (float[3] q) => (float[3] r) { r = Neg(q) }")
    with pytest.raises(RequestError) as caught:
        edit(TWO_IFS, {"set_subgraph": {"scope": "first/then_branch", "model": "other"}}, other=lost)
    check_message(caught.value)


def test_a_model_becomes_the_body_of_a_loop_and_of_a_scan() -> None:
    body = parse("""agraph (int64 i, bool go, float[3] v, float[3] add) => (bool on, float[3] r)
      { on = Identity(go) r = Add(v, add) }""")
    replaced = {"set_subgraph": {"scope": "loop/body", "model": "other", "connect": {"add": "x"}}}
    np.testing.assert_array_equal(run(edit(LOOP, replaced, other=body), {"x": X, "n": np.array(3)})["y"], X * 4)
    scanned = parse("agraph (float[3] s, float[3] r) => (float[3] n, float[3] o) { n = Sub(s, r) o = Neg(n) }")
    model = edit(SCAN, {"set_subgraph": {"scope": "scan/body", "model": "other"}}, other=scanned)
    result = run(model, {"x": X, "rows": np.ones((4, 3), np.float32)})
    np.testing.assert_array_equal(result["total"], X - 4)
    np.testing.assert_array_equal(result["sums"][0], 1 - X)


@pytest.mark.parametrize(
    ("model", "scope", "text"),
    [
        (TWO_IFS, "first/else_branch", "b (float[3] q) => (float[3] r) { r = Neg(q) }"),
        (TWO_IFS, "first/else_branch", "b () => (float[3] r, float[3] s) { r = Neg(x) s = Neg(x) }"),
        (TWO_IFS, "first/else_branch", "b () => (int64[3] r) { r = Cast<to = 7>(x) }"),
        (TWO_IFS, "first/else_branch", "b () => (float[3] r) { r = Neg(xx) }"),
        (TWO_IFS, "first/else_branch", "b () => (float[3] r) { r = Neg(m) }"),
        (TWO_IFS, "first/else_branch", "b () => float[3] r"),
        (TWO_IFS, "first/else_brunch", "b () => (float[3] r) { r = Neg(x) }"),
        (LOOP, "loop/body", "b (int64 i, bool go) => (bool on) { on = Not(go) }"),
        (LOOP, "loop/body", "b (int64 i, bool go, float[3] v) => (bool on) { on = Not(go) }"),
        (SCAN, "scan/body", "b (float[3] s) => (float[3] n) { n = Neg(s) }"),
    ],
)
def test_invalid_bodies_are_refused(model: str, scope: str, text: str, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        edit(model, {"set_subgraph": {"scope": scope, "text": text}})
    check_message(caught.value)


@pytest.mark.parametrize(
    "settings", [{}, {"text": "x", "model": "y"}, {"text": "x", "copy_of": "y"}, {"text": "x", "connect": {"a": "b"}}]
)
def test_a_body_has_one_source(settings: dict[str, object], check_message: CheckMessage) -> None:
    with pytest.raises(ValueError) as caught:
        edit(TWO_IFS, {"set_subgraph": {"scope": "first/else_branch", **settings}})
    check_message(caught.value)


def test_a_copied_body_may_use_other_tensors_and_weights() -> None:
    settings = {"scope": "second/else_branch", "copy_of": "first/then_branch", "connect": {"a": "b"}}
    model = edit(TWO_IFS, {"set_subgraph": settings})
    _check_unique(model)
    np.testing.assert_array_equal(run(model, _feeds(False))["y"], -np.maximum(X, 0) * 3 + 5)
    with pytest.raises(UnknownNameError) as caught:
        edit(TWO_IFS, {"set_subgraph": {**settings, "connect": {"q": "b"}}})
    assert caught.value.name == "q"


def test_copying_out_of_scope_is_refused(check_message: CheckMessage) -> None:
    text = """agraph (float[3] x, bool flag) => (float[3] y, float[3] z) {
      [outer] y = If(flag) <
        then_branch = yes () => (float[3] t) <float[1] w = {5}> {
          u = Neg(x)
          [inner] t = If(flag) <
            then_branch = a () => (float[3] i) { i = Add(u, w) },
            else_branch = b () => (float[3] j) { j = Mul(x, w) }>
        },
        else_branch = no () => (float[3] e) { e = Identity(x) }>
      [other] z = If(flag) <
        then_branch = yes3 () => (float[3] k) { k = Identity(x) },
        else_branch = no3 () => (float[3] l) { l = Identity(x) }>
    }"""
    branch = "outer/then_branch/inner"
    with pytest.raises(RequestError) as caught:
        edit(text, {"set_subgraph": {"scope": "other/else_branch", "copy_of": f"{branch}/then_branch"}})
    check_message(caught.value)
    model = edit(text, {"set_subgraph": {"scope": "other/else_branch", "copy_of": f"{branch}/else_branch"}})
    np.testing.assert_array_equal(run(model, _feeds(False))["z"], X * 5)


def test_a_body_is_added_to_a_node_without_one(check_message: CheckMessage) -> None:
    model = parse(TWO_IFS)
    second = model.graph.node[-1]
    del second.attribute[1]
    added = {"scope": "second/else_branch", "text": "n () => (float[3] r) { r = Neg(x) }"}
    result = edit(model, {"set_subgraph": added})
    np.testing.assert_array_equal(run(result, _feeds(False))["y"], -X)
    with pytest.raises(RequestError) as caught:
        edit(model, {"set_subgraph": {**added, "scope": "second/body"}})
    check_message(caught.value)


CHAIN = """
agraph (float[3] x, bool flag, float[3] other) => (float[3] y) <float[1] w = {3}> {
  [a] a = Relu(x)
  [b] b = Mul(a, w)
  [c] c = Neg(b)
  [d] y = Add(c, w)
}"""


@pytest.mark.parametrize("flag", [True, False])
def test_nodes_are_wrapped_in_an_if(flag: bool) -> None:
    model = edit(CHAIN, {"wrap_in_if": {"select": ["b", "c"], "condition": "flag", "name": "maybe"}})
    _check_unique(model)
    assert [node.name for node in model.graph.node] == ["a", "maybe", "d"]
    a = np.maximum(X, 0)
    np.testing.assert_array_equal(run(model, {**_feeds(flag), "other": X})["y"], (-(a * 3) if flag else a) + 3)
    named = edit(CHAIN, {"wrap_in_if": {"select": "d", "condition": "flag", "otherwise": {"y": "other"}}})
    assert [value.name for value in named.graph.output] == ["y"]
    np.testing.assert_array_equal(run(named, {**_feeds(False), "other": X})["y"], X)


@pytest.mark.parametrize(
    "settings",
    [
        {"select": ["a", "c"], "condition": "flag"},
        {"select": "b", "condition": "flug"},
        {"select": "b", "condition": "x"},
        {"select": "b", "condition": "flag", "otherwise": {"q": "x"}},
        {"select": "b", "condition": "flag", "otherwise": {"b": "q"}},
        {"select": "b", "condition": "late"},
        {"select": "b", "condition": "flags"},
        {"select": "b", "condition": "flag", "otherwise": {"b": "c"}},
        {"select": "b", "condition": "flag", "otherwise": {"b": "b"}},
        {"select": "b", "condition": "flag", "otherwise": {"b": "whole"}},
    ],
)
def test_invalid_wraps_are_refused(settings: dict[str, object], check_message: CheckMessage) -> None:
    more = "[e] flags = Cast<to = 9>(c) [f] whole = Cast<to = 7>(x) [g] s = ReduceSum(c) [h] late = Cast<to = 9>(s) }"
    with pytest.raises(RequestError) as caught:
        edit(CHAIN.rstrip().removesuffix("}") + more, {"wrap_in_if": settings})
    check_message(caught.value)


def test_the_other_branch_must_return_a_sequence_for_a_sequence(check_message: CheckMessage) -> None:
    text = """agraph (float[2, 4] x, bool flag) => (float[2, 4] y) {
      s = SplitToSequence<axis = 0, keepdims = 1>(x) y = ConcatFromSequence<axis = 0>(s) }"""
    with pytest.raises(RequestError) as caught:
        edit(text, {"wrap_in_if": {"select": {"output": "s"}, "condition": "flag", "otherwise": {"s": "x"}}})
    check_message(caught.value)


def test_two_inputs_need_an_explicit_other_branch(check_message: CheckMessage) -> None:
    text = "agraph (float[3] x, float[3] z, bool flag) => (float[3] y) { [n] y = Add(x, z) }"
    with pytest.raises(RequestError) as caught:
        edit(text, {"wrap_in_if": {"select": "n", "condition": "flag"}})
    check_message(caught.value)


@pytest.mark.parametrize("branch", ["then_branch", "else_branch"])
def test_a_branch_is_inlined(branch: str) -> None:
    model = edit(TWO_IFS, {"inline_branch": {"select": {"op_type": "If"}, "branch": branch}})
    assert "If" not in {node.op_type for node in model.graph.node}
    assert [value.name for value in model.graph.input] == ["x", "flag"]
    wanted = run(parse(TWO_IFS), _feeds(branch == "then_branch"))["y"]
    np.testing.assert_array_equal(run(model, _feeds(True))["y"], wanted)


@pytest.mark.parametrize(("before", "after"), [(3, 4), (8, 8)])
def test_weights_of_an_inlined_branch_need_ir_version_4(before: int, after: int) -> None:
    model = f"""<ir_version: {before}, opset_import: ["" : 12]> agraph (float[3] x, bool flag) => (float[3] y) {{
      [choice] y = If(flag) <then_branch = a () => (float[3] t) <float[1] w = {{2}}> {{ t = Mul(x, w) }},
                             else_branch = b () => (float[3] e) {{ e = Abs(x) }}> }}"""
    changed = edit(model, {"inline_branch": {"select": "choice", "branch": "then_branch"}})
    assert changed.ir_version == after
    assert [initializer.name for initializer in changed.graph.initializer] == ["w"]


@pytest.mark.parametrize("branch", ["then_branch", "else_branch"])
def test_names_reused_in_branches_become_unique(branch: str) -> None:
    text = """agraph (float[3] x, bool flag) => (float[3] y) {
      [a] a = If(flag) <then_branch = p () => (float[3] r) { [n] t = Exp(x) r = Neg(t) },
        else_branch = q () => (float[3] r) { [n] t = Abs(x) r = Sqrt(t) }>
      [b] b = If(flag) <then_branch = p () => (float[3] r) <float[1] w = {2}> { [n] t = Mul(a, w) r = Neg(t) },
        else_branch = q () => (float[3] r) <float[1] w = {3}> { [n] t = Abs(a) r = Mul(t, w) }>
      y = Add(a, b) }"""
    model = edit(text, {"inline_branch": {"select": {"op_type": "If"}, "branch": branch}})
    _check_unique(model)
    np.testing.assert_array_equal(run(model, _feeds(True))["y"], run(parse(text), _feeds(branch == "then_branch"))["y"])


def test_inlining_reverts_wrapping() -> None:
    model = edit(
        CHAIN,
        {"wrap_in_if": {"select": ["b", "c"], "condition": "flag", "name": "maybe"}},
        {"inline_branch": {"select": "maybe", "branch": "then_branch"}},
    )
    assert [(node.name, node.op_type, list(node.output)[-1:]) for node in model.graph.node][-1] == ("d", "Add", ["y"])
    feeds = {**_feeds(True), "other": X}
    np.testing.assert_array_equal(run(model, feeds)["y"], run(parse(CHAIN), feeds)["y"])


def test_nodes_needed_only_by_the_condition_are_removed_with_the_if() -> None:
    text = """agraph (float[3] x, bool flag) => (float[3] y) {
      no = Not(flag) a = Abs(x)
      [outer] y = If(no) <then_branch = p () => (float[3] t) { t = Neg(x) },
        else_branch = q () => (float[3] e) { e = Exp(a) }> }"""
    model = edit(text, {"inline_branch": {"select": "outer", "branch": "then_branch"}})
    assert [node.op_type for node in model.graph.node] == ["Neg"]


def test_only_an_if_can_be_inlined_and_the_other_branch_is_removed(check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        edit(LOOP, {"inline_branch": {"select": "loop", "branch": "then_branch"}})
    check_message(caught.value)
    nested = """agraph (float[3] x, bool flag) => (float[3] y) {
      [outer] y = If(flag) <then_branch = p () => (float[3] t) {
          [inner] t = If(flag) <then_branch = a () => (float[3] i) { i = Neg(x) },
                                else_branch = b () => (float[3] j) { j = Abs(x) }> },
        else_branch = q () => (float[3] e) { e = Identity(x) }> }"""
    for branch, ops in (("then_branch", ["Neg"]), ("else_branch", ["Identity"])):
        model = edit(nested, {"inline_branch": {"select": {"op_type": "If"}, "branch": branch}})
        assert [node.op_type for node in model.graph.node] == ops


def test_a_branch_that_returns_a_weight_is_inlined() -> None:
    text = """agraph (float[3] x, bool flag) => (float[1] y) {
      [outer] y = If(flag) <then_branch = p () => (float[1] t) <float[1] t = {5}> { u = Neg(x) },
        else_branch = q () => (float[1] e) { e = Constant<value_floats = [1.0]>() }> }"""
    model = edit(text, {"inline_branch": {"select": "outer", "branch": "then_branch"}})
    assert run(model, _feeds(True))["y"] == [5]


def test_weights_of_a_branch_in_a_function_become_constants() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "pkg" : 1]>
    agraph (float[3] x, bool flag) => (float[3] y) { y = pkg.Maybe(x, flag) }
    <domain: "pkg", opset_import: ["" : 17]>
    Maybe (v, test) => (r) { [choose] r = If(test) <
        then_branch = p () => (float[3] t) <float[1] w = {5}> { t = Add(v, w) },
        else_branch = q () => (float[3] e) { e = Identity(v) }> }"""
    model = edit(text, {"inline_branch": {"select": "choose", "branch": "then_branch"}})
    assert [node.op_type for node in model.functions[0].node] == ["Constant", "Add"]
    np.testing.assert_array_equal(run(model, {"x": X, "flag": np.array(False)})["y"], X + 5)


def test_bodies_of_exported_models_are_edited_deterministically() -> None:
    result = [
        edit(models.ctrl_model(), {"inline_branch": {"select": {"op_type": "If"}, "branch": "then_branch"}})
        for _ in range(2)
    ]
    assert result[0].SerializeToString() == result[1].SerializeToString()
    assert "If" not in {node.op_type for node in result[0].graph.node}
