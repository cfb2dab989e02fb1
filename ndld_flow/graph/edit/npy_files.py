"""Tensors in `.npy` files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.dtype_words import word_of_dtype

_Array = npt.NDArray[Any]
_STAYS_ON_DISK_BYTES = 64 * 2**20
"""A larger array is not read: its bytes are copied into the data file."""


def read_npy(path: Path, dtype: ir.DataType | None, name: str) -> ir.TensorProtocol:
    """The tensor in a file, of the type that is given or the file's own; a large one stays where it lies.

    Raises `RequestError` for a file that is none or damaged, for one of another type, and for pickled objects: reading
    them runs their code.
    """
    array = _native(_mapped(path), dtype)
    found = _dtype_of(array, path)
    if dtype is not None and found != dtype:
        raise RequestError(
            f"{path} holds {word_of_dtype(found)}, the tensor is {word_of_dtype(dtype)}; write the file in that type"
        )
    if found == ir.DataType.STRING:
        return string_tensor(array, name)
    if isinstance(array, np.memmap) and _lies_as_onnx_has_it(array, found):
        real = path.resolve()
        shape = ir.Shape(array.shape)
        return ir.ExternalTensor(
            real.name, array.offset, array.nbytes, found, shape=shape, name=name, base_dir=real.parent
        )
    return ir.Tensor(np.array(array, order="C"), dtype=found, name=name)


def string_tensor(texts: _Array, name: str | None) -> ir.StringTensor:
    """A tensor of texts, of any shape."""
    encoded = np.vectorize(_encoded, otypes=[object])(texts) if texts.size else texts.astype(object)
    return ir.StringTensor(encoded, shape=ir.Shape(texts.shape), name=name)


def _encoded(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _mapped(path: Path) -> _Array:
    """The array as it lies in the file; a size that is only claimed takes no memory."""
    if path.exists() and not path.is_file():
        raise RequestError(f"{path} is no file")
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise RequestError(f"there is no file {path} (looked in {Path.cwd()})") from None
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
    return "it begins otherwise, or holds Python objects, which are not loaded" if "pickled" in text else text


def _native(array: _Array, dtype: ir.DataType | None) -> _Array:
    """numpy writes types of ml_dtypes as raw bytes, and other machines' byte order as it is."""
    raw = array.dtype.kind == "V" and array.dtype.names is None
    if raw and dtype not in (None, ir.DataType.STRING) and array.dtype.itemsize == dtype.numpy().itemsize:
        return array.view(dtype.numpy())
    # `astype` gives what calls itself mapped and is not.
    return array if array.dtype.isnative else np.asarray(array.astype(array.dtype.newbyteorder("=")))


def _dtype_of(array: _Array, path: Path) -> ir.DataType:
    if array.dtype.kind in "US":
        return ir.DataType.STRING
    try:
        return ir.DataType.from_numpy(array.dtype)
    except TypeError:
        raise RequestError(f"{path} holds {array.dtype}, which is no type of a tensor; say its `dtype`") from None


def _lies_as_onnx_has_it(array: np.memmap[Any, Any], dtype: ir.DataType) -> bool:
    """Whether a large array's bytes can be copied as they are: numpy spends a byte on what onnx packs into half."""
    return array.nbytes > _STAYS_ON_DISK_BYTES and array.flags.c_contiguous and dtype.bitwidth >= 8
