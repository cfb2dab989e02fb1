"""convert_fp16 on random graphs, and on models broken at random."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from ndld_flow.base.errors import RequestError
from tests.support import models, models_fp16
from tests.support.fp16_checks import Feeds, check, convert, run
from tests.support.random_graphs import OTHER, UNARY, RandomGraph


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.data(),
    st.lists(st.sampled_from(UNARY + OTHER), min_size=1, max_size=12),
    st.lists(st.sampled_from(UNARY + OTHER[:4] + ("If", "Cast")), max_size=3, unique=True),
    st.booleans(),
)
def test_random_graphs_are_converted(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    operators: list[str],
    blocked: list[str],
    keep_io: bool,
) -> None:
    folder = tmp_path_factory.mktemp("graph")
    graph = RandomGraph(data)
    for operator in operators:
        graph.grow(operator)
    quoted = ", ".join(f'"{name}"' for name in blocked)
    asked = f'{{"keep_io": {str(keep_io).lower()}, "block": {{"op_types": [{quoted}]}}}}'
    path, _ = convert(graph.model(), folder, asked)
    check(path)
    feeds: Feeds = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}
    exact, half = run(folder / "source.onnx", feeds)["y"], run(path, feeds)["y"].astype(np.float32)
    np.testing.assert_allclose(half, exact, atol=0.1)
    (folder / "again").mkdir()
    again, result = convert(path, folder / "again", asked)
    assert result.metrics["casts_added"] == 0
    assert [n.op_type for n in onnx.load(again).graph.node] == [n.op_type for n in onnx.load(path).graph.node]


# Broken models ----------------------------------------------------------------------------------------------------

BREAKABLE = (models.ctrl_model, models.cnn_model, models_fp16.scan_model, models_fp16.sequence_model, models.func_model)


def every_node(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    inner = [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return [*graph.node, *(node for body in inner for node in every_node(body))]


def break_one(model: onnx.ModelProto, data: st.DataObject) -> None:
    """Take or change one thing of one node."""
    node = data.draw(st.sampled_from(every_node(model.graph)))
    part = data.draw(st.sampled_from(["input", "output", "attribute", "op_type", "domain"]))
    if part in ("op_type", "domain"):
        setattr(node, part, data.draw(st.sampled_from(["", "Loop", "If", "Cast", "LSTM", "nobody"])))
    elif part == "attribute" and node.attribute and data.draw(st.booleans()):
        attribute = data.draw(st.sampled_from(list(node.attribute)))
        attribute.CopyFrom(helper.make_attribute(attribute.name, data.draw(st.sampled_from([1, 1.5, "x", [1, 2]]))))
    else:
        values = getattr(node, part)
        del values[data.draw(st.integers(0, max(len(values) - 1, 0))) :]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from(BREAKABLE), st.integers(1, 3))
def test_a_broken_model_is_converted_or_refused_with_a_message(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, build: Callable[[], onnx.ModelProto], breaks: int
) -> None:
    model = build()
    for _ in range(breaks):
        break_one(model, data)
    folder = tmp_path_factory.mktemp("broken")
    try:
        convert(model, folder)
    except RequestError as error:
        assert "\n" not in str(error)
        assert len(str(error)) > 20
