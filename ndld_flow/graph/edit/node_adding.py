"""New nodes: added, inserted between a tensor and its readers, or in place of another operator."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.attributes import Given, make_attributes
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.nesting import Nesting
from ndld_flow.graph.edit.renaming import names_around
from ndld_flow.graph.edit.schemas import Schemas, check_attributes_complete, check_inputs, check_outputs, port_index
from ndld_flow.graph.edit.tensor_types import parse_tensor_type
from ndld_flow.graph.edit.wiring import errors_of, hand_out
from ndld_flow.models.op_reference import OperatorVersion

TENSOR = "{tensor}"
"""Placeholder for the tensor after which a node is inserted."""


@dataclass(frozen=True)
class NewNode:
    """Settings of a new node."""

    op_type: str
    domain: str = ""
    attributes: Mapping[str, Given] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    """Names of tensors; empty for an omitted optional input."""
    outputs: Sequence[str] = ()
    """Names; generated where there are fewer than the operator requires."""
    name: str | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    """Output -> `float32[1, 3]`, for operators whose outputs cannot be inferred."""


class NodeMaker:
    """Creates nodes in a model."""

    def __init__(self, edited: EditedModel) -> None:
        self._edited = edited
        self._nesting = Nesting(edited.model)
        self._schemas = Schemas(edited.model)

    def add(self, new: NewNode, graph: ir.Graph) -> ir.Node:
        """Add a node to a graph, which is sorted later.

        Raises `RequestError` for an unknown operator, attribute or input, and for names that are already used.
        """
        return self._make(new, graph, [self._nesting.value(name, graph) if name else None for name in new.inputs])

    def insert_after(self, new: NewNode, tensor: ir.Value, readers: Collection[ir.Node] | None) -> tuple[ir.Node, int]:
        """Insert a node between a tensor and all or some of its readers.

        All its readers means graph outputs too; they keep their names. Returns the node and how many read it.
        """
        graph = tensor.graph
        assert graph is not None
        uses = [use for use in tensor.uses() if readers is None or use.node in readers]
        handed_out = readers is None and tensor.is_graph_output()
        if not uses and not handed_out:
            raise RequestError(f"none of these nodes reads {tensor.name!r}")
        node = self._insert(new, tensor, graph)
        for use in uses:
            use.node.replace_input_with(use.idx, node.outputs[0])
        if handed_out:
            hand_out(self._edited, tensor, node.outputs[0])
        return node, len(uses) + handed_out

    def insert_before(self, new: NewNode, reader: ir.Node, which: int | str) -> ir.Node:
        """Insert a node at an input of another node.

        Raises `RequestError` when it reads nothing.
        """
        with errors_of(reader):
            index = port_index(self._schemas.of(reader), which, len(reader.inputs) - 1)
            tensor = reader.inputs[index] if index < len(reader.inputs) else None
            if tensor is None:
                raise RequestError(f"its input {which!r} is not connected")
        assert isinstance(reader.graph, ir.Graph)
        node = self._insert(new, tensor, reader.graph)
        reader.replace_input_with(index, node.outputs[0])
        return node

    def replace_op(self, node: ir.Node, new: NewNode) -> list[str]:
        """Replace the operator of a node; its name, its tensors and the attributes that the new one has too are kept.

        Returns the names of the attributes that went. Raises `RequestError` where the new one does not fit.
        """
        assert isinstance(node.graph, ir.Graph)
        operator = self._schemas.find(node.graph, new.op_type, new.domain)
        kept = _kept_attributes(node, operator)
        made = make_attributes(operator, new.attributes, kept)
        if operator is not None:
            check_attributes_complete(operator, {*kept, *new.attributes})
            check_inputs(operator, node.inputs)
            check_outputs(operator, len(node.outputs))
        self._schemas.import_domain(node.graph, new.domain)
        node.op_type, node.domain, node.overload, node.version = new.op_type, new.domain, "", None
        dropped = [name for name in node.attributes if name not in kept]
        for name in dropped:
            node.attributes.pop(name)
        for attribute in made:
            node.attributes.add(attribute)
        return [name for name in dropped if name not in new.attributes]

    def _insert(self, new: NewNode, tensor: ir.Value, graph: ir.Graph) -> ir.Node:
        """Create a node that reads the tensor in place of the placeholder."""
        if TENSOR not in new.inputs:
            raise RequestError(f"`inputs` must have `{TENSOR}` where the new node reads {tensor.name!r}")
        find = self._nesting.value
        inputs = [tensor if name == TENSOR else find(name, graph) if name else None for name in new.inputs]
        node = self._make(new, graph, inputs)
        if not node.outputs:
            raise RequestError(f"{new.op_type} has no output that others could read")
        return node

    def _make(self, new: NewNode, graph: ir.Graph, inputs: Sequence[ir.Value | None]) -> ir.Node:
        operator = self._schemas.find(graph, new.op_type, new.domain)
        attributes = make_attributes(operator, new.attributes, {})
        if operator is not None:
            check_attributes_complete(operator, new.attributes)
            check_inputs(operator, inputs)
        _check_free(self._edited, new, graph)
        name = new.name or self._edited.fresh_name(new.op_type)
        outputs = [ir.Value(name=output) for output in _output_names(self._edited, new, operator, name)]
        _declare(outputs, new.types)
        self._schemas.import_domain(graph, new.domain)
        node = ir.Node(new.domain, new.op_type, inputs, attributes, outputs=outputs, name=name)
        graph.append(node)
        return node


def _kept_attributes(node: ir.Node, operator: OperatorVersion | None) -> dict[str, ir.Attr]:
    if operator is None:
        return dict(node.attributes)
    types = {one.name: one.type for one in operator.attributes}
    return {
        name: old for name, old in node.attributes.items() if types.get(name) in (old.type.name.lower(), "undefined")
    }


def _output_names(edited: EditedModel, new: NewNode, operator: OperatorVersion | None, name: str) -> list[str]:
    given = list(new.outputs)
    if operator is None:
        return given or [edited.fresh_name(f"{name}_output")]
    least = check_outputs(operator, max(len(given), 1))
    return given + [
        edited.fresh_name(f"{name}_{operator.outputs[min(number, len(operator.outputs) - 1)].name}")
        for number in range(len(given), least)
    ]


def _check_free(edited: EditedModel, new: NewNode, graph: ir.Graph) -> None:
    """Check that given names are unused, because they are not changed."""
    if new.name is None and not new.outputs:
        return
    nodes, tensors = names_around(edited.model, graph)
    if new.name in nodes:
        raise RequestError(f"there is a node {new.name!r} already; choose another name")
    for name in filter(None, new.outputs):
        if name in tensors:
            raise RequestError(f"there is a tensor {name!r} already, and a tensor has one source; choose another name")
        tensors.add(name)
    edited.names().update(name for name in (new.name, *new.outputs) if name)


def _declare(outputs: Sequence[ir.Value], types: Mapping[str, str]) -> None:
    known = {value.name or "": value for value in outputs}
    for name, text in types.items():
        if name not in known:
            raise RequestError(f"`types`: the node has no output {name!r}; {suggest(name, known)}")
        known[name].type, known[name].shape = parse_tensor_type(text)
