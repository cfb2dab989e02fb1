"""CUDA's runtime library through ctypes: memory, copies, streams, events and graphs, each call checked.

TensorRT's bindings take pointers and streams as numbers, and cannot create any.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ndld_flow.base.errors import BackendError
from ndld_flow.base.quantities import size

TO_DEVICE, TO_HOST = 1, 2
"""cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost."""
_OUT_OF_MEMORY, _DRIVER_TOO_OLD, _NO_DEVICE = 2, 35, 100
"""cudaErrorMemoryAllocation, cudaErrorInsufficientDriver, cudaErrorNoDevice."""
_SCHEDULE_SPIN, _SCHEDULE_BLOCKING = 1, 4
"""cudaDeviceScheduleSpin, cudaDeviceScheduleBlockingSync."""
_EVENT_BLOCKING = 1
_STREAM_NON_BLOCKING = 1
_CAPTURE_THREAD_LOCAL = 1
"""cudaStreamCaptureModeThreadLocal: other threads of the process may call CUDA during the capture."""
_MAJORS = (13, 12, 11)
_INSTALLING = (
    "pip install nvidia-cuda-runtime (CUDA 13) or nvidia-cuda-runtime-cu12, or NVIDIA's CUDA toolkit, and let the "
    "loader find it (LD_LIBRARY_PATH)"
)
_P = c_void_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cudaGetDeviceCount": (POINTER(c_int),),
    "cudaSetDevice": (c_int,),
    "cudaSetDeviceFlags": (c_uint,),
    "cudaDeviceSynchronize": (),
    "cudaMemGetInfo": (POINTER(c_size_t), POINTER(c_size_t)),
    "cudaMalloc": (POINTER(_P), c_size_t),
    "cudaFree": (_P,),
    "cudaMallocHost": (POINTER(_P), c_size_t),
    "cudaFreeHost": (_P,),
    "cudaMemcpyAsync": (_P, _P, c_size_t, c_int, _P),
    "cudaStreamCreateWithFlags": (POINTER(_P), c_uint),
    "cudaStreamDestroy": (_P,),
    "cudaStreamSynchronize": (_P,),
    "cudaEventCreateWithFlags": (POINTER(_P), c_uint),
    "cudaEventDestroy": (_P,),
    "cudaEventRecord": (_P, _P),
    "cudaEventSynchronize": (_P,),
    "cudaEventElapsedTime": (POINTER(c_float), _P, _P),
    "cudaStreamBeginCapture": (_P, c_int),
    "cudaStreamEndCapture": (_P, POINTER(_P)),
    "cudaGraphInstantiateWithFlags": (POINTER(_P), _P, c_ulonglong),
    "cudaGraphLaunch": (_P, _P),
    "cudaGraphExecDestroy": (_P,),
    "cudaGraphDestroy": (_P,),
}


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of the whole GPU."""

    free_bytes: int
    total_bytes: int


class CudaRuntime:
    """One GPU through libcudart. Pointers, streams, events and graphs are numbers, as TensorRT takes them.

    Every method raises `BackendError` with CUDA's message if the call fails.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._functions = {name: getattr(library, name) for name in _SIGNATURES}
        for name, function in self._functions.items():
            function.argtypes, function.restype = _SIGNATURES[name], c_int
        library.cudaGetErrorName.restype = library.cudaGetErrorString.restype = c_char_p

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401
        """Call one of the functions that return a cudaError_t."""
        code = self._functions[name](*arguments)
        if code:
            raise BackendError(f"{name} failed: {self.explain(code)}")

    def explain(self, code: int) -> str:
        """Return a description such as `cudaErrorMemoryAllocation (out of memory)`."""
        texts = (self._library.cudaGetErrorName(code), self._library.cudaGetErrorString(code))
        name, description = (str(text, errors="replace") for text in texts)
        return f"{name} ({description})"

    def count_devices(self) -> tuple[int, int]:
        """Return the number of GPUs, and CUDA's error code if counting fails."""
        count = c_int(0)
        code = self._functions["cudaGetDeviceCount"](count)
        return count.value, int(code)

    def select(self, gpu: int, *, spin: bool) -> None:
        """Select a GPU, and wait for it by busy-waiting (`spin`) or by sleeping."""
        self.call("cudaSetDevice", gpu)
        self.call("cudaSetDeviceFlags", _SCHEDULE_SPIN if spin else _SCHEDULE_BLOCKING)

    def read_memory(self) -> DeviceMemory:
        free, total = c_size_t(), c_size_t()
        self.call("cudaMemGetInfo", free, total)
        return DeviceMemory(free.value, total.value)

    def allocate(self, bytes_wanted: int) -> int:
        """Allocate memory on the GPU, at least one byte, because TensorRT rejects null pointers."""
        pointer = c_void_p()
        code = self._functions["cudaMalloc"](pointer, max(1, bytes_wanted))
        if code == _OUT_OF_MEMORY:
            free = size(self.read_memory().free_bytes)
            raise BackendError(
                f"cudaMalloc failed: the GPU has {free} free, and {size(bytes_wanted)} more are needed. End other "
                "programs that use it, or choose a smaller batch, smaller shapes or fewer streams."
            )
        if code:
            raise BackendError(f"cudaMalloc failed: {self.explain(code)}")
        return pointer.value or 0

    def allocate_pinned(self, bytes_wanted: int) -> int:
        """Allocate pinned memory of the host, which the GPU copies from and to directly."""
        return self._create("cudaMallocHost", max(1, bytes_wanted))

    def free(self, pointer: int) -> None:
        self.call("cudaFree", pointer)

    def free_pinned(self, pointer: int) -> None:
        self.call("cudaFreeHost", pointer)

    def copy(self, target: int, source: int, bytes_moved: int, direction: int, stream: int) -> None:
        """Start a copy; it is complete when the stream is."""
        self.call("cudaMemcpyAsync", target, source, bytes_moved, direction, stream)

    def make_stream(self) -> int:
        """Create a stream that does not wait for CUDA's default stream."""
        return self._create("cudaStreamCreateWithFlags", _STREAM_NON_BLOCKING)

    def wait_for_stream(self, stream: int) -> None:
        self.call("cudaStreamSynchronize", stream)

    def make_event(self, *, spin: bool) -> int:
        return self._create("cudaEventCreateWithFlags", 0 if spin else _EVENT_BLOCKING)

    def record(self, event: int, stream: int) -> None:
        self.call("cudaEventRecord", event, stream)

    def wait_for_event(self, event: int) -> None:
        self.call("cudaEventSynchronize", event)

    def elapsed_ms(self, begin: int, end: int) -> float:
        """Return the ms between two recorded events, by the GPU's clock."""
        ms = c_float()
        self.call("cudaEventElapsedTime", ms, begin, end)
        return ms.value

    def begin_capture(self, stream: int) -> None:
        """Record the following work in a graph instead of running it."""
        self.call("cudaStreamBeginCapture", stream, _CAPTURE_THREAD_LOCAL)

    def end_capture(self, stream: int) -> int:
        """Return the captured graph, ready to launch."""
        graph = c_void_p()
        self.call("cudaStreamEndCapture", stream, graph)
        try:
            return self._create("cudaGraphInstantiateWithFlags", graph.value or 0, 0)
        finally:
            self.call("cudaGraphDestroy", graph.value or 0)

    def launch(self, graph: int, stream: int) -> None:
        self.call("cudaGraphLaunch", graph, stream)

    def destroy(self, kind: str, handle: int) -> None:
        """Destroy a `Stream`, an `Event` or a `GraphExec`."""
        self.call(f"cuda{kind}Destroy", handle)

    def _create(self, name: str, *arguments: int) -> int:
        """Call a function that writes a new handle or pointer to its first argument, and return that."""
        created = c_void_p()
        self.call(name, created, *arguments)
        return created.value or 0


def open_cuda_runtime() -> CudaRuntime:
    """Open the newest libcudart found that the driver supports.

    Raises `BackendError` if there is none, or no GPU.
    """
    refused = ""
    for name in _candidates():
        try:
            runtime = CudaRuntime(ctypes.CDLL(name))
        except OSError:
            continue
        except AttributeError as error:  # older than the functions that we call
            refused = refused or f"{name} lacks a function: {error}"
            continue
        devices, code = runtime.count_devices()
        if not code and devices:
            return runtime
        if code not in (0, _NO_DEVICE, _DRIVER_TOO_OLD):
            raise BackendError(f"cudaGetDeviceCount failed: {runtime.explain(code)}. Check that `nvidia-smi` works.")
        refused = f"{Path(name).name} finds no NVIDIA GPU: {runtime.explain(code or _NO_DEVICE)}"
        if code != _DRIVER_TOO_OLD:
            break
    if refused:
        raise BackendError(f"{refused}. Check that `nvidia-smi` works.")
    raise BackendError(f"CUDA's runtime library (libcudart) is not found: {_INSTALLING}.")


def _candidates() -> Iterator[str]:
    """Yield libraries: those that the loader finds, then NVIDIA's wheels, then the toolkit's usual folders; newest
    first.
    """
    if os.name == "nt":  # names contain the bits, and up to CUDA 11 the minor version
        patterns = [f"cudart64_{major}*.dll" for major in _MAJORS]
    else:
        patterns = [f"libcudart.so.{major}{'.0' if major == 11 else ''}" for major in _MAJORS]
        yield from patterns
    parts = ("lib", "bin", "bin/x86_64")
    folders = [found for place in map(Path, sys.path) for part in parts for found in place.glob(f"nvidia/cu*/{part}")]
    for home in filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")):
        folders += (Path(home) / part for part in ("lib64", "lib", "bin"))
    for pattern in patterns:
        for folder in folders:
            yield from map(str, sorted(folder.glob(pattern), reverse=True))
