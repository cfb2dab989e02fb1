"""`ndld-flow inspect`: facts about a model as data, as JSON and on a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper

from ndld_flow import api
from ndld_flow.base.errors import NdldFlowError, RequestError, UnknownNameError
from ndld_flow.graph.edit.settings import NodeSelect
from ndld_flow.graph.inspect_model import Query
from ndld_flow.verbs.inspect import command
from tests.support import models
from tests.support.editing_fixtures import parse
from tests.support.message_files import CheckMessage
from tests.support.models_run import write_model

BRANCHES = """g (bool c, float[N, 2] x) => (float[N, 2] y) <float[2] w = {1, 2}> {
    [pick] y = If (c) <
        then_branch = t () => (float[N, 2] a) { [inner] a = Add(x, w) },
        else_branch = e () => (float[N, 2] b) { [same] b = Identity(x) }
    >
}"""


@pytest.fixture
def cnn(tmp_path: Path) -> Path:
    return models.make_cnn(tmp_path / "cnn.onnx")


def shown(path: Path | str, *options: str) -> str:
    done = CliRunner().invoke(command, [str(path), *options], catch_exceptions=True)
    if isinstance(done.exception, NdldFlowError):
        raise done.exception
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def asked(path: Path | str, *options: str) -> Any:
    return json.loads(shown(path, *options, "--json"))


def test_a_summary_lists_the_contents_of_a_model(cnn: Path) -> None:
    proto = onnx.load(cnn)
    summary = asked(cnn)["summary"]
    assert summary["opsets"] == {"ai.onnx": 17} and summary["ir_version"] == 8
    assert [port["name"] for port in summary["inputs"]] == [value.name for value in proto.graph.input]
    assert [port["name"] for port in summary["outputs"]] == [value.name for value in proto.graph.output]
    assert summary["node_count"] == len(proto.graph.node)
    assert summary["nodes_by_type"]["Conv"] == sum(node.op_type == "Conv" for node in proto.graph.node)
    weights = sum(numpy_helper.to_array(initializer).nbytes for initializer in proto.graph.initializer)
    assert summary["weights_by_dtype"]["float32"]["size_bytes"] >= weights
    sizes = [item["size_bytes"] for item in summary["largest"]]
    assert sizes == sorted(sizes, reverse=True)
    text = shown(cnn)
    for word in ("inputs", "outputs", "nodes", "weights", "largest", "Conv", "float32"):
        assert word in text


def test_bodies_are_a_tree_and_deeper_levels_are_counted(tmp_path: Path) -> None:
    def choose(name: str, depth: int) -> str:
        inner = choose(f"{name}i", depth - 1) if depth else f"[{name}_relu] {name}_out = Relu(x)"
        return (
            f"[{name}] {name}_out = If(c) <then_branch = t () => (float[2] {name}i_out) {{ {inner} }}, "
            f"else_branch = e () => (float[2] {name}e) {{ [{name}_abs] {name}e = Abs(x) }}>"
            if depth
            else inner
        )

    def lines(depth: int) -> list[str]:
        text = f"g (bool c, float[2] x) => (float[2] a_out) {{ {choose('a', depth)} }}"
        listed = shown(write_model(tmp_path / "nested.onnx", text)).partition("subgraphs\n")[2]
        return [" ".join(line.split()) for line in listed.splitlines()]

    assert lines(2)[1:] == [
        "a/then_branch 1",
        "ai/then_branch 1",
        "ai/else_branch 1",
        "a/else_branch 1",
    ]
    assert lines(10)[-1] == "a/else_branch 1"
    assert any(line.endswith("with 4 inside") for line in lines(10))


def test_bodies_functions_precisions_and_data_files_are_in_the_summary(tmp_path: Path) -> None:
    branches = write_model(tmp_path / "branches.onnx", BRANCHES)
    assert asked(branches)["summary"]["subgraphs"] == ["pick/then_branch", "pick/else_branch"]
    assert asked(branches)["summary"]["nodes_by_graph"] == {"pick/then_branch": 1, "pick/else_branch": 1}
    assert len(asked(models.make_func(tmp_path / "func.onnx"))["summary"]["functions"]) == 2
    external = asked(models.make_ext(tmp_path / "ext.onnx", width=32))["summary"]
    assert [file["location"] for file in external["files"]] == ["ext.onnx.bin"]
    assert external["files"][0]["tensors"] == 3
    proto = parse(BRANCHES)
    proto.graph.node[0].metadata_props.add(key="ndld_flow.precision", value="fp16")
    precise = models.save(proto, tmp_path / "precise.onnx")
    assert asked(precise)["summary"]["precisions"] == {"fp16": 1}
    assert [node["name"] for node in asked(precise, "--precision", "fp16")["nodes"]] == ["pick"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--nodes"], ["pick", "inner", "same"]),
        (["--nodes", "in*"], ["inner"]),
        (["--nodes", "/^(in|sa)/"], ["inner", "same"]),
        (["--op-type", "Add", "--op-type", "If"], ["pick", "inner"]),
        (["--scope", "pick/else_branch"], ["same"]),
        (["--scope", ""], ["pick"]),
        (["--input", "w"], ["inner"]),
        (["--output", "b"], ["same"]),
        (["--near", "inner", "--nodes", "s*", "--hops", "9"], []),
    ],
)
def test_nodes_are_selected_with_recipe_syntax(tmp_path: Path, options: list[str], names: list[str]) -> None:
    path = write_model(tmp_path / "m.onnx", BRANCHES)
    if not names:
        with pytest.raises(RequestError):
            asked(path, *options)
        return
    assert [node["name"] for node in asked(path, *options)["nodes"]] == names


def test_attributes_and_paths_select_nodes(tmp_path: Path, check_message: CheckMessage) -> None:
    text = """g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] z) <float[4, 1, 1, 1] w = {1, 2, 3, 4}> {
        [one] a = Relu(x) [two] b = Conv <group = 4, auto_pad = "VALID"> (a, w) [three] z = Softmax <axis = 1> (b) }"""
    path = write_model(tmp_path / "m.onnx", text)
    for options, names in (
        (["--attribute", "group=4"], ["two"]),
        (["--attribute", "auto_pad=VALID"], ["two"]),
        (["--attribute", "axis=1", "--op-type", "Softmax"], ["three"]),
        (["--between", "a", "three"], ["two", "three"]),
        (["--before", "two"], ["one"]),
        (["--after", "two"], ["three"]),
        (["--after", "one", "--after", "two"], ["three"]),
    ):
        assert [node["name"] for node in asked(path, *options)["nodes"]] == names, options
    with pytest.raises(RequestError) as refused:
        asked(path, "--attribute", "group")
    check_message(refused.value)
    with pytest.raises(UnknownNameError) as unknown:
        asked(path, "--before", "tow")
    assert (unknown.value.name, unknown.value.nearest) == ("tow", "two")


def test_ports_that_are_left_out_have_no_place_in_a_table_of_nodes(tmp_path: Path) -> None:
    text = """g (float[2, 3] x, float m) => (float[2, 3] y, float[k] n) {
        [clip] y = Clip(x, , m) [parts] a, , i = Unique(x) [grow] n = Cast<to = 1>(i) }"""
    lines = shown(write_model(tmp_path / "m.onnx", text), "--nodes", "*").splitlines()
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line}
    assert rows["clip"] == "Clip x: 2x3 y: float32 2x3"
    assert rows["m:"] == "scalar"
    assert rows["parts"] == "Unique x: 2x3 a: float32 ?"
    assert rows["i:"] == "int64 ?"


def test_a_node_is_shown_with_producers_and_consumers_of_its_tensors(
    tmp_path: Path, check_message: CheckMessage
) -> None:
    path = write_model(tmp_path / "m.onnx", BRANCHES)
    [node] = asked(path, "--node", "inner")["nodes"]
    assert node["scope"] == "pick/then_branch"
    assert [(port["name"], port["made_by"]) for port in node["inputs"]] == [("x", "input"), ("w", "initializer")]
    assert node["inputs"][0]["read_by"] == ["pick/then_branch: inner", "pick/else_branch: same"]
    assert node["outputs"][0]["read_by"] == ["output"]
    assert node["inputs"][0]["shape"] == ["N", 2]
    [pick] = asked(path, "--node", "y")["nodes"]
    assert pick["name"] == "pick" and pick["subgraphs"] == ["pick/then_branch", "pick/else_branch"]
    text = shown(path, "--node", "inner")
    assert "inner: Add in pick/then_branch" in text and "made by" in text and "initializer" in text
    with pytest.raises(RequestError) as caught:
        asked(path, "--node", "inerr")
    check_message(caught.value)


def test_a_tensor_is_shown_with_statistics_and_exported(tmp_path: Path, check_message: CheckMessage) -> None:
    path = models.make_ext(tmp_path / "ext.onnx", width=64)
    wanted = {initializer.name: numpy_helper.to_array(initializer) for initializer in onnx.load(path).graph.initializer}
    for name, array in wanted.items():
        target = tmp_path / f"{name}.npy"
        [read] = asked(path, "--tensor", name, "--export", str(target))["tensors"]
        assert read["numbers"]["minimum"] == pytest.approx(float(array.min()))
        assert read["numbers"]["mean"] == pytest.approx(float(array.mean()), abs=1e-6)
        assert read["first"][:3] == pytest.approx(array.ravel()[:3].tolist())
        assert (read["stored"], read["file"]) == ("external", "ext.onnx.bin")
        assert read["read_by"] and read["made_by"] == "initializer"
        np.testing.assert_array_equal(np.load(target, allow_pickle=False), array)
    text = shown(path, "--tensor", "w_0")
    for word in ("w_0: initializer, float32 64x64", "read by  MatMul_0", "16.0 KiB", "spread", "first"):
        assert word in text
    with pytest.raises(RequestError) as caught:
        shown(path, "--export", "x.npy")
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        shown(path, "--tensor", "y", "--export", str(tmp_path / "y.npy"))
    check_message(caught.value)


def test_all_kinds_of_tensors_are_exported(tmp_path: Path) -> None:
    sparse = models.make_sparse(tmp_path / "sparse.onnx")
    shown(sparse, "--tensor", "s", "--export", str(tmp_path / "s.npy"))
    expected = np.zeros((3, 4), np.float32)
    expected[0, 1], expected[2, 3] = 1.5, -2
    np.testing.assert_array_equal(np.load(tmp_path / "s.npy"), expected)
    text = """g (float[2] x) => (float[2] y) <bfloat16[3] b = {1, 2, 3}>
        { k = Constant <value_ints = [4, 5]> () y = Relu(x) }"""
    path = write_model(tmp_path / "m.onnx", text)
    shown(path, "--tensor", "k", "--export", str(tmp_path / "k.npy"))
    np.testing.assert_array_equal(np.load(tmp_path / "k.npy"), [4, 5])
    shown(path, "--tensor", "b", "--export", str(tmp_path / "b.npy"))
    assert np.load(tmp_path / "b.npy").nbytes == 6


def test_weights_are_listed_filtered_sorted_and_counted(tmp_path: Path, check_message: CheckMessage) -> None:
    text = """g (float[2] x) => (float[2] y)
        <float[2] a = {0, 1}, int64[1] i = {3}, float[4] z = {1, 2, 3, 4}>
        { k = Constant <value = float[3] {1, 2, 3}> () y = Relu(x) }"""
    path = write_model(tmp_path / "m.onnx", text)

    def names(*options: str) -> list[str]:
        return [tensor["name"] for tensor in asked(path, *options)["tensors"]]

    assert names("--initializers") == ["a", "i", "z"]
    assert names("--initializers", "--constants", "--sort", "size") == ["z", "k", "a", "i"]
    assert names("--dtype", "float32", "--larger-than", "8B") == ["z"]
    assert names("--initializers", "[ai]") == ["a", "i"]
    [a, *_] = asked(path, "--stats")["tensors"]
    assert (a["numbers"]["zeros"], a["numbers"]["maximum"]) == (1, 1.0)
    assert asked(path, "--group-by", "dtype")["weights"]["float32"] == {"count": 3, "elements": 9, "size_bytes": 36}
    with pytest.raises(RequestError) as caught:
        asked(path, "--larger-than", "x")
    check_message(caught.value)


def test_tensors_of_all_graphs_are_listed(tmp_path: Path, check_message: CheckMessage) -> None:
    path = write_model(tmp_path / "m.onnx", BRANCHES)
    found = {tensor["name"]: (tensor["role"], tensor["scope"]) for tensor in asked(path, "--tensors")["tensors"]}
    assert found["x"] == ("input", "") and found["y"] == ("output", "") and found["w"] == ("initializer", "")
    assert found["a"] == ("output", "pick/then_branch")
    with pytest.raises(RequestError) as caught:
        asked(path, "--tensors", "zz")
    check_message(caught.value)


def test_nodes_are_counted_by_group(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.onnx", BRANCHES)
    by_scope = {group["value"]: group["count"] for group in asked(path, "--group-by", "scope")["groups"]}
    assert by_scope == {"": 1, "pick/then_branch": 1, "pick/else_branch": 1}
    [group] = asked(path, "--group-by", "domain")["groups"]
    assert (group["value"], group["count"]) == ("ai.onnx", 3)
    only = asked(path, "--group-by", "op_type", "--scope", "pick/*")["groups"]
    assert {item["value"] for item in only} == {"Add", "Identity"}
    assert "main graph" in shown(path, "--group-by", "scope")


def test_two_questions_at_once_are_refused(cnn: Path, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        shown(cnn, "--tensors", "x", "--nodes", "y")
    check_message(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        ["--nodes", "--hops", "2"],
        ["--export", "w.npy"],
        ["--node", "a", "--tensor", "b"],
        ["--node", "a", "--initializers"],
        ["--tensors", "--stats"],
        ["--nodes", "--sort", "size"],
        ["--op-type", "Conv", "--constants"],
        ["--group-by", "dtype", "--op-type", "Conv"],
        ["--group-by", "op_type", "--tensors"],
        ["--group-by", "dtype", "--initializers"],
    ],
)
def test_options_that_contradict_each_other_are_refused(
    cnn: Path, options: list[str], check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as error:
        shown(cnn, *options)
    check_message(error.value)
    assert not (cnn.parent / "w.npy").exists()


def test_a_scope_limits_weights_as_well_as_nodes(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.onnx", BRANCHES)
    assert [tensor["name"] for tensor in asked(path, "--initializers", "--scope", "")["tensors"]] == ["w"]
    assert asked(path, "--group-by", "op_type", "--scope", "")["groups"] == [
        {"value": "If", "count": 1, "op_types": {"If": 1}}
    ]


def test_hostile_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    proto = parse("g (float[2] x) => (float[2] y) { [n] y = Relu(x) }")
    proto.graph.node[0].name = "\x1b[31mred\n\u202eevil"
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "\x1b]0;title\x07[bold]x"
    proto.producer_name = "\x9b31m"
    path = models.save(proto, tmp_path / "m.onnx")
    for options in ([], ["--nodes"], ["--node", "y"], ["--tensors"], ["--tensor", "y"], ["--group-by", "op_type"]):
        text = shown(path, *options)
        assert not set(text) & {"\x1b", "\x07", "\u202e", "\x9b"}
    assert "[bold]x" in shown(path, "--tensors")


def test_the_api_returns_the_same_and_finds_models_of_runs(in_folder: Path, check_message: CheckMessage) -> None:
    write_model(in_folder / "m.onnx", BRANCHES)
    edit = {"step": "edit", "operations": [{"rename_nodes": {"select": "inner", "to": "renamed"}}]}
    (in_folder / "r.yaml").write_text(json.dumps({"model": "m.onnx", "steps": {"change": edit}}))
    api.run("r.yaml")
    found = api.inspect("r:change", Query(nodes=NodeSelect(op_type=("Add",))))
    assert found.nodes is not None and [node.name for node in found.nodes] == ["renamed"]
    assert api.inspect("r:source", Query(node="inner")).nodes is not None
    with pytest.raises(RequestError) as caught:
        api.inspect("r:chang")
    check_message(caught.value)
    with pytest.raises(RequestError, match=r"nowhere\.onnx"):
        api.inspect("nowhere.onnx")
