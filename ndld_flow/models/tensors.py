"""Tensors as models declare them, and their dtypes. Imports no ONNX: measuring processes start with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ndld_flow.base.dtype_names import dtype_of_ort_element
from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest

Array = npt.NDArray[Any]
"""An array of numpy, of any type."""
UNNAMED_DIM = "?"
"""Name that Paddle's exporters give to every dynamic dimension: dimensions of this name need not be equal."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output as a model declares it."""

    name: str
    dtype: str
    """Name in numpy or ml_dtypes: `float32`, `bfloat16`, `int64`, `string`; other types keep their ONNX name, such as
    `seq(tensor(float))`."""
    shape: tuple[int | str | None, ...] | None
    """Size, name, or None (dynamic without a name) of each dimension; None if the model declares no shape."""

    @property
    def shape_text(self) -> str:
        """`batchx3x?x?`; `scalar` for no dimensions."""
        if self.shape is None:
            return "unknown shape"
        return shape_text(self.shape)


def shape_text(shape: Sequence[int | str | None]) -> str:
    """Return `1x3x320x320`; `scalar` for no dimensions."""
    return "x".join("?" if dim is None else str(dim) for dim in shape) or "scalar"


def dtype_of_ort(type_text: str) -> str:
    """Return `float32` for `tensor(float)`; a type that is not a dense tensor is returned unchanged."""
    if not (type_text.startswith("tensor(") and type_text.endswith(")")):
        return type_text
    return dtype_of_ort_element(type_text.removeprefix("tensor(").removesuffix(")"))


def numpy_dtype(name: str) -> np.dtype[Any] | None:
    """Return the dtype of arrays for such a tensor; None for strings and for types that are not tensors."""
    if hasattr(ml_dtypes, name):
        own: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return own
    try:
        dtype: np.dtype[Any] = np.dtype(name)
    except TypeError:
        return None
    return dtype if dtype.kind in "biufc" else None


def fix_dimensions(inputs: Sequence[TensorSpec], sizes: Mapping[str, int]) -> tuple[TensorSpec, ...]:
    """Return the inputs with named dimensions set to sizes. Raises `RequestError` for a name that no input has."""
    known = {dim for spec in inputs for dim in spec.shape or () if isinstance(dim, str)}
    for name in sizes:
        if name not in known:
            raise RequestError(f'free_dimensions: no input has a dimension "{name}"; {suggest(name, known)}')
    return tuple(
        spec
        if spec.shape is None
        else replace(spec, shape=tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in spec.shape))
        for spec in inputs
    )
