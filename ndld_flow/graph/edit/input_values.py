"""The value that an input has from now on."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.tensor_sources import SaidTensor, Wanted, make_tensor


def constant_for(value: ir.Value, given: JsonValue, file: Path | None) -> ir.TensorProtocol:
    """A tensor of the input's type: from a `.npy` file, from lists, or one number for every element.

    Raises `RequestError` where the value does not fit, and for one number where the input has free dimensions.
    """
    if value.dtype is None:
        raise RequestError(f"the type of input {value.name!r} is not known; set it by set_dtypes first")
    said, wanted = SaidTensor(given, file), Wanted(value.name or "", value.dtype)
    tensor = make_tensor(said, wanted)
    if value.shape is None or len(tensor.shape) or not len(value.shape):
        return tensor
    if not value.shape.is_static():
        raise RequestError(
            f"input {value.name!r} has free dimensions, so that one number does not say its shape; fix them by "
            "fix_dims or set_shapes first, or give lists"
        )
    return make_tensor(said, Wanted(wanted.name, wanted.dtype, tuple(value.shape.numpy())))
