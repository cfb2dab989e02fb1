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

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.dtype_words import dtype_of_word
from ndld_flow.graph.edit.npy_files import read_npy, string_tensor
from ndld_flow.graph.edit.value_grammar import Value, parse_value, to_array
from ndld_flow.models.generated_tensors import GeneratedTensor
from ndld_flow.models.tensor_statistics import tensor_bytes

_MOST_FILLED_BYTES = 64 * 2**20


class ValueSettings(Protocol):
    """The value that `tensor_value.WithTensorValue` declares."""

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
class SaidTensor:
    """A tensor's numbers, written out or in a file, where an operation has settings of other names for them."""

    value: Any
    file: Path | None = None
    generate: str | None = None
    seed: int = 0
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


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
        return shaped(read_npy(said.file, dtype, wanted.name), shape)
    return shaped(_written_out(said.value, dtype, wanted.name), shape)


def shaped(tensor: ir.TensorProtocol, shape: Sequence[int] | None) -> ir.TensorProtocol:
    """The tensor, checked to have a shape; a single element fills any. Raises `RequestError`."""
    own = tuple(int(dim) for dim in tensor.shape.numpy())
    if shape is None or own == tuple(shape):
        return tensor
    if own != ():
        raise RequestError(f"the numbers have the shape {list(own)}, not {list(shape)}")
    if math.prod(shape) * tensor_bytes(tensor) > _MOST_FILLED_BYTES:
        raise RequestError(
            f"one number for all of {list(shape)} is too much to write out; use `generate`, or a .npy file"
        )
    filled = np.full(tuple(shape), tensor.numpy())
    if tensor.dtype == ir.DataType.STRING:
        return string_tensor(filled, tensor.name)
    return ir.Tensor(filled, dtype=tensor.dtype, name=tensor.name)


def _written_out(value: JsonValue, dtype: ir.DataType | None, name: str) -> ir.TensorProtocol:
    if value is None:
        raise RequestError("`value: null` is no number")
    parsed: Any = parse_value(value) if isinstance(value, str) and dtype != ir.DataType.STRING else value
    dtype = dtype or _natural(parsed)
    array = to_array(parsed, dtype)
    if dtype == ir.DataType.STRING:
        return string_tensor(array, name)
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
