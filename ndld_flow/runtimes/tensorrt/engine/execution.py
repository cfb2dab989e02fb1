"""Execution of an engine: buffers and streams, passes, and times by the GPU's own clock."""

from __future__ import annotations

import ctypes
import math
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ndld_flow.base.dtype_names import bits_of_dtype, dtype_of_tensorrt
from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.base.text import short_name, shortened, visible_text
from ndld_flow.models.tensors import Array, numpy_dtype
from ndld_flow.runtimes.protocol import DeviceTimes
from ndld_flow.runtimes.tensorrt.engine.cuda_runtime import TO_DEVICE, TO_HOST, CudaRuntime
from ndld_flow.runtimes.tensorrt.engine.engine_settings import EngineSettings
from ndld_flow.runtimes.tensorrt.engine.engine_tensors import EngineTensor, refuse_shape
from ndld_flow.runtimes.tensorrt.library import import_bindings

_LONGEST = 400


def one_paragraph(message: str) -> str:
    """Return TensorRT's message without line breaks and final full stop, shortened."""
    return shortened(" ".join(visible_text(message).split()).rstrip("."), _LONGEST)


@dataclass(frozen=True)
class _Buffer:
    """One tensor, in the host's pinned memory and on the device."""

    bytes: int
    host: int
    device: int
    """0 for a shape tensor, which TensorRT reads and writes in the host's memory."""


def make_output_allocator(trt: Any, device: int, capacity: int) -> Any:  # noqa: ANN401
    """Return an allocator for an output whose size depends on data: it gives `capacity` bytes at `device`.

    Its `shape` is that of the last inference, or None.
    """

    class OutputAllocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)  # the bindings require this explicit call
            self.shape: tuple[int, ...] | None = None

        def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
            return device if size <= capacity else 0

        def reallocate_output_async(self, tensor_name: str, memory: int, size: int, alignment: int, stream: int) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Sequence[int]) -> None:
            self.shape = tuple(shape)

    return OutputAllocator()


@dataclass
class _Inference:
    """Events of one inference, and the host's time to launch it."""

    begin: int
    computing: int
    computed: int
    end: int
    enqueue_ms: float = 0.0

    @property
    def events(self) -> tuple[int, ...]:
        return self.begin, self.computing, self.computed, self.end


class Lane:
    """An execution context with its tensors bound; `enqueue` and then `wait` are one inference.

    With a `queue`, so many further inferences may be enqueued before the first one ends.
    """

    def __init__(self, cuda: CudaRuntime, context: Any, *, spin: bool, queue: int = 0) -> None:  # noqa: ANN401
        self.context = context
        self.stream = cuda.make_stream()
        self._cuda = cuda
        self._inferences = [_Inference(*(cuda.make_event(spin=spin) for _ in range(4))) for _ in range(queue + 1)]
        self._alone = cuda.make_event(spin=spin), cuda.make_event(spin=spin)
        self._enqueued = self._finished = 0
        self._inputs: list[_Buffer] = []
        self._outputs: dict[str, _Buffer] = {}
        self._allocators: dict[str, Any] = {}
        """Output whose shape depends on data -> its allocator."""
        self._graph = 0

    def bind_input(self, tensor: EngineTensor, values: Array) -> None:
        """Copy the values to pinned memory, from where passes copy them, and give the context their address."""
        buffer = self._bind(tensor, tensor.bytes_for(values.shape, self._strides(tensor)))
        # A tensor in blocks is larger than its values, and one of 4 bits smaller: numpy uses a byte for each element.
        ctypes.memset(buffer.host, 0, buffer.bytes)
        ctypes.memmove(buffer.host, values.ctypes.data, min(values.nbytes, buffer.bytes))
        self._inputs.append(buffer)

    def bind_output(self, tensor: EngineTensor, trt: Any) -> None:  # noqa: ANN401
        """Allocate memory for an output. The context must know all inputs."""
        buffer = self._outputs[tensor.name] = self._bind(tensor, self._bytes_of_output(tensor))
        if -1 in tuple(self.context.get_tensor_shape(tensor.name)) and buffer.device:
            allocator = make_output_allocator(trt, buffer.device, buffer.bytes)
            if self.context.set_output_allocator(tensor.name, allocator):
                self._allocators[tensor.name] = allocator

    def output_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an output, after an inference if it depends on data; -1 for an unknown dimension."""
        allocator = self._allocators.get(name)
        known = None if allocator is None else allocator.shape
        return tuple(self.context.get_tensor_shape(name)) if known is None else tuple(known)

    def capture(self) -> None:
        """Capture the context's work in a CUDA graph, which later passes launch. One pass must have run before.

        Raises `BackendError` if the engine does something that cannot be captured.
        """
        self._cuda.begin_capture(self.stream)
        try:
            self._execute()
        finally:
            self._graph = self._cuda.end_capture(self.stream)

    @property
    def has_room(self) -> bool:
        """Return True if another inference may be enqueued."""
        return self._enqueued - self._finished < len(self._inferences)

    def enqueue(self, *, copies: bool) -> None:
        """Start an inference, with its copies or without."""
        record, stream = self._cuda.record, self.stream
        inference = self._inferences[self._enqueued % len(self._inferences)]
        record(inference.begin, stream)
        if copies:
            self.copy_in()
            record(inference.computing, stream)
        before = time.perf_counter_ns()
        if self._graph:
            self._cuda.launch(self._graph, stream)
        else:
            self._execute()
        inference.enqueue_ms = (time.perf_counter_ns() - before) / 1e6
        if copies:
            record(inference.computed, stream)
            self.copy_out()
        record(inference.end, stream)
        self._enqueued += 1

    def wait(self) -> None:
        """Wait until the oldest of the started inferences is finished."""
        self._cuda.wait_for_event(self._inferences[self._finished % len(self._inferences)].end)
        self._finished += 1

    def read_times(self, *, copies: bool) -> DeviceTimes:
        """Return the times of the inference that finished last."""
        elapsed_ms, last = self._cuda.elapsed_ms, self._inferences[(self._finished - 1) % len(self._inferences)]
        if not copies:
            return DeviceTimes(enqueue_ms=last.enqueue_ms, compute_ms=elapsed_ms(last.begin, last.end))
        return DeviceTimes(
            enqueue_ms=last.enqueue_ms,
            h2d_ms=elapsed_ms(last.begin, last.computing),
            compute_ms=elapsed_ms(last.computing, last.computed),
            d2h_ms=elapsed_ms(last.computed, last.end),
        )

    def copy_in(self) -> None:
        """Start to copy the inputs to the device."""
        for buffer in self._inputs:
            if buffer.device:
                self._cuda.copy(buffer.device, buffer.host, buffer.bytes, TO_DEVICE, self.stream)

    def copy_out(self) -> None:
        """Start to copy the outputs from the device."""
        for buffer in self._outputs.values():
            if buffer.device:
                self._cuda.copy(buffer.host, buffer.device, buffer.bytes, TO_HOST, self.stream)

    def time_alone(self, work: Callable[[], None]) -> float:
        """Return the time of the work that `work` enqueues, in ms by the GPU's clock."""
        begin, end = self._alone
        self._cuda.record(begin, self.stream)
        work()
        self._cuda.record(end, self.stream)
        self._cuda.wait_for_event(end)
        return self._cuda.elapsed_ms(begin, end)

    def read_output(self, tensor: EngineTensor) -> Array | None:
        """Return a copied output; None for one in blocks, with gaps, without a numpy dtype, or of unknown shape."""
        shape, dtype = self.output_shape(tensor.name), numpy_dtype(tensor.dtype)
        if dtype is None or (bits_of_dtype(tensor.dtype) or 0) < 8 or -1 in shape:
            return None
        buffer, packed = self._outputs[tensor.name], math.prod(shape) * dtype.itemsize
        if buffer.bytes != packed and not (tensor.name in self._allocators and tensor.padding[0] < 0):
            return None
        return np.frombuffer(ctypes.string_at(buffer.host, packed), dtype).reshape(shape)

    def close(self) -> None:
        """Release everything but the context."""
        self._cuda.wait_for_stream(self.stream)
        for buffer in (*self._inputs, *self._outputs.values()):
            self._cuda.free_pinned(buffer.host)
            if buffer.device:
                self._cuda.free(buffer.device)
        if self._graph:
            self._cuda.destroy("GraphExec", self._graph)
        for event in (*self._alone, *(event for inference in self._inferences for event in inference.events)):
            self._cuda.destroy("Event", event)
        self._cuda.destroy("Stream", self.stream)

    def _bytes_of_output(self, tensor: EngineTensor) -> int:
        shape = tuple(self.context.get_tensor_shape(tensor.name))
        if -1 not in shape:
            return tensor.bytes_for(shape, self._strides(tensor))
        largest = int(self.context.get_max_output_size(tensor.name))  # its size depends on data
        if largest < 0:
            raise BackendError(f"TensorRT does not report the maximum size of {short_name(tensor.name)}.")
        return largest

    def _strides(self, tensor: EngineTensor) -> tuple[int, ...]:
        try:
            return tuple(self.context.get_tensor_strides(tensor.name))
        except ValueError:  # a length of -1: unknown
            return ()

    def _bind(self, tensor: EngineTensor, bytes_needed: int) -> _Buffer:
        host = self._cuda.allocate_pinned(bytes_needed)
        buffer = _Buffer(bytes_needed, host, 0 if tensor.on_host else self._cuda.allocate(bytes_needed))
        if not self.context.set_tensor_address(tensor.name, buffer.device or buffer.host):
            raise BackendError(
                f"TensorRT does not accept an address for {short_name(tensor.name)}: it is not a tensor of the engine."
            )
        return buffer

    def _execute(self) -> None:
        if not self.context.execute_async_v3(self.stream):
            raise BackendError("TensorRT could not enqueue the engine (execute_async_v3 returned False)")


class EngineBinding:
    """An engine with its inputs bound: a pass is one inference on every stream, timed by the GPU's clock.

    The constructor raises `RequestError` for a shape that the engine does not allow; CUDA's and TensorRT's failures are
    `BackendError` here and in every pass.
    """

    def __init__(
        self,
        cuda: CudaRuntime,
        engine: Any,  # noqa: ANN401
        request: EngineSettings,
        tensors: Mapping[str, EngineTensor],
        contexts: Sequence[Any],
        feeds: Mapping[str, Array],
    ) -> None:
        self._engine = engine
        self._request = request
        self._tensors = tensors
        self._lanes: list[Lane] = []
        # Memory is released even without `close`: the next session of this process needs it.
        self._release = weakref.finalize(self, _close_all, self._lanes)
        values = {name: tensors[name].values_for(array) for name, array in feeds.items()}
        profile = self._request.optimization_profile
        for name, array in values.items():
            tensor = self._tensors[name]
            if tensor.has_range:  # for other tensors the binding raises an exception, also on the host
                allowed = self._engine.get_tensor_profile_values(profile, name)
                given = [int(value) for value in array.ravel()]
            else:
                allowed = self._engine.get_tensor_profile_shape(name, profile)
                given = list(array.shape)
            if allowed:
                refuse_shape(name, given, [tuple(each) for each in allowed], profile, values=tensor.has_range)
        for context in contexts:
            lane = Lane(cuda, context, spin=request.spin_wait, queue=request.queue)
            self._lanes.append(lane)
            try:
                self._bind(lane, values)
            except RuntimeError as error:  # the bindings raise it instead of returning an object
                raise BackendError(f"TensorRT does not accept the inputs: {one_paragraph(str(error))}.") from None
            lane.time_alone(lane.copy_in)
        self._debug: dict[str, Array | None] = {}
        if request.debug_tensors:
            self._debug = listen_to_debug_tensors(import_bindings(request.backend), cuda, contexts[0])

    def run(self) -> None:
        """Enqueue inferences on every stream, and wait until its oldest is finished: the only one without a queue."""
        copies = self._request.transfers
        self._debug.clear()
        for lane in self._lanes:
            while lane.has_room:
                lane.enqueue(copies=copies)
        for lane in self._lanes:
            lane.wait()

    def capture(self) -> None:
        """Run once, then launch a CUDA graph in every pass. Raises `BackendError` if that is impossible."""
        self.run()
        try:
            for lane in self._lanes:
                lane.capture()
        except BackendError as error:
            raise BackendError(
                f"the engine {self._request.engine} cannot be captured in a CUDA graph: {str(error).rstrip('.')}. "
                "Loops, conditionals and shapes that depend on data cannot; remove `cuda_graph`."
            ) from None

    @property
    def can_copy(self) -> bool:
        return not self._request.transfers and not self._request.queue  # copying between passes drains the queue

    def copy_in(self) -> float:
        """Copy the inputs to the device once more; return the time in ms."""
        return max(lane.time_alone(lane.copy_in) for lane in self._lanes)

    def copy_out(self) -> float:
        """Copy the last pass's outputs to the host; return the time in ms."""
        return max(lane.time_alone(lane.copy_out) for lane in self._lanes)

    def device_times(self) -> DeviceTimes:
        """Return the times of the last pass before any further copy: the slowest stream's, and all enqueuing."""
        lanes = [lane.read_times(copies=self._request.transfers) for lane in self._lanes]
        return DeviceTimes(
            enqueue_ms=sum(times.enqueue_ms or 0.0 for times in lanes),
            h2d_ms=_slowest(times.h2d_ms for times in lanes),
            compute_ms=_slowest(times.compute_ms for times in lanes),
            d2h_ms=_slowest(times.d2h_ms for times in lanes),
        )

    def outputs(self) -> dict[str, Array | None]:
        """Return the outputs and the debug tensors of the first stream's last inference.

        None for one that numpy cannot represent.
        """
        lane = self._lanes[0]
        lane.time_alone(lane.copy_out)
        outputs = {name: lane.read_output(tensor) for name, tensor in self._tensors.items() if not tensor.is_input}
        return self._debug | outputs

    def output_shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return name -> dtype and shape; -1 if it depends on data."""
        lane = self._lanes[0]
        return {
            name: (tensor.dtype, lane.output_shape(name))
            for name, tensor in self._tensors.items()
            if not tensor.is_input
        }

    def close(self) -> None:
        """Release memory, streams and events; the contexts stay."""
        self._release()

    def _choose_profile(self, lane: Lane) -> None:
        profile = self._request.optimization_profile
        if not lane.context.set_optimization_profile_async(profile, lane.stream):
            raise BackendError(f"TensorRT does not switch to optimization profile {profile} of {self._request.engine}.")

    def _bind(self, lane: Lane, values: Mapping[str, Array]) -> None:
        context, profile = lane.context, self._request.optimization_profile
        if context.active_optimization_profile != profile:
            lane.time_alone(lambda: self._choose_profile(lane))
        for name, array in values.items():
            if not context.set_input_shape(name, tuple(array.shape)):
                raise RequestError(f'input "{short_name(name)}": the engine does not accept the shape {array.shape}.')
        for name, array in values.items():  # strides are known once all shapes are
            lane.bind_input(self._tensors[name], array)
        unknown = context.infer_shapes()
        if unknown:
            raise BackendError(f"TensorRT cannot infer the shapes of {', '.join(map(short_name, unknown))}.")
        for tensor in self._tensors.values():
            if not tensor.is_input:
                lane.bind_output(tensor, import_bindings(self._request.backend))


def _close_all(lanes: list[Lane]) -> None:
    while lanes:
        lanes.pop().close()


def _slowest(times_ms: Iterable[float | None]) -> float | None:
    known = [ms for ms in times_ms if ms is not None]
    return max(known) if known else None


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
                ctypes.memmove(array.ctypes.data, address, math.prod(array.shape) * dtype.itemsize)
            values[name] = array
            return True

    is_set = context.set_debug_listener(Listener()) and context.set_all_tensors_debug_state(True)
    if not is_set:
        raise BackendError("TensorRT does not report debug tensors: set_debug_listener failed.")
    if hasattr(context, "unfused_tensors_debug_state"):
        context.unfused_tensors_debug_state = True
    return values
