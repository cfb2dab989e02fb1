"""The graphs that two releases run: names that a release invents mean nothing, and real differences are found."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest

from ndld_flow.graph.diff.diff_models import compare_executed_graphs
from tests.support.models import make_cnn


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_cnn(tmp_path / "model.onnx")


def optimized(model: Path, name: str, level: str = "ORT_ENABLE_ALL") -> Path:
    """Return the graph that the installed ONNX Runtime runs."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(model.with_name(name))
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return model.with_name(name)


def exchange_inventions(model: Path, path: Path, target: Path) -> Path:
    """Name the nodes and tensors that the runtime has added as another release might: the same names, elsewhere."""
    known = names(onnx.load(model).graph)
    graph = (proto := onnx.load(path)).graph
    nodes = [node for node in graph.node if node.name not in known]
    for node, name in zip(nodes, [node.name for node in nodes][::-1], strict=True):
        node.name = name
    added = [name for node in graph.node for name in node.output if name not in known]
    renamed = dict(zip(added, added[::-1], strict=True))
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
        node.doc_string = "another description"
    proto.opset_import.append(onnx.helper.make_opsetid("ai.onnx.preview", 1))
    del graph.value_info[:]
    onnx.save(proto, target)
    return target


def names(graph: onnx.GraphProto) -> set[str]:
    outputs = {name for node in graph.node for name in node.output}
    return outputs | {node.name for node in graph.node} | {tensor.name for tensor in graph.initializer}


def test_names_descriptions_and_unused_domains_of_a_release_are_no_difference(model: Path) -> None:
    before = optimized(model, "before.onnx")
    after = exchange_inventions(model, before, model.with_name("after.onnx"))
    change = compare_executed_graphs([model], before, after)
    assert change.diff is not None
    assert change.diff.one_line == "no differences"
    assert change.diff.node_differences == 0
    assert change.before.nodes_by_type == change.after.nodes_by_type


def test_other_fusions_are_a_difference(model: Path) -> None:
    before = optimized(model, "before.onnx", "ORT_ENABLE_BASIC")
    after = optimized(model, "after.onnx", "ORT_ENABLE_EXTENDED")
    change = compare_executed_graphs([model], before, after)
    assert change.diff is not None
    assert change.diff.node_differences > 0
    assert "com.microsoft::FusedConv" in change.after.nodes_by_type
    assert change.before.node_count > change.after.node_count


def test_a_changed_attribute_of_an_added_node_is_a_difference(model: Path) -> None:
    before = optimized(model, "before.onnx")
    proto = onnx.load(before)
    known = names(onnx.load(model).graph)
    node = next(node for node in proto.graph.node if node.attribute and node.name not in known)
    attribute = next(attribute for attribute in node.attribute if attribute.type == onnx.AttributeProto.INT)
    attribute.i += 1
    onnx.save(proto, model.with_name("after.onnx"))
    change = compare_executed_graphs([model], before, model.with_name("after.onnx"))
    assert change.diff is not None
    assert change.diff.node_differences == 1


def test_graphs_need_no_weights(model: Path) -> None:
    proto = onnx.load(optimized(model, "before.onnx"))
    onnx.save(proto, model.with_name("after.onnx"), save_as_external_data=True, location="gone", size_threshold=64)
    model.with_name("gone").unlink()
    change = compare_executed_graphs([model], model.with_name("before.onnx"), model.with_name("after.onnx"))
    assert change.diff is not None
    assert change.diff.node_differences == 0
