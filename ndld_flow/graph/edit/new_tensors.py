"""Tensors from settings: numbers in the recipe, or a `.npy` file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.dtype_names import parse_dtype
from ndld_flow.graph.edit.shared_settings import TensorValue
from ndld_flow.graph.edit.value_grammar import Value, parse_value, to_array
from ndld_flow.models.tensor_statistics import dtype_name, tensor_bytes

_Array = npt.NDArray[Any]
_MOST_FILLED_BYTES = 64 * 2**20
_STAYS_ON_DISK_BYTES = 64 * 2**20
"""A larger array is not read: its bytes are copied into the data file."""


def make_tensor(
    value: TensorValue, name: str, dtype: ir.DataType | None = None, shape: Sequence[int] | None = None
) -> ir.TensorProtocol:
    """Return the tensor that settings describe; `dtype` and `shape` apply where the settings give none.

    Raises `RequestError` for numbers that do not fit the type or the shape.
    """
    dtype = dtype if value.dtype is None else parse_dtype(value.dtype)
    shape = shape if value.shape is None else value.shape
    if value.file is not None:
        return shaped(read_npy(value.file, dtype, name), shape)
    return shaped(_tensor_of(value.value, dtype, name), shape)


def shaped(tensor: ir.TensorProtocol, shape: Sequence[int] | None) -> ir.TensorProtocol:
    """Return the tensor with a shape, which a single element fills. Raises `RequestError` for another shape."""
    own = tuple(int(dim) for dim in tensor.shape.numpy())
    if shape is None or own == tuple(shape):
        return tensor
    if own != ():
        raise RequestError(f"the numbers have the shape {list(own)}, not {list(shape)}")
    if math.prod(shape) * tensor_bytes(tensor) > _MOST_FILLED_BYTES:
        raise RequestError(
            f"a tensor of shape {list(shape)} filled with one number is too large; use `generate`, or a .npy file"
        )
    filled = np.full(tuple(shape), tensor.numpy())
    if tensor.dtype == ir.DataType.STRING:
        return string_tensor(filled, tensor.name)
    return ir.Tensor(filled, dtype=tensor.dtype, name=tensor.name)


def _tensor_of(value: JsonValue, dtype: ir.DataType | None, name: str) -> ir.TensorProtocol:
    parsed: Any = parse_value(value) if isinstance(value, str) and dtype != ir.DataType.STRING else value
    dtype = dtype or _default_dtype(parsed)
    array = to_array(parsed, dtype)
    if dtype == ir.DataType.STRING:
        return string_tensor(array, name)
    return ir.Tensor(array, dtype=dtype, name=name)


def _default_dtype(value: Value) -> ir.DataType:
    """Return the type of numbers for which none is given."""
    kinds: set[type] = set()
    waiting = [value]
    while waiting:
        element = waiting.pop()
        if isinstance(element, list):
            waiting += element
        else:
            kinds.add(type(element))
    if kinds == {int}:
        return ir.DataType.INT64
    if kinds == {bool}:
        return ir.DataType.BOOL
    return ir.DataType.STRING if kinds == {str} else ir.DataType.FLOAT


def read_npy(path: Path, dtype: ir.DataType | None, name: str) -> ir.TensorProtocol:
    """Return the tensor in a `.npy` file; a large one stays on disk.

    Raises `RequestError` for a file that is missing, damaged or of another type than `dtype`, and for pickled objects,
    whose loading would run code.
    """
    array = _native_array(_mapped(path), dtype)
    found = _dtype_of(array, path)
    if dtype is not None and found != dtype:
        raise RequestError(
            f"{path} holds {dtype_name(found)}, but the tensor is {dtype_name(dtype)}; save the file in that type"
        )
    if found == ir.DataType.STRING:
        return string_tensor(array, name)
    if isinstance(array, np.memmap) and _is_stored_as_in_onnx(array, found):
        real = path.resolve()
        shape = ir.Shape(array.shape)
        return ir.ExternalTensor(
            real.name, array.offset, array.nbytes, found, shape=shape, name=name, base_dir=real.parent
        )
    return ir.Tensor(np.array(array, order="C"), dtype=found, name=name)


def string_tensor(texts: _Array, name: str | None) -> ir.StringTensor:
    """Return a tensor of strings, of any shape."""
    encoded = np.vectorize(_encoded, otypes=[object])(texts) if texts.size else texts.astype(object)
    return ir.StringTensor(encoded, shape=ir.Shape(texts.shape), name=name)


def _encoded(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _mapped(path: Path) -> _Array:
    """Return the memory-mapped array, so that a false size in the header takes no memory."""
    if path.exists() and not path.is_file():
        raise RequestError(f"{path} is not a file")
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise RequestError(f"there is no file {path} (relative to {Path.cwd()})") from None
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, EOFError, OverflowError, SyntaxError) as error:
        raise RequestError(f"{path} is not a .npy file of numbers: {_reason(error)}") from None
    if not isinstance(loaded, np.ndarray):
        loaded.close()
        raise RequestError(f"{path} is an archive of several arrays; give a .npy file, which holds one")
    return loaded


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return "it has another header, or holds Python objects, which are not loaded" if "pickled" in text else text


def _native_array(array: _Array, dtype: ir.DataType | None) -> _Array:
    """Return the array in native byte order, with the raw bytes that numpy writes for ml_dtypes as their type."""
    raw = array.dtype.kind == "V" and array.dtype.names is None
    if raw and dtype not in (None, ir.DataType.STRING) and array.dtype.itemsize == dtype.numpy().itemsize:
        return array.view(dtype.numpy())
    # `astype` alone returns a np.memmap that is not mapped
    return array if array.dtype.isnative else np.asarray(array.astype(array.dtype.newbyteorder("=")))


def _dtype_of(array: _Array, path: Path) -> ir.DataType:
    if array.dtype.kind in "US":
        return ir.DataType.STRING
    try:
        return ir.DataType.from_numpy(array.dtype)
    except TypeError:
        raise RequestError(f"{path} holds {array.dtype}, which no tensor can hold; give its `dtype`") from None


def _is_stored_as_in_onnx(array: np.memmap[Any, Any], dtype: ir.DataType) -> bool:
    """Return whether a large array's bytes can be copied: numpy stores 4-bit types in a byte each, ONNX packs two."""
    return array.nbytes > _STAYS_ON_DISK_BYTES and array.flags.c_contiguous and dtype.bitwidth >= 8
