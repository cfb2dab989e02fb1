"""Weights in files of others: safetensors, PyTorch's `.pt`, and folders of `.npy` files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir


def write_weights(path: Path, tensors: Mapping[str, ir.TensorProtocol | None]) -> None:
    """Write tensors to a safetensors file; None is the int64 scalar 0 of a counter."""
    from safetensors.numpy import save_file

    counter = np.zeros((), np.int64)
    arrays = {
        key: counter if tensor is None else np.asarray(tensor.numpy(), order="C") for key, tensor in tensors.items()
    }
    # One buffer for two keys would be one tensor for some readers.
    save_file({key: array.copy() if array.base is not None else array for key, array in arrays.items()}, path)
