"""Tensors as models declare them, their dtypes, and outputs that are sequences or maps as tensors by name.

Imports no ONNX: measuring processes start with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ndld_flow.base.dtype_names import bits_of_dtype, dtype_of_ort_element
from ndld_flow.base.errors import RequestError, UnknownNameError

Array = npt.NDArray[Any]
"""An array of numpy, of any type."""
TEXT: np.dtype[Any] = np.dtype(np.str_)
"""Dtype of arrays for a tensor of strings; those of arrays have the length of the longest one too."""
UNNAMED_DIM = "?"
"""Name that Paddle's exporters give to every dynamic dimension: dimensions of this name need not be equal."""


@dataclass(frozen=True)
class InputUses:
    """The uses of an input's values inside its model, as far as they limit the values that are worth trying."""

    rows: int | None = None
    """Rows of the smallest table that they index, or length of the one-hot vector that they become."""
    constants: tuple[float, ...] = ()
    """Constants that they are compared with for equality, sorted."""
    others: bool = False
    """There are uses whose limits are unknown."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output as a model declares it."""

    name: str
    dtype: str
    """Name in numpy or ml_dtypes: `float32`, `bfloat16`, `int64`, `string`; other types keep their ONNX name, such as
    `seq(tensor(float))`. Empty if the model declares no type."""
    shape: tuple[int | str | None, ...] | None
    """Size, name, or None (dynamic without a name) of each dimension; None if the model declares no shape."""
    uses: InputUses = field(default=InputUses(), compare=False)
    known_texts: tuple[str, ...] = field(default=(), compare=False)
    """Texts that the model knows for an input of strings, such as categories; empty if it accepts any or none is
    known."""

    @property
    def table_rows(self) -> int | None:
        """Return the rows of the table that an input indexes; None if it may have another use."""
        return None if self.uses.others else self.uses.rows

    @property
    def shape_text(self) -> str:
        """`batchx3x?x?`; `scalar` for no dimensions."""
        if self.shape is None:
            return "unknown shape"
        return shape_text(self.shape)


def shape_text(shape: Sequence[int | str | None]) -> str:
    """Return `1x3x320x320`; `scalar` for no dimensions."""
    return "x".join("?" if dim is None else str(dim) for dim in shape) or "scalar"


def identifying_bytes(arrays: Mapping[str, Array]) -> Iterator[bytes]:
    """Yield the bytes of a digest of arrays: name, dtype, shape and values of each, in the order of the names."""
    for name, array in sorted(arrays.items()):
        values = np.ascontiguousarray(array)
        yield f"{name} {values.dtype} {values.shape}\n".encode()
        # The bytes of an array of texts are addresses, at which other texts may be later.
        yield repr(values.tolist()).encode() if values.dtype.hasobject else values.tobytes()


def refuse_unfit_feeds(model: Path, declared: Sequence[TensorSpec], feeds: Mapping[str, Array]) -> None:
    """Raise `RequestError` with the first input of a model that has no values, or values that do not fit it."""
    for spec in declared:
        if spec.name not in feeds:
            raise RequestError(f'{model} has an input "{spec.name}", which got no values.')
        array = feeds[spec.name]
        sizes = zip(spec.shape or (), array.shape, strict=False)
        other_rank = spec.shape is not None and len(spec.shape) != array.ndim
        if other_rank or any(isinstance(size, int) and size != given for size, given in sizes):
            raise RequestError(
                f'input "{spec.name}" of {model}: its shape is {spec.shape_text}, and its values have '
                f"{shape_text(array.shape)}."
            )


def dtype_of_ort(type_text: str) -> str:
    """Return `float32` for `tensor(float)`; a type that is not a dense tensor is returned unchanged."""
    if not (type_text.startswith("tensor(") and type_text.endswith(")")):
        return type_text
    return dtype_of_ort_element(type_text.removeprefix("tensor(").removesuffix(")"))


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return `float32`; `string` for strings of any length."""
    return "string" if dtype.kind in "UO" else dtype.name


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


def pack_elements(array: Array) -> bytes:
    """Return the elements of an array of 2 or 4 bits each, packed as ONNX and its runtimes store them.

    An array of numpy has a byte for each; the first element is in the lowest bits.
    """
    bits = bits_of_dtype(array.dtype.name) or 8
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = array.reshape(-1).view(np.uint8) & np.uint8(2**bits - 1)
    padded = np.pad(fields, (0, -len(fields) % len(shifts))).reshape(-1, len(shifts))
    packed: Array = np.bitwise_or.reduce(padded << shifts, axis=1, dtype=np.uint8)
    return packed.tobytes()


def unpack_elements(data: bytes, count: int, dtype: np.dtype[Any]) -> Array:
    """Return `count` elements of 2 or 4 bits each that `pack_elements` has packed."""
    bits = bits_of_dtype(dtype.name) or 8
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = (np.frombuffer(data, np.uint8)[:, None] >> shifts & np.uint8(2**bits - 1)).reshape(-1)[:count]
    if dtype.name.startswith("float"):
        return fields.view(dtype)
    sign = np.int8(2 ** (bits - 1)) if dtype.name.startswith("int") else np.int8(0)
    integers: Array = ((fields.astype(np.int8) ^ sign) - sign).astype(dtype)
    return integers


def fix_dimensions(inputs: Sequence[TensorSpec], sizes: Mapping[str, int]) -> tuple[TensorSpec, ...]:
    """Return the inputs with named dimensions set to sizes. Raises `RequestError` for a name that no input has."""
    known = {dim for spec in inputs for dim in spec.shape or () if isinstance(dim, str)}
    for name in sizes:
        if name not in known:
            raise UnknownNameError(f'free_dimensions: no input has a dimension "{name}"', name, known)
    return tuple(
        spec
        if spec.shape is None
        else replace(spec, shape=tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in spec.shape))
        for spec in inputs
    )


_PLACES = re.compile(r"(\[\d+\])+$")


def named_tensors(outputs: Iterable[tuple[str, Any]]) -> dict[str, Array | None]:
    """Return outputs as tensors by name; None for one that has no dense values.

    The elements of a sequence `s` are `s[0]`, `s[1]` and so on, and an empty one is an empty tensor `s`. Maps are a
    matrix: a row for each, and a column for each key in their order, NaN where a map lacks it; `s (keys)` are the keys.
    An optional output without a value is left out.
    """
    found: dict[str, Array | None] = {}
    for name, value in outputs:
        if isinstance(value, np.ndarray):
            found[name] = value
        elif isinstance(value, Mapping):
            found |= _of_maps(name, [value])
        elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
            found |= _of_maps(name, value)
        elif isinstance(value, list) and value:
            found |= named_tensors((f"{name}[{index}]", each) for index, each in enumerate(value))
        elif value is not None:
            found[name] = np.empty(0, np.float32) if isinstance(value, list) else None
    return found


def sequence_of(element: str) -> str:
    """Return the name of the output that has an element: `s` for `s[0]`."""
    return _PLACES.sub("", element)


def _of_maps(name: str, rows: Sequence[Mapping[Any, Any]]) -> dict[str, Array | None]:
    keys = sorted({key for row in rows for key in row})
    try:
        values = np.array([[row.get(key, np.nan) for key in keys] for row in rows], np.float64)
    except (TypeError, ValueError):  # maps to text
        return {name: None}
    return {name: values, f"{name} (keys)": np.array(list(map(str, keys)), np.str_)}
