"""Disconnect inputs of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class Disconnect(Operation):
    """Disconnect an optional input of nodes.

        disconnect: {select: {op_type: Conv}, input: B}

    An input that the operator requires is refused; `connect` gives it another tensor. A tensor of a variadic input is
    removed, and those after it move up.
    """

    heading = "connections"

    select: Select
    """Nodes to disconnect."""
    input: int | str
    """The input, by index or by the operator's name for it; the name of a variadic input means its last tensor."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.schemas import Schemas, check_inputs, port_at, port_index
        from ndld_flow.graph.edit.wiring import errors_of, set_inputs

        schemas = Schemas(edited.model)
        changed = 0
        for node in edited.select_nodes(self.select, self.allow_empty):
            with errors_of(node):
                operator = schemas.of(node)
                index = port_index(operator, self.input, len(node.inputs) - 1)
                if index >= len(node.inputs) or node.inputs[index] is None:
                    continue
                inputs = list(node.inputs)
                inputs[index] = None
                if operator is not None and port_at(operator, index).kind == "variadic":
                    del inputs[index]
                while inputs and inputs[-1] is None:
                    inputs.pop()
                if operator is not None:
                    check_inputs(operator, inputs)
                set_inputs(node, inputs)
                changed += 1
        return f"input {self.input} of {counted(changed, 'node')} disconnected"
