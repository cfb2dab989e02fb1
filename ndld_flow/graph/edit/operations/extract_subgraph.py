"""Extract the subgraph of an If, Loop or Scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ExtractSubgraph(Operation):
    """Keep only a subgraph of an If, Loop or Scan, as a separate model.

        extract_subgraph: {scope: If_0/then_branch}

    Outer tensors that it reads become inputs; outer weights and constants are included. A loop's body keeps its
    iteration number, condition and loop-carried values as inputs.
    """

    heading = "extracting and combining"

    scope: str
    """The subgraph as `node/attribute`: `loop/body`; nested, `loop/body/If_3/else_branch`."""
    types: dict[str, str] = Field(default={})
    """Tensor -> `float32[1, 3, H, ?]`, for new inputs and outputs whose type or shape is unknown."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.extracting import keep_only, part_of_body
        from ndld_flow.graph.edit.interface import show_interface

        part = part_of_body(edited, self.scope)
        keep_only(edited, part, self.types)
        return f"{self.scope} with {counted(len(part.nodes), 'node')} kept: {show_interface(edited.model)}"
