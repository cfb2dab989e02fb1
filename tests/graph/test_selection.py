"""Selections of nodes: every key, subgraphs, functions, scopes, neighbours, mistakes."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import onnx_ir as ir
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.edited_model import find_nodes
from ndld_flow.graph.edit.node_groups import Neighbourhood
from ndld_flow.graph.edit.settings import NodeSelect
from ndld_flow.models.nodes import node_label
from ndld_flow.records.layer_arithmetic import PRECISION_KEY
from ndld_flow.steps.edit import Edit
from tests.support.editing_fixtures import edit, parse
from tests.support.message_files import CheckMessage

MODEL = """<ir_version: 8, opset_import: ["" : 17, "local" : 1, "com.acme" : 1]>
main (float[N, 4] x, bool c, int64 count) => (float[N, 4] z, float[N, 4] t)
<float[4] w = {1, 2, 3, 4}>
{
    [stem] a = Relu (x)
    [conv0] b = LeakyRelu <alpha = 0.1> (a)
    [conv1] d = LeakyRelu <alpha = 0.5> (b)
    [branch] e = If (c) <
        then_branch = yes () => (float[N, 4] yo) { [in_yes] yo = Add (b, w) },
        else_branch = no () => (float[N, 4] no) { [in_no] nn = Neg (d)  no = Relu (nn) }>
    [loop] l = Loop (count, c, e) <
        body = turn (int64 i, bool go, float[N, 4] state) => (bool on, float[N, 4] next) {
            [go_on] on = Identity (go)
            [turned] next = Tanh (state)
        }>
    z = Sigmoid (l)
    [call] f = local.Twice (x)
    [odd] t = com.acme.Odd <mode = "fast", sizes = [1, 2], deep = 1> (f, w)
}
<domain: "local", opset_import: ["" : 17]>
Twice (p) => (q) { [inner] q = Add (p, p) }
"""


def model() -> ir.Model:
    return ir.from_proto(parse(MODEL))


def names(select: dict[str, Any] | str | list[str], allow_empty: bool = False) -> list[str]:
    """Labels of the nodes that a recipe's selection means."""
    options = select if isinstance(select, dict) else {"name": select}
    chosen = NodeSelect.model_validate_json(json.dumps(options))
    return [node_label(node) for node in find_nodes(model(), chosen, allow_empty)]


@pytest.mark.parametrize(
    ("select", "found"),
    [
        ("stem", ["stem"]),
        ("conv*", ["conv0", "conv1"]),
        ("/^conv[1-9]$/", ["conv1"]),
        (["stem", "in_*"], ["stem", "in_yes", "in_no"]),
        ("z", ["z"]),
        ({"op_type": "LeakyRelu"}, ["conv0", "conv1"]),
        ({"op_type": ["Relu", "Neg"]}, ["stem", "in_no", "no"]),
        ({"op_type": "com.acme::Odd"}, ["odd"]),
        ({"op_type": "com.acme::*"}, ["odd"]),
        ({"domain": "local"}, ["call"]),
        ({"domain": "ai.onnx", "scope": "local::Twice"}, ["inner"]),
        ({"input": "w"}, ["odd", "in_yes"]),
        ({"output": "d"}, ["conv1"]),
        ({"input": "b", "op_type": "Add"}, ["in_yes"]),
        ({"precision": "fp16"}, []),
        ({"precision": "none", "name": "stem"}, ["stem"]),
        ({"scope": ""}, ["stem", "conv0", "conv1", "branch", "loop", "z", "call", "odd"]),
        ({"scope": "branch/*"}, ["in_yes", "in_no", "no"]),
        ({"scope": ["loop/body", "local::*"]}, ["go_on", "turned", "inner"]),
        ({"name": "*", "exclude": {"scope": ""}}, ["in_yes", "in_no", "no", "go_on", "turned", "inner"]),
        ({"op_type": "*Relu", "exclude": "conv0"}, ["stem", "conv1", "no"]),
        ({"op_type": "*Relu", "position": "first"}, ["stem"]),
        ({"op_type": "*Relu", "position": "last"}, ["no"]),
        ({"op_type": "*Relu", "position": 1}, ["conv0"]),
        ({"op_type": "*Relu", "position": -2}, ["conv1"]),
        ({"op_type": "*Relu", "position": 9}, []),
    ],
)
def test_each_key_selects_nodes(select: dict[str, Any] | str | list[str], found: list[str]) -> None:
    assert names(select, allow_empty=True) == found


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ({"alpha": 0.1}, ["conv0"]),
        ({"alpha": 0.5}, ["conv1"]),
        ({"alpha": None, "mode": "fast"}, ["odd"]),
        ({"mode": "fast"}, ["odd"]),
        ({"sizes": [1, 2]}, ["odd"]),
        ({"sizes": [1]}, []),
        ({"deep": True}, ["odd"]),
        ({"deep": 1.0}, ["odd"]),
        ({"deep": "float32"}, ["odd"]),
        ({"deep": "float16"}, []),
        ({"then_branch": 1}, []),
    ],
)
def test_attributes_select_nodes(attributes: dict[str, Any], found: list[str]) -> None:
    assert names({"attributes": attributes}, allow_empty=True) == found


def test_an_unset_attribute_has_its_default() -> None:
    result = ir.from_proto(
        parse("g (float[1, 3, 8, 8] x, float[3, 3, 1, 1] w) => (float[1, 3, 8, 8] y) { [one] y = Conv (x, w) }")
    )
    for attributes, count in [({"group": 1}, 1), ({"group": 2}, 0), ({"group": None}, 1), ({"auto_pad": "NOTSET"}, 1)]:
        select = NodeSelect.model_validate({"attributes": attributes})
        assert len(find_nodes(result, select, allow_empty=True)) == count


def test_tensor_attributes_are_compared() -> None:
    result = ir.from_proto(parse("g () => (float[2] y) { [k] y = Constant <value = float[2] {1.5, 0.1}> () }"))
    assert find_nodes(result, NodeSelect(attributes={"value": [1.5, 0.1]}))
    assert not find_nodes(result, NodeSelect(attributes={"value": [1.5]}), allow_empty=True)


def test_precision_constraints_select_nodes() -> None:
    result = model()
    result.graph[0].metadata_props[PRECISION_KEY] = "fp16"
    assert [node.name for node in find_nodes(result, NodeSelect(precision=("fp16",)))] == ["stem"]


@pytest.mark.parametrize(
    ("select", "found"),
    [
        ({"between": ["stem", "conv1"]}, ["stem", "conv0", "conv1"]),
        ({"between": ["a", "e"]}, ["conv0", "conv1", "branch"]),
        ({"between": ["conv1", "stem"]}, []),
        ({"before": "conv0"}, ["stem"]),
        ({"before": "b"}, ["stem", "conv0"]),
        ({"before": "in_yes"}, ["stem", "conv0"]),
        ({"before": "turned"}, ["stem", "conv0", "conv1", "branch"]),
        ({"before": "x"}, []),
        ({"after": "d"}, ["branch", "loop", "z", "in_no", "no", "go_on", "turned"]),
        ({"after": "f"}, ["odd"]),
        ({"after": "e"}, ["loop", "z", "go_on", "turned"]),
        ({"after": "state"}, ["loop", "z", "turned"]),
        ({"near": "conv0"}, ["stem", "conv0", "conv1", "branch", "in_yes"]),
        ({"near": "conv0", "scope": ""}, ["stem", "conv0", "conv1", "branch"]),
        ({"near": "a"}, ["stem", "conv0"]),
        ({"near": "stem", "hops": 2}, ["stem", "conv0", "conv1", "branch", "in_yes"]),
        ({"after": "stem", "before": "conv1", "op_type": "LeakyRelu"}, ["conv0"]),
        ({"after": "stem", "before": "branch", "position": "last"}, ["conv1"]),
        ({"after": ["e"]}, ["loop", "z", "go_on", "turned"]),
        ({"after": ["f", "l"]}, ["odd", "z"]),
        ({"after": ["b", "e"]}, ["loop", "z", "go_on", "turned"]),
        ({"after": ["stem", "branch"], "scope": ""}, ["loop", "z"]),
        ({"before": ["b", "f"]}, ["stem", "conv0", "call"]),
        ({"before": ["a", "d"]}, ["stem", "conv0", "conv1"]),
        ({"near": ["a", "t"]}, ["stem", "conv0", "odd"]),
        ({"between": [["a", "x"], ["d", "t"]]}, ["stem", "conv0", "conv1", "call", "odd"]),
        ({"between": ["x", ["t"]]}, ["call", "odd"]),
    ],
)
def test_neighbours_are_selected(select: dict[str, Any], found: list[str]) -> None:
    assert sorted(names(select, allow_empty=True)) == sorted(found)


@pytest.mark.parametrize(
    "select",
    [
        "stam",
        {"op_type": "LeakyRelo"},
        {"scope": "branch/then"},
        {"input": "state2"},
        {"output": "/^yy/"},
        {"domain": "com.acmee"},
        {"precision": "fp16"},
        {"after": "steem"},
        {"op_type": "Relu", "name": "conv0"},
        {"exclude": {"before": "nowhere"}},
        {"after": ["e", "steem"]},
    ],
)
def test_an_empty_selection_is_an_error_with_the_nearest_names(
    select: dict[str, Any] | str, check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as refused:
        names(select)
    check_message(refused.value)


def test_a_name_in_several_graphs_is_distinguished_by_scope(check_message: CheckMessage) -> None:
    result = ir.from_proto(
        parse(
            """g (float[2] x, bool c) => (float[2] y) {
                y = If (c) <
                    then_branch = yes () => (float[2] u) { [same] r = Relu (x)  [end] u = Neg (r) },
                    else_branch = no () => (float[2] u) { [same] r = Tanh (x)  [end] u = Abs (r) }>
            }"""
        )
    )
    with pytest.raises(RequestError) as caught:
        find_nodes(result, NodeSelect(after="same"))
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        find_nodes(result, NodeSelect(after="r"))
    check_message(caught.value)
    [outcome] = find_nodes(result, NodeSelect(after="same", scope=("y/else_branch",)))
    assert outcome.op_type == "Abs"


def test_a_list_of_neighbours_is_not_empty_and_one_name_is_written_as_one() -> None:
    with pytest.raises(ValidationError) as caught:
        NodeSelect.model_validate_json('{"after": []}')
    assert [problem["type"] for problem in caught.value.errors()] == ["string_type", "too_short"]
    assert NodeSelect.model_validate_json('{"after": "b"}').model_dump() == {"after": "b"}
    assert NodeSelect.model_validate({"after": ["b", "d"]}).after == ("b", "d")


HEAD = """yolo (float[1, 3, 32, 32] image, float[4, 3, 1, 1] w, float[4, 4, 1, 1] v) => (float[1, 1344] boxes) {
    [stage3] p3 = Conv <strides = [1, 1]> (image, w)
    [stage4] p4 = Conv <strides = [2, 2]> (p3, v)
    [stage5] p5 = Conv <strides = [2, 2]> (p4, v)
    [act3] a3 = Relu (p3)
    [act4] a4 = Relu (p4)
    [act5] a5 = Relu (p5)
    [flat3] f3 = Flatten (a3)
    [flat4] f4 = Flatten (a4)
    [flat5] f5 = Flatten (a5)
    [join] boxes = Concat <axis = 1> (f3, f4, f5)
}"""


def test_a_head_of_three_scales_is_cut_in_one_line() -> None:
    """Each scale is computed from the one before: the backbone between them stays."""
    result = edit(HEAD, {"cut": {"select": {"after": ["p3", "p4", "p5"]}}})
    assert [node.name for node in result.graph.node] == ["stage3", "stage4", "stage5"]
    assert [output.name for output in result.graph.output] == ["p3", "p4", "p5"]
    head = edit(HEAD, {"cut": {"select": {"before": ["p3", "p4", "p5"]}}})
    assert [value.name for value in head.graph.input] == ["p3", "p4", "p5"]
    assert not any(node.op_type == "Conv" for node in head.graph.node)


@settings(max_examples=20)
@given(st.data())
def test_regions_match_paths(data: st.DataObject) -> None:
    """On random graphs: reachability by brute force."""
    count = data.draw(st.integers(2, 9))
    source = ir.Value(name="x")
    values = [source]
    nodes: list[ir.Node] = []
    for number in range(count):
        picked = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=2))
        nodes.append(ir.Node("", "Sum", picked, name=f"n{number}", outputs=[ir.Value(name=f"v{number}")]))
        values.append(nodes[-1].outputs[0])
    result = ir.Model(ir.Graph([source], values[-1:], nodes=nodes, opset_imports={"": 17}), ir_version=8)
    edges = {(v.producer(), node) for node in nodes for v in node.inputs if v is not None and v.producer()}
    reach = set(edges)
    for middle, start, end in itertools.product(nodes, repeat=3):
        if (start, middle) in reach and (middle, end) in reach:
            reach.add((start, end))
    around, first, last = Neighbourhood(result), data.draw(st.sampled_from(nodes)), data.draw(st.sampled_from(nodes))
    assert around.after(first) == {node for node in nodes if (first, node) in reach}
    assert around.before(first) == {node for node in nodes if (node, first) in reach}
    between = {n for n in nodes if (n is first or (first, n) in reach) and (n is last or (n, last) in reach)}
    assert around.between(first, last) == between
    hops = data.draw(st.integers(1, 3))
    near = {first}
    for _ in range(hops):
        near |= {b for a, b in edges if a in near} | {a for a, b in edges if b in near and a is not None}
    assert around.near(first, hops) == near


@pytest.mark.parametrize(
    "select", [{"name": tuple(f"n{i}*" for i in range(100))}, {"near": "n500", "hops": 2000}, {"after": "n1"}]
)
def test_work_is_linear_in_the_size_of_the_model(select: dict[str, Any]) -> None:
    """Counted, not timed: calls of functions."""

    def calls(length: int) -> int:
        value = ir.Value(name="x")
        nodes = []
        for number in range(length):
            nodes.append(ir.Node("", "Relu", [value], name=f"n{number}", outputs=[ir.Value(name=f"v{number}")]))
            value = nodes[-1].outputs[0]
        result = ir.Model(ir.Graph([], [value], nodes=nodes, opset_imports={"": 17}), ir_version=8)
        count = 0

        def counted(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        kept = sys.getprofile()
        sys.setprofile(counted)
        try:
            find_nodes(result, NodeSelect(**select), allow_empty=True)
        finally:
            sys.setprofile(kept)
        return count

    assert calls(2000) < 2.5 * calls(1000)


def test_documented_examples_hold() -> None:
    paragraphs = (NodeSelect.__doc__ or "").split("\n\n")
    lines = [line for text in paragraphs for line in text.splitlines() if line.strip().startswith("select:")]
    assert len(lines) == 2
    for line in lines:
        Edit.model_validate({"operations": ({"remove_nodes": yaml.safe_load(line)},)})


@pytest.mark.parametrize("select", [[], {"op_type": []}, {"name": "a", "input": []}])
def test_an_empty_list_does_not_select_everything(select: Any, check_message: CheckMessage) -> None:
    with pytest.raises(ValidationError) as caught:
        Edit.model_validate({"operations": ({"remove_nodes": {"select": select}},)})
    check_message(caught.value)


@pytest.mark.parametrize("select", [[], {"dtype": []}, {"rank": 1, "scope": []}])
def test_an_empty_list_does_not_select_every_tensor(select: Any, check_message: CheckMessage) -> None:
    with pytest.raises(ValidationError) as caught:
        Edit.model_validate({"operations": ({"make_dense": {"select": select}},)})
    check_message(caught.value)


def test_hops_alone_do_not_select_everything(check_message: CheckMessage) -> None:
    with pytest.raises(ValidationError) as caught:
        Edit.model_validate({"operations": ({"remove_nodes": {"select": {"hops": 3}}},)})
    check_message(caught.value)


def test_surplus_hops_cost_nothing() -> None:
    assert find_nodes(model(), NodeSelect(near="a", hops=10**18))
