"""Name all nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class NameAll(Operation):
    """Name all unnamed nodes, and optionally make all names C identifiers.

        name_all: {c_identifiers: true, keep_io: true}

    An unnamed node is named after its operator and output, such as `Conv_features`. Of nodes with the same name, which
    ONNX Runtime refuses, all but the first get a number.
    """

    heading = "nodes"
    keeps_outputs = True

    c_identifiers: bool = False
    """Make every name of a node or tensor a C90 identifier: letters, digits and `_`, not starting with a digit."""
    keep_io: bool = False
    """Keep the names of the model's inputs and outputs."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.names import names_for_all, rename_nodes, rename_values

        nodes, values = names_for_all(edited.model, self.c_identifiers)
        for value in (*edited.model.graph.inputs, *edited.model.graph.outputs) if self.keep_io else ():
            values.pop(value, None)
        named, renamed = rename_nodes(edited.model, nodes), rename_values(edited.model, values)
        tensors = f" and {counted(renamed, 'tensor')}" if renamed else ""
        return f"{counted(named, 'node')}{tensors} named"
