"""Parts of models as models of their own: extract, cut, bodies, functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.edited_model import EditedModel
from tests.support import models
from tests.support.editing_fixtures import Array, by, edit, edit_path, parse, run, text_of
from tests.support.message_files import CheckMessage

FEEDS = {"x": np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)}
CHAIN = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[N, 3] x) => (float[N, 3] y, float[N, 3] z)
<float[3] w = {1, 2, 3}, float[3] v = {4, 5, 6}>
{
  [first] a = Add(x, w)
  [constant] half = Constant<value_float = 0.5>()
  [second] b = Mul(a, half)
  [third] c = Mul(b, v)
  [fourth] y = Add(c, w)
  [fifth] z = Sub(b, half)
}
"""


def _floats(values: npt.ArrayLike) -> Array:
    return np.array(values, np.float32)


def _names(values: list[onnx.ValueInfoProto]) -> list[str]:
    return [value.name for value in values]


def _header(model: onnx.ModelProto) -> str:
    """Inputs and outputs with their types: `(float[2] x) => (float[2] y)`."""
    return text_of(model).split("\n")[0].partition(" ")[2].strip()


def test_extract_head_by_outputs() -> None:
    head = edit(CHAIN, {"extract": {"outputs": ["b"]}})
    assert text_of(head) == (
        "agraph (float[N,3] x) => (float[N,3] b) \n"
        "   <float[3] w =  {1,2,3}, float[3] w, float[N,3] a, float half>\n"
        "{\n   [first] a = Add (x, w)\n   [constant] half = Constant <value_float: float = 0.5> ()\n"
        "   [second] b = Mul (a, half)\n}"
    )
    np.testing.assert_array_equal(run(head, FEEDS)["b"], (FEEDS["x"] + _floats([1, 2, 3])) * np.float32(0.5))


def test_extract_keeps_order_of_outputs_as_asked() -> None:
    part = edit(CHAIN, {"extract": {"outputs": ["z", "a"]}})
    assert _names(list(part.graph.output)) == ["z", "a"]
    result = run(part, FEEDS)
    np.testing.assert_array_equal(result["z"], run(parse(CHAIN), FEEDS)["z"])


def test_extract_between_inputs_and_outputs_types_the_new_inputs() -> None:
    tail = edit(CHAIN, {"extract": {"outputs": ["y"], "inputs": ["b"]}})
    assert _header(tail).startswith("(float[N,3] b)")
    assert _names(list(tail.graph.initializer)) == ["w", "v"]


@pytest.mark.parametrize(
    "options",
    [
        {"outputs": ["y"], "inputs": ["c"], "scope": "nowhere"},
        {"outputs": ["yy"]},
        {"outputs": ["y", "z"], "inputs": ["c"]},
        {"outputs": ["y"], "inputs": ["c", "x"]},
        {"outputs": ["x"]},
        {"outputs": ["b"], "inputs": ["b"]},
        {"outputs": ["b"], "types": {"q": "float32[1]"}},
        {"outputs": ["b"], "types": {"b": "float32"}},
        {"outputs": ["b"], "types": {"b": "floot32[1]"}},
        {"select": "nothing*"},
    ],
)
def test_invalid_parts_are_refused(options: dict[str, object], check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        edit(CHAIN, {"extract": options})
    check_message(caught.value)


@pytest.mark.parametrize(
    "options", [{}, {"outputs": ["a"], "select": "x"}, {"select": "x", "inputs": ["a"]}, {"select": "x", "scope": "f"}]
)
def test_a_part_is_specified_in_one_form(options: dict[str, object], check_message: CheckMessage) -> None:
    with pytest.raises(ValueError) as caught:
        edit(CHAIN, {"extract": options})
    check_message(caught.value)


def test_extract_by_nodes_brings_constants_and_finds_edges() -> None:
    part = edit(CHAIN, {"extract": {"select": ["third", "fifth"]}})
    assert (_names(list(part.graph.input)), _names(list(part.graph.output))) == (["b"], ["z", "c"])
    assert [node.name for node in part.graph.node] == ["constant", "third", "fifth"]
    assert _names(list(part.graph.initializer)) == ["v"]


def test_cut_is_the_rest() -> None:
    rest = edit(CHAIN, {"cut": {"select": {"after": "b"}}})
    assert (_names(list(rest.graph.input)), _names(list(rest.graph.output))) == (["x"], ["b"])
    assert [node.name for node in rest.graph.node] == ["first", "constant", "second"]
    before = edit(CHAIN, {"cut": {"select": {"before": "b"}}})
    assert (_names(list(before.graph.input)), _names(list(before.graph.output))) == (["b"], ["y", "z"])
    assert [node.name for node in before.graph.node] == ["constant", "third", "fourth", "fifth"]


def test_cutting_everything_or_a_body_is_refused(check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        edit(CHAIN, {"cut": {"select": "*"}})
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        edit(models.ctrl_model(), {"cut": {"select": {"scope": "*/then_branch"}}})
    check_message(caught.value)


def test_shapes_of_new_inputs_are_inferred_without_value_info() -> None:
    text = """agraph (float[N, 4, 8] x) => (float[N, 32] y) { a = Relu(x) s = Constant<value_ints = [0, 32]>()
      y = Reshape(a, s) }"""
    tail = edit(text, {"extract": {"outputs": ["y"], "inputs": ["a"]}})
    assert _header(tail).startswith("(float[N,4,8] a)")


def test_outdated_value_info_is_not_used() -> None:
    text = """agraph (float[1, 1, 8, 8] x) => (float[N, M, H, W] y) <float[1, 1, H, W] a> {
      [pool] a = MaxPool<kernel_shape = [2, 2]>(x) y = Relu(a) }"""
    model = onnx.shape_inference.infer_shapes(parse(text))

    def stride(edited: EditedModel) -> None:
        edited.node("pool").attributes["strides"] = ir.AttrInt64s("strides", [2, 2])

    tail = edit(model, by(stride), {"extract": {"outputs": ["y"], "inputs": ["a"]}})
    assert _header(tail).startswith("(float[1,1,4,4] a)")


CUSTOM = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
agraph (float[2, 3] x) => (float[2, 3] y) { [odd] a = my.Odd(x) [b] b = Relu(a) [y] y = Add(a, b) }"""


def test_an_unknown_shape_must_be_given(check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        edit(CUSTOM, {"extract": {"outputs": ["y"], "inputs": ["a"]}})
    check_message(caught.value)
    tail = edit(CUSTOM, {"extract": {"outputs": ["y"], "inputs": ["a"], "types": {"a": "float32[2, K]"}}})
    assert _header(tail).startswith("(float[2,K] a)")


def test_optional_inputs_and_weights_as_inputs() -> None:
    text = """agraph (float[4] x) => (float[4] y) <float low = {0}, float high = {2}>
    { [clip] a = Clip(x, , high) [last] y = Clip(a, low) }"""
    part = edit(text, {"extract": {"outputs": ["a"], "inputs": ["x", "high"]}})
    assert (_names(list(part.graph.input)), _names(list(part.graph.initializer))) == (["x", "high"], [])
    assert list(part.graph.node[0].input) == ["x", "", "high"]


def test_old_models_keep_weights_as_inputs() -> None:
    model = parse(CHAIN)
    model.ir_version = 3
    model.graph.input.extend(
        helper.make_tensor_value_info(initializer.name, 1, initializer.dims) for initializer in model.graph.initializer
    )
    head = edit(model, {"extract": {"outputs": ["b"]}})
    assert _names(list(head.graph.input)) == ["x", "w"]


BRANCHES = """
agraph (float[N] x, bool flag, float[N] other) => (float[N] y) <float[1] w = {3}> {
  a = Relu(x)
  c = Constant<value_float = 2.0>()
  [If_0] y = If(flag) <
    then_branch = yes () => (float[N] t) <float[1] inner = {5}> {
      t0 = Mul(a, w)
      [If_1] t1 = If(flag) <
        then_branch = in_yes () => (float[N] i) { i = Add(t0, inner) },
        else_branch = in_no () => (float[N] j) { j = Mul(t0, c) }>
      t = Identity(t1)
    },
    else_branch = no () => (float[N] e) { e = Neg(other) }>
}"""


@pytest.mark.parametrize("flag", [True, False])
def test_a_branch_becomes_a_model(flag: bool) -> None:
    branch = edit(BRANCHES, {"extract_subgraph": {"scope": "If_0/then_branch"}})
    assert _names(list(branch.graph.input)) == ["a", "flag"]
    assert sorted(_names(list(branch.graph.initializer))) == ["inner", "w"]
    feeds = {"a": np.array([1, 2], np.float32), "flag": np.array(flag)}
    wanted = feeds["a"] * 3 + 5 if flag else feeds["a"] * 3 * 2
    np.testing.assert_array_equal(run(branch, feeds)["t"], wanted)


def test_nested_branches_and_parts_of_branches_become_models(check_message: CheckMessage) -> None:
    nested = edit(BRANCHES, {"extract_subgraph": {"scope": "If_0/then_branch/If_1/else_branch"}})
    assert _names(list(nested.graph.input)) == ["t0"]
    np.testing.assert_array_equal(run(nested, {"t0": np.array([2], np.float32)})["j"], [4])
    part = edit(BRANCHES, {"extract": {"scope": "If_0/then_branch", "outputs": ["t0"], "inputs": ["a"]}})
    np.testing.assert_array_equal(run(part, {"a": np.array([2], np.float32)})["t0"], [6])
    with pytest.raises(RequestError) as caught:
        edit(BRANCHES, {"extract_subgraph": {"scope": "If_0/than_branch"}})
    check_message(caught.value)


def test_nodes_of_several_graphs_are_refused(check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        edit(BRANCHES, {"extract": {"select": {"output": ["a", "e"]}}})
    check_message(caught.value)


LOOP = """
agraph (float[2] x, int64 n) => (float[2] y, float[K, 2] all) <bool yes = {1}, float[1] w = {2}> {
  [loop] y, all = Loop(n, yes, x) <body = step (int64 i, bool go, float[2] carried)
    => (bool go_on, float[2] next, float[2] seen) {
      go_on = Identity(go)
      next = Mul(carried, w)
      seen = Identity(next)
    }>
}"""


def test_a_loop_body_keeps_its_inputs() -> None:
    body = edit(LOOP, {"extract_subgraph": {"scope": "loop/body"}})
    assert _names(list(body.graph.input)) == ["i", "go", "carried"]
    feeds = {"i": np.array(0), "go": np.array(True), "carried": np.array([1, 2], np.float32)}
    result = run(body, feeds)
    assert list(result) == ["go_on", "next", "seen"]
    np.testing.assert_array_equal(result["next"], [2, 4])


FUNCTIONS = """
<ir_version: 9, opset_import: ["" : 17, "pkg" : 1]>
agraph (float[N, 4] x) => (float[N, 4] y) {
  [one] a = pkg.Block<alpha = 0.5>(x)
  [two] y = pkg.Block(a)
}
<domain: "pkg", opset_import: ["" : 17, "pkg" : 1]>
Block <alpha: float = 0.25> (t, extra) => (r) { u = LeakyRelu<alpha: float = @alpha>(t) r = pkg.Twice(u) }
<domain: "pkg", opset_import: ["" : 17]>
Twice (t) => (r) { r = Add(t, t) }
<domain: "pkg", opset_import: ["" : 17]>
Unused (t) => (r) { r = Neg(t) }
"""


@pytest.mark.parametrize(
    ("options", "alpha"),
    [({}, 0.5), ({"call": "two"}, 0.25), ({"attributes": {"alpha": 0.125}}, 0.125)],
)
def test_a_function_becomes_a_model(options: dict[str, object], alpha: float) -> None:
    model = edit(FUNCTIONS, {"extract_function": {"function": "pkg::Block", **options}})
    assert _header(model).startswith("(float[N,4] t)")
    assert [function.name for function in model.functions] == ["Twice"]
    x = np.array([[-8, 1, 2, 3]], np.float32)
    np.testing.assert_array_equal(run(model, {"t": x})["r"], np.where(x < 0, x * alpha, x) * 2)


@pytest.mark.parametrize(
    "options",
    [
        {"function": "pkg::Blok"},
        {"function": "pkg::Block", "call": "three"},
        {"function": "pkg::Block", "attributes": {"alfa": 1.0}},
        {"function": "pkg::Block", "attributes": {"alpha": "much"}},
        {"function": "pkg::Unused"},
    ],
)
def test_functions_that_cannot_be_extracted_are_refused(
    options: dict[str, object], check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as caught:
        edit(FUNCTIONS, {"extract_function": options})
    check_message(caught.value)


def test_optional_inputs_omitted_by_a_call_are_omitted() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "pkg" : 1]>
    agraph (float[3] x, float high) => (float[3] y) { y = pkg.Limit(x, , high) }
    <domain: "pkg", opset_import: ["" : 17]> Limit (t, low, top) => (r) { r = Clip(t, low, top) }"""
    model = edit(text, {"extract_function": {"function": "pkg::Limit"}})
    assert _header(model).startswith("(float[3] t, float top) => (float[3] r)")
    assert list(model.graph.node[0].input) == ["t", "", "top"]


def test_a_part_of_a_function_that_takes_attributes_is_refused(check_message: CheckMessage) -> None:
    types = {"t": "float32[2]", "r": "float32[2]"}
    with pytest.raises(RequestError) as caught:
        edit(FUNCTIONS, {"extract": {"scope": "pkg::Block", "outputs": ["u"], "types": types}})
    check_message(caught.value)
    part = edit(FUNCTIONS, {"extract": {"scope": "pkg::Unused", "outputs": "r", "types": types}})
    assert _header(part).startswith("(float[2] t) => (float[2] r)")


def test_an_unused_function_gets_its_types_from_the_recipe() -> None:
    model = edit(FUNCTIONS, {"extract_function": {"function": "pkg::Unused", "types": {"t": "float32[2]"}}})
    np.testing.assert_array_equal(run(model, {"t": np.array([1, 2], np.float32)})["r"], [-1, -2])


@pytest.mark.parametrize("make", [models.make_cnn, models.make_tfm, models.make_ctrl, models.make_func])
def test_extract_all_is_the_same_model(make: object, tmp_path: Path) -> None:
    source = make(tmp_path / "model.onnx")  # type: ignore[operator]
    (tmp_path / "out").mkdir()
    before = onnx.load(source)
    names = _names(list(before.graph.output))
    edit_path(source, tmp_path / "out" / "model.onnx", {"extract": {"outputs": names}})
    after = onnx.load(tmp_path / "out" / "model.onnx")
    assert _names(list(after.graph.input)) == _names(list(before.graph.input))
    assert _names(list(after.graph.output)) == names


def test_external_and_sparse_weights_are_kept(tmp_path: Path) -> None:
    source = models.make_ext(tmp_path / "model.onnx")
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "model.onnx"
    first = next(node for node in onnx.load(source, load_external_data=False).graph.node if node.op_type == "MatMul")
    edit_path(source, target, {"extract": {"outputs": [first.output[0]]}})
    (weight,) = onnx.load(target, load_external_data=False).graph.initializer
    assert (weight.name, weight.data_location) == (first.input[1], onnx.TensorProto.EXTERNAL)
    assert Path(f"{target}.data").stat().st_size == 4 * 256 * 256
    sparse = models.sparse_model()
    part = edit(sparse, {"extract": {"outputs": _names(list(sparse.graph.output))}})
    assert sorted(item.values.name for item in part.graph.sparse_initializer) == ["c", "s"]


@st.composite
def _chosen_nodes(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A graph of random wiring, with an If that reads around, and some of its nodes."""
    count = draw(st.integers(3, 9))
    lines, tensors = [], ["x", "w"]
    for index in range(count):
        first, second = draw(st.sampled_from(tensors)), draw(st.sampled_from(tensors))
        kind = draw(st.sampled_from(["Add", "Mul", "Neg", "Constant", "If"]))
        body = {
            "Add": f"Add({first}, {second})",
            "Mul": f"Mul({first}, {second})",
            "Neg": f"Neg({first})",
            "Constant": "Constant<value_floats = [1.5, 2.5]>()",
            "If": f"If(flag) <then_branch = t () => (float[2] t{index}) {{ t{index} = Add({first}, {second}) }}, "
            f"else_branch = e () => (float[2] e{index}) {{ e{index} = Neg({second}) }}>",
        }[kind]
        lines.append(f"  [n{index}] v{index} = {body}")
        tensors.append(f"v{index}")
    outputs = draw(st.lists(st.sampled_from(tensors[2:]), min_size=1, max_size=3, unique=True))
    chosen = draw(st.lists(st.sampled_from([f"n{index}" for index in range(count)]), min_size=1, unique=True))
    types = ", ".join(f"float[2] {name}" for name in outputs)
    return f"agraph (float[2] x, bool flag) => ({types}) <float[2] w = {{3, 4}}> {{\n" + "\n".join(
        lines
    ) + "\n}", chosen


@settings(max_examples=20, deadline=None)
@given(_chosen_nodes(), st.booleans(), st.sampled_from(["extract", "cut"]))
def test_any_extracted_nodes_compute_equal_values(graph: tuple[str, list[str]], flag: bool, word: str) -> None:
    """Fed with what the whole model computes at the cut, the part computes what the whole model computes."""
    text, chosen = graph
    model = parse(text)
    try:
        part = edit(model, {word: {"select": chosen}})
    except RequestError as error:
        assert "are unused" in str(error) or "nothing is left" in str(error)
        return
    shown = {value.name for value in model.graph.output}
    hidden = [name for node in model.graph.node for name in node.output if name not in shown]
    model.graph.output.extend(helper.make_tensor_value_info(name, 1, [2]) for name in hidden)
    feeds = {"x": np.array([1, -2], np.float32), "flag": np.array(flag)}
    known = run(model, feeds) | feeds
    result = run(part, {value.name: known[value.name] for value in part.graph.input})
    for name, array in result.items():
        np.testing.assert_array_equal(array, known[name])
    gone = {node.name for node in part.graph.node}
    varying = {node.name for node in model.graph.node} - {n.name for n in model.graph.node if n.op_type == "Constant"}
    assert word == "cut" or {name for name in chosen if name in varying} <= gone


def test_later_operations_see_only_the_part() -> None:
    part = edit(CHAIN, {"extract": {"outputs": ["b"]}}, {"rename_nodes": {"select": "*", "to": "n_{index}"}})
    assert [node.name for node in part.graph.node] == ["n_0", "n_1", "n_2"]


def test_extract_is_deterministic() -> None:
    parts = [edit(models.ctrl_model(), {"extract": {"outputs": ["y"]}}) for _ in range(2)]
    assert parts[0].SerializeToString() == parts[1].SerializeToString()
