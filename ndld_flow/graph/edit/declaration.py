"""How a recipe declares a tensor that a model is to have."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ndld_flow.base.settings import Settings

DimName = Annotated[str, Field(pattern=r"[^0-9]")]
"""Not a number in quotes, and not empty: tools would take it for a size, or for a dimension without a name."""
Dim = Annotated[int, Field(ge=0, lt=2**63)] | DimName | None
Dims = tuple[Dim, ...]
"""A shape with a number, a name or null (free without a name) for each dimension."""


class TensorDeclaration(Settings):
    """Type and shape of a tensor."""

    dtype: str
    """Element type: `float32`, `float16`, `int64`, `bool`, `string`, ..."""
    shape: Dims = Field(default=())
    """A number, a name or null (free without a name) for each dimension: `[batch, 3, null, 640]`; `[]` is a scalar."""
