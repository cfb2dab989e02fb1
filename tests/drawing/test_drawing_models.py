"""`ndld-flow draw`: real models as graphs, and the program from its arguments to its exit codes."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper
from PIL import Image

from ndld_flow import api
from ndld_flow.base.errors import ModelError, OutputsError, RequestError, UnknownNameError
from ndld_flow.base.quantities import TIMES
from ndld_flow.drawing.draw import picture_bytes
from ndld_flow.drawing.graph import DrawnGraph, DrawnNode, Look, Reading
from ndld_flow.graph.drawn_graph import DimNames, read_graph
from ndld_flow.verbs.draw import command
from tests.support.message_files import CheckMessage
from tests.support.models import (
    FUNCTION_DOMAIN,
    GraphBuilder,
    make_cnn,
    make_ctrl,
    make_ext,
    make_func,
    make_sparse,
    make_tfm,
    rename_output,
    save,
    tensor,
)
from tests.support.models_engine import constrain


def labels(graph: DrawnGraph, kind: str = "") -> list[str]:
    return [node.label for node in graph.nodes if not kind or node.kind == kind]


def named(graph: DrawnGraph, name: str) -> DrawnNode:
    return next(node for node in graph.nodes if node.id.startswith(f"{name} ") or node.id == name)


def joins(graph: DrawnGraph) -> set[tuple[str, str]]:
    return {(graph.nodes[edge.source].label, graph.nodes[edge.target].label) for edge in graph.edges}


def times(*dims: object) -> str:
    return TIMES.join(map(str, dims))


def test_a_convolutional_network_is_drawn(tmp_path: Path) -> None:
    path = make_cnn(tmp_path / "cnn.onnx")
    graph = read_graph(path, Reading())
    drawn = Counter(labels(graph, "operator"))
    written = Counter(node.op_type for node in onnx.load(path).graph.node if node.op_type != "Constant")
    assert drawn == written
    assert labels(graph, "input") == ["x"] and labels(graph, "output") == ["y"]
    assert graph.title == "cnn.onnx"
    assert "float32" in graph.subtitle and "constants not drawn" in graph.subtitle
    first = next(node for node in graph.nodes if node.label == "Conv")
    assert first.family == "convolution"
    assert first.details == (times(3, 3), f"weights {times(8, 3, 3, 3)}")
    (entering,) = (edge for edge in graph.edges if graph.nodes[edge.target] == first)
    assert entering.label == times("batch", 3, 16, 16)
    assert {("x", "Conv"), ("Conv", "BatchNormalization"), ("Softmax", "y")} <= joins(graph)


def test_constants_are_drawn_on_request(tmp_path: Path) -> None:
    path = make_cnn(tmp_path / "cnn.onnx")
    without, within = read_graph(path, Reading()), read_graph(path, Reading(constants=True))
    assert not labels(without, "constant")
    proto = onnx.load(path).graph
    used = {name for node in proto.node for name in node.input}
    constants = sum(node.op_type == "Constant" for node in proto.node) + sum(
        initializer.name in used for initializer in proto.initializer
    )
    assert len(labels(within, "constant")) == constants
    assert len(within.edges) > len(without.edges) + constants - 3
    assert "not drawn" not in within.subtitle


@pytest.mark.thorough
def test_only_unusual_dtypes_are_shown(tmp_path: Path) -> None:
    graph = read_graph(make_tfm(tmp_path / "tfm.onnx"), Reading())
    assert "without a dtype are float32" in graph.subtitle
    shape = next(edge for edge in graph.edges if graph.nodes[edge.source].label == "Shape")
    assert shape.label.startswith("int64 ")
    product = next(edge for edge in graph.edges if graph.nodes[edge.source].label == "MatMul")
    assert "float32" not in product.label
    assert not any(edge.label for edge in read_graph(tmp_path / "tfm.onnx", Reading(shapes=False)).edges)


def test_attributes_of_nodes_are_shown(tmp_path: Path) -> None:
    b = GraphBuilder()
    h = b.op("Conv", "x", b.weight(8, 1, 5, 3), kernel_shape=[5, 3], strides=[2, 2], dilations=[1, 2], group=8)
    h = b.op("Transpose", h, perm=[0, 2, 3, 1])
    h = b.op("Clip", h, b.floats(0.0), b.floats(6.0))
    h = b.op("Slice", h, b.ints(1), b.ints(2**63 - 1), b.ints(3), b.ints(2))
    h = b.op("Cast", h, to=TensorProto.FLOAT16)
    h = b.op("Reshape", h, b.ints(0, -1, 4))
    rename_output(b, h, "y")
    model = b.model([tensor("x", [1, 8, 32, 32])], [tensor("y", None, TensorProto.FLOAT16)])
    graph = read_graph(save(model, tmp_path / "m.onnx"), Reading())
    details = {node.label: node.details for node in graph.nodes}
    assert details["Conv"] == (
        f"{times(5, 3)}, stride 2, dilation {times(1, 2)}, group 8",
        f"weights {times(8, 1, 5, 3)}",
    )
    assert details["Transpose"] == ("perm 0 2 3 1",)
    assert details["Clip"] == ("0, 6",)
    assert details["Slice"] == ("[1::2] of axis 3",)
    assert details["Cast"] == ("to float16",)
    assert details["Reshape"] == ("to 0 -1 4",)


def test_the_requested_precision_is_the_last_line_of_a_node(tmp_path: Path) -> None:
    path = make_cnn(tmp_path / "cnn.onnx")
    plain = read_graph(path, Reading())
    asked = read_graph(constrain(path, Conv_0="fp32"), Reading())
    assert named(asked, "Conv_0").details == (*named(plain, "Conv_0").details, "requested fp32")
    assert [node.details for node in asked.nodes if node.id != named(asked, "Conv_0").id] == [
        node.details for node in plain.nodes if node.id != named(plain, "Conv_0").id
    ]
    assert b"requested fp32" in picture_bytes(asked, ".svg", Look())
    assert b"asked" not in picture_bytes(plain, ".svg", Look())


def test_a_body_is_one_node_that_reads_captured_tensors(tmp_path: Path) -> None:
    graph = read_graph(make_ctrl(tmp_path / "ctrl.onnx"), Reading())
    assert sorted(labels(graph, "composite")) == ["If", "If", "Loop"]
    assert all(node.family == "control" for node in graph.nodes if node.kind == "composite")
    # The first If reads, besides its condition, what both branches read from outside; the loop's body reads x.
    assert {("Identity", "If"), ("Greater", "If"), ("If", "If"), ("If", "Loop"), ("x", "Loop")} <= joins(graph)


def test_bodies_are_expanded_in_place(tmp_path: Path) -> None:
    path = make_ctrl(tmp_path / "ctrl.onnx")
    closed, opened = read_graph(path, Reading()), read_graph(path, Reading(depth=1))
    assert {"end of If", "end of Loop"} <= set(labels(opened))
    assert len(opened.nodes) > len(closed.nodes) + 8
    assert {("Add", "Identity"), ("Identity", "end of If"), ("Loop", "Mul"), ("Add", "end of Loop")} <= joins(opened)
    reached = {edge.target for edge in opened.edges}
    lost = [node for index, node in enumerate(opened.nodes) if index not in reached and node.kind == "operator"]
    assert [node.label for node in lost if node.label not in ("Mul", "Not")] == []
    picture_bytes(opened, ".svg", Look())


def test_one_body_can_be_drawn_alone(tmp_path: Path, check_message: CheckMessage) -> None:
    path = make_ctrl(tmp_path / "ctrl.onnx")
    name = next(node.name for node in onnx.load(path).graph.node if node.op_type == "Loop")
    graph = read_graph(path, Reading(subgraph=f"{name}/body"))
    assert graph.title == f"ctrl.onnx: {name}/body"
    assert labels(graph, "input") == ["body_i", "body_go", "body_carried", "x"]  # the last one from outside
    assert read_graph(path, Reading(subgraph=name)) == graph  # its only body
    condition = next(node.name for node in onnx.load(path).graph.node if node.op_type == "If")
    with pytest.raises(RequestError, match="ambiguous"):
        read_graph(path, Reading(subgraph=condition))
    with pytest.raises(UnknownNameError) as caught:
        read_graph(path, Reading(subgraph=f"{name}/bodi"))
    assert caught.value.nearest == f"{name}/body"
    with pytest.raises(UnknownNameError) as caught:
        read_graph(make_cnn(tmp_path / "cnn.onnx"), Reading(subgraph="If_0"))
    check_message(caught.value)
    assert caught.value.nearest == ""


def test_a_nested_body_is_found_by_its_path_or_the_end_of_it(tmp_path: Path) -> None:
    def nested(name: str, inner: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph([inner], name, [], [tensor(inner.output[0], [1])])

    def choice(name: str, output: str, deeper: onnx.NodeProto) -> onnx.NodeProto:
        other = helper.make_node("Identity", ["x"], [f"{output}_else"])
        branches = {"then_branch": nested(f"{name}_then", deeper), "else_branch": nested(f"{name}_else", other)}
        return helper.make_node("If", ["c"], [output], name, **branches)

    inner = choice("inner", "b", helper.make_node("Neg", ["x"], ["a"]))
    graph = helper.make_graph(
        [choice("outer", "y", inner)], "g", [tensor("c", [1], TensorProto.BOOL), tensor("x", [1])], [tensor("y", [1])]
    )
    opsets = [helper.make_opsetid("", 17)]
    path = save(helper.make_model(graph, ir_version=8, opset_imports=opsets), tmp_path / "m.onnx")
    whole = read_graph(path, Reading(subgraph="outer/then_branch/inner/then_branch"))
    assert labels(whole, "operator") == ["Neg"]
    assert read_graph(path, Reading(subgraph="inner/then_branch")) == whole
    assert labels(read_graph(path, Reading(subgraph="outer/then_branch")), "composite") == ["If"]
    with pytest.raises(RequestError, match="ambiguous"):
        read_graph(path, Reading(subgraph="then_branch"))


def test_local_functions_are_drawn(tmp_path: Path) -> None:
    path = make_func(tmp_path / "func.onnx")
    closed = read_graph(path, Reading())
    assert labels(closed, "composite") == ["Block", "Block", "Linear"]
    opened = read_graph(path, Reading(depth=1))
    assert labels(opened).count("LeakyRelu") == 2 and labels(opened).count("Linear") == 3
    assert {("x", "Block"), ("Block", "Linear"), ("Identity", "end of Block")} <= joins(opened)
    deep = read_graph(path, Reading(depth=2))
    assert labels(deep).count("MatMul") == 3
    alone = read_graph(path, Reading(subgraph=f"{FUNCTION_DOMAIN}::Linear"))
    assert labels(alone, "operator") == ["MatMul", "Add"]


def test_repeated_calls_of_functions_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.setattr("ndld_flow.graph.drawn_graph.MOST_NODES", 2000)  # depth 12 is 2 ** 12 of them
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(FUNCTION_DOMAIN, 1)]
    functions = []
    for level in range(12):
        inner, domain = ("Relu", "") if level == 11 else (f"F{level + 1}", FUNCTION_DOMAIN)
        nodes = [helper.make_node(inner, ["a"], [out], domain=domain) for out in ("u", "v")]
        nodes.append(helper.make_node("Add", ["u", "v"], ["z"]))
        functions.append(helper.make_function(FUNCTION_DOMAIN, f"F{level}", ["a"], ["z"], nodes, opsets))
    graph = helper.make_graph(
        [helper.make_node("F0", ["x"], ["y"], domain=FUNCTION_DOMAIN)], "main", [tensor("x", [1])], [tensor("y", [1])]
    )
    path = save(helper.make_model(graph, ir_version=8, opset_imports=opsets, functions=functions), tmp_path / "f.onnx")
    assert len(read_graph(path, Reading(depth=3)).nodes) < 100
    with pytest.raises(RequestError) as caught:
        read_graph(path, Reading(depth=32))
    check_message(caught.value)


def test_weights_are_not_read(tmp_path: Path) -> None:
    """The data file exists with the right size, but must not be opened."""
    path = make_ext(tmp_path / "ext.onnx")
    data = tmp_path / "ext.onnx.bin"
    os.truncate(data, 0)
    os.truncate(data, 4 * 3 * 256 * 256)  # a hole: nothing of it was ever written
    before = data.stat().st_atime_ns
    graph = read_graph(path, Reading(constants=True))
    assert "MatMul" in labels(graph) and times(256, 256) in labels(graph, "constant")
    assert data.stat().st_atime_ns == before


def test_models_with_sparse_weights_are_drawn(tmp_path: Path) -> None:
    path = make_sparse(tmp_path / "sparse.onnx")
    assert labels(read_graph(path, Reading()), "operator") == ["Add", "Mul", "Identity"]
    assert labels(read_graph(path, Reading(constants=True)), "constant")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.thorough) for name in ("det", "rec", "silero")])
def test_real_models_are_drawn(name: str, sample_model: Callable[[str], Path]) -> None:
    for reading in (Reading(), Reading(constants=True), Reading(depth=9)):
        graph = read_graph(sample_model(name), reading)
        svg = picture_bytes(graph, ".svg", Look())
        assert svg.count(b"<title>") == len(graph.nodes) + 1
    # Every node is on the way from an input or a constant to an output; none was left out.
    shapes = [edge.label for edge in read_graph(sample_model("det"), Reading()).edges]
    assert sum(bool(label) for label in shapes) > 0.9 * len(shapes)


def test_long_dimension_names_are_shortened() -> None:
    short = DimNames()
    assert short("batch") == "batch"
    assert short("p2o.DynamicDimension.1") == "d1"
    assert short("floor(p2o.DynamicDimension.1/2)") == "floor(d1/2)"
    assert short("sequence_length") == "d2"
    assert short.explained == "d1 = p2o.DynamicDimension.1, d2 = sequence_length"
    assert len(short("a*b+" * 3000)) <= 16
    assert len(short("n" * 10_000)) <= 16 and len(short.explained) < 200


# --- the program ---


def test_the_program_writes_to_the_current_directory_by_default(in_folder: Path) -> None:
    make_cnn(in_folder / "cnn.onnx")
    result = CliRunner().invoke(command, ["cnn.onnx"])
    assert (result.exit_code, result.output) == (0, "cnn.svg\n")
    assert (in_folder / "cnn.svg").read_bytes().startswith(b"<svg")
    arguments = "cnn.onnx -o new/graph.png --background dark --direction right --grid --scale 0.5 --constants"
    assert CliRunner().invoke(command, arguments.split()).exit_code == 0
    picture = Image.open(in_folder / "new" / "graph.png").convert("RGB")
    assert picture.getpixel((1, 1)) == (0x15, 0x17, 0x1A)
    assert picture.width > picture.height
    assert sorted(path.name for path in in_folder.rglob("*") if path.is_file()) == ["cnn.onnx", "cnn.svg", "graph.png"]


def test_help_lists_every_choice() -> None:
    text = CliRunner().invoke(command, ["--help"]).output
    for choice in (
        "--subgraph",
        "--depth",
        "--background",
        "--palette",
        "--grid",
        "--constants",
        "--scale",
        "If_0/then_branch",
    ):
        assert choice in text


@pytest.mark.parametrize(
    ("target", "look", "error"),
    [
        ("g.gif", Look(), RequestError),
        ("g.onnx", Look(), RequestError),
        ("g.svg", Look(palette="rainbow"), RequestError),
        ("folder.svg", Look(), OutputsError),
        ("cnn.onnx/g.svg", Look(), OutputsError),
    ],
)
def test_an_output_that_cannot_be_written_is_reported(
    in_folder: Path, target: str, look: Look, error: type[Exception], check_message: CheckMessage
) -> None:
    make_cnn(in_folder / "cnn.onnx")
    (in_folder / "folder.svg").mkdir()
    with pytest.raises(error) as caught:
        api.draw("cnn.onnx", target, look=look)
    check_message(caught.value)
    assert sorted(path.name for path in in_folder.iterdir()) == ["cnn.onnx", "folder.svg"]


def test_a_file_that_is_no_model_is_reported(in_folder: Path) -> None:
    (in_folder / "text.onnx").write_text("no model")
    for name in ("text.onnx", "absent.onnx"):
        with pytest.raises(ModelError, match=name):
            api.draw(name)
    assert not list(in_folder.glob("*.svg"))


def test_a_failed_drawing_keeps_the_old_file(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    make_cnn(in_folder / "cnn.onnx")
    old = api.draw("cnn.onnx").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputsError) as caught:
        api.draw("cnn.onnx", look=Look(grid=True))
    check_message(caught.value)
    assert (in_folder / "cnn.svg").read_bytes() == old
    assert not list(in_folder.glob(".*"))


def test_hostile_names_are_escaped(in_folder: Path) -> None:
    b = GraphBuilder(prefix="</script><b>\x07&\u202e")
    h = b.op("Relu", b.op("Relu", "x"))
    rename_output(b, h, "y" * 10_000)
    save(b.model([tensor("x", ["a<b", 3])], [tensor("y" * 10_000, None)]), in_folder / "m.onnx")
    for suffix in ("svg", "png"):
        api.draw("m.onnx", f"m.{suffix}")
    assert b"<b>" not in (in_folder / "m.svg").read_bytes()
    shutil.move("m.onnx", "<i>&.onnx")
    assert b"<i>" not in api.draw("<i>&.onnx").read_bytes()
