"""Debug tensors: values inside an engine, which TensorRT reports while it runs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ndld_flow.base.dtype_names import bits_of_dtype, dtype_of_tensorrt
from ndld_flow.base.errors import BackendError
from ndld_flow.models.tensors import Array, numpy_dtype
from ndld_flow.runtimes.tensorrt.engine.cuda_runtime import TO_HOST, CudaRuntime

_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def listen_to_debug_tensors(trt: Any, cuda: CudaRuntime, context: Any) -> dict[str, Array | None]:  # noqa: ANN401
    """Return a dict that gets the debug tensors of each inference of a context by name.

    It has None for a tensor that numpy cannot represent, or that was computed more than once, as in a loop. The caller
    clears it before an inference. Values are read in row-major order, as trtexec reads them.
    """
    values: dict[str, Array | None] = {}

    class Listener(trt.IDebugListener):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IDebugListener.__init__(self)  # the bindings require this explicit call

        def process_debug_tensor(
            self,
            addr: object,
            location: Any,  # noqa: ANN401
            type: Any,  # noqa: ANN401
            shape: Sequence[int],
            name: str,
            stream: int,
        ) -> bool:
            dtype = numpy_dtype(dtype_of_tensorrt(type.name))
            if name in values or dtype is None or (bits_of_dtype(dtype.name) or 0) < 8:
                values[name] = None
                return True
            array = np.empty(tuple(shape), dtype)
            cuda.wait_for_stream(stream)  # the address is valid only now, and its value may not be computed yet
            address = _pointer_of(addr, None)
            if location == trt.TensorLocation.DEVICE:
                cuda.copy(array.ctypes.data, address, array.nbytes, TO_HOST, stream)
                cuda.wait_for_stream(stream)
            else:
                ctypes.memmove(array.ctypes.data, address, prod(array.shape) * dtype.itemsize)
            values[name] = array
            return True

    is_set = context.set_debug_listener(Listener()) and context.set_all_tensors_debug_state(True)
    if not is_set:
        raise BackendError("TensorRT does not report debug tensors: set_debug_listener failed.")
    if hasattr(context, "unfused_tensors_debug_state"):
        context.unfused_tensors_debug_state = True
    return values
