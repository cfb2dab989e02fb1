"""`draw -o model.html`: data read from a model, the contents of the page, and escaping."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from ndld_flow import api
from ndld_flow.base.errors import ModelError, OutputsError, RequestError, UnknownNameError
from ndld_flow.base.quantities import TIMES
from ndld_flow.drawing.graph import Look, ModelDocument, ModelNode, ModelScope, Reading
from ndld_flow.graph import drawn_graph
from ndld_flow.graph.drawn_graph import read_document
from ndld_flow.models.op_reference import LOCAL_FUNCTION
from ndld_flow.records.layer_arithmetic import PRECISION_KEY
from ndld_flow.verbs.draw import command
from tests.support.message_files import CheckMessage
from tests.support.models import (
    FUNCTION_DOMAIN,
    make_cnn,
    make_ctrl,
    make_ext,
    make_func,
    make_sparse,
    make_tfm,
    save,
    tensor,
)
from tests.support.models_engine import constrain
from tests.support.page_data import data_of, texts_of


def document(path: Path, **reading: Any) -> ModelDocument:
    return read_document(path, Reading(**reading))


def named(read: ModelDocument, name: str) -> ModelNode:
    return next(node for node in read.nodes if node.name == name)


def scope(read: ModelDocument, address: str) -> ModelScope:
    return next(scope for scope in read.scopes if scope.address == address)


def names(read: ModelDocument, places: tuple[int, ...]) -> list[str]:
    return [read.tensors[place].name if place >= 0 else "-" for place in places]


def small_model(path: Path) -> Path:
    """Constants of every kind, an optional input that is not given, an attribute that is a tensor."""
    weight = np.array([[0.123456, 2.0, np.nan, 0.0]], dtype=np.float32)
    nodes = [
        helper.make_node("Constant", [], ["secret"], value_strings=["classified"]),
        helper.make_node(
            "Constant", [], ["limit"], "limit", value=numpy_helper.from_array(np.array(6.625, np.float32))
        ),
        helper.make_node("Constant", [], ["low"], "low", value_float=-0.5625),
        helper.make_node("Add", ["x", "weight"], ["a"], "add", doc_string="adds"),
        helper.make_node("Clip", ["a", "", "limit"], ["b"], "clip"),
        helper.make_node("Shape", ["b"], ["s"], "shape"),
        helper.make_node(
            "ConstantOfShape", ["s"], ["c"], "filled", value=numpy_helper.from_array(np.array([0.875], np.float32))
        ),
        helper.make_node("Sub", ["b", "c"], ["d"], "sub"),
        helper.make_node("Max", ["d", "low"], ["y"], "max"),
        helper.make_node("Identity", ["secret"], ["z"], "same"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [tensor("x", ["rows", 4])],
        [tensor("y", None), tensor("z", None, TensorProto.STRING)],
        [numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)], producer_name="tests")
    return save(model, path)


# --- what is read ---


def test_nodes_and_tensors_are_on_the_page(tmp_path: Path) -> None:
    read = document(small_model(tmp_path / "m.onnx"))
    assert [node.operator for node in read.nodes] == [
        "Add",
        "Clip",
        "Shape",
        "ConstantOfShape",
        "Sub",
        "Max",
        "Identity",
    ]
    clip = named(read, "clip")
    assert names(read, clip.inputs) == ["a", "-", "limit"]
    assert names(read, clip.outputs) == ["b"]
    by_name = {tensor.name: tensor for tensor in read.tensors}
    assert {name: item.kind for name, item in by_name.items() if item.kind != "computed"} == {
        "x": "input",
        "weight": "initializer",
        "limit": "constant",
        "low": "constant",
        "secret": "constant",
    }
    assert (by_name["a"].dtype, by_name["a"].dims) == ("float32", f"rows{TIMES}4")
    weight = read.held[by_name["weight"].held]
    assert (weight.dtype, weight.dims, weight.elements, weight.size_bytes) == ("float32", f"1{TIMES}4", 4, 16)
    assert weight.numbers is not None
    assert (weight.numbers.maximum, weight.numbers.nans, weight.numbers.zeros) == (2.0, 1, 1)
    assert weight.first == ("0.123456", "2", "nan", "0")
    assert read.held[by_name["secret"].held].first == ('"classified"',)
    assert read.held[by_name["limit"].held].first == ("6.625",)
    assert (read.held[by_name["low"].held].dtype, read.held[by_name["low"].held].first) == ("float32", ("-0.5625",))
    assert named(read, "add").doc == "adds"
    assert dict(read.facts)["Constants"].startswith("3 more nodes")
    assert dict(read.facts)["Opsets"] == "ai.onnx 17" and dict(read.facts)["Made by"] == "tests"


def test_given_and_default_attributes_are_shown(tmp_path: Path) -> None:
    read = document(small_model(tmp_path / "m.onnx"))
    (value,) = named(read, "filled").attributes
    assert (value.name, value.text, value.is_default) == ("value", "float32 tensor, 1", False)
    assert read.held[value.held].first == ("0.875",)
    assert [
        (attribute.name, attribute.text, attribute.is_default) for attribute in named(read, "shape").attributes
    ] == [("start", "0", True)]
    conv = next(node for node in document(make_cnn(tmp_path / "cnn.onnx")).nodes if node.operator == "Conv")
    attributes = {attribute.name: (attribute.text, attribute.is_default) for attribute in conv.attributes}
    assert attributes["kernel_shape"] == ("[3, 3]", False) and attributes["auto_pad"] == ('"NOTSET"', True)


def test_bodies_are_graphs_of_their_own(tmp_path: Path) -> None:
    path = make_ctrl(tmp_path / "ctrl.onnx")
    read = document(path)
    loop = next(node for node in read.nodes if node.operator == "Loop")
    (body,) = loop.bodies
    inner = read.scopes[body]
    assert (inner.address, inner.parent) == (f"{loop.name}/body", 0)
    assert names(read, inner.inputs) == ["body_i", "body_go", "body_carried"]
    assert names(read, inner.outside) == ["x"] == names(read, loop.outside)
    assert all(read.nodes[node].scope == body for node in inner.nodes)
    first = next(node for node in read.nodes if node.operator == "If")
    assert {read.scopes[body].address for body in first.bodies} == {
        f"{first.name}/then_branch",
        f"{first.name}/else_branch",
    }
    assert read.shown == 0
    assert document(path, subgraph=f"{loop.name}/body").shown == body
    with pytest.raises(UnknownNameError) as caught:
        document(path, subgraph="nothing like it")
    assert caught.value.name == "nothing like it"


def test_functions_are_shared_by_their_calls(tmp_path: Path) -> None:
    read = document(make_func(tmp_path / "func.onnx"))
    blocks = [node for node in read.nodes if node.operator.endswith("::Block")]
    assert len(blocks) == 2 and blocks[0].bodies == blocks[1].bodies
    inner = read.scopes[blocks[0].bodies[0]]
    assert (inner.address, inner.parent, blocks[0].kind) == (f"{FUNCTION_DOMAIN}::Block", -1, "composite")
    versions = {operator.name: operator.version for operator in read.operators}
    assert versions[f"{FUNCTION_DOMAIN}::Block"] == LOCAL_FUNCTION
    assert versions["MatMul"].startswith("version ")


def test_precision_and_metadata(tmp_path: Path) -> None:
    read = document(constrain(make_cnn(tmp_path / "cnn.onnx"), Conv_0="fp32"))
    conv = named(read, "Conv_0")
    assert conv.precision == "fp32" and (PRECISION_KEY, "fp32") in conv.metadata


@pytest.mark.thorough
def test_constants_are_nodes_on_request(tmp_path: Path) -> None:
    path = make_tfm(tmp_path / "tfm.onnx")
    hidden, drawn = document(path), document(path, constants=True)
    count = sum(node.op_type == "Constant" for node in onnx.load(path).graph.node)
    assert count and len(drawn.nodes) - len(hidden.nodes) == count
    assert sum(node.kind == "constant" for node in drawn.nodes) == count
    assert all(not node.attributes for node in drawn.nodes if node.kind == "constant")


def test_sparse_weights_and_external_ones(tmp_path: Path) -> None:
    sparse = document(make_sparse(tmp_path / "sparse.onnx"))
    assert any(item.numbers and item.numbers.zeros for item in sparse.held)
    read = document(make_ext(tmp_path / "ext.onnx"))
    assert {item.where for item in read.held} >= {"ext.onnx.bin"}


def test_limits_of_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_ext(tmp_path / "ext.onnx")
    large = [item for item in document(path).held if item.size_bytes == 256 * 256 * 4]
    assert len(large) == 3 and all(item.numbers for item in large)
    monkeypatch.setattr(drawn_graph, "_LIMIT_TOGETHER_BYTES", 2 * 256 * 256 * 4 + 10_000)
    tensors = [item for item in document(path).held if item.size_bytes == 256 * 256 * 4]
    assert [item.numbers is None for item in tensors] == [False, False, True]
    assert "were read first" in tensors[2].unread and tensors[2].first


def test_weights_over_the_limit_are_not_read(tmp_path: Path) -> None:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[5000, 5000], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="w.bin")
    (tmp_path / "w.bin").touch()
    os.truncate(tmp_path / "w.bin", 4 * 5000 * 5000)  # a hole
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", [tensor("x", [1])], [tensor("y", None)], [weight])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    (held,) = document(save(model, tmp_path / "m.onnx")).held
    assert held.numbers is None and "95.4 MiB" in held.unread and "64.0 MiB" in held.unread
    assert held.first[:2] == ("0", "0")


def test_too_many_nodes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.setattr(drawn_graph, "MOST_NODES", 5)
    with pytest.raises(RequestError) as caught:
        document(make_cnn(tmp_path / "cnn.onnx"))
    check_message(caught.value)


# --- what goes into the page ---


def test_the_page_is_one_file_with_everything(in_folder: Path) -> None:
    path = api.draw(make_ctrl(in_folder / "ctrl.onnx"), "new/ctrl.html")
    page = path.read_text("utf-8")
    assert "default-src 'none'" in page and not re.search(r'(src|href)="https?:', page)
    data = data_of(page)
    read = document(in_folder / "ctrl.onnx")
    assert [scope["address"] for scope in data["scopes"]] == [scope.address for scope in read.scopes]
    assert len(data["nodes"]["name"]) == len(read.nodes)
    for item, scope in zip(read.scopes, data["scopes"], strict=True):
        graph = scope["graph"]
        assert len(graph["x"]) == len(item.nodes) + len(scope["terminals"])
        assert scope["terminals"] == [*item.inputs, *item.outside, *item.outputs]
        assert [graph["inputs"], graph["outputs"]] == [
            names(read, (*item.inputs, *item.outside)),
            names(read, item.outputs),
        ]
        assert graph["composite"] == [at for at, node in enumerate(item.nodes) if read.nodes[node].bodies]
    assert path.read_bytes() == api.draw(in_folder / "ctrl.onnx", "new/ctrl.html").read_bytes()


def test_edges_join_what_reads_with_what_writes(tmp_path: Path) -> None:
    path = small_model(tmp_path / "m.onnx")
    (graph,) = (scope["graph"] for scope in data_of(api.draw(path, tmp_path / "m.html").read_text("utf-8"))["scopes"])
    sources, targets = graph["source"], graph["target"]
    labels = ["add", "clip", "shape", "filled", "sub", "max", "same", "x", "-> y", "-> z"]
    joins = {(labels[source], labels[two]) for source, two in zip(sources, targets, strict=True)}
    assert joins == {
        ("x", "add"),
        ("add", "clip"),
        ("clip", "shape"),
        ("shape", "filled"),
        ("clip", "sub"),
        ("filled", "sub"),
        ("sub", "max"),
        ("max", "-> y"),
        ("same", "-> z"),
    }


def test_without_values_no_tensor_contents_are_in_the_page(tmp_path: Path) -> None:
    path = small_model(tmp_path / "m.onnx")
    whole = api.draw(path, tmp_path / "whole.html").read_text("utf-8")
    bare = api.draw(path, tmp_path / "bare.html", reading=Reading(values=False, constants=True)).read_text("utf-8")
    for secret in ("0.123456", "classified", "6.625", "0.5625", "0.875"):
        assert secret in whole + json.dumps(data_of(whole))
        assert secret not in bare + json.dumps(data_of(bare))
    assert all(item["numbers"] is None and item["first"] == [] for item in data_of(bare)["held"])
    (reason,) = {item["unread"] for item in data_of(bare)["held"]}
    assert reason and all(item["unread"] != reason for item in data_of(whole)["held"])
    assert "their values are not" in bare and "their values are not" not in whole
    svg = api.draw(path, tmp_path / "bare.svg", reading=Reading(values=False, constants=True)).read_text("utf-8")
    assert "6.625" in api.draw(path, tmp_path / "m.svg").read_text("utf-8") and "6.625" not in svg


def test_hostile_names_stay_text(in_folder: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>\x07\u202e"
    node = helper.make_node("Evil" + evil, ["x" + evil], ["y" + evil], "n" + evil, domain="d" + evil, attr=evil)
    graph = helper.make_graph([node], "g" + evil, [tensor("x" + evil, [evil])], [tensor("y" + evil, None)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("d" + evil, 1)]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets, producer_name=evil, doc_string=evil)
    save(model, in_folder / "<i>&.onnx")
    page = api.draw("<i>&.onnx", "m.html").read_text("utf-8")
    assert "<img" not in page and "<i>&." not in page and "\x07" not in page and "\u202e" not in page
    data = data_of(page)
    assert not any("\x07" in text or "\u202e" in text for text in texts_of(data))


# --- the program ---


def test_the_program_writes_a_page(in_folder: Path) -> None:
    make_cnn(in_folder / "cnn.onnx")
    result = CliRunner().invoke(command, ["cnn.onnx", "-o", "cnn.html", "--no-values", "--title", "A net"])
    assert (result.exit_code, result.output) == (0, "cnn.html\n")
    assert "<title>A net</title>" in (in_folder / "cnn.html").read_text("utf-8")
    assert "--no-values" in CliRunner().invoke(command, ["--help"]).output


@pytest.mark.parametrize(
    "choices",
    [
        {"look": Look(grid=True, palette="grey")},
        {"reading": Reading(depth=1)},
    ],
)
def test_options_for_images_are_refused(in_folder: Path, choices: dict[str, Any], check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        api.draw(make_cnn(in_folder / "cnn.onnx"), "cnn.html", **choices)
    check_message(caught.value)
    assert not list(in_folder.glob("*.html"))


def test_layers_have_a_page_elsewhere(in_folder: Path, check_message: CheckMessage) -> None:
    (in_folder / "layers.json").write_text('{"Layers": ["a", "b"], "Bindings": []}')
    with pytest.raises(RequestError) as caught:
        api.draw("layers.json", "layers.html")
    check_message(caught.value)


def test_unreadable_inputs_and_unwritable_outputs_are_reported(in_folder: Path, check_message: CheckMessage) -> None:
    with pytest.raises(ModelError, match=r"absent\.onnx"):
        api.draw("absent.onnx", "m.html")
    make_cnn(in_folder / "cnn.onnx")
    for target in ("cnn.onnx/m.html", "folder.html"):
        (in_folder / "folder.html").mkdir(exist_ok=True)
        with pytest.raises(OutputsError) as caught:
            api.draw("cnn.onnx", target)
        check_message(caught.value)
