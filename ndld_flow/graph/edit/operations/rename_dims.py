"""Rename dimensions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import short_name, suggest
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import DimName

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel

_NAME = re.compile(r"[A-Za-z_][\w.:]*")


class RenameDims(Operation):
    """Rename dimensions everywhere, also in subgraphs and expressions.

    Two names may become one, which declares the dimensions equal.

        rename_dims: {names: {"p2o.DynamicDimension.0": batch}}
    """

    heading = "shapes"

    names: dict[str, DimName] = Field(min_length=1)
    """Old name -> new name."""

    def apply(self, edited: EditedModel) -> str:
        import onnx_ir as ir

        from ndld_flow.graph.edit.interface import declared_values

        shaped = [value for value in declared_values(edited.model) if value.shape is not None]
        dims = (dim for value in shaped for dim in value.shape or () if not isinstance(dim, int))
        known = {str(dim.value) for dim in dims if dim.value}
        for name in self.names:
            if name not in known:
                nearest = suggest(name, known) or "it has no named dimensions"
                raise RequestError(f"the model has no dimension {short_name(name)!r}; {nearest}")
        changed = 0
        for value in shaped:
            assert value.shape is not None
            old = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
            new = [self._renamed(dim) for dim in old]
            if new != old:
                value.shape = ir.Shape(new)
                changed += 1
        return f"dimensions renamed on {counted(changed, 'tensor')}"

    def _renamed(self, dim: int | str | None) -> int | str | None:
        """Return the dimension by its new name, also inside an expression such as `floor(batch/2)`."""
        if not isinstance(dim, str) or dim in self.names:
            return self.names.get(dim, dim) if isinstance(dim, str) else dim
        return _NAME.sub(lambda match: self.names.get(match[0], match[0]), dim)
