"""One common document for what a profile measured, whatever measured it."""

from __future__ import annotations

from pydantic import JsonValue

from ndld_flow.records.base import Record
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
