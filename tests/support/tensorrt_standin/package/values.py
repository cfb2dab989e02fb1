"""Values that cross the bindings: dimensions, weights, memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .bindings import Bound, member

_NUMPY = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
}
BITS = {"FLOAT": 32, "HALF": 16, "BF16": 16, "INT32": 32, "INT64": 64, "FP4": 4, "INT4": 4}


class Dims(Bound):
    """Equal to the tuple of its values; like TensorRT's, it does not compare with its kind."""

    MAX_DIMS = 8

    def __init__(self, shape: Sequence[int] = ()) -> None:
        self._values = tuple(int(value) for value in shape)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, at: Any) -> Any:
        return self._values[at]

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | list):
            raise TypeError(f"__eq__(): incompatible function arguments: {other!r}")
        return self._values == tuple(other)

    def __hash__(self) -> int:
        return hash(self._values)

    def __repr__(self) -> str:
        return str(self._values)


class Weights(Bound):
    """Values of weights, made of a numpy array or of a type."""

    def __init__(self, *arguments: Any) -> None:
        import numpy

        first = arguments[0] if arguments else None
        held = first if isinstance(first, numpy.ndarray) else numpy.empty(0, "float32")
        self._array = numpy.ascontiguousarray(held)

    def __len__(self) -> int:
        return int(self._array.size)

    @property
    def dtype(self) -> Any:
        names = {numpy_name: name for name, numpy_name in _NUMPY.items()}
        return member("DataType", names.get(self._array.dtype.name, "FLOAT"))

    @property
    def nbytes(self) -> int:
        return int(self._array.nbytes)

    @property
    def size(self) -> int:
        return int(self._array.size)

    def numpy(self) -> Any:
        return self._array


class IHostMemory(bytes):
    """Memory of the library's. Of bytes it has the buffer, and none of their methods."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__") or name in ("nbytes", "dtype"):
            return super().__getattribute__(name)
        raise AttributeError(f"'IHostMemory' object has no attribute '{name}'")

    @property
    def nbytes(self) -> int:
        return len(bytes(self))

    @property
    def dtype(self) -> Any:
        return member("DataType", "INT8")


def nptype(dtype: Any) -> Any:
    """numpy's type for one of TensorRT's. Raises TypeError where there is none."""
    import numpy

    if dtype.name not in _NUMPY:
        raise TypeError(f"Could not resolve TensorRT datatype to an equivalent numpy datatype: {dtype}")
    return getattr(numpy, "bool_" if dtype.name == "BOOL" else _NUMPY[dtype.name])


def volume(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape."""
    count = 1
    for item in shape:
        count *= item
    return count
