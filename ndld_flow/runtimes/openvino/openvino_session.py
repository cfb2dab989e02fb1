"""Models compiled by OpenVINO for the CPU, inferences with inputs in shared memory, and recordings of layers."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ndld_flow.base.errors import BackendError, ModelError, RequestError
from ndld_flow.base.extras import require
from ndld_flow.base.text import shortened
from ndld_flow.models.files import load_model, model_inputs
from ndld_flow.models.tensors import (
    Array,
    TensorSpec,
    fix_dimensions,
    numpy_dtype,
    pack_elements,
    shape_text,
    unpack_elements,
)
from ndld_flow.runtimes.openvino.compile_settings import CompileSettings
from ndld_flow.runtimes.protocol import HostBinding, ReportPasses, SessionFacts

require("openvino", "`backend: openvino`")

import openvino as ov  # noqa: E402 - the message of a missing library has the command that installs it
from openvino.frontend import FrontEndManager  # noqa: E402

_DEVICE = "CPU"
_MOST_LETTERS = 600
"""Maximum number of characters of a message of OpenVINO; names in it may be of any length."""
_DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "i4": "int4",
    "u64": "uint64",
    "u32": "uint32",
    "u16": "uint16",
    "u8": "uint8",
    "u4": "uint4",
    "boolean": "bool",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e8m0": "float8_e8m0fnu",
    "f4e2m1": "float4_e2m1fn",
}
"""OpenVINO's element types -> their names in numpy and ml_dtypes."""
_RESULT = "/sink_port_0"
"""Suffix of the name of an output, in the name of its node."""
_MOVES = (
    "Input",
    "Output",
    "Const",
    "Reorder",
    "Reshape",
    "Convert",
    "Transpose",
    "Subgraph",
    "If",
    "Loop",
    "TensorIterator",
)
_MULTIPLIES = ("Convolution", "Deconvolution", "FullyConnected", "MatMul")
_SOURCE_LINE = re.compile(r"(Exception from|Check '.*' failed at|FrontEnd API failed with) ?.*")
_UNKNOWN_OPERATORS = re.compile(r"No conversion rule found for operations: (.*)")


class OpenvinoSession:
    """A compiled model."""

    log = ""

    def __init__(self, path: Path, settings: CompileSettings, compiled: Any, load_ms: float) -> None:  # noqa: ANN401
        self.path = path
        self.compiled = compiled
        self.load_ms = load_ms
        advised = int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        self.concurrent_inferences = settings.requests or advised
        self._hint = settings.hint

    def describe(self) -> SessionFacts:
        compiled = self.compiled
        inputs, outputs = (tuple(map(_spec, ports)) for ports in (compiled.inputs, compiled.outputs))
        # The property INFERENCE_PRECISION_HINT is a wish: layers without a kernel for it compute in another type.
        counts: Counter[str] = Counter()
        for node in self.compiled.get_runtime_model().get_ops():
            if execution_facts(node)["layerType"] in _MOVES:
                continue
            precision, basis = precision_of(node, quantizes_activations=self.quantizes_activations)
            # Integers of other layers are indices, shapes and conditions.
            if "float" in precision or execution_facts(node)["layerType"] in _MULTIPLIES:
                counts[precision or basis] += 1
        facts: dict[str, int | str | bool] = {
            "inference_precision": ", ".join(name for name, _ in counts.most_common()),
            "dynamic_quantization": int(compiled.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE")),
            "hint": self._hint,
            "threads": int(compiled.get_property("INFERENCE_NUM_THREADS")),
            "streams": int(compiled.get_property("NUM_STREAMS")),
            "concurrent_inferences": self.concurrent_inferences,
        }
        devices = tuple(compiled.get_property("EXECUTION_DEVICES"))
        return SessionFacts(devices, inputs, outputs, facts=facts)

    @property
    def quantizes_activations(self) -> bool:
        """Return True if layers with packed weights may quantize their activations to int8 (dynamic quantization)."""
        return int(self.compiled.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE")) > 0

    def bind(self, feeds: Mapping[str, Array], on_device: bool = False) -> OpenvinoBinding:
        """Bind inputs by name; outputs are in the host's memory, which is that of the device."""
        return OpenvinoBinding(self, feeds)

    def close(self) -> None:
        """Do nothing: OpenVINO releases the model with the last reference to this session and its bindings."""


class OpenvinoBinding(HostBinding):
    """A compiled model with its inputs bound."""

    def __init__(self, session: OpenvinoSession, feeds: Mapping[str, Array]) -> None:
        self._path, self._compiled = session.path, session.compiled
        self._fed = ", ".join(
            f"{name} {array.dtype.name} {shape_text(array.shape)}" for name, array in sorted(feeds.items())
        )
        self._requests = [session.compiled.create_infer_request() for _ in range(session.concurrent_inferences)]
        self._memory: list[Array] = []
        """Must outlive the requests, which read it."""
        for port in session.compiled.inputs:
            name = name_of(port)
            if name not in feeds:
                raise RequestError(f'{session.path} has an input "{name}", which got no values.')
            self._set(port, name, feeds[name])

    def _set(self, port: Any, name: str, array: Array) -> None:  # noqa: ANN401
        try:
            tensor, memory = _tensor(array, port.get_element_type())
            self._memory.append(memory)
            for request in self._requests:
                request.set_tensor(port, tensor)
        except (RuntimeError, TypeError, ValueError) as error:
            raise RequestError(
                f'input "{name}" of {self._path}: OpenVINO does not accept {array.dtype.name} '
                f"{shape_text(array.shape)}: {one_paragraph(error)}."
            ) from None

    def run(self) -> None:
        """Run the model once, or as many concurrent times as there are requests. Raises `ModelError` if it fails."""
        try:
            if len(self._requests) == 1:
                self._requests[0].infer()
                return
            for request in self._requests:
                request.start_async()
            for request in self._requests:
                request.wait()
        except RuntimeError as error:
            raise ModelError(
                f"{self._path} fails at run time in OpenVINO: {one_paragraph(error)}. Its inputs were {self._fed}."
            ) from None

    def outputs(self) -> dict[str, Array | None]:
        """Return copies of the outputs of the last pass by name."""
        return {name_of(port): _array(self._requests[0].get_tensor(port)) for port in self._compiled.outputs}

    def layer_times(self) -> dict[str, float]:
        """Return layer -> mean ms of all passes since compilation; empty unless its layers are timed.

        The counters are whole microseconds (`PerfCount::avg` in src/plugins/intel_cpu/src/perf_count.h).
        """
        counters = self._requests[0].profiling_info
        times: dict[str, float] = defaultdict(float)
        for counter in counters:
            times[counter.node_name] += counter.real_time.total_seconds() * 1e3
        return dict(times)


def open_model(
    path: Path,
    settings: CompileSettings,
    *,
    count: bool = False,
    prepare: Any = None,  # noqa: ANN401
) -> OpenvinoSession:
    """Compile a model for the CPU; with `count`, its layers are timed. `prepare` may change OpenVINO's graph before.

    Raises `ModelError` for a model that OpenVINO does not load, with the names of operators that it lacks;
    `BackendError` if it would compute in another precision than the requested one.
    """
    started = time.perf_counter()
    try:
        # The frontend for ONNX alone: `Core.read_model` tries those of other frameworks on a file that is no ONNX.
        frontend = FrontEndManager().load_by_framework("onnx")
        graph = frontend.convert(frontend.load(str(path)))
        _refuse_strings(path, graph)
        if prepare is not None:
            prepare(graph)
        if settings.free_dimensions:
            _fix_dimensions(graph, settings, path)
        compiled = ov.Core().compile_model(graph, _DEVICE, {**properties_of(settings), "PERF_COUNT": count})
    except (ModelError, RequestError):
        raise
    except Exception as error:  # the frontend raises its own classes
        raise _refused(path, error) from None
    # OpenVINO replaces some silently: bf16 for f16, f32 for bf16.
    wanted = settings.inference_precision
    used = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if wanted not in ("default", used):
        raise BackendError(
            f"`inference_precision: {wanted}`: OpenVINO {version()} computes in {used} instead on this CPU. Set "
            f"`inference_precision: {used}`, or `f32`."
        )
    return OpenvinoSession(path, settings, compiled, (time.perf_counter() - started) * 1e3)


def properties_of(settings: CompileSettings) -> dict[str, str]:
    """Return the properties that differ from OpenVINO's defaults."""
    given = {
        "PERFORMANCE_HINT": settings.hint.upper(),
        "NUM_STREAMS": settings.streams or None,
        "PERFORMANCE_HINT_NUM_REQUESTS": settings.requests or None,
        "INFERENCE_NUM_THREADS": settings.threads or None,
        "INFERENCE_PRECISION_HINT": None if settings.inference_precision == "default" else settings.inference_precision,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": settings.dynamic_quantization,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def _refuse_strings(path: Path, graph: Any) -> None:  # noqa: ANN401
    """Refuse tensors of strings, whose memory OpenVINO's Python binding does not share."""
    for kind, ports in (("input", graph.inputs), ("output", graph.outputs)):
        for port in ports:
            if port.get_element_type() == ov.Type.string:
                raise ModelError(
                    f'{path} has an {kind} "{name_of(port)}" of strings, which `backend: openvino` does not support: '
                    "use `backend: onnxruntime`."
                )


def _fix_dimensions(graph: Any, settings: CompileSettings, path: Path) -> None:  # noqa: ANN401
    shapes = {spec.name: spec.shape for spec in fix_dimensions(model_inputs(path), settings.free_dimensions)}
    fixed = {}
    for port in graph.inputs:
        shape = shapes.get(name_of(port))
        if shape is not None:
            fixed[port] = ov.PartialShape([size if isinstance(size, int) else -1 for size in shape])
    graph.reshape(fixed)


def _refused(path: Path, error: Exception) -> ModelError:
    if not path.is_file():
        return ModelError(f"there is no model file {path}.")
    operators = _UNKNOWN_OPERATORS.search(str(error))
    if operators:
        names = operators[1].strip().split(", ")
        if {f"{domain}.{name}" for domain, name, _ in load_model(path).functions} & set(names):
            advice = "These are functions of the model, which `edit: {operations: [inline_functions]}` expands."
        else:
            advice = (
                "Extensions of OpenVINO are not loaded; `backend: onnxruntime` has `custom_ops` for libraries of "
                "operators."
            )
        return ModelError(
            f"OpenVINO {version()} rejects {path}: it has no operator {shortened(', '.join(names), _MOST_LETTERS)}. "
            f"{advice}"
        )
    return ModelError(f"OpenVINO {version()} rejects {path}: {one_paragraph(error)}.")


def version() -> str:
    """Return `2026.4.1`, without the number of the build."""
    return str(ov.__version__).partition("-")[0]


def describe_devices() -> str:
    """Return `2026.4.1 on AMD EPYC: BF16, FP32, INT8`. Raises `BackendError` if the CPU plugin does not load."""
    try:
        core = ov.Core()
        name, kinds = (core.get_property(_DEVICE, each) for each in ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES"))
    except RuntimeError as error:
        raise BackendError(f"OpenVINO {version()} has no device {_DEVICE}: {one_paragraph(error)}.") from None
    precisions = sorted(kind for kind in kinds if re.fullmatch(r"[BF]+P?\d+|INT\d+", kind))
    return f"{version()} runs on {name} in {', '.join(precisions)}"


def default_precision() -> str:
    """Return the type in which OpenVINO computes layers of float32 by default on this CPU: `float32` or `bfloat16`."""
    return dtype_name(ov.Core().get_property(_DEVICE, "INFERENCE_PRECISION_HINT").to_string())


def one_paragraph(error: Exception) -> str:
    """Return OpenVINO's message without its source lines and line breaks, shortened."""
    lines = (_SOURCE_LINE.sub("", line).strip() for line in str(error).splitlines())
    return shortened(" ".join(filter(None, lines)).rstrip(".:"), _MOST_LETTERS) or type(error).__name__


def execution_facts(node: Any) -> dict[str, str]:  # noqa: ANN401
    """Return the facts of a node of the graph that runs: `layerType`, `primitiveType`, `runtimePrecision`, ..."""
    return {name: node.rt_info[name].astype(str) for name in node.rt_info}


def precision_of(node: Any, *, quantizes_activations: bool) -> tuple[str, str]:  # noqa: ANN401
    """Return the type in which a node of the graph that runs computes, empty for an unknown one, and the evidence.

    For a product with packed weights, OpenVINO records the type of the weights. The activations may be quantized to
    int8 on the way, which it does not record.
    """
    facts = execution_facts(node)
    recorded = dtype_name(facts["runtimePrecision"])
    if recorded in ("undefined", "dynamic", ""):
        return "", ""
    read = _written_type(node.input(0)) if node.get_input_size() else recorded
    if facts["layerType"] not in _MULTIPLIES or "int" not in recorded or "float" not in read:
        return recorded, "OpenVINO's record of the layer"
    if quantizes_activations:
        return "", f"int8 or {read}: with {recorded} weights, OpenVINO does not record if it quantizes the activations"
    return read, f"input: {read}; {recorded} weights are unpacked"


def _written_type(port: Any) -> str:  # noqa: ANN401
    source = port.get_source_output()
    types = execution_facts(source.get_node())["outputPrecisions"].split(",")
    return dtype_name(types[source.get_index()]) if source.get_index() < len(types) else ""


def dtype_name(element: str) -> str:
    """Return `float32` for `f32`; other names unchanged."""
    return _DTYPES.get(element, element)


def _dtype(element: Any) -> str:  # noqa: ANN401
    return dtype_name(element.get_type_name())


def name_of(port: Any) -> str:  # noqa: ANN401
    """Return the name of an input or output in the ONNX model: a tensor may have those of several."""
    names = port.get_names()
    own: str = port.get_node().get_friendly_name().removesuffix(_RESULT)
    return own if own in names or not names else min(names)


def _spec(port: Any) -> TensorSpec:  # noqa: ANN401
    shape = port.get_partial_shape()
    dims = None if shape.rank.is_dynamic else tuple(size.get_length() if size.is_static else None for size in shape)
    return TensorSpec(name_of(port), _dtype(port.get_element_type()), dims)


def _tensor(array: Array, element: Any) -> tuple[Any, Array]:  # noqa: ANN401
    """Return a tensor and the memory that it reads."""
    packed = np.require(array, requirements=["C", "W"])  # OpenVINO refuses memory that it must not write
    if packed.dtype.isbuiltin == 1:
        return ov.Tensor(packed, shared_memory=True), packed
    # numpy's own types do not include bfloat16 and those of eight and four bits.
    data = pack_elements(packed) if element.bitwidth < 8 else packed.tobytes()
    memory = np.frombuffer(data, np.uint8)
    return ov.Tensor(memory, ov.Shape(packed.shape), element), memory


def _array(tensor: Any) -> Array | None:  # noqa: ANN401
    name = _dtype(tensor.get_element_type())
    dtype = numpy_dtype(name)
    if dtype is None:
        return None
    if dtype.isbuiltin == 1:
        return np.array(tensor.data)
    shape = tuple(tensor.shape)
    data, count = tensor.data.tobytes(), int(np.prod(shape, dtype=np.int64))
    if tensor.get_element_type().bitwidth < 8:
        return unpack_elements(data, count, dtype).reshape(shape)
    return np.frombuffer(data, dtype).reshape(shape)


WARMUP_PASSES = 3
"""Number of passes at the beginning whose times are subtracted."""
_ENOUGH_S = 0.2
"""Minimum duration of the measured passes, so that whole microseconds of a mean are a small error."""
_MOST_PASSES = 1000
_KEPT_TYPES = ("Parameter", "Result")
"""Nodes that keep their names, which are those of the model's inputs and outputs."""


def record_layers(
    model: Path, settings: CompileSettings, feeds: Mapping[str, Array], passes: int, folder: Path, report: ReportPasses
) -> Path | None:
    """Run passes with performance counters and write `layers.json`; None if inferences run concurrently.

    A layer's time is the mean of the passes after the warm-up. Raises `ModelError` or `BackendError` as `open_model`
    does.
    """
    origins: dict[str, list[str]] = {}
    session = open_model(model, settings, count=True, prepare=lambda graph: origins.update(_number(graph)))
    if session.concurrent_inferences != 1:
        return None
    binding = session.bind(feeds)
    for _ in range(WARMUP_PASSES):
        binding.run()
    before = binding.layer_times()
    began, done = time.perf_counter(), 0
    while done < passes or (time.perf_counter() - began < _ENOUGH_S and done < _MOST_PASSES):
        binding.run()
        done += 1
        report(min(done, passes), passes)
    pass_ms = (time.perf_counter() - began) * 1e3 / done
    # OpenVINO reports means over all passes since compilation, the slow first one included.
    times = {
        name: max(0.0, (mean_ms * (WARMUP_PASSES + done) - before.get(name, 0.0) * WARMUP_PASSES) / done)
        for name, mean_ms in binding.layer_times().items()
    }
    recording = folder / "layers.json"
    ran = session.compiled.get_runtime_model().get_ordered_ops()
    nodes = [_describe(node, session.quantizes_activations) for node in ran]
    recording.write_text(json.dumps({"origins": origins, "nodes": nodes, "times": times, "pass_ms": pass_ms}))
    return recording


def _number(graph: Any) -> dict[str, list[str]]:  # noqa: ANN401
    """Give each operation a number for a name; return the number -> the tensors of the model that it computes.

    Friendly names of a model's nodes may contain anything, and OpenVINO joins those of a fused layer by commas.
    `layer_pass` finds the nodes by the numbers. An operation without a tensor of the model is part of the computation
    of those that read it.
    """
    origins: dict[str, list[str]] = {}
    for position, operation in enumerate(reversed(graph.get_ordered_ops())):
        tensors = {name: None for port in operation.outputs() for name in sorted(port.get_names())}
        if not tensors:
            readers = [each.get_node() for port in operation.outputs() for each in port.get_target_inputs()]
            tensors = {name: None for node in readers for name in origins.get(node.get_friendly_name(), ())}
        if operation.get_type_name() in _KEPT_TYPES:
            continue
        number = f"#{position}"
        operation.set_friendly_name(number)
        origins[number] = list(tensors)
    return origins


def _describe(node: Any, quantizes_activations: bool) -> dict[str, Any]:  # noqa: ANN401
    facts = execution_facts(node)
    dtypes, shapes = facts["outputPrecisions"].split(","), [port.get_partial_shape() for port in node.outputs()]
    return {
        "name": node.get_friendly_name(),
        "type": facts["layerType"],
        "origins": facts["originalLayersNames"].split(","),
        "precision": precision_of(node, quantizes_activations=quantizes_activations),
        "kernel": facts["primitiveType"],
        "reads": [
            [source.get_node().get_friendly_name(), source.get_index()]
            for source in (port.get_source_output() for port in node.inputs())
        ],
        "writes": [
            {
                "dtype": dtype_name(dtypes[index]) if index < len(dtypes) else "",
                "shape": list(shape.to_shape()) if shape.is_static else None,
            }
            for index, shape in enumerate(shapes)
        ],
    }
