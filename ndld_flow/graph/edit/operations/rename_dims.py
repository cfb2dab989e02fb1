"""Rename dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import DimName

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RenameDims(Operation):
    """Rename dimensions everywhere, also in subgraphs and expressions.

    Two names may become one, which declares the dimensions equal.

        rename_dims: {names: {"p2o.DynamicDimension.0": batch}}
    """

    heading = "shapes"

    names: dict[str, DimName] = Field(min_length=1)
    """Old name -> new name."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import rename_dims

        return f"dimensions renamed on {rename_dims(edited.model, self.names)} tensors"
