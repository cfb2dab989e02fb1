"""Give an If, Loop or Scan another body."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.body_source import BodySource

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ReplaceSubgraph(BodySource):
    """Give an If, Loop or Scan another body, written as text or taken from another model.

        replace_subgraph: {scope: If_0/else_branch, text: "skip () => (float[N] skipped) { skipped = Identity(x) }"}

    The new body must take and give what the node wants. Its names become unique in the whole model.
    """

    about = "If, Loop, Scan"

    scope: str
    """The body that goes: node and attribute, `loop/body`; bodies in bodies, `loop/body/If_3/else_branch`."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.bodies import find_body, make_body, put_body

        edited.graph(self.scope)
        node, attribute = find_body(edited, self.scope)
        body = make_body(edited, node, self.text, self.model, self.connect)
        put_body(edited, node, attribute, body)
        return f"{self.scope} replaced by {len(body)} nodes"
