"""Copy a body of an If, Loop or Scan to another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class DuplicateSubgraph(Operation):
    """Copy a body to another node or branch, in place of the body there.

        duplicate_subgraph: {scope: If_0/then_branch, to: If_1/then_branch, connect: {features_0: features_1}}

    The copy has names of its own. Outer weights that cannot be read there come along.
    """

    about = "If, Loop, Scan"

    scope: str
    """The body to copy: node and attribute, `loop/body`; bodies in bodies, `loop/body/If_3/else_branch`."""
    to: str
    """Where the copy goes, written alike; the node need not have that body yet."""
    connect: dict[str, str] = Field(default={})
    """Outer tensor that the body reads -> the one that its copy reads."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.bodies import body_from_scope, find_body, put_body

        node, attribute = find_body(edited, self.to)
        body = body_from_scope(edited, node, self.scope, self.connect)
        put_body(edited, node, attribute, body)
        return f"{self.scope} copied to {self.to}"
