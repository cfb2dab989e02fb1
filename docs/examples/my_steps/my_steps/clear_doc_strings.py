"""The operation `my_steps_clear_doc_strings`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.plugin import Operation

if TYPE_CHECKING:
    from ndld_flow.plugin import EditedModel


class ClearDocStrings(Operation):
    """Remove the doc strings of all nodes.

    Nodes in subgraphs are nodes too:

        my_steps_clear_doc_strings: {keep_model: false}
    """

    heading = "nodes"
    keeps_outputs = True

    keep_model: bool = True
    """Leave the doc string of the model."""

    def apply(self, edited: EditedModel) -> str:
        nodes = [node for node in edited.model.graph.all_nodes() if node.doc_string]
        for node in nodes:
            node.doc_string = None
        if not self.keep_model:
            edited.model.doc_string = None
        return f"{len(nodes)} doc strings removed"
