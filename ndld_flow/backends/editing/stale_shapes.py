"""Which noted shapes and dtypes no longer hold after an operation.

A note is believed while the tensor's producer, its attributes, and everything before it are what they were before the
operation. What the operation noted itself is believed too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.backends.editing.neighbourhood import read_values
from ndld_flow.backends.models.files import all_graphs
from ndld_flow.backends.models.scopes import own_subgraphs


@dataclass(frozen=True)
class _Note:
    """What was known of a tensor before the operation."""

    shape: ir.Shape | None
    type: ir.TypeProtocol | None
    origin: Hashable


class NotedShapes:
    """Shapes and dtypes as they were noted before an operation."""

    def __init__(self, model: ir.Model) -> None:
        self._notes = {value: _Note(value.shape, value.type, _origin(value)) for value in _values(model)}
        self._opsets = dict(model.opset_imports)
        self._kept = [_parts(value) for value in self._notes]  # origins are ids: nothing new may get an old one

    def touched(self, model: ir.Model) -> set[ir.Value]:
        """Tensors that are new or may be others than before. The model must be sorted."""
        touched: set[ir.Value] = set()
        whole = any(model.opset_imports.get(domain) != version for domain, version in self._opsets.items())
        for graph in all_graphs(model):
            touched.update(value for value in (*graph.inputs, *graph.initializers.values()) if self._differs(value))
            for node in graph:
                if whole or self._is_touched(node, touched):
                    touched.update(node.outputs)
        return touched

    def forget_stale(self, touched: Iterable[ir.Value], model: ir.Model) -> set[ir.Value]:
        """Take shape and dtype away where they may no longer hold; returns those tensors.

        Graph outputs keep their dtype, which ONNX wants declared.
        """
        stale = {value for value in touched if self._is_stale(value, model)}
        for value in stale:
            value.shape = None
            if not value.is_graph_output():
                value.type = None
        return stale

    def _is_touched(self, node: ir.Node, touched: set[ir.Value]) -> bool:
        return any(map(self._differs, node.outputs)) or not touched.isdisjoint(read_values(node))

    def _differs(self, value: ir.Value) -> bool:
        note = self._notes.get(value)
        return note is None or (note.shape, note.type, note.origin) != (value.shape, value.type, _origin(value))

    def _is_stale(self, value: ir.Value, model: ir.Model) -> bool:
        """Whether the note is from before the operation. Nobody can infer what a custom operator makes."""
        note, producer = self._notes.get(value), value.producer()
        if note is None or producer is None or note.shape is not value.shape:
            return False
        return producer.domain in ("", "ai.onnx") or producer.op_identifier() in model.functions


def _values(model: ir.Model) -> set[ir.Value]:
    return {
        value
        for graph in all_graphs(model)
        for value in (*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs))
    }


def _parts(value: ir.Value) -> tuple[object, ...]:
    node = value.producer()
    if node is None:
        return (value.const_value,)
    return (node, *(attribute.value for attribute in node.attributes.data.values()))


def _origin(value: ir.Value) -> Hashable:
    """What a tensor is computed by; two equal origins with equal inputs give equal shapes."""
    node = value.producer()
    if node is None:
        tensor = value.const_value
        return None if tensor is None else (id(tensor), tuple(map(str, tensor.shape)), tensor.dtype)
    attributes = frozenset((name, id(attribute.value)) for name, attribute in node.attributes.data.items())
    bodies = tuple(id(output) for _, body in own_subgraphs(node) for output in body.outputs) if attributes else ()
    return (id(node), node.domain, node.op_type, value.index(), tuple(map(id, node.inputs)), attributes, bodies)
