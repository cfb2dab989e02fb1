"""Running an engine: shapes and addresses are checked, and each layer takes its time; `computing.py` has the values."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from .bindings import Bound, Setting, expect, member, record
from .computing import Computing, debug_tensors_of, weights_in
from .logs import Log
from .plan import unpacked
from .running import IRuntimeConfig
from .timing import key_of, time_of
from .values import BITS, Dims, volume

_FASTER = {"HALF": 0.6, "BF16": 0.6, "INT8": 0.4, "FP8": 0.4}


class IExecutionContext(Bound):
    """One state of an engine that runs."""

    debug_sync = Setting(bool, False)
    device_memory = Setting(int, 0)
    enqueue_emits_profile = Setting(bool, True)
    error_recorder = Setting(object)
    name = Setting(str, "")
    nvtx_verbosity = Setting("ProfilingVerbosity", "LAYER_NAMES_ONLY")
    persistent_cache_limit = Setting(int, 0)
    profiler = Setting("IProfiler", optional=True)
    temporary_allocator = Setting(object)
    unfused_tensors_debug_state = Setting(bool, False)

    def _begin(self, *arguments: Any) -> None:
        self._cuda_engine, engine, log, self._how = arguments
        self._engine: dict[str, Any] = engine
        self._log: Log = log
        self._profile = 0
        self._shapes: dict[str, tuple[int, ...]] = {
            tensor["name"]: tuple(tensor["dims"]) for tensor in self._tensors("INPUT") if -1 not in tensor["dims"]
        }
        self._addresses: dict[str, int] = {}
        self._inferred: dict[str, list[int]] | None = None
        self._waiting: list[tuple[str, float]] = []
        self._allocators: dict[str, Any] = {}
        self._computing: Computing | None = None
        self._listener: Any = None
        self._debugged: dict[str, bool] = {}
        if isinstance(self._how, IRuntimeConfig):
            cache = self._how.get_runtime_cache()
            record(self, compiled=cache is None or cache._compile())
        self._times = [
            (layer["name"], time_of(key_of(layer["name"])) * _FASTER.get(layer["type"], 1))
            for layer in engine["layers"]
        ]

    @property
    def engine(self) -> Any:
        return self._cuda_engine

    @property
    def active_optimization_profile(self) -> int:
        return int(self._profile)

    @property
    def all_binding_shapes_specified(self) -> bool:
        return not self._unspecified()

    @property
    def all_shape_inputs_specified(self) -> bool:
        return not self._unspecified()

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        expect(int, stream_handle, "stream_handle")
        if not 0 <= expect(int, profile_index, "profile_index") < len(self._engine["profiles"]):
            self._refuse(f"setOptimizationProfileAsync: there is no profile {profile_index}")
            raise RuntimeError("Error in set optimization profile async.")
        self._profile = profile_index
        return True

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        wanted = tuple(Dims(shape))
        tensor = self._tensor(name)
        if tensor is None or tensor["mode"] != "INPUT":
            return self._refuse(f"setInputShape: {name} is no input")
        low, _, high = self._engine["profiles"][self._profile]["shapes"][name]
        if len(wanted) != len(low) or not all(a <= b <= c for a, b, c in zip(low, wanted, high, strict=True)):
            return self._refuse(
                f"setInputShape: Set dimension {list(wanted)} for tensor {name} does not satisfy any optimization "
                f"profiles. Valid range for profile {self._profile}: {list(low)}..{list(high)}."
            )
        self._shapes[name] = wanted
        self._inferred = None
        return True

    def get_tensor_shape(self, name: str) -> Any:
        tensor = self._tensor(name)
        if tensor is None:
            self._refuse(f"getTensorShape: there is no tensor {name}")
            return Dims()
        known = self._shapes.get(name) if tensor["mode"] == "INPUT" else self._shapes_of_all().get(name)
        return Dims(known or tensor["dims"])

    def get_tensor_strides(self, name: str) -> Any:
        dims = tuple(self.get_tensor_shape(name))
        return Dims([volume(dims[at + 1 :]) for at in range(len(dims))])

    def infer_shapes(self) -> list[str]:
        return self._unspecified()

    def get_max_output_size(self, name: str) -> int:
        tensor = self._tensor(name)
        if tensor is None or tensor["mode"] != "OUTPUT" or self._unspecified():
            return -1
        most = max(map(volume, self._shapes.values()), default=1)  # a dimension that depends on data
        return volume([most if dim < 0 else dim for dim in self.get_tensor_shape(name)]) * _bits(tensor) // 8

    def update_device_memory_size_for_shapes(self) -> int:
        return int(self._engine["memory"]["activation"])

    def set_device_memory(self, memory: int, size: int) -> None:
        expect(int, size, "size")
        self._device_memory = expect(int, memory, "memory")

    def set_aux_streams(self, aux_streams: Sequence[int]) -> None:
        self._aux = [expect(int, stream, "aux_streams") for stream in aux_streams]

    def get_runtime_config(self) -> Any:
        return self._how

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if self._tensor(name) is None:
            return self._refuse(f"setTensorAddress: there is no tensor {name}")
        self._addresses[name] = expect(int, memory, "memory")
        return True

    def get_tensor_address(self, name: str) -> int:
        return self._addresses.get(name, 0)

    def set_output_allocator(self, name: str, output_allocator: Any) -> bool:
        self._allocators[name] = expect("IOutputAllocator", output_allocator, "output_allocator")
        return True

    def get_output_allocator(self, name: str) -> Any:
        return self._allocators.get(name)

    def set_input_consumed_event(self, event: int) -> bool:
        self._event = expect(int, event, "event")
        return True

    def get_input_consumed_event(self) -> int:
        return int(getattr(self, "_event", 0))

    def is_stream_capturable(self, stream: int) -> bool:
        expect(int, stream, "stream")
        return True

    def set_debug_listener(self, listener: Any) -> bool:
        self._listener = expect("IDebugListener", listener, "listener")
        return True

    def get_debug_listener(self) -> Any:
        return self._listener

    def set_all_tensors_debug_state(self, flag: bool) -> bool:
        return all(self.set_tensor_debug_state(name, flag) for name in self._engine["debug"]["marked"])

    def set_tensor_debug_state(self, name: str, flag: bool) -> bool:
        if not self._cuda_engine.is_debug_tensor(name):
            return self._refuse(f"setTensorDebugState: {name} is no debug tensor")
        self._debugged[name] = expect(bool, flag, "flag")
        return True

    def get_debug_state(self, name: str) -> bool:
        return self._debugged.get(name, False)

    def execute_v2(self, bindings: Sequence[int]) -> bool:
        for tensor, address in zip(self._engine["tensors"], bindings, strict=True):
            self._addresses[tensor["name"]] = expect(int, address, "bindings")
        return self._execute(0)

    def execute_async_v3(self, stream_handle: int) -> bool:
        expect(int, stream_handle, "stream_handle")
        cuda = _loaded_cuda()
        if cuda is not None and not cuda.standin_has_stream(ctypes.c_void_p(stream_handle)):
            return self._refuse("enqueueV3: there is no such stream")
        return self._execute(stream_handle)

    def report_to_profiler(self) -> bool:
        if self.profiler is None:
            return self._refuse("reportToProfiler: there is no profiler")
        if os.environ.get("STANDIN_TELLS_NO_TIMES") == "1":
            return self._refuse("reportToProfiler: no events were recorded")
        for name, ms in self._waiting:
            self.profiler.report_layer_time(name, ms)
        self._waiting = []
        return True

    def _execute(self, stream_handle: int) -> bool:
        missing = self._unspecified()
        if missing:
            return self._refuse(f"enqueueV3: input shapes are not specified: {', '.join(missing)}")
        for tensor in self._engine["tensors"]:
            if not self._addresses.get(tensor["name"]) and tensor["name"] not in self._allocators:
                return self._refuse(f"enqueueV3: no address is set for tensor {tensor['name']}")
        for tensor in self._engine["tensors"] if _loaded_cuda() else ():
            if tensor["name"] not in self._allocators and not self._lies_in_memory(tensor):
                return self._refuse(f"enqueueV3: the memory of {tensor['name']} is too small or on the wrong side")
        self._waiting = []
        for name, ms in self._times:
            _spend(ms)
            self._waiting.append((name, ms))
        if os.environ.get("STANDIN_COMPUTES") == "1" and _loaded_cuda():
            self._compute(stream_handle)
        return self.report_to_profiler() if self.profiler is not None and self.enqueue_emits_profile else True

    def _compute(self, stream_handle: int) -> None:
        """Write the outputs to their addresses, or to what their allocators give."""
        import numpy

        if os.environ.get("STANDIN_CRASHES") == "1":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._computing is None:
            engine = self._cuda_engine
            self._computing = Computing(self._engine, weights_in(engine._data) | engine._refitted)
        feeds = {}
        for tensor in self._tensors("INPUT"):
            dtype, shape = _numpy_type(tensor), self._shapes[tensor["name"]]
            data = ctypes.string_at(self._addresses[tensor["name"]], volume(shape) * dtype.itemsize)
            feeds[tensor["name"]] = numpy.frombuffer(data, dtype).reshape(shape)
        for tensor in self._tensors("OUTPUT"):
            name = tensor["name"]
            values = numpy.ascontiguousarray(self._outputs_of(feeds)[name].astype(_numpy_type(tensor)))
            address = self._addresses.get(name, 0)
            if name in self._allocators:
                address = self._allocators[name].reallocate_output_async(name, address, values.nbytes, 256, 0)
                self._allocators[name].notify_shape(name, Dims(values.shape))
            ctypes.memmove(address, values.ctypes.data, values.nbytes)
        if self._listener is not None:
            self._emit(feeds, stream_handle)

    def _emit(self, feeds: dict[str, Any], stream_handle: int) -> None:
        """Report the debug tensors whose state is on, each in device memory that is valid for the call only."""
        import numpy

        cuda, new_capsule = _loaded_cuda(), ctypes.pythonapi.PyCapsule_New
        new_capsule.restype = ctypes.py_object
        new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        for name, reported, kind in debug_tensors_of(self._engine):
            is_marked = self._cuda_engine.is_debug_tensor(name)
            if not (self._debugged.get(name) if is_marked else self.unfused_tensors_debug_state):
                continue
            values = numpy.ascontiguousarray(self._outputs_of(feeds)[name].astype(_numpy_type({"type": kind})))
            block = ctypes.c_void_p()
            assert cuda.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(values.nbytes)) == 0
            ctypes.memmove(block, values.ctypes.data, values.nbytes)
            where, capsule = member("TensorLocation", "DEVICE"), new_capsule(block, None, None)
            dtype, dims = member("DataType", kind), Dims(values.shape)
            self._listener.process_debug_tensor(capsule, where, dtype, dims, reported, stream_handle)
            cuda.cudaFree(block)

    def _outputs_of(self, feeds: dict[str, Any]) -> dict[str, Any]:
        assert self._computing is not None
        key = {name: values.tobytes() for name, values in feeds.items()}
        if getattr(self, "_computed_for", None) != key:
            self._computed_for, self._computed = key, self._computing.run(feeds)
        return self._computed

    def _lies_in_memory(self, tensor: dict[str, Any]) -> bool:
        """The real one does not look: it crashes, or writes over what lies behind."""
        shape = self.get_tensor_shape(tensor["name"])
        most = self.get_max_output_size(tensor["name"])
        needed = most if -1 in tuple(shape) else volume(shape) * _bits(tensor) // 8
        address = ctypes.c_void_p(self._addresses[tensor["name"]])
        on_device = not tensor.get("is_shape")
        return bool(_loaded_cuda().standin_holds(address, ctypes.c_size_t(needed), on_device))

    def _unspecified(self) -> list[str]:
        return [
            tensor["name"]
            for tensor in self._tensors("INPUT")
            if tensor["name"] not in self._shapes or (tensor.get("is_shape") and tensor["name"] not in self._addresses)
        ]

    def _shapes_of_all(self) -> dict[str, list[int]]:
        """Tensor -> its shape for these inputs, as far as ONNX's shape inference knows."""
        if self._inferred is None and not self._unspecified():
            self._inferred = infer_shapes(unpacked(self._engine["model"]), self._shapes)
        return self._inferred or {}

    def _tensors(self, mode: str) -> list[dict[str, Any]]:
        return [tensor for tensor in self._engine["tensors"] if tensor["mode"] == mode]

    def _tensor(self, name: str) -> dict[str, Any] | None:
        expect(str, name, "name")
        return next((tensor for tensor in self._engine["tensors"] if tensor["name"] == name), None)

    def _refuse(self, what: str) -> bool:
        self._log.error(f"IExecutionContext::{what}", 3)
        return False


def infer_shapes(model: bytes, inputs: dict[str, tuple[int, ...]]) -> dict[str, list[int]]:
    """Shapes of a model's tensors for these shapes of its inputs; -1 where that depends on data."""
    import onnx

    proto = onnx.load_model_from_string(model)
    for info in proto.graph.input:
        if info.name in inputs:
            _set_dims(info, inputs[info.name])
    for info in proto.graph.output:
        info.type.tensor_type.ClearField("shape")
    del proto.graph.value_info[:]
    try:
        proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except Exception:  # what cannot be inferred stays unknown
        return {}
    graph = proto.graph
    return {
        info.name: [dim.dim_value if dim.HasField("dim_value") else -1 for dim in info.type.tensor_type.shape.dim]
        for info in (*graph.input, *graph.value_info, *graph.output)
        if info.type.tensor_type.HasField("shape")
    }


def _set_dims(info: Any, dims: Sequence[int]) -> None:
    info.type.tensor_type.ClearField("shape")
    for size in dims:
        info.type.tensor_type.shape.dim.add().dim_value = size


def _numpy_type(tensor: dict[str, Any]) -> Any:
    import ml_dtypes
    import numpy

    names = {"FLOAT": "float32", "HALF": "float16"}
    kind = str(tensor["type"])
    return numpy.dtype(ml_dtypes.bfloat16 if kind == "BF16" else names.get(kind, kind.lower()))


def _bits(tensor: dict[str, Any]) -> int:
    return BITS.get(tensor["type"], 8)


def _loaded_cuda() -> Any:
    """Return the stand-in of CUDA's runtime library if this process has loaded it."""
    try:
        library = ctypes.CDLL("libcudart.so.13", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None
    return library if hasattr(library, "standin_holds") else None


def _spend(ms: float) -> None:
    until = time.perf_counter_ns() + int(ms * 1e6)
    while time.perf_counter_ns() < until:
        pass
