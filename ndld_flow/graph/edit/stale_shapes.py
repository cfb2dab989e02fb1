"""Recorded shapes and types that an operation may have invalidated.

A note is believed while the tensor's producer, its attributes, and everything before it are what they were before the
operation. What the operation noted itself is believed too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from graphlib import CycleError

import onnx_ir as ir

from ndld_flow.graph.edit.function_names import callees_first
from ndld_flow.graph.sanitize.edits import is_standard
from ndld_flow.models.files import all_graphs
from ndld_flow.models.scopes import own_subgraphs


@dataclass(frozen=True)
class _Note:
    """Facts about a tensor before the operation."""

    shape: ir.Shape | None
    type: ir.TypeProtocol | None
    origin: Hashable


class NotedShapes:
    """Shapes and types that were recorded before an operation."""

    outputs_hold = False
    """True when the operation guarantees unchanged outputs of the model."""

    def __init__(self, model: ir.Model) -> None:
        self._notes = {value: _Note(value.shape, value.type, _origin(value)) for value in _values(model)}
        self._opsets = {home: dict(home.opset_imports) for home in _homes(model)}
        self._functions = {key: _makes(function) for key, function in model.functions.items()}
        self._owners = _owners_of_inputs(model)
        # origins are ids: nothing new may get an old one
        self._kept = [_parts(value) for value in self._notes]
        self._kept_of_functions = [list(function.attributes.values()) for function in model.functions.values()]

    def touched(self, model: ir.Model) -> set[ir.Value]:
        """Return tensors that are new or may have changed. The model must be sorted."""
        tracing = _Tracing(self)
        for function in _functions_in_order(model):
            tracing.walk(function)
        tracing.walk(model)
        return tracing.touched

    def differs(self, value: ir.Value) -> bool:
        """Return whether a tensor is new, or its recorded shape or its computation has changed."""
        note = self._notes.get(value)
        return note is None or (note.shape, note.type, note.origin) != (value.shape, value.type, _origin(value))

    def differs_as_a_whole(self, home: ir.Model | ir.Function) -> bool:
        """Return whether its operators may have another meaning now."""
        return self._opsets.get(home) != home.opset_imports

    def makes_something_else(self, function: ir.Function) -> bool:
        """Return whether it has other outputs, or attributes with other defaults."""
        return self._functions.get(function.identifier()) != _makes(function)

    def forget_stale(self, touched: Iterable[ir.Value], model: ir.Model) -> set[ir.Value]:
        """Remove shapes and types that may be invalid; returns those tensors.

        Graph outputs and inputs of subgraphs keep their type, which ONNX requires.
        """
        stale = {value for value in touched if self._is_stale(value, model)}
        for value in stale:
            value.shape = None
            if value.producer() is not None and not value.is_graph_output():
                value.type = None
        return stale

    def _is_stale(self, value: ir.Value, model: ir.Model) -> bool:
        """Return whether the record is older than the operation. Outputs of custom operators cannot be inferred."""
        note, maker = self._notes.get(value), value.producer() or self._owners.get(value)
        if note is None or maker is None or note.shape is not value.shape:
            return False
        return is_standard(maker) or maker.op_identifier() in model.functions


class _Tracing:
    """Tensors that an operation affects, found by following tensors from producers to readers."""

    def __init__(self, noted: NotedShapes) -> None:
        self.touched: set[ir.Value] = set()
        self._noted = noted
        self._functions: set[ir.OperatorIdentifier] = set()
        """Nodes whose outputs may have changed."""
        self._whole = False

    def walk(self, home: ir.Model | ir.Function) -> None:
        """Analyse the model or a function; functions that it calls must have been analysed."""
        self._whole = self._noted.differs_as_a_whole(home)
        self._enter(home.graph)
        if isinstance(home, ir.Function):
            others = self._whole or self._noted.makes_something_else(home)
            if others or not self.touched.isdisjoint(home.outputs):
                self._functions.add(home.identifier())

    def _enter(self, graph: ir.Graph) -> None:
        given = (*graph.inputs, *graph.initializers.values())
        self.touched.update(value for value in given if self._noted.differs(value))
        for node in graph:
            if self._is_touched(node):
                self.touched.update(node.outputs)

    def _is_touched(self, node: ir.Node) -> bool:
        reads = any(value in self.touched for value in node.inputs)
        bodies = [body for _, body in own_subgraphs(node)]
        for body in bodies:
            if reads:
                self.touched.update(_carried(node, body))
            self._enter(body)
        return (
            reads
            or self._whole
            or any(map(self._noted.differs, node.outputs))
            or any(output in self.touched for body in bodies for output in body.outputs)
            or (bool(self._functions) and node.op_identifier() in self._functions)
        )


def _homes(model: ir.Model) -> tuple[ir.Model | ir.Function, ...]:
    """Objects that have opset imports."""
    return (model, *model.functions.values())


def _makes(function: ir.Function) -> Hashable:
    defaults = frozenset((name, id(attribute.value)) for name, attribute in function.attributes.items())
    return (tuple(map(id, function.outputs)), defaults)


def _functions_in_order(model: ir.Model) -> Iterable[ir.Function]:
    """Return functions after those that they call; recursive ones, which no valid model has, in any order."""
    try:
        return callees_first(model.functions)
    except CycleError:
        return model.functions.values()


def _carried(node: ir.Node, body: ir.Graph) -> Iterable[ir.Value]:
    """Return inputs of a subgraph whose shapes depend on its node's inputs: not a Loop's counter and condition."""
    return body.inputs[2:] if node.op_type == "Loop" else body.inputs


def _owners_of_inputs(model: ir.Model) -> dict[ir.Value, ir.Node]:
    """Return input of a subgraph -> the node that provides it."""
    nodes = (node for graph in all_graphs(model) for node in graph)
    return {value: node for node in nodes for _, body in own_subgraphs(node) for value in body.inputs}


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
    """Return the origin of a tensor; equal origins with equal inputs have equal shapes."""
    node = value.producer()
    if node is None:
        tensor = value.const_value
        return None if tensor is None else (id(tensor), tuple(map(str, tensor.shape)), tensor.dtype)
    attributes = frozenset((name, id(attribute.value)) for name, attribute in node.attributes.data.items())
    bodies = tuple(id(output) for _, body in own_subgraphs(node) for output in body.outputs) if attributes else ()
    return (id(node), node.domain, node.op_type, value.index(), tuple(map(id, node.inputs)), attributes, bodies)
