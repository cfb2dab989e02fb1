"""Remove nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import first_of
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Select

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import EditedModel


class RemoveNodes(Operation):
    """Remove nodes, with their subgraphs.

        remove_nodes: {select: {op_type: [Dropout, Identity]}, bridge: true}

    Without `bridge`, their outputs must be unused: neither read by other nodes nor outputs of the model. Weights that
    become unused stay.
    """

    heading = "nodes"

    select: Select
    """Nodes to remove."""
    bridge: bool = False
    """Connect the readers of a node's output to its input: the first that is not a constant and has the type and shape
    of the output, or else the most similar one. Outputs of the model keep their names."""
    through: int | str | None = None
    """With `bridge`: the input, by index or by the operator's name for it."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.node_groups import deep_nodes, outermost
        from ndld_flow.graph.edit.wiring import drop_nodes

        selected = edited.select_nodes(self.select, self.allow_empty)
        if self.bridge:
            _bridge(edited, selected, self.through)
        nodes = outermost(selected)
        removed = set(deep_nodes(nodes))
        for node in nodes:
            for value in node.outputs:
                _check_unused(node, value, removed)
        for graph in dict.fromkeys(node.graph for node in nodes):
            drop_nodes([node for node in nodes if node.graph is graph])
        return f"{counted(len(selected), 'node')} removed"


def _bridge(edited: EditedModel, selected: Sequence[ir.Node], through: int | str | None) -> None:
    """Connect all readers of a node's output to one of its inputs; graph outputs keep their names.

    `through` is the index or name of this input. By default it is the first that has the output's dtype, is not a
    constant, and has the output's shape, or the one closest to that. Raises `RequestError` for a node without inputs.
    """
    from ndld_flow.graph.edit.node_groups import outermost
    from ndld_flow.graph.edit.schemas import Schemas, port_index
    from ndld_flow.graph.edit.wiring import replace_output
    from ndld_flow.models.scopes import node_label, own_subgraphs

    schemas = Schemas(edited.model)
    for node in outermost(selected):
        used = next((value for value in node.outputs if value.uses() or value.is_graph_output()), None)
        if used is None:
            continue
        source = _most_similar_input(node, used)
        if through is None and any(own_subgraphs(node)):
            raise RequestError(
                f"node {node_label(node)!r} has subgraphs: give with `through` the input that replaces it"
            )
        if through is not None:
            index = port_index(schemas.of(node), through, len(node.inputs) - 1)
            source = node.inputs[index] if index < len(node.inputs) else None
        if source is None:
            raise RequestError(f"node {node_label(node)!r} has no input to reconnect to {used.name!r}")
        for use in used.uses():
            use.node.replace_input_with(use.idx, source)
        if used.is_graph_output():
            replace_output(edited, used, source)


def _most_similar_input(node: ir.Node, output: ir.Value) -> ir.Value | None:
    """Return the input most similar to the output, by these criteria in order: type, not constant, shape."""
    from ndld_flow.models.node_details import is_constant

    def unlikeness(value: ir.Value) -> tuple[bool, bool, bool]:
        other_dtype = None not in (value.dtype, output.dtype) and value.dtype != output.dtype
        other_shape = None not in (value.shape, output.shape) and value.shape != output.shape
        producer = value.producer()
        constant = value.is_initializer() and not value.is_graph_input()
        return other_dtype, constant or (producer is not None and is_constant(producer)), other_shape

    return min((value for value in node.inputs if value is not None), key=unlikeness, default=None)


def _check_unused(node: ir.Node, value: ir.Value, gone: set[ir.Node]) -> None:
    """Raise `RequestError` for an output that other nodes read, or that is an output of the model."""
    from ndld_flow.models.scopes import node_label

    readers = [node_label(reader) for reader in value.consumers() if reader not in gone]
    if readers:
        shown = first_of([repr(reader) for reader in readers], 3)
        raise RequestError(
            f"{shown} read {value.name!r}, an output of {node_label(node)!r}; remove them too, "
            "or set `bridge: true` to connect them to its input"
        )
    if value.is_graph_output():
        raise RequestError(
            f"output {value.name!r} of the model is produced by {node_label(node)!r}; remove the output first, "
            "or set `bridge: true` to connect it to the node's input"
        )
