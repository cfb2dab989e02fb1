"""A lane: one inference at a time, in an execution context with a stream, buffers and events of its own."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ndld_flow.base.errors import BackendError
from ndld_flow.base.text import short_name
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.onnxruntime.device_facts import DeviceTimes
from ndld_flow.runtimes.tensorrt.engine.cuda_runtime import TO_DEVICE, TO_HOST, CudaRuntime
from ndld_flow.runtimes.tensorrt.engine.engine_tensors import EngineTensor


@dataclass(frozen=True)
class _Buffer:
    """One tensor, in the host's pinned memory and on the device."""

    bytes: int
    host: int
    device: int
    """0 for a shape tensor, which TensorRT reads and writes in the host's memory."""


class Lane:
    """An execution context with its tensors bound; `enqueue` and then `wait` are one inference."""

    def __init__(self, cuda: CudaRuntime, context: Any, *, spin: bool) -> None:  # noqa: ANN401
        self.context = context
        self.stream = cuda.make_stream()
        self._cuda = cuda
        self._inputs: list[_Buffer] = []
        self._outputs: list[_Buffer] = []
        self._graph = 0
        self._enqueue_ms = 0.0
        self._begin, self._computing, self._computed, self._end = self._events = tuple(
            cuda.make_event(spin=spin) for _ in range(4)
        )

    def bind_input(self, tensor: EngineTensor, values: Array) -> None:
        """Keep the values where copies start from, and tell the context where it will find them."""
        buffer = self._bind(tensor, tensor.bytes_for(values.shape, self._strides(tensor)))
        # A tensor laid out in blocks is longer than its values, and one of 4 bits shorter: numpy keeps each in a byte.
        ctypes.memset(buffer.host, 0, buffer.bytes)
        ctypes.memmove(buffer.host, values.ctypes.data, min(values.nbytes, buffer.bytes))
        self._inputs.append(buffer)

    def bind_output(self, tensor: EngineTensor) -> None:
        """Make room for what the context will write, now that it knows all inputs."""
        self._outputs.append(self._bind(tensor, self._bytes_of_output(tensor)))

    def capture(self) -> None:
        """From now on launch a CUDA graph of what the context enqueues. It must have run once as it is.

        Raises `BackendError` when the engine does something that cannot be captured.
        """
        self._cuda.begin_capture(self.stream)
        try:
            self._execute()
        finally:
            self._graph = self._cuda.end_capture(self.stream)

    def enqueue(self, *, copies: bool) -> None:
        """Begin an inference, with its copies or without."""
        record, stream = self._cuda.record, self.stream
        record(self._begin, stream)
        if copies:
            self.copy_in()
            record(self._computing, stream)
        before = time.perf_counter_ns()
        if self._graph:
            self._cuda.launch(self._graph, stream)
        else:
            self._execute()
        self._enqueue_ms = (time.perf_counter_ns() - before) / 1e6
        if copies:
            record(self._computed, stream)
            self.copy_out()
        record(self._end, stream)

    def wait(self) -> None:
        """Until what was begun is done."""
        self._cuda.wait_for_event(self._end)

    def read_times(self, *, copies: bool) -> DeviceTimes:
        """Of the inference that was waited for."""
        elapsed_ms = self._cuda.elapsed_ms
        if not copies:
            return DeviceTimes(enqueue_ms=self._enqueue_ms, compute_ms=elapsed_ms(self._begin, self._end))
        return DeviceTimes(
            enqueue_ms=self._enqueue_ms,
            h2d_ms=elapsed_ms(self._begin, self._computing),
            compute_ms=elapsed_ms(self._computing, self._computed),
            d2h_ms=elapsed_ms(self._computed, self._end),
        )

    def copy_in(self) -> None:
        """Begin to copy the inputs to the device."""
        for buffer in self._inputs:
            if buffer.device:
                self._cuda.copy(buffer.device, buffer.host, buffer.bytes, TO_DEVICE, self.stream)

    def copy_out(self) -> None:
        """Begin to copy the outputs from the device."""
        for buffer in self._outputs:
            if buffer.device:
                self._cuda.copy(buffer.host, buffer.device, buffer.bytes, TO_HOST, self.stream)

    def time_alone(self, work: Callable[[], None]) -> float:
        """What it takes to do what `work` begins, in ms by the GPU's clock."""
        self._cuda.record(self._begin, self.stream)
        work()
        self._cuda.record(self._end, self.stream)
        self.wait()
        return self._cuda.elapsed_ms(self._begin, self._end)

    def close(self) -> None:
        """Give back all but the context."""
        self._cuda.wait_for_stream(self.stream)
        for buffer in (*self._inputs, *self._outputs):
            self._cuda.free_pinned(buffer.host)
            if buffer.device:
                self._cuda.free(buffer.device)
        if self._graph:
            self._cuda.destroy("GraphExec", self._graph)
        for event in self._events:
            self._cuda.destroy("Event", event)
        self._cuda.destroy("Stream", self.stream)

    def _bytes_of_output(self, tensor: EngineTensor) -> int:
        shape = tuple(self.context.get_tensor_shape(tensor.name))
        if -1 not in shape:
            return tensor.bytes_for(shape, self._strides(tensor))
        most = int(self.context.get_max_output_size(tensor.name))  # it depends on data
        if most < 0:
            raise BackendError(f"TensorRT cannot tell how large {short_name(tensor.name)} may become.")
        return most

    def _strides(self, tensor: EngineTensor) -> tuple[int, ...]:
        try:
            return tuple(self.context.get_tensor_strides(tensor.name))
        except ValueError:  # a length of -1: TensorRT does not tell
            return ()

    def _bind(self, tensor: EngineTensor, bytes_needed: int) -> _Buffer:
        host = self._cuda.allocate_pinned(bytes_needed)
        buffer = _Buffer(bytes_needed, host, 0 if tensor.on_host else self._cuda.allocate(bytes_needed))
        if not self.context.set_tensor_address(tensor.name, buffer.device or buffer.host):
            raise BackendError(
                f"TensorRT takes no address for {short_name(tensor.name)}: it is no tensor of the engine."
            )
        return buffer

    def _execute(self) -> None:
        if not self.context.execute_async_v3(self.stream):
            raise BackendError("TensorRT could not enqueue the engine (execute_async_v3 returned False)")
