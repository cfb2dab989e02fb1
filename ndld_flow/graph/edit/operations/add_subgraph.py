"""Give a node a body that it does not have yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.body_source import BodySource

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class AddSubgraph(BodySource):
    """Give a node that was added without its bodies one of them, written as text or taken from another model.

        add_subgraph: {node: If_0, attribute: else_branch, model: fallback, connect: {images: x}}

    The body must take and give what the node wants. Its names become unique in the whole model.
    """

    about = "If, Loop, Scan"

    node: str
    """The If, Loop or Scan."""
    attribute: str
    """`then_branch`, `else_branch` or `body`."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.bodies import make_body, put_body

        node = edited.node(self.node)
        if self.attribute in node.attributes:
            raise RequestError(f"{self.node!r} has a {self.attribute} already; `replace_subgraph` gives it another")
        body = make_body(edited, node, self.text, self.model, self.connect)
        put_body(edited, node, self.attribute, body)
        return f"{self.attribute} with {len(body)} nodes added to {self.node}"
