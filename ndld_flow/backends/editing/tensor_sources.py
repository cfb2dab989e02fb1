"""Tensors from what a recipe says: numbers written out, a `.npy` file, or a kind of made-up numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
from pydantic import JsonValue

from ndld_flow.backends.editing.dtype_words import dtype_of_word, word_of_dtype
from ndld_flow.backends.editing.value_grammar import Array, Value, load_npy, parse_value, to_array
from ndld_flow.backends.models.generated_tensors import GeneratedTensor
from ndld_flow.errors import RequestError

_STAYS_ON_DISK_BYTES = 64 * 2**20
"""A larger `.npy` file is not read: its bytes are copied into the data file."""


class ValueSettings(Protocol):
    """What `editing.tensor_value.WithTensorValue` says."""

    @property
    def value(self) -> JsonValue: ...
    @property
    def file(self) -> Path | None: ...
    @property
    def generate(self) -> str | None: ...
    @property
    def seed(self) -> int: ...
    @property
    def dtype(self) -> str | None: ...
    @property
    def shape(self) -> tuple[int, ...] | None: ...


@dataclass(frozen=True)
class Wanted:
    """What is known of a tensor before its numbers are."""

    name: str
    dtype: ir.DataType | None = None
    shape: tuple[int, ...] | None = None


def make_tensor(said: ValueSettings, wanted: Wanted) -> ir.TensorProtocol:
    """The tensor that settings say; type and shape are the wanted ones where the settings are silent.

    Raises `RequestError` for numbers that do not fit the type or the shape.
    """
    dtype = wanted.dtype if said.dtype is None else dtype_of_word(said.dtype)
    shape = wanted.shape if said.shape is None else said.shape
    if said.generate is not None:
        if shape is None:
            raise RequestError(f"`generate: {said.generate}` needs a `shape`")
        return GeneratedTensor(said.generate, dtype or ir.DataType.FLOAT, shape, wanted.name, said.seed)
    if said.file is not None:
        return shaped(_of_file(said.file, dtype, wanted.name), shape)
    return shaped(_written_out(said.value, dtype, wanted.name), shape)


def tensor_of(said: JsonValue, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
    """Numbers written out, or in the `.npy` file whose path it is. Raises `RequestError`."""
    if isinstance(said, str) and said.endswith(".npy"):
        return _of_file(Path(said), dtype, name)
    return _written_out(said, dtype, name)


def shaped(tensor: ir.TensorProtocol, shape: Sequence[int] | None) -> ir.TensorProtocol:
    """The tensor, checked to have a shape; a single number fills any. Raises `RequestError`."""
    own = tuple(int(dim) for dim in tensor.shape.numpy())
    if shape is None or own == tuple(shape):
        return tensor
    if own != () or isinstance(tensor, ir.StringTensor):
        raise RequestError(f"the numbers have the shape {list(own)}, not {list(shape)}")
    if math.prod(shape) * tensor.nbytes > _STAYS_ON_DISK_BYTES:
        raise RequestError(
            f"one number for all of {list(shape)} is too much to write out; use `generate`, or a .npy file"
        )
    return ir.Tensor(np.full(tuple(shape), tensor.numpy()), dtype=tensor.dtype, name=tensor.name)


def _written_out(value: JsonValue, dtype: ir.DataType | None, name: str) -> ir.TensorProtocol:
    if value is None:
        raise RequestError("`value: null` is no number")
    parsed: Any = parse_value(value) if isinstance(value, str) and dtype != ir.DataType.STRING else value
    dtype = dtype or _natural(parsed)
    array = to_array(parsed, dtype)
    if dtype == ir.DataType.STRING:
        texts = np.vectorize(str.encode, otypes=[object])(array) if array.size else array
        return ir.StringTensor(texts, shape=ir.Shape(array.shape), name=name)
    return ir.Tensor(array, dtype=dtype, name=name)


def _natural(value: Value) -> ir.DataType:
    """The type of numbers that nobody gave one."""
    kinds: set[type] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        else:
            kinds.add(type(one))
    if kinds == {int}:
        return ir.DataType.INT64
    if kinds == {bool}:
        return ir.DataType.BOOL
    return ir.DataType.STRING if kinds == {str} else ir.DataType.FLOAT


def _of_file(path: Path, dtype: ir.DataType | None, name: str) -> ir.TensorProtocol:
    mapped = _data_on_disk(path, dtype, name)
    if mapped is not None:
        return mapped
    array = _as_stored(load_npy(path), dtype)
    found = _dtype_of(array, path)
    if dtype is not None and found != dtype:
        raise RequestError(
            f"{path} holds {word_of_dtype(found)}, the tensor is {word_of_dtype(dtype)}; write the file in that type"
        )
    return ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=found, name=name)


def _as_stored(array: Array, dtype: ir.DataType | None) -> Array:
    """numpy writes types of ml_dtypes as raw bytes, and other machines' byte order as it is."""
    if array.dtype.kind == "V" and dtype is not None and array.dtype.itemsize == dtype.numpy().itemsize:
        return array.view(dtype.numpy())
    return array.astype(array.dtype.newbyteorder("="))


def _dtype_of(array: Array, path: Path) -> ir.DataType:
    try:
        return ir.DataType.from_numpy(array.dtype)
    except TypeError:
        raise RequestError(f"{path} holds {array.dtype}, which is no type of a tensor; say its `dtype`") from None


def _data_on_disk(path: Path, dtype: ir.DataType | None, name: str) -> ir.ExternalTensor | None:
    """A large file's array where it lies; None for a small one, and for one that must be read to be turned round."""
    if not path.is_file() or path.stat().st_size <= _STAYS_ON_DISK_BYTES:
        return None
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(mapped, np.memmap) or not mapped.flags.c_contiguous or mapped.dtype.byteorder == ">":
        return None
    found = _dtype_of(mapped, path)
    if dtype not in (None, found):
        return None
    real = path.resolve()
    shape = ir.Shape(mapped.shape)
    return ir.ExternalTensor(
        real.name, mapped.offset, mapped.nbytes, found, shape=shape, name=name, base_dir=real.parent
    )
