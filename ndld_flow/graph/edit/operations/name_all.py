"""Give everything a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class NameAll(Operation):
    """Give every node a name, and every name the form that all tools take.

        name_all: {c_identifiers: true, keep_io: true}

    A node without a name is called after its operator and what it makes, such as `Conv_features`. Of nodes of one name,
    which ONNX Runtime refuses, all but the first get a number.
    """

    about = "nodes"
    keeps_outputs = True

    c_identifiers: bool = False
    """Make every name of a node or tensor a C90 identifier: letters, digits and `_`, no digit first."""
    keep_io: bool = False
    """Leave the names of the model's inputs and outputs as they are."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.renaming import names_for_all, rename_nodes, rename_values

        nodes, values = names_for_all(edited.model, self.c_identifiers)
        for value in (*edited.model.graph.inputs, *edited.model.graph.outputs) if self.keep_io else ():
            values.pop(value, None)
        named, renamed = rename_nodes(edited.model, nodes), rename_values(edited.model, values)
        return f"{named} nodes and {renamed} tensors named" if renamed else f"{named} nodes named"
