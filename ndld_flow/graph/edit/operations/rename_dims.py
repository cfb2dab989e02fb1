"""Rename dimensions wherever they are written, in subgraphs and expressions too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.declaration import DimName
from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RenameDims(Operation):
    """Rename dimensions wherever they are written, in subgraphs and expressions too.

    Two names may become one, which says that these dimensions are equal.

        rename_dims: {names: {"p2o.DynamicDimension.0": batch}}
    """

    about = "shapes"

    names: dict[str, DimName] = Field(min_length=1)
    """Old name -> new one."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.dimensions import rename_dims

        return f"dimensions renamed on {rename_dims(edited.model, self.names)} tensors"
