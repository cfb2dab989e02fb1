"""One common document for what a profile measured, whatever measured it."""

from __future__ import annotations

from pydantic import JsonValue

from ndld_flow.records.base import Record
from ndld_flow.records.latency import LatencySummary
from ndld_flow.records.machine import Machine


class TensorInfo(Record):
    """One input or output as it was when measured."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: str = ""
    """How the values came to be."""


class ProfileRun(Record):
    """One process run (or session) of the timing pass, without a profiler: every sample, in order."""

    latency_ms: tuple[float, ...]
    load_ms: float = 0.0
    """Time to create the session or load the engine."""


class BatchPoint(Record):
    """The timing pass at another batch size."""

    batch: int
    inputs: tuple[TensorInfo, ...]
    latency_ms: tuple[float, ...]
    """Of the whole batch, every sample in order."""

    @property
    def latency(self) -> LatencySummary:
        return LatencySummary.of(self.latency_ms)

    @property
    def items_per_s(self) -> float:
        """Throughput at the median latency, in items (not batches) a second."""
        return self.batch * self.latency.throughput_per_s


class Layer(Record):
    """One executed kernel or layer."""

    index: int
    """Position in execution order."""
    name: str
    type: str
    provider: str = ""
    precision: str = ""
    """dtype of its first output, as `float32`."""
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    onnx_nodes: tuple[str, ...] = ()
    """Names of the nodes of the profiled model it came from."""
    depth: int = 0
    """0 for the main graph, 1 for a body of If/Loop/Scan, ..."""
    samples_ms: tuple[float, ...]
    """Self time (without nested layers), one sample for each pass of the layer pass."""


class Profile(Record):
    """What was measured on one model. The timing pass and the layer pass are separate."""

    format_version: int = 1
    label: str
    """What was measured, as a person calls it: the step's name, `source`, a file."""
    model_digest: str
    backend: str
    """`onnxruntime`, `tensorrt`, `tensorrt_rtx`, `trtexec`."""
    providers: tuple[str, ...] = ()
    """Execution providers that really ran, most wanted first."""
    machine: Machine
    versions: dict[str, str]
    options: dict[str, JsonValue]
    """Every setting that was in force, defaults included."""
    conditions: dict[str, JsonValue] = {}
    """Load, governor, threads: what the machine was like around the measurement."""
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    warmup_passes: int
    warmup_ms: float
    runs: tuple[ProfileRun, ...]
    batches: tuple[BatchPoint, ...] = ()
    """The batch sweep, in the order asked for."""
    layers: tuple[Layer, ...] = ()
    layer_pass_ms: tuple[float, ...] = ()
    """Whole-pass latency of each pass of the layer pass, profiler on: its ratio to `runs` is the overhead."""
    peak_memory_bytes: int = 0
    stopped_because: str = ""
    """`passes done`, `duration reached`, `stable`."""
    notes: tuple[str, ...] = ()

    @property
    def latency_ms(self) -> tuple[float, ...]:
        """All samples of the timing pass, in order."""
        return tuple(sample for run in self.runs for sample in run.latency_ms)

    @property
    def latency(self) -> LatencySummary:
        """The timing pass in numbers, the median pass among them."""
        return LatencySummary.of(self.latency_ms)

    @property
    def layers_sum_ms(self) -> float:
        """Median over the passes of the layer pass of what all layers took; 0 without a layer pass."""
        sums = [sum(samples) for samples in zip(*(layer.samples_ms for layer in self.layers), strict=True)]
        return LatencySummary.of(sums).median_ms if sums else 0.0

    @property
    def profiler_overhead(self) -> float:
        """Median latency with ONNX Runtime's profiler on, over the one without; 0 without a layer pass."""
        if not self.layer_pass_ms:
            return 0.0
        return LatencySummary.of(self.layer_pass_ms).median_ms / self.latency.median_ms
