"""Values of a model's inputs read from `.npy` and `.pb` files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from ndld_flow.backends.models.tensors import Array
from ndld_flow.backends.running.generated_values import is_float, is_integer
from ndld_flow.errors import RequestError


def read_npy(path: Path, name: str) -> Array:
    """The array in a `.npy` file. Pickled objects are refused: reading them would run their code."""
    return _read(path, name, "a .npy file of numbers", lambda: _load_npy(path))


def read_tensor_proto(path: Path, name: str) -> Array:
    """The array in a file that holds an `onnx.TensorProto`. External data is refused."""
    return _read(path, name, "an ONNX TensorProto with its data inside", lambda: _load_tensor_proto(path))


def cast_to_model(values: Array, dtype: np.dtype[Any], name: str, origin: str) -> Array:
    """The values in the model's dtype. Only within a family (floats, integers, bools) and without loss of range.

    Raises `RequestError` naming the input, what was found and what the model expects.
    """
    if values.dtype == dtype:
        return values
    same = any(family(values.dtype) and family(dtype) for family in (is_float, is_integer))
    if not same:
        raise RequestError(f'input "{name}": {origin} holds {values.dtype.name}, the model expects {dtype.name}.')
    with np.errstate(over="ignore"):
        cast: Array = values.astype(dtype)
    if _lost_range(values, cast):
        raise RequestError(
            f'input "{name}": {origin} holds {values.dtype.name} values that do not fit the model\'s {dtype.name}.'
        )
    return cast


def _lost_range(before: Array, after: Array) -> bool:
    if is_integer(before.dtype):
        return not bool(np.array_equal(before, after.astype(before.dtype)))
    return bool(np.any(np.isfinite(before) & ~np.isfinite(after)))


def _read(path: Path, name: str, what: str, load: Callable[[], Array]) -> Array:
    try:
        return load()
    except FileNotFoundError:
        raise RequestError(f'input "{name}": there is no file {path} (looked in {Path.cwd()}).') from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise RequestError(f'input "{name}": {path} cannot be read: {reason}.') from None
    except (ValueError, TypeError, EOFError, DecodeError) as error:
        raise RequestError(f'input "{name}": {path} is not {what}: {" ".join(str(error).split())}') from None


def _load_npy(path: Path) -> Array:
    loaded = np.load(path, allow_pickle=False)
    if not isinstance(loaded, np.ndarray):
        loaded.close()
        raise ValueError("it is an archive of several arrays")
    return loaded


def _load_tensor_proto(path: Path) -> Array:
    tensor = onnx.TensorProto.FromString(path.read_bytes())
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise ValueError("its data is external")
    if tensor.data_type == onnx.TensorProto.UNDEFINED:
        raise ValueError("it has no data type")
    return np.asarray(numpy_helper.to_array(tensor))
