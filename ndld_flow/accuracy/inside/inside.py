"""A model made to give tensors that are no outputs of it; its weights stay where they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from ndld_flow.models.files import read_proto
from ndld_flow.models.tensors import Array
from ndld_flow.models.unique_names import free_name
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import OpenModel, SessionSettings, open_model

_SIZE_OPSET = 13
"""For a model that imports no version of the default domain."""


def open_inside(
    path: Path, tensors: Sequence[str], settings: SessionSettings, changed: bytes | None = None
) -> OpenModel:
    """Open a model with these tensors, each made by a node of the main graph, as its outputs.

    What they do not need is left out. `changed` is taken instead of the file, as by `open_model`. Raises as that does.
    """
    proto = read_proto(path) if changed is None else onnx.ModelProto.FromString(changed)
    outputs = {output.name: output for output in proto.graph.output}
    _set_outputs(proto, [outputs.get(name, onnx.ValueInfoProto(name=name)) for name in tensors])
    return open_model(path, settings, proto.SerializeToString())


def count_elements(
    path: Path, tensors: Sequence[str], feeds: Mapping[str, Array], settings: SessionSettings
) -> dict[str, int]:
    """Run a model once and tell how many elements these tensors have. None of them is held longer than it is read."""
    proto = read_proto(path)
    taken = {name for node in proto.graph.node for name in node.output}
    counts = {free_name(f"{name}_size", taken): name for name in tensors}
    proto.graph.node.extend(helper.make_node("Size", [name], [count]) for count, name in counts.items())
    _set_outputs(proto, [helper.make_tensor_value_info(count, TensorProto.INT64, []) for count in counts])
    if not any(entry.domain in ("", "ai.onnx") for entry in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid("", _SIZE_OPSET))
    bound = open_model(path, settings, proto.SerializeToString()).bind(feeds)
    bound.once()
    return {counts[name]: int(size) for name, size in bound.outputs().items() if size is not None}


def _set_outputs(proto: onnx.ModelProto, outputs: Sequence[onnx.ValueInfoProto]) -> None:
    """Let a model give these and compute nothing else."""
    graph = proto.graph
    needed = _needed_nodes(graph, [output.name for output in outputs])
    for index in reversed(range(len(graph.node))):
        if index not in needed:
            del graph.node[index]
    kept = list(outputs)
    del graph.output[:]
    graph.output.extend(kept)


def _needed_nodes(graph: onnx.GraphProto, names: Iterable[str]) -> set[int]:
    """Positions of the nodes that these tensors are computed by. Nodes need not be in order."""
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    needed: set[int] = set()
    waiting = list(names)
    while waiting:
        index = makers.get(waiting.pop())
        if index is not None and index not in needed:
            needed.add(index)
            waiting += _read_by(graph.node[index])
    return needed


def _read_by(node: onnx.NodeProto) -> list[str]:
    """What a node and the nodes of its bodies read; names of a body's own values may be among them."""
    read = list(node.input)
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            read += [name for inner in body.node for name in _read_by(inner)]
            read += [output.name for output in body.output]
    return read
