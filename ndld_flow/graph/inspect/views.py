"""Records of nodes and tensors of a model."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ndld_flow.graph.edit.constant_tensors import ConstantTensor, constant_tensors
from ndld_flow.models.element_types import type_name
from ndld_flow.models.node_details import attribute_text
from ndld_flow.models.node_precision import precision_of
from ndld_flow.models.node_selection import op_name
from ndld_flow.models.scopes import node_label, own_subgraphs, scopes_of
from ndld_flow.models.shape_inference import is_invented_name
from ndld_flow.models.tensor_statistics import dtype_name, first_values, tensor_bytes, tensor_statistics
from ndld_flow.records.inspection import Dims, InspectedNode, InspectedTensor, Numbers, Port, Role

_NO_LIMIT = 2**62


class Views:
    """Creates records of a model's parts, with the address of each graph."""

    def __init__(self, model: ir.Model) -> None:
        self._scopes = scopes_of(model)
        self._addresses = {graph: address for address, graph in self._scopes.items()}
        self._held = {item.value: item for item in constant_tensors(model)}

    @property
    def held(self) -> list[ConstantTensor]:
        """Initializers and Constant nodes."""
        return list(self._held.values())

    def node(self, node: ir.Node) -> InspectedNode:
        return InspectedNode(
            scope=self._address(node),
            name=node_label(node),
            op_type=op_name(node),
            attributes={
                name: attribute_text(attribute)
                for name, attribute in node.attributes.items()
                if attribute.is_ref() or attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
            },
            inputs=tuple(self.port(value) for value in node.inputs),
            outputs=tuple(self.port(value) for value in node.outputs),
            precision=precision_of(node),
            subgraphs=tuple(self._addresses[graph] for _, graph in own_subgraphs(node)),
        )

    def port(self, value: ir.Value | None) -> Port:
        if value is None or not value.name:
            return Port(name="")
        return Port(
            name=value.name,
            dtype=_dtype(value),
            shape=_dims(value.shape),
            made_by=self._maker(value),
            read_by=tuple(self._readers(value)),
        )

    def tensor(self, value: ir.Value) -> InspectedTensor:
        """Return the record of a tensor without statistics."""
        held = self._held.get(value)
        port = self.port(value)
        scope = self._addresses.get(value.graph, "") if isinstance(value.graph, ir.Graph) else ""
        if held is None:
            return InspectedTensor(**dict(port), scope=scope, role=_role(value))
        data = held.tensor
        external = data if isinstance(data, ir.ExternalTensor) else None
        known = dict(port) | {"dtype": dtype_name(data.dtype), "shape": tuple(int(dim) for dim in data.shape.numpy())}
        return InspectedTensor(
            **known,
            scope=scope,
            role="initializer" if held.node is None else "constant",
            elements=data.size,
            size_bytes=tensor_bytes(data),
            stored=held.stored,
            file="" if external is None else str(external.location),
            offset=None if external is None else external.offset or 0,
        )

    def with_numbers(self, value: ir.Value, first: int) -> InspectedTensor:
        """Return the record of a tensor, with statistics and first values if the model stores it."""
        view, held = self.tensor(value), self._held.get(value)
        if held is None:
            return view
        statistics = tensor_statistics(held.tensor, _NO_LIMIT)
        numbers = None if statistics.numbers is None else Numbers(**vars(statistics.numbers))
        shown = first_values(held.tensor, first) if first else ()
        return view.model_copy(update={"numbers": numbers, "unread": statistics.unread, "first": shown})

    def values(self) -> Iterator[ir.Value]:
        """Yield every tensor of every graph, each once."""
        for graph in self._scopes.values():
            outputs = (value for node in graph for value in node.outputs)
            yield from dict.fromkeys([*graph.inputs, *graph.initializers.values(), *outputs])

    def _address(self, node: ir.Node) -> str:
        return self._addresses.get(node.graph, "") if isinstance(node.graph, ir.Graph) else ""

    def _maker(self, value: ir.Value) -> str:
        producer = value.producer()
        if producer is not None:
            return self._name_from(value, producer)
        return "initializer" if value.is_initializer() else "input"

    def _readers(self, value: ir.Value) -> Iterator[str]:
        yield from dict.fromkeys(self._name_from(value, use.node) for use in value.uses())
        if value.is_graph_output():
            yield "output"

    def _name_from(self, value: ir.Value, node: ir.Node) -> str:
        """Return a node's name, with its graph's address if that differs from the tensor's."""
        scope = self._address(node)
        here = self._addresses.get(value.graph, "") if isinstance(value.graph, ir.Graph) else ""
        return node_label(node) if scope == here else f"{scope}: {node_label(node)}"


def _role(value: ir.Value) -> Role:
    if value.is_graph_input():
        return "input"
    return "output" if value.is_graph_output() else "tensor"


def _dtype(value: ir.Value) -> str:
    if isinstance(value.type, ir.TensorType):
        return "" if value.type.dtype == ir.DataType.UNDEFINED else dtype_name(value.type.dtype)
    return type_name(value.type) or ""


def _dims(shape: ir.Shape | None) -> Dims | None:
    if shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else None if is_invented_name(dim) else dim.value for dim in shape)
