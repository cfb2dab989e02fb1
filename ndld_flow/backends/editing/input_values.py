"""The value that an input has from now on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ndld_flow.backends.editing.value_grammar import load_npy, to_array
from ndld_flow.errors import RequestError


def constant_for(value: ir.Value, given: Any, file: Path | None) -> ir.TensorProtocol:  # noqa: ANN401 - JSON
    """A tensor of the input's type: from a `.npy` file, from lists, or one number for every element.

    Raises `RequestError` where the value does not fit, and for one number where the input has free dimensions.
    """
    dtype = value.dtype
    if dtype is None:
        raise RequestError(f"the type of input {value.name!r} is not known; set it by set_dtypes first")
    array = load_npy(file) if file is not None else to_array(given, dtype)
    if array.dtype != dtype.numpy() and dtype != ir.DataType.STRING:
        raise RequestError(f"{file} holds {array.dtype}, but input {value.name!r} is {dtype.numpy()}")
    if array.ndim == 0 and file is None and value.shape is not None:
        if not all(isinstance(dim, int) for dim in value.shape):
            raise RequestError(
                f"input {value.name!r} has free dimensions, so that one number does not say its shape; fix them by "
                "fix_dims or set_shapes first, or give lists"
            )
        array = np.full(value.shape.numpy(), array, dtype=array.dtype)
    if dtype == ir.DataType.STRING:
        return ir.StringTensor(np.vectorize(str.encode, otypes=[object])(array), name=value.name)
    return ir.Tensor(array, dtype=dtype, name=value.name)
