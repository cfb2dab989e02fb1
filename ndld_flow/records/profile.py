"""The common document of profiles from all runtimes and tools, and the removal of impossible numbers from it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Literal, TypeVar

from pydantic import JsonValue

from ndld_flow.records.document import Document, Record, Time
from ndld_flow.records.layer_arithmetic import FLOAT_DTYPES, TENSOR_CORE, LayerFacts, MultiplyUnit, Operand, conclude
from ndld_flow.records.measurement import LatencySummary, Machine, Metric, cpus_used_by_others


class TensorInfo(Record):
    """One input or output, as measured."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: str = ""
    """Origin of the values."""
    format: str = ""
    """Memory layout, by TensorRT's names: `linear`, `chw32`, `hwc8`; empty if it is not recorded."""

    @property
    def layout(self) -> str:
        """Its type and memory layout, as far as they are recorded: `float16 hwc8`."""
        return f"{self.dtype} {self.format}".strip()


class ProfileRun(Record):
    """One process run of the timing pass, without a profiler: every sample, in order.

    Statistics use the process run, not the pass, as the unit: passes of one process are correlated.
    """

    latency_ms: tuple[float, ...]
    load_ms: float = 0.0
    """Time to create the session or load the engine."""
    first_pass_ms: float = 0.0
    """Duration of the process's first pass, which is part of the warm-up; 0 if it was not timed."""
    new_size_ms: tuple[float, ...] = ()
    """Duration of the first pass at each further size, if samples of several sizes take turns."""
    peak_memory_bytes: int = 0
    started_s: float = 0.0
    """Start of its first measured pass, in seconds after the first run of all that were measured in turns."""
    starts_ms: tuple[float, ...] = ()
    """Start of each pass, relative to the first pass of this run; empty if it is not recorded."""
    enqueue_ms: tuple[float, ...] = ()
    """Host time to launch each pass; this and the following are empty if they are not recorded."""
    h2d_ms: tuple[float, ...] = ()
    """Copy of the inputs to the device."""
    compute_ms: tuple[float, ...] = ()
    """Time on the device without copies."""
    d2h_ms: tuple[float, ...] = ()
    """Copy of the outputs from the device."""

    @property
    def median_ms(self) -> float:
        return statistics.median(self.latency_ms)


class BatchPoint(Record):
    """The timing pass at another batch size."""

    batch: int
    inputs: tuple[TensorInfo, ...]
    latency_ms: tuple[float, ...]
    """Latency of the whole batch, every sample in order."""

    @cached_property
    def latency(self) -> LatencySummary:
        return LatencySummary.of(self.latency_ms)

    @property
    def items_per_s(self) -> float:
        """Throughput at the median latency, in items (not batches) per second."""
        return self.batch * self.latency.throughput_per_s


LayerRole = Literal["compute", "reformat", "cast", "quantize", "copy", "control", "sync"]
"""The purpose of a layer: `reformat` changes a tensor's layout, `quantize` is a separate QuantizeLinear or
DequantizeLinear, `copy` moves a tensor between devices, `control` runs bodies (If, Loop, Scan), `sync` lets streams
wait."""


class LayerWeight(Record):
    """A constant of the model that a layer reads: it identifies the layer independently of its name."""

    name: str = ""
    """Name in the model; empty if it was not recorded."""
    shape: tuple[int, ...] = ()
    """Shape in the model; only the number of elements if nothing else was recorded."""
    digest: str = ""
    """Digest of its type, shape and a sample of its values; empty if they were not read."""


class Layer(Record):
    """One executed kernel or layer."""

    index: int
    """Position in execution order."""
    name: str
    type: str
    provider: str = ""
    precision: str = ""
    """Element type in which it computes, such as `int8`; `float32 to int8` if it only converts; empty for unknown."""
    precision_basis: str = ""
    """Evidence for the precision, or the reason why it is not known."""
    unit: MultiplyUnit = ""
    """Circuit that multiplies, as far as the kernel's name reveals it."""
    weights_dtype: str = ""
    """Element type of its weights; empty if there are none, or none are recorded."""
    groups: int | None = None
    """Groups of a convolution, as many as channels for a depthwise one; None if they are not recorded."""
    asked_precision: str = ""
    """Precision that `constrain_precision` requested for its nodes, such as `fp32`; several are joined by `, `."""
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    onnx_nodes: tuple[str, ...] = ()
    """Names of the nodes of the profiled model from which it was created."""
    depth: int = 0
    """0 for the main graph, 1 for a body of If/Loop/Scan, ..."""
    samples_ms: tuple[float, ...]
    """Self time (without nested layers), one sample for each pass of the layer pass, process run after process run."""
    role: LayerRole = "compute"
    tactic: str = ""
    """Kernel that the backend chose, by the backend's name."""
    stream: int | None = None
    macs: int | None = None
    """Multiply-accumulate operations of one pass; None if they are not known."""
    read_bytes: int = 0
    """Size of its inputs, weights included, each time it runs in a pass; 0 if shapes are not known."""
    written_bytes: int = 0
    weight_bytes: int = 0
    """The weights among its inputs, counted once however often it runs."""
    weights: tuple[LayerWeight, ...] = ()
    """Constants of those nodes; empty if they were not recorded."""
    attributes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Window of the convolution or pooling: `kernel_shape`, `strides`, `dilations`, `group`, as ONNX names them."""
    activation: str = ""
    """Activation fused into the layer, such as `relu`; empty if there is none, or it is not recorded."""

    @property
    def purpose(self) -> str:
        """Its role, or `eliminated`: TensorRT lists a layer that it removed as a NoOp, which takes no time."""
        return "eliminated" if self.type == "NoOp" and not median(self.samples_ms or (0.0,)) else self.role

    @property
    def input_precision(self) -> str:
        """Distinct element types of its inputs: `int8`, or `int8 + float16` for a layer that adds a residual."""
        known = [tensor.dtype for tensor in self.inputs if tensor.dtype]
        # An operator of ONNX Runtime also reads scales, weights and indices: only the first input is data.
        return " + ".join(dict.fromkeys(known[:1] if self.provider else known))

    @property
    def output_precision(self) -> str:
        """Distinct element types of its outputs."""
        return " + ".join(dict.fromkeys(tensor.dtype for tensor in self.outputs if tensor.dtype))

    @property
    def formats(self) -> str:
        """Types and memory layouts of its inputs and outputs: `float16 hwc8 -> float16 hwc8`."""
        return " -> ".join(", ".join(tensor.layout for tensor in side) for side in (self.inputs, self.outputs))

    @property
    def on_tensor_cores(self) -> bool | None:
        """None if the multiply unit is not known."""
        return self.unit.startswith(TENSOR_CORE) if self.unit else None

    @property
    def misses_requested_precision(self) -> bool:
        """True if it is known to compute in a type other than the only requested floating-point type."""
        wanted = FLOAT_DTYPES.get(self.asked_precision, self.precision)
        return self.precision != wanted and self.precision in (*FLOAT_DTYPES.values(), "int8", "float8_e4m3fn")

    def with_arithmetic(self) -> Layer:
        """Return the layer with precision, evidence and multiply unit derived from its other fields."""
        arithmetic = conclude(
            LayerFacts(
                self.name,
                self.type,
                self.role,
                self.provider,
                self.tactic,
                self.weights_dtype,
                [Operand(tensor.dtype, tensor.shape) for tensor in self.inputs],
                [Operand(tensor.dtype, tensor.shape) for tensor in self.outputs],
            )
        )
        return self.model_copy(
            update={"precision": arithmetic.precision, "precision_basis": arithmetic.basis, "unit": arithmetic.unit}
        )


class Span(Record):
    """A piece of the timeline: one layer, copy or pause, in one pass."""

    lane: str
    """The active resource: `CPU`, `CPU thread 2`, `stream 1`, `H2D`, `compute`, `D2H`, `enqueue`."""
    name: str
    start_ms: float
    """After the beginning of the pass."""
    duration_ms: float
    """Nested spans included."""
    kind: Literal["layer", "overhead", "transfer", "pass"] = "layer"
    layer: int | None = None
    """Position in `Profile.layers`."""
    depth: int = 0
    """1 for spans within a span of depth 0, ..."""


class Roofs(Record):
    """Peak rates of the device, measured with the same backend and threads: the roofs of a roofline."""

    macs_per_s: float
    bytes_per_s: float
    how: str
    """Description of the measurement."""
    dtype: str = ""
    """Element type that was multiplied; empty if it is not recorded."""


@dataclass(frozen=True)
class TensorCoreShares:
    """Shares of the time of all layers, 0 to 1, that add up to 1."""

    on: float
    """In kernels that are known to multiply on tensor cores."""
    off: float
    """In layers that are known to use none: other kernels, and layers that multiply no matrices."""
    unknown: float

    @property
    def metrics(self) -> dict[str, Metric]:
        """Return the shares by their names in gates."""
        shares = {"share": self.on, "off_share": self.off, "unknown_share": self.unknown}
        return {f"tensor_cores.{name}": Metric(value=value) for name, value in shares.items()}


class RuntimeTraits(Record):
    """Facts of the runtime by which its profiles are compared and judged, stated by the runtime itself."""

    library: str = ""
    """The library that runs the model, without its build (`onnxruntime`, not `onnxruntime-gpu`); empty if unknown."""
    runs_engine: bool = False
    """It runs a file that was built from the model."""
    on_gpu: bool | None = None
    """A GPU, or another device than the CPU, ran the model; None if it is unknown."""
    separates_copies: bool = False
    """Its passes never include copies between the host and the device."""
    inserts_casts: bool = False
    """It casts to float32 and back where the device has no kernel for half precision."""
    times_layers_on_host: bool = False
    """Layers are timed by the host's clock, which does not wait for a device."""


class LayerTimes:
    """The times of layers: of each, the median over process runs of the medians of its passes.

    They add up: the time of several layers is the sum of theirs, as is `layers.sum`, so that shares, groups and changes
    of layers explain all of it. Impossible samples are left out.
    """

    def __init__(self, layers: Sequence[Layer], layer_runs: Sequence[int] = ()) -> None:
        cuts = list(pairwise([0, *accumulate(layer_runs)]))
        self.in_runs = [_run_medians(layer.samples_ms, cuts) for layer in layers]
        """For each layer, its median in each process run; empty without samples."""
        self.ms = tuple(median(runs) if runs else 0.0 for runs in self.in_runs)
        """For each layer, its time; 0 without samples."""

    def sum_ms(self, positions: Iterable[int]) -> float:
        """Return the time of these layers together."""
        return math.fsum(self.ms[position] for position in positions)

    def sums_in_runs(self, positions: Iterable[int]) -> list[float]:
        """Return the sum of these layers in each process run; empty if one was not measured."""
        return [math.fsum(run) for run in zip(*(self.in_runs[position] for position in positions), strict=False)]


def _run_medians(samples: Sequence[float], cuts: Sequence[tuple[int, int]]) -> list[float]:
    cuts = cuts or [(0, len(samples))]
    if _are_times(samples):
        return [median(samples[start:end]) for start, end in cuts if start < min(end, len(samples))]
    parts = (list(filter(_is_time, samples[start:end])) for start, end in cuts)
    return [median(part) for part in parts if part]


def median(values: Sequence[float]) -> float:
    """Return the median in a quarter of the time of `statistics.median`; it is called hundreds of thousands of
    times."""
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class Profile(Document):
    """The measurements of one model by `profile`. The timing pass and the layer pass are separate."""

    document: Literal["profile"] = "profile"
    format_version: int = 8
    file_name = "profile.json"
    label: str
    """Display name of the model: the step's name, `source`, a file."""
    model_digest: str
    """Empty if the model is not known."""
    engine_digest: str = ""
    """Digest of the engine that ran; empty without an engine, or if it is unknown."""
    backend: str
    """`onnxruntime`, `tensorrt`, `tensorrt_rtx`, `trtexec`."""
    runtime: RuntimeTraits = RuntimeTraits()
    providers: tuple[str, ...] = ()
    """Execution providers that ran, most preferred first."""
    machine: Machine
    versions: dict[str, str]
    options: dict[str, JsonValue]
    """Every setting in effect, defaults included."""
    conditions: dict[str, JsonValue] = {}
    """Load, governor, threads: the state of the machine around the measurement."""
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    input_digests: dict[str, str] = {}
    """Input -> digest of its values, for values from a file, which a path does not identify."""
    profiler: Literal["on", "off", ""] = ""
    """`on` if a profiler that observes layers was attached in the timing pass; empty if unknown."""
    warmup_passes: int
    warmup_ms: float
    runs: tuple[ProfileRun, ...]
    sequence_steps: int = 0
    """Number of steps of the sequence that the passes of each run repeat, starting with the first; 0 if every pass has
    the same inputs."""
    batches: tuple[BatchPoint, ...] = ()
    """The batch sweep, in the requested order."""
    layers: tuple[Layer, ...] = ()
    layer_runs: tuple[int, ...] = ()
    """Number of passes of the layer pass in each process run; their sum is the number of a layer's samples."""
    timeline: tuple[Span, ...] = ()
    """One pass, in order of start."""
    timeline_basis: str = ""
    """The pass that the timeline shows, or the sources from which it was assembled."""
    roofs: Roofs | None = None
    measured_at: Time | None = None
    """Start of the first run; None if it is unknown."""
    session: str = ""
    """Equal for profiles that were measured in turns (A B A B ...): their runs may be compared in pairs."""
    layer_pass_ms: tuple[float, ...] = ()
    """Whole-pass latency of each pass of the layer pass, profiler on: its ratio to `runs` is the overhead."""
    layers_wait_for_device: bool = False
    """Each layer of the layer pass waited until the device had computed it, so that the host's clock measures it."""
    peak_memory_bytes: int = 0
    """Median of the process runs, as of the time to load; 0 if it is unknown."""
    stopped_because: str = ""
    """Reason, such as `stable: ±1.2 % after 5 runs`, `budget of 30 s used: ±5.1 % after 14 runs`, `runs done`."""
    notes: tuple[str, ...] = ()

    @property
    def is_export(self) -> bool:
        """True if another program measured: its exports do not record the system, which ndld-flow always does."""
        return not self.machine.system

    @property
    def runs_engine(self) -> bool:
        """True if an engine ran that was built from the model; what other programs export lacks its digest."""
        return bool(self.engine_digest) or self.runtime.runs_engine

    @property
    def artifact_digest(self) -> str:
        """Digest of the engine or model that ran; empty where it is unknown."""
        return self.engine_digest if self.runs_engine else self.model_digest

    @property
    def may_use_gpu(self) -> bool:
        """True unless the profile records that no GPU ran the model."""
        return self.runs_engine or self.runtime.on_gpu is not False

    def device_fact(self, name: str) -> int | str | bool | None:
        """Return a fact that the runtime reported of the open model (`SessionFacts.facts`); None if it did not."""
        device = self.conditions.get("device")
        value = device.get(name) if isinstance(device, dict) else None
        return value if isinstance(value, int | str) else None

    @property
    def new_size_ms(self) -> float | None:
        """Return the median of the first passes at sizes that were new to a process; None without such."""
        times = [ms for run in self.runs for ms in run.new_size_ms]
        return statistics.median(times) if times else None

    @property
    def share_used_by_others(self) -> float:
        """Share of the CPUs that other processes and the host used while it was measured; 0 if it is not recorded."""
        return cpus_used_by_others(self.conditions.get("during")) / (self.machine.cpu_count or 1)

    @property
    def concurrent_inferences(self) -> int:
        """Number of inferences in one pass."""
        reported = self.device_fact("concurrent_inferences")
        # Engines have a setting for it, whose value is exact.
        count = self.options.get("streams", 1) if reported is None else reported
        return count if isinstance(count, int) and count > 0 else 1

    @cached_property
    def latency_ms(self) -> tuple[float, ...]:
        """All samples of the timing pass, in order."""
        return tuple(sample for run in self.runs for sample in run.latency_ms)

    @cached_property
    def latency(self) -> LatencySummary:
        """Statistics of the timing pass; the median is that of the runs' medians."""
        return LatencySummary.of_runs([run.latency_ms for run in self.runs])

    @property
    def first_step(self) -> LatencySummary | None:
        """Statistics of the first steps of a sequence (the prefill of a decoder); None without a sequence."""
        return self.steps_latency(range(1))

    @property
    def later_steps(self) -> LatencySummary | None:
        """Statistics of all other steps (the decoding of a decoder); None without a sequence."""
        return self.steps_latency(range(1, self.sequence_steps))

    def steps_latency(self, steps: range) -> LatencySummary | None:
        """Return statistics of some steps of a sequence, counted from 0; None if none of them was measured."""
        if not self.sequence_steps:
            return None
        runs = [
            tuple(ms for index, ms in enumerate(run.latency_ms) if index % self.sequence_steps in steps)
            for run in self.runs
        ]
        known = [samples for samples in runs if samples]
        return LatencySummary.of_runs(known) if known else None

    @property
    def throughput_per_s(self) -> float:
        """Inferences per second at the median latency."""
        return self.latency.throughput_per_s * self.concurrent_inferences

    @cached_property
    def layer_times(self) -> LayerTimes:
        return LayerTimes(self.layers, self.layer_runs)

    @property
    def layers_sum_ms(self) -> float:
        """The time of all layers; 0 without a layer pass."""
        return math.fsum(self.layer_times.ms)

    @property
    def tensor_cores(self) -> TensorCoreShares | None:
        """Shares of the layers' time by multiply unit; None without times, or if no unit is known."""
        spent = {True: 0.0, False: 0.0, None: 0.0}
        for layer, time_ms in zip(self.layers, self.layer_times.ms, strict=True):
            spent[layer.on_tensor_cores] += time_ms
        total = sum(spent.values())
        if not total < math.inf or total <= 0 or not any(layer.unit not in ("", "none") for layer in self.layers):
            return None
        return TensorCoreShares(spent[True] / total, spent[False] / total, spent[None] / total)

    @property
    def profiler_overhead(self) -> float:
        """Ratio of the median latency with ONNX Runtime's profiler to that without; 0 without one of them."""
        if not self.layer_pass_ms or not self.latency_ms or not self.latency.median_ms:
            return 0.0
        return LatencySummary.of(self.layer_pass_ms).median_ms / self.latency.median_ms

    def usable(self) -> Profile:
        """Return the profile as it is if its latencies are possible; else without impossible values."""
        return self if _are_times(self.latency_ms) else self.possible()

    def possible(self) -> Profile:
        """Return the profile without impossible values: itself, if it has none."""
        return without_impossible_values(self) if self._has_impossible_values else self

    @cached_property
    def _has_impossible_values(self) -> bool:
        return without_impossible_values(self) is not self


_LONGEST_MS = 1e12
"""Longest plausible time: thirty years."""
_MOST = 10**18
"""Maximum bytes or operations of a pass; larger values are impossible."""
_LANES = ("latency_ms", "enqueue_ms", "h2d_ms", "compute_ms", "d2h_ms")
_COUNTS = ("read_bytes", "written_bytes", "weight_bytes")


def without_impossible_values(profile: Profile) -> Profile:
    """Return a profile without impossible values; the same object if there are none.

    Negative and non-finite samples of runs are removed; those of layers, and sizes, become 0. Impossible roofs become
    unknown.
    """
    roofs = profile.roofs
    changed: dict[str, Any] = {
        "runs": tuple(_with_times(run, _LANES) for run in profile.runs),
        "batches": tuple(_with_times(point, ("latency_ms",)) for point in profile.batches),
        "layers": tuple(map(_layer, profile.layers)),
        "layer_pass_ms": _kept(profile.layer_pass_ms),
        "roofs": roofs if roofs and 0 < roofs.macs_per_s <= _MOST and 0 < roofs.bytes_per_s <= _MOST else None,
    }
    # Parts without such values are the same objects, so that nothing is compared field by field.
    same = all(value == getattr(profile, name) for name, value in changed.items())
    return profile if same else profile.model_copy(update=changed)


def _is_time(sample: float) -> bool:
    return 0 <= sample <= _LONGEST_MS


def _are_times(samples: Sequence[float]) -> bool:
    """Return whether all samples are times. Avoids a Python loop over millions of samples: a sum with NaN is NaN."""
    if not samples or (sum(samples) <= _LONGEST_MS and min(samples) >= 0):
        return True
    return all(map(_is_time, samples))


def _kept(samples: tuple[float, ...]) -> tuple[float, ...]:
    return samples if _are_times(samples) else tuple(filter(_is_time, samples))


_Timed = TypeVar("_Timed", ProfileRun, BatchPoint)


def _with_times(timed: _Timed, lanes: Sequence[str]) -> _Timed:
    if all(_are_times(getattr(timed, lane)) for lane in lanes):
        return timed
    return timed.model_copy(update={lane: _kept(getattr(timed, lane)) for lane in lanes})


def _layer(layer: Layer) -> Layer:
    changed: dict[str, Any] = {name: 0 for name in _COUNTS if not 0 <= getattr(layer, name) <= _MOST}
    if not _are_times(layer.samples_ms):
        changed["samples_ms"] = tuple(sample if _is_time(sample) else 0.0 for sample in layer.samples_ms)
    if not 0 <= (layer.macs or 0) <= _MOST:
        changed["macs"] = None
    for name, tensors in (("inputs", layer.inputs), ("outputs", layer.outputs)):
        if not all(map(_has_shape, tensors)):
            changed[name] = tuple(
                tensor if _has_shape(tensor) else tensor.model_copy(update={"shape": ()}) for tensor in tensors
            )
    return layer.model_copy(update=changed) if changed else layer


def _has_shape(tensor: TensorInfo) -> bool:
    shape = tensor.shape
    return not shape or (min(shape) >= 0 and max(shape) <= _MOST)
