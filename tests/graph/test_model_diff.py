"""Differences between two models: by example, and for random edits of random graphs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ndld_flow.graph.diff.diff_models import diff_models
from ndld_flow.graph.diff.matches import MOST_ITEMS
from ndld_flow.models.files import all_graphs, load_model
from ndld_flow.records.model_diff import ModelDiff
from tests.support import models
from tests.support.models import GraphBuilder, tensor

HEAD = '<ir_version: 8, opset_import: ["": 17, "here": 1]>'
CHAIN = """
chain (float[2, 3] x) => (float[2, 3] y)
<float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3] b = {1, 2, 3}> {
    [mul] h = MatMul(x, w)
    [add] s = Add(h, b)
    [act] r = Relu(s)
    [out] y = Softmax <axis = 1> (r)
}
"""


def model_of(text: str) -> ir.Model:
    return ir.serde.deserialize_model(onnx.parser.parse_model(f"{HEAD}\n{text}"))


def diff(before: str | ir.Model, after: str | ir.Model) -> ModelDiff:
    """Return the diff after checking that it is symmetric."""
    result, other = (model_of(model) if isinstance(model, str) else model for model in (before, after))
    model_diff = diff_models(result, other)
    assert in_order(mirrored(diff_models(other, result).model_dump())) == in_order(model_diff.model_dump())
    assert ModelDiff.model_validate_json(model_diff.to_json()) == model_diff
    return model_diff


def mirrored(value: Any) -> Any:
    """The same with the sides exchanged."""
    other = {"before": "after", "after": "before", "added": "removed", "removed": "added"}
    if isinstance(value, dict):
        return {other.get(key, key): mirrored(held) for key, held in value.items()}
    return [mirrored(item) for item in value] if isinstance(value, list | tuple) else value


def in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return sorted(map(in_order, value), key=repr) if isinstance(value, list | tuple) else value


def changes(model_diff: ModelDiff, part: str = "nodes") -> list[tuple[str, ...]]:
    """(name before, aspect, detail, before, after) of all that changed."""
    return [
        (item.before.name, change.aspect, change.detail, change.before, change.after)
        for item in getattr(model_diff, part).changed
        for change in item.changes
    ]


def test_a_model_equals_itself() -> None:
    assert diff(CHAIN, CHAIN).is_empty
    assert diff(CHAIN, CHAIN).one_line == "no differences"


def test_changes_of_an_attribute_a_weight_and_a_name_are_found() -> None:
    after = CHAIN.replace("axis = 1", "axis = 0").replace("{1, 2, 3}", "{1, 2.5, 3}").replace("[act]", "[relu]")
    result = diff(CHAIN, after)
    assert re.fullmatch("1 node renamed, 1 .*attributes; 1 weight changed", result.one_line)
    assert changes(result) == [("out", "attribute", "axis", "1", "0"), ("act", "name", "", "act", "relu")]
    weight = result.weights.changed[0]
    assert (weight.elements, weight.differing, weight.max_abs_difference) == (3, 1, 0.5)
    assert changes(result, "weights") == [("b", "values", "", "[1, 2, 3]", "[1, 2.5, 3]")]


def test_a_node_inserted_into_an_edge_is_one_change() -> None:
    after = CHAIN.replace("Relu(s)", "Relu(i)").replace("[act]", "[new] i = Identity(s)\n[act]")
    result = diff(CHAIN, after)
    assert result.one_line == "1 node added"
    (added,) = result.nodes.added
    assert (added.name, added.op_type, added.inputs, added.outputs) == ("new", "Identity", ("s",), ("i",))
    assert changes(result) == [("act", "consequence", "0", "s", "i")]


def test_a_new_node_that_takes_over_a_tensor_name_is_one_change() -> None:
    after = CHAIN.replace("y = Softmax <axis = 1> (r)", "raw = Softmax <axis = 1> (r)\n[new] y = Identity(raw)")
    result = diff(CHAIN, after)
    assert result.one_line == "1 node added; 1 tensor renamed"
    assert changes(result, "outputs") == [("y", "consequence", "", "y of Softmax out", "y of Identity new")]
    assert changes(result, "tensors") == [("y", "name", "", "y", "raw")]


def test_a_removed_node_is_one_change() -> None:
    after = CHAIN.replace("[act] r = Relu(s)\n", "").replace("(r)", "(s)")
    result = diff(CHAIN, after)
    assert result.one_line == "1 node removed"
    assert [node.name for node in result.nodes.removed] == ["act"]


def test_a_reader_of_another_tensor_is_rewired() -> None:
    result = diff(CHAIN, CHAIN.replace("Relu(s)", "Relu(h)"))
    assert result.one_line == "1 node rewired"
    assert changes(result) == [("act", "input", "0", "s", "h")]


def test_a_removed_node_does_not_hide_a_rewired_reader() -> None:
    two = "g (float[2] x, float[2] z) => (float[2] y) { [a] t = Relu(x)\n [b] y = Abs(t) }"
    result = diff(two, two.replace("[a] t = Relu(x)\n", "").replace("Abs(t)", "Abs(z)"))
    assert result.one_line == "1 node removed, 1 rewired"


@pytest.mark.parametrize("names", [True, False])
def test_a_node_with_another_operator_in_the_same_position_is_matched(names: bool) -> None:
    before, after = CHAIN, CHAIN.replace("Relu", "Tanh")
    if not names:
        before, after = before.replace("[act] r", "r"), after.replace("[act] r", "t").replace("(r)", "(t)")
    result = diff(before, after)
    assert result.nodes.counts == {"changed": 1, "operator": 1}
    assert changes(result)[0][3:] == ("Relu", "Tanh")


def test_nodes_that_share_only_their_readers_are_not_matched() -> None:
    """A node that reads another tensor did not replace the one that wrote the reader's input before."""
    before = "g (float[2] x, float[2] z) => (float[2] y) { [a] t = Relu(x)\n [b] y = Abs(t) }"
    after = before.replace("[a] t = Relu(x)", "[c] u = Neg(z)").replace("Abs(t)", "Abs(u)")
    result = diff(before, after)
    assert ([node.name for node in result.nodes.removed], [node.name for node in result.nodes.added]) == (["a"], ["c"])


def test_a_model_with_all_names_changed_has_only_renames() -> None:
    before, after = (ir.serde.deserialize_model(models.tfm_model()) for _ in range(2))
    rename_all(after)
    nodes = sum(len(graph) for graph in all_graphs(before))
    result = diff(before, after)
    assert result.nodes.counts == {"changed": nodes, "name": nodes}
    assert set(result.weights.counts) == {"changed", "name"}
    assert set(result.tensors.counts) == {"changed", "name"}
    assert len(result.nodes.changed) == min(nodes, MOST_ITEMS)


def test_shifted_numbers_in_names_are_matched() -> None:
    """Exporters count: one node more in front, and every name behind it means another node."""
    before = "".join(f"[Relu_{n}] v{n + 1} = Relu(v{n})\n[Abs_{n}] u{n} = Abs(v{n + 1})\n" for n in range(8))
    after = "".join(f"[Relu_{n + 1}] v{n + 2} = Relu(v{n + 1})\n[Abs_{n + 1}] u{n} = Abs(v{n + 2})\n" for n in range(8))
    graph = f"g (float[2] v0) => ({', '.join(f'float[2] u{n}' for n in range(8))})"
    result = diff(f"{graph} {{ {before} }}", f"{graph} {{ [Relu_0] v1 = Neg(v0)\n{after} }}")
    assert result.nodes.counts["added"] == 1
    assert "removed" not in result.nodes.counts
    assert result.nodes.counts["name"] == 16


def test_renamed_nodes_among_similar_ones_are_matched() -> None:
    def chain(length: int, prefix: str) -> str:
        nodes = "".join(f"{prefix}{n + 1} = Relu({prefix}{n})\n" for n in range(length))
        return f"g (float[2] {prefix}0) => (float[2] {prefix}{length}) {{ {nodes} }}"

    result = diff(chain(40, "a"), chain(41, "b"))
    assert result.nodes.counts["added"] == 1
    assert "removed" not in result.nodes.counts


def test_similar_nodes_are_distinguished_by_distant_neighbours() -> None:
    """No name is left, the branches have changed places, and outputs have no partners by name or number."""
    before = """g (float[2] x) => (float[2] y, float[2] z) {
        a = Relu(x)\n b = Exp(a)\n y = Neg(b)\n c = Relu(x)\n d = Exp(c)\n z = Abs(d) }"""
    after = """g (float[2] x) => (float[2] p, float[2] q, float[2] r) {
        c1 = Relu(x)\n d1 = Exp(c1)\n p = Abs(d1)\n a1 = Relu(x)\n b1 = Exp(a1)\n q = Neg(b1)\n r = Tanh(x) }"""
    result = diff(before, after)
    assert result.nodes.counts == {"added": 1}
    assert [node.op_type for node in result.nodes.added] == ["Tanh"]
    assert result.outputs.counts == {"added": 1, "changed": 2, "name": 2, "position": 2}


def test_changes_of_inputs_and_outputs_are_found() -> None:
    before = "g (float[1, 3] a, float[1, 3] b) => (float[1, 3] y) { y = Add(a, b) }"
    after = (
        "g (float[1, 3] b, float16[n, 3] a, float[2] c) => (float[1, 3] y, float[2] z) { y = Add(a, b)\n z = Neg(c) }"
    )
    result = diff(before, after)
    nodes, inputs, outputs = result.one_line.split("; ")
    assert (nodes, outputs) == ("1 node added", "1 output added")
    assert re.findall(r"\d|[a-z]+ed", inputs) == ["1", "added", "1", "retyped", "1", "reshaped", "2", "moved"]
    assert ("a", "dtype", "", "float32", "float16") in changes(result, "inputs")
    assert ("a", "shape", "", "1x3", "nx3") in changes(result, "inputs")
    assert ("a", "position", "", "0", "1") in changes(result, "inputs")
    assert [item.shape for item in result.inputs.added] == [(2,)]


def test_an_input_of_another_name_and_type_is_matched_by_its_readers() -> None:
    result = diff(CHAIN, CHAIN.replace("float[2, 3] x", "float16[n, 3] image").replace("MatMul(x", "MatMul(image"))
    assert result.one_line == "1 input renamed, 1 retyped, 1 reshaped"


def test_added_removed_and_changed_weights_are_found() -> None:
    after = CHAIN.replace("float[3] b = {1, 2, 3}", "double[3] c = {1, 2, 3}, float[1] more = {5}")
    result = diff(CHAIN, after.replace("Add(h, b)", "Add(h, c)"))
    assert result.one_line == "1 weight added, 1 renamed, 1 retyped"
    assert result.weights.changed[0].matched_by == "neighbours"


def test_exchanged_weights_keep_their_names() -> None:
    text = "g (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {3, 4}> { t = Add(x, a)\n y = Mul(t, b) }"
    swapped = text.replace("{1, 2}", "{5}").replace("{3, 4}", "{1, 2}").replace("{5}", "{3, 4}")
    result = diff(text, swapped)
    assert result.one_line == "2 weights changed"


@pytest.mark.parametrize(
    ("before", "after", "differing", "largest"),
    [
        ([1.0, float("nan")], [1.0, float("nan")], None, None),
        ([1.0, float("nan")], [1.0, 2.0], 1, float("inf")),
        ([1.0, float("nan")], [3.0, float("nan")], 1, 2.0),
        ([1.0, float("inf")], [1.5, float("-inf")], 2, float("inf")),
        ([0.0, 1.0], [-0.0, 1.0], 0, 0.0),
    ],
)
def test_weights_with_nan_and_infinity_are_compared(
    before: list[float], after: list[float], differing: int | None, largest: float | None
) -> None:
    result = diff(with_weight(np.array(before, np.float32)), with_weight(np.array(after, np.float32)))
    if differing is None:
        assert result.is_empty
    else:
        (changed,) = result.weights.changed
        assert (changed.differing, changed.max_abs_difference) == (differing, largest)


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.complex64, np.float16, np.uint8])
def test_weights_of_every_dtype_are_compared(dtype: type[np.generic]) -> None:
    result = diff(with_weight(np.array([0, 1, 1]).astype(dtype)), with_weight(np.array([0, 1, 0]).astype(dtype)))
    (changed,) = result.weights.changed
    assert (changed.elements, changed.differing, changed.max_abs_difference) == (3, 1, 1.0)


def test_four_bit_weights_and_strings_are_compared() -> None:
    packed = [
        ir.Tensor(np.array(row, dtype=ir.DataType.INT4.numpy()), dtype=ir.DataType.INT4)
        for row in ([1, 2, 3], [1, 2, 7])
    ]
    result = diff(with_tensor(packed[0]), with_tensor(packed[1]))
    assert (result.weights.changed[0].differing, result.weights.changed[0].max_abs_difference) == (1, 4.0)
    words = [ir.StringTensor(np.array(row), shape=ir.Shape([2])) for row in ([b"a", b"b"], [b"a", b"c"])]
    result = diff(with_tensor(words[0]), with_tensor(words[1]))
    assert (result.weights.changed[0].differing, result.weights.changed[0].max_abs_difference) == (1, None)


def test_rounding_is_measured() -> None:
    values = np.linspace(0, 1, 1001, dtype=np.float32)
    result = diff(with_weight(values), with_weight(values.astype(np.float16)))
    assert {change[1] for change in changes(result, "weights")} == {"dtype", "values"}
    assert 0 < (result.weights.changed[0].max_abs_difference or 0) < 1e-3


def test_values_are_skipped_on_request() -> None:
    before, after = with_weight(np.zeros(3, np.float32)), with_weight(np.ones(3, np.float32))
    assert diff_models(before, after, compare_values=False).is_empty
    assert not diff_models(before, after, compare_values=False).weights.values_compared


def test_weights_on_disk_are_compared(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        models.make_ext(tmp_path / name / "model.onnx")
    before, after = (load_model(tmp_path / name / "model.onnx") for name in ("one", "other"))
    assert diff(before, after).is_empty
    (data,) = (path for path in (tmp_path / "other").iterdir() if path.suffix != ".onnx")
    with data.open("r+b") as file:
        file.write(b"\x01")
    after = load_model(tmp_path / "other" / "model.onnx")
    result = diff(before, after)
    assert result.weights.counts == {"changed": 1, "values": 1}
    assert result.weights.changed[0].differing == 1


def test_equal_ranges_of_one_file_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.make_ext(tmp_path / "model.onnx")
    before, after = load_model(path), load_model(path)
    monkeypatch.setattr("ndld_flow.models.tensor_statistics.byte_pieces", lambda *_: pytest.fail("it was read"))
    monkeypatch.setattr("ndld_flow.models.tensor_statistics._SAMPLE_BYTES", 16)
    large = [value for value in before.graph.initializers.values() if isinstance(value.const_value, ir.ExternalTensor)]
    assert large
    monkeypatch.setattr("ndld_flow.models.tensor_statistics._digest", lambda tensor, _: str(tensor.name).encode())
    assert diff_models(before, after).is_empty


def test_storage_of_weights_is_compared(tmp_path: Path) -> None:
    proto = models.cnn_model()
    onnx.save(proto, tmp_path / "inline.onnx")
    onnx.save(proto, tmp_path / "external.onnx", save_as_external_data=True, size_threshold=1024)
    result = diff(load_model(tmp_path / "inline.onnx"), load_model(tmp_path / "external.onnx"))
    assert set(result.weights.counts) == {"changed", "storage"}
    assert changes(result, "weights")[0][1:] == ("storage", "", "inline", "external")
    assert result.nodes.counts == {}


def test_sparse_weights_are_compared(tmp_path: Path) -> None:
    path = models.make_sparse(tmp_path / "model.onnx")
    proto = onnx.load(path)
    assert diff(load_model(path), load_model(path)).is_empty
    values = proto.graph.sparse_initializer[0].values
    values.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(values) + 1, values.name))
    onnx.save(proto, tmp_path / "other.onnx")
    result = diff(load_model(path), load_model(tmp_path / "other.onnx"))
    assert result.weights.counts == {"changed": 1, "values": 1}
    assert result.weights.changed[0].before.storage == "sparse"


IF = """
g (bool c, float[2] x) => (float[2] y) {
    [choose] y = If(c) <
        then_branch = t () => (float[2] a) { [one] u = Relu(x)\n [two] a = Neg(u) },
        else_branch = e () => (float[2] b) { [three] b = Abs(x) }
    >
}
"""


def test_subgraphs_are_named_by_their_path() -> None:
    result = diff(IF, IF.replace("Relu(x)", "Tanh(x)"))
    assert result.one_line == "1 node with another operator"
    assert result.nodes.changed[0].before.scope == "choose/then_branch"


def test_the_body_of_a_renamed_node_is_matched() -> None:
    result = diff(IF, IF.replace("choose", "select"))
    assert result.one_line == "1 node renamed"


def test_the_summary_covers_the_inputs_and_outputs_of_the_model() -> None:
    result = diff(IF, IF.replace("(float[2] a)", "(float[2] a2)").replace("a = Neg", "a2 = Neg"))
    assert result.outputs.counts == result.outputs.in_bodies == {"changed": 1, "name": 1}
    assert result.one_line == "1 output renamed"
    result = diff(IF, IF.replace("(float[2] a)", "(float[2] a2)").replace("a = Neg", "a2 = Neg").replace("Abs", "Exp"))
    assert result.one_line == "1 node with another operator"


def test_inferred_types_in_a_body_are_no_difference() -> None:
    assert diff(IF, IF.replace("(float[2] a)", "(a)")).is_empty


def test_many_kinds_of_change_are_summarized_by_their_number() -> None:
    after = CHAIN.replace("axis = 1", "axis = 0").replace("[mul]", "[matmul]").replace("Relu(s)", "Tanh(s)")
    assert re.fullmatch("1 node renamed, 1 .*operator, 1 .*attributes", diff(CHAIN, after).one_line)
    assert diff(CHAIN, after.replace("(h, b)", "(b, h)")).one_line == "4 nodes changed"


def test_a_body_is_removed_with_its_node() -> None:
    result = diff(IF, "g (bool c, float[2] x) => (float[2] y) { [plain] y = Abs(x) }")
    assert result.outputs.counts.get("removed") is None
    assert result.nodes.counts["removed"] >= 3


@pytest.mark.parametrize("name", ["[one] ", ""])
def test_a_node_that_leaves_a_branch_has_moved(name: str) -> None:
    before = IF.replace("[one] ", name)
    after = before.replace(f"{name}u = Relu(x)\n", "").replace("[choose]", f"{name}u = Relu(x)\n [choose]")
    result = diff(before, after)
    assert result.one_line == "1 node moved"
    assert changes(result) == [("one" if name else "u", "scope", "", "choose/then_branch", "")]


FUNCTION = """
g (float[2] x) => (float[2] y) { [call] y = here.Twice(x) }
<domain: "here", opset_import: ["": 17]> Twice (a) => (b) { [inner] t = Add(a, a)\n [last] b = Relu(t) }
"""


def test_changes_of_functions_are_found() -> None:
    result = diff(FUNCTION, FUNCTION.replace("Relu(t)", "Tanh(t)"))
    assert re.fullmatch("1 node .*operator; 1 function changed", result.one_line)
    assert result.nodes.changed[0].before.scope == "here::Twice"
    result = diff(FUNCTION, FUNCTION.replace("Twice", "Double"))
    assert result.functions.counts == {"changed": 1, "name": 1}
    assert changes(result) == [("call", "operator", "", "here::Twice", "here::Double")]
    result = diff(FUNCTION, "g (float[2] x) => (float[2] y) { [call] y = Relu(x) }")
    assert result.functions.counts == {"removed": 1}
    assert result.nodes.counts == {"changed": 1, "operator": 1, "removed": 2}


def test_changes_of_opsets_versions_and_metadata_are_found() -> None:
    before, after = model_of(CHAIN), model_of(CHAIN)
    after.ir_version = 9
    after.opset_imports[""] = 18
    after.opset_imports["com.microsoft"] = 1
    after.metadata_props["author"] = "someone"
    after.graph.node("act").metadata_props["ndld_flow.precision"] = "fp32"
    after.graph.node("act").doc_string = "why"
    result = diff(before, after)
    assert [(opset.domain, opset.before, opset.after) for opset in result.opsets] == [
        ("", 17, 18),
        ("com.microsoft", None, 1),
    ]
    assert {(text.key, text.before, text.after) for text in result.texts} == {
        ("ir_version", "8", "9"),
        ("metadata: author", None, "someone"),
    }
    assert result.nodes.counts == {"changed": 1, "precision": 1, "doc string": 1}


def test_inferred_shapes_are_no_difference() -> None:
    before, after = model_of(CHAIN), model_of(CHAIN)
    after.graph.node("mul").outputs[0].shape = ir.Shape([2, 3])
    assert diff(before, after).is_empty
    before.graph.node("mul").outputs[0].shape = ir.Shape([4, 3])
    assert diff(before, after).one_line == "1 tensor reshaped"


def test_lists_are_shortened_and_begin_with_the_important_changes() -> None:
    count = MOST_ITEMS + 100
    before, after = relus(count), relus(count)
    rename_all(after)
    node = list(after.graph)[-1]
    node.op_type = "LeakyRelu"
    node.attributes["alpha"] = ir.AttrFloat32("alpha", 0.5)
    model_diff = diff_models(before, after)
    assert model_diff.nodes.counts["name"] == count
    assert len(model_diff.nodes.changed) == MOST_ITEMS
    assert model_diff.nodes.changed[0].after.op_type == "LeakyRelu"


def test_a_long_text_is_shortened() -> None:
    before, after = model_of(CHAIN), model_of(CHAIN)
    after.doc_string = "x" * 100_000
    (text,) = diff(before, after).texts
    assert text.after is not None
    assert len(text.after) < 250
    assert "100,000 characters" in text.after


def test_attributes_that_look_equal_when_shortened_are_distinguished() -> None:
    before, after = relus(1), relus(1)
    for model, last in ((before, 1), (after, 2)):
        next(iter(model.graph)).attributes["many"] = ir.AttrInt64s("many", [0] * 100 + [last])
    result = diff(before, after)
    (change,) = result.nodes.changed[0].changes
    assert change.before != change.after


@pytest.mark.parametrize("make", [models.cnn_model, models.tfm_model, models.ctrl_model, models.func_model])
def test_exported_models_are_compared(make: Callable[[], onnx.ModelProto]) -> None:
    before, after = (ir.serde.deserialize_model(make()) for _ in range(2))
    assert diff(before, after).is_empty
    rename_all(after)
    result = diff(before, after)
    assert not {"added", "removed"} & {*result.nodes.counts, *result.weights.counts}


def with_weight(array: np.ndarray[Any, np.dtype[Any]]) -> ir.Model:
    return with_tensor(ir.Tensor(array))


def with_tensor(weight: ir.TensorProtocol) -> ir.Model:
    value = ir.Value(
        name="w", const_value=weight, shape=ir.Shape(weight.shape.numpy()), type=ir.TensorType(weight.dtype)
    )
    node = ir.node("Identity", [value], name="id")
    node.outputs[0].name = "y"
    return ir.Model(
        ir.Graph([], node.outputs, nodes=[node], initializers=[value], opset_imports={"": 21}), ir_version=10
    )


def relus(count: int) -> ir.Model:
    nodes = "".join(f"[n{n}] v{n + 1} = Relu(v{n})\n" for n in range(count))
    return model_of(f"g (float[2] v0) => (float[2] v{count}) {{ {nodes} }}")


def rename_all(model: ir.Model) -> None:
    """Other names for all but the model's inputs and outputs and what functions are called by."""
    for number, graph in enumerate(all_graphs(model)):
        for index, value in enumerate(list(graph.initializers.values())):
            if not value.is_graph_output() and not value.is_graph_input():
                value.name = f"renamed_{number}_w{index}"
        for index, node in enumerate(graph):
            node.name = f"renamed_{number}_{index}"
            for value in node.outputs:
                if value.name and not value.is_graph_output():
                    value.name = f"renamed_{number}_{index}_{value.index()}"


# Random edits of random graphs. Each edit says what it makes of the counts.


class Edits:
    """A random graph, and edits of it, each at a node that no other edit has touched."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.proto = random_model(data)
        self.model = ir.serde.deserialize_model(self.proto)
        self.nodes = list(self.model.graph)
        self.expected: Counter[str] = Counter()

    @property
    def before(self) -> ir.Model:
        return ir.serde.deserialize_model(self.proto)

    def take(self, fits: Callable[[ir.Node], bool] = lambda _: True) -> ir.Node | None:
        fitting = [node for node in self.nodes if fits(node)]
        if not fitting:
            return None
        node = self.data.draw(st.sampled_from(fitting))
        self.nodes.remove(node)
        return node

    def rename(self) -> None:
        if (node := self.take()) is not None:
            node.name = f"new name of {node.name}"
            self.expected["nodes name"] += 1

    def exchange(self) -> None:
        if (node := self.take(lambda node: node.op_type == "Relu")) is not None:
            node.op_type = "Elu"
            self.expected["nodes operator"] += 1

    def set_attribute(self) -> None:
        if (node := self.take(lambda node: node.op_type == "LeakyRelu")) is not None:
            node.attributes["alpha"] = ir.AttrFloat32("alpha", 0.25)
            self.expected["nodes attribute"] += 1

    def insert(self) -> None:
        """Behind a node, for one of its readers."""
        if (node := self.take(lambda node: bool(node.outputs[0].uses()))) is not None:
            use = self.data.draw(st.sampled_from(sorted(node.outputs[0].uses(), key=lambda use: use.node.name or "")))
            if use.node not in self.nodes:
                return
            self.nodes.remove(use.node)
            new = ir.node("Identity", [node.outputs[0]], name=f"behind {node.name}")
            new.outputs[0].name = f"behind {node.outputs[0].name}"
            use.node.replace_input_with(use.idx, new.outputs[0])
            self.model.graph.insert_after(node, new)
            self.expected.update({"nodes added": 1, "nodes consequence": 1, "nodes followed": 1})

    def bend(self) -> None:
        """Let a reader read the graph's input."""
        if (node := self.take(lambda node: node.inputs[0] is not self.model.graph.inputs[0])) is not None:
            node.replace_input_with(0, self.model.graph.inputs[0])
            self.expected["nodes input"] += 1

    def change_weight(self) -> None:
        if (node := self.take(reads_weight)) is not None:
            value = node.inputs[1]
            assert value is not None
            assert value.const_value is not None
            value.const_value = ir.Tensor(value.const_value.numpy() + 1, name=value.name)
            self.expected["weights values"] += 1


def reads_weight(node: ir.Node) -> bool:
    return len(node.inputs) > 1 and node.inputs[1] is not None and node.inputs[1].is_initializer()


def random_model(data: st.DataObject) -> onnx.ModelProto:
    """Return nodes of [2, 4] floats that read earlier ones; each weight is read once."""
    builder, values = GraphBuilder(0), ["x"]
    kinds = st.sampled_from(["Relu", "LeakyRelu", "Abs", "Add", "Mul", "MatMul"])
    for kind in data.draw(st.lists(kinds, min_size=1, max_size=14)):
        inputs = [data.draw(st.sampled_from(values))]
        if kind in ("Add", "Mul"):
            inputs.append(data.draw(st.sampled_from([*values, builder.weight(2, 4)])))
        if kind == "MatMul":
            inputs.append(builder.weight(4, 4))
        values.append(builder.op(kind, *inputs))
    used = {name for node in builder.nodes for name in node.input}
    ends = [name for name in values[1:] if name not in used]
    builder.initializers = [weight for weight in builder.initializers if weight.name in used]
    return builder.model([tensor("x", [2, 4])], [tensor(name, [2, 4]) for name in ends])


EDITS = st.sampled_from(["rename", "exchange", "set_attribute", "insert", "bend", "change_weight"])
RANDOM = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


@RANDOM
@given(st.data())
def test_exactly_the_random_edits_are_found(data: st.DataObject) -> None:
    edits = Edits(data)
    for word in data.draw(st.lists(EDITS, max_size=5)):
        getattr(edits, word)()
    assert counted(diff(edits.before, edits.model)) == dict(edits.expected)


@RANDOM
@given(st.data())
def test_random_edits_of_a_renamed_model_leave_the_rest_matched(data: st.DataObject) -> None:
    """Without any name to go by at most a handful around each edit is taken for another node."""
    edits = Edits(data)
    words = data.draw(st.lists(st.sampled_from(["set_attribute", "insert", "change_weight"]), max_size=2))
    for word in words:
        getattr(edits, word)()
    rename_all(edits.model)
    result = diff(edits.before, edits.model)
    assert result.nodes.counts.get("added", 0) - result.nodes.counts.get("removed", 0) == edits.expected["nodes added"]
    assert result.nodes.counts.get("removed", 0) <= 2 * len(words)


@RANDOM
@given(st.data())
def test_any_two_models_can_be_compared(data: st.DataObject) -> None:
    before, after = (ir.serde.deserialize_model(random_model(data)) for _ in range(2))
    result = diff(before, after)
    lengths = result.nodes.counts.get("added", 0) - result.nodes.counts.get("removed", 0)
    assert lengths == len(after.graph) - len(before.graph)


def counted(model_diff: ModelDiff) -> dict[str, int]:
    parts = ("nodes", "weights", "inputs", "outputs", "tensors", "functions")
    return {
        f"{part} {word}": count
        for part in parts
        for word, count in getattr(model_diff, part).counts.items()
        if word != "changed"
    }


@pytest.mark.parametrize(
    ("after", "renaming"),
    [
        ("[b] y = LeakyRelu <alpha = 0.5> (x)", True),
        ("[a] y = LeakyRelu <alpha = 0.5> (x)", True),
        ("[b] y = LeakyRelu <alpha = 0.25> (x)", False),
        ("[b] y = Relu (x)", False),
        ("[b] z = Identity (x) [c] y = LeakyRelu <alpha = 0.5> (z)", False),
    ],
)
def test_only_names_of_nodes_make_a_renaming(after: str, renaming: bool) -> None:
    """A race takes such a model for its source, and does not measure it."""
    form = "g (float[4] x) => (float[4] y) {{ {} }}".format
    assert diff(form("[a] y = LeakyRelu <alpha = 0.5> (x)"), form(after)).is_renaming is renaming


def test_another_weight_is_no_renaming() -> None:
    form = "g (float[2] x) => (float[2] y) <float[2] w = {{1, {}}}> {{ [{}] y = Add (x, w) }}".format
    assert diff(form(2, "a"), form(2, "b")).is_renaming
    assert not diff(form(2, "a"), form(3, "b")).is_renaming
