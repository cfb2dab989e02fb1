"""Helpers that constrain precisions and check the resulting models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from ndld_flow.precision.constraints.typed_model import TypedModel, write_typed_model
from tests.support.fp16_checks import Array, Feeds, all_nodes, run

KEY = "ndld_flow.precision"
ELEMENTS = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
FLOATS = frozenset(ELEMENTS.values())


def ask(model: onnx.ModelProto, asked: Mapping[str, str]) -> onnx.ModelProto:
    """Write constraints into nodes by name, as another tool may."""
    for node in all_nodes(model.graph):
        if node.name in asked:
            node.metadata_props.add(key=KEY, value=asked[node.name])
    return model


def typed(model: onnx.ModelProto, folder: Path, asked: Mapping[str, str] | None = None) -> tuple[Path, TypedModel]:
    """Write the model with the constraints applied; return its path and the messages."""
    folder.mkdir(exist_ok=True)
    onnx.save(ask(model, asked or {}), folder / "source.onnx")
    return folder / "typed.onnx", write_typed_model(folder / "source.onnx", folder / "typed.onnx")


@dataclass(frozen=True)
class Ports:
    """The element types a node reads and makes; 0 for an input that is left out."""

    node: onnx.NodeProto
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def ports_of(path: Path) -> dict[str, Ports]:
    """Node -> its types as onnx infers them, strictly; bodies included."""
    inferred = onnx.shape_inference.infer_shapes(onnx.load(path), check_type=True, strict_mode=True, data_prop=True)
    return {ports.node.name: ports for ports in _ports(inferred.graph, {"": 0})}


def _ports(graph: onnx.GraphProto, outer: Mapping[str, int]) -> Iterator[Ports]:
    infos = (*graph.input, *graph.value_info, *graph.output)
    types = {**outer, **{info.name: info.type.tensor_type.elem_type for info in infos}}
    types |= {weight.name: weight.data_type for weight in graph.initializer}
    for node in graph.node:
        yield Ports(node, tuple(types[i] for i in node.input), tuple(types[o] for o in node.output))
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _ports(attribute.g, types)


def computes_in(ports: Ports, precision: str) -> bool:
    """Return whether all floats that a node produces, or else reads, have the precision."""
    floats = [t for t in ports.outputs if t in FLOATS] or [t for t in ports.inputs if t in FLOATS]
    return bool(floats) and all(element == ELEMENTS[precision] for element in floats)


def run_typed(path: Path, feeds: Feeds) -> dict[str, Array]:
    """Outputs by ONNX Runtime, or by onnx's own evaluator for what ONNX Runtime has no bf16 kernel of."""
    model = onnx.load(path)
    kinds = {output for ports in ports_of(path).values() for output in ports.outputs}
    if TensorProto.BFLOAT16 not in kinds:
        return run(path, feeds)
    results = ReferenceEvaluator(model).run(None, feeds)
    return {info.name: result for info, result in zip(model.graph.output, results, strict=True)}
