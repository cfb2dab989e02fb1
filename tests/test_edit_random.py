"""Random operations on random graphs: the result is valid and runs, or the edit says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ndld_flow.errors import RequestError
from tests import models
from tests.editing_fixtures import edit_path, run
from tests.random_graphs import OTHER, UNARY, RandomGraph

Draw = Callable[[st.SearchStrategy[Any]], Any]
FEEDS = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}


class Choices:
    """What an operation may name: nodes and tensors of the graph as it was, and some that it never had."""

    def __init__(self, model: onnx.ModelProto, draw: Draw) -> None:
        self.draw = draw
        self.nodes = [node.name or node.output[0] for node in model.graph.node]
        self.values = ["x", "y", *(name for node in model.graph.node for name in node.output if name)]
        self.weights = [tensor.name for tensor in model.graph.initializer] or ["x"]
        self.op_types = sorted({node.op_type for node in model.graph.node})

    def value(self) -> str:
        return str(self.draw(st.sampled_from([*self.values, "nowhere"])))

    def select(self) -> object:
        kind = self.draw(st.sampled_from(["op_type", "output", "after", "before", "position", "between"]))
        if kind == "op_type":
            return {"op_type": self.draw(st.sampled_from(self.op_types))}
        if kind == "position":
            return {"name": "*", "position": self.draw(st.integers(-3, 3))}
        if kind == "between":
            return {"between": [self.value(), self.value()]}
        return {kind: self.value()}

    def flag(self) -> bool:
        return bool(self.draw(st.booleans()))


def numbers(choices: Choices) -> list[int]:
    return list(choices.draw(st.lists(st.integers(-1, 5), max_size=3)))


OPERATIONS: dict[str, Callable[[Choices], object]] = {
    "rename_nodes": lambda c: {"select": c.select(), "to": c.draw(st.sampled_from(["a", "n_{index}", "{name}"]))},
    "rename_tensors": lambda c: {"select": c.value(), "to": c.value(), "keep_io": c.flag()},
    "remove_nodes": lambda c: {"select": c.select(), "bridge": c.flag()},
    "copy_nodes": lambda c: {"select": c.select(), "prefix": "copy_"},
    "add_node": lambda c: {
        "op_type": c.draw(st.sampled_from(["Relu", "Add", "Transpose"])),
        "inputs": [c.value()] * c.draw(st.integers(1, 2)),
        "outputs": ["fresh"],
    },
    "insert_node": lambda c: {"op_type": c.draw(st.sampled_from(["Relu", "Transpose"])), "after": c.value()},
    "rewire": lambda c: {"tensor": c.value(), "read": c.value(), "outputs": c.flag()},
    "replace_op": lambda c: {"select": c.select(), "op_type": c.draw(st.sampled_from(["Relu", "Add", "Softmax"]))},
    "set_attributes": lambda c: {"select": c.select(), "attributes": {"axis": c.draw(st.integers(-3, 3))}},
    "delete_attributes": lambda c: {"select": c.select(), "attributes": ["axis"]},
    "cut": lambda c: {"select": c.select()},
    "extract": lambda c: {"outputs": [c.value()]},
    "add_outputs": lambda c: {"outputs": [c.value()]},
    "remove_outputs": lambda c: {"outputs": [c.value()]},
    "make_function": lambda c: {"select": c.select(), "function": "my::Part"},
    "inline_functions": lambda c: {"allow_empty": True},
    "set_opset": lambda c: {"to": c.draw(st.integers(13, 22))},
    "convert_dtype": lambda c: {"select": c.draw(st.sampled_from(c.weights)), "to": "float16"},
    "remove_noops": lambda c: {"allow_empty": True},
    "split_gemm": lambda c: {"allow_empty": True},
    "name_all": lambda c: {},
    "set_shapes": lambda c: {"shapes": {"x": numbers(c)}},
    "set_dtypes": lambda c: {"dtypes": {c.value(): "float16"}, "cast": c.flag()},
    "set_initializer": lambda c: {"name": c.draw(st.sampled_from(c.weights)), "value": numbers(c)},
    "remove_initializers": lambda c: {"select": c.draw(st.sampled_from(c.weights))},
    "share_initializers": lambda c: {"allow_empty": True},
    "initializers_to_constants": lambda c: {"select": "*", "allow_empty": True},
}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.data(),
    st.lists(st.sampled_from(UNARY + OTHER), min_size=1, max_size=8),
    st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=5),
)
def test_the_result_is_valid_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, operators: list[str], words: list[str]
) -> None:
    graph = RandomGraph(data)
    for operator in operators:
        graph.grow(operator)
    model = graph.model()
    folder = tmp_path_factory.mktemp("edit")
    source, target = models.save(model, folder / "source.onnx"), folder / "model.onnx"
    before = source.read_bytes()
    choices = Choices(model, data.draw)
    try:
        edit_path(source, target, *({word: OPERATIONS[word](choices)} for word in words))
    except RequestError as refusal:
        assert "\n" not in str(refusal)
        assert not target.exists() or "not valid" in str(refusal)
        return
    finally:
        assert source.read_bytes() == before, "the input is never touched"
    onnx.checker.check_model(target, full_check=True)
    ort.InferenceSession(target, providers=["CPUExecutionProvider"])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.data(),
    st.lists(st.sampled_from(UNARY + OTHER), min_size=2, max_size=8),
    st.lists(
        st.sampled_from(
            ["rename_nodes", "name_all", "make_function", "inline_functions", "remove_noops", "copy_nodes"]
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_what_promises_to_change_no_number_changes_none(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, operators: list[str], words: list[str]
) -> None:
    graph = RandomGraph(data)
    for operator in operators:
        graph.grow(operator)
    model = graph.model()
    folder = tmp_path_factory.mktemp("same")
    source, target = models.save(model, folder / "source.onnx"), folder / "model.onnx"
    choices = Choices(model, data.draw)
    try:
        edit_path(source, target, *({word: OPERATIONS[word](choices)} for word in words))
    except RequestError:
        return
    np.testing.assert_array_equal(run(target, FEEDS)["y"], run(source, FEEDS)["y"])
