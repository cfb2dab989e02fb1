"""Requests to open a model in ONNX Runtime, and the roofs of its device."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from ndld_flow.base.errors import BackendError, ModelError
from ndld_flow.machine.versions import read_version
from ndld_flow.models.tensors import Array, TensorSpec, fix_dimensions
from ndld_flow.runtimes.onnxruntime.execution_providers import CPU, full_name
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import OnnxruntimeSession, SessionSettings, open_model
from ndld_flow.runtimes.protocol import (
    SEPARATE_COPIES,
    LayerPass,
    PrivatePackages,
    RecordingPlan,
    ReportPasses,
    RuntimeNames,
    SessionFacts,
    SessionRequest,
    Timing,
)

if TYPE_CHECKING:
    from ndld_flow.records.profile import Layer, Roofs, RuntimeTraits

_ENOUGH_S = 0.05
"""Seconds for measuring each operation; the best pass counts."""
_ONE_PASS_S = 0.003
"""Seconds of a pass that is long enough to make its launch overhead negligible."""
_FEWEST = 3
_ELEMENTS = {"float32": "float", "float16": "float16"}
_SIDES = (512, 1024, 2048, 4096, 8192)
"""Sides of the matrices."""
_ROWS, _COLUMNS = (4096, 16384, 65536), 4096
"""Sizes of arrays that exceed every CPU cache."""
_measured: dict[str, Roofs | None] = {}


def measure_roofs(settings: SessionSettings, layers: Sequence[Layer] = ()) -> Roofs | None:
    """Return the device's peak performance: the best passes in about 0.3 s, measured once for the same settings.

    These are the roofs of a roofline (Williams, Waterman and Patterson, 2009, https://doi.org/10.1145/1498765.1498785),
    measured with a large matrix product and a large elementwise operation in ONNX Runtime, with the model's provider
    and threads, under the current load. The precision is float16 if the provider computes most of these layers'
    products in it, else float32. None if the provider can run neither operation.
    """
    plain = replace(settings, free_dimensions={}, profile_prefix=None, optimized_model=None, execution="sequential")
    macs: Counter[str] = Counter()
    for layer in layers:
        macs[layer.precision] += layer.macs or 0
    dtype = max(macs, key=macs.__getitem__, default="")
    if dtype not in _ELEMENTS or full_name(settings.provider) == CPU:
        dtype = "float32"  # ONNX Runtime's CPU kernels compute float16 in float32, with casts around
    key = f"{plain} {dtype}"
    if key not in _measured:
        _measured[key] = _measure(plain, dtype)
    return _measured[key]


def _measure(settings: SessionSettings, dtype: str) -> Roofs | None:
    from ndld_flow.base.quantities import count
    from ndld_flow.records.profile import Roofs

    try:
        with tempfile.TemporaryDirectory(prefix="ndld-flow-roofs-") as folder:
            model = open_model(_write_model(Path(folder) / "roofs.onnx", dtype, "MatMul"), settings)
            side, product_s = _best_of(model, dtype, [(side, side) for side in _SIDES])
            model = open_model(_write_model(Path(folder) / "copy.onnx", dtype, "Add"), settings)
            rows, sum_s = _best_of(model, dtype, [(rows, _COLUMNS) for rows in _ROWS])
    except (ModelError, BackendError):  # the profile is valid without roofs
        return None
    moved = 3 * rows * _COLUMNS * np.dtype(dtype).itemsize
    return Roofs(
        macs_per_s=side**3 / product_s,
        bytes_per_s=moved / sum_s,
        dtype=dtype,
        how=(
            f"best of several passes in ONNX Runtime with the same provider and threads: product of two {dtype} "
            f"matrices of {count(side)}x{count(side)}, sum of two of {count(rows)}x{count(_COLUMNS)}"
        ),
    )


def _write_model(path: Path, dtype: str, op_type: str) -> Path:
    import onnx

    element, (a, b) = _ELEMENTS[dtype], ("m, k", "k, n") if op_type == "MatMul" else ("m, n", "m, n")
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> roof ({element}[{a}] a, {element}[{b}] b) => ({element}[m, n] y) '
        f"{{ y = {op_type}(a, b) }}"
    )
    onnx.save(model, path)
    return path


def _best_of(model: OnnxruntimeSession, dtype: str, shapes: Sequence[tuple[int, int]]) -> tuple[int, float]:
    """Return the rows of the first shape whose pass is long enough, or else of the last, and its shortest time."""
    shape = next((each for each in shapes[:-1] if _best(model, each, dtype, 0.0) >= _ONE_PASS_S), shapes[-1])
    return shape[0], _best(model, shape, dtype, _ENOUGH_S)


def _best(model: OnnxruntimeSession, shape: tuple[int, int], dtype: str, enough_s: float) -> float:
    """Return the seconds of the best pass, of three or as many as `enough_s` allows."""
    # Two arrays: ONNX Runtime reads them in place, and a shared one would be read from memory only once.
    binding = model.bind({"a": np.full(shape, 0.5, dtype), "b": np.full(shape, 0.5, dtype)}, on_device=True)
    best, passes = float("inf"), 0
    started = time.perf_counter()
    while passes < _FEWEST or time.perf_counter() - started < enough_s:
        before = time.perf_counter()
        binding.run()
        best = min(best, time.perf_counter() - before)
        passes += 1
    return best


_ON_NVIDIA = ("CUDAExecutionProvider", "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider")


@dataclass(frozen=True)
class OnnxruntimeRequest(SessionSettings, PrivatePackages, SessionRequest):
    """A model to open in ONNX Runtime, with the settings of its session."""

    runtime: ClassVar[str] = "onnxruntime"

    @property
    def needs_process(self) -> bool:
        # Only a process's first session decides on denormal numbers, and for all other code in the process too.
        return self.flush_denormals or super().needs_process

    def names(self) -> RuntimeNames:
        advice = "Try another provider or optimization, or fewer threads"
        return RuntimeNames("onnxruntime", "ONNX Runtime", self.provider, advice)

    def open(self, model: Path) -> OnnxruntimeSession:
        session = open_model(model, self)
        self.check_imported("onnxruntime")
        return session

    def open_changed(self, model: Path, changed: bytes) -> OnnxruntimeSession:
        session = open_model(model, self, changed)
        self.check_imported("onnxruntime")
        return session

    def brief(self) -> Self:
        return replace(self, memory_reuse=False)

    def in_turns(self) -> Self:
        return replace(self, spins="in turns")

    def timed(self) -> Self:
        return replace(self, spins="always")

    def unfused(self) -> Self:
        return replace(self, optimization="disabled")

    def in_floats(self) -> Self:
        return replace(self, optimization="basic", integer_kernels=False)

    def record_layers(
        self, model: Path, feeds: Mapping[str, Array], plan: RecordingPlan, folder: Path, report: ReportPasses
    ) -> Path:
        from ndld_flow.runtimes.onnxruntime.layer_recording import record_layers

        return record_layers(model, self, feeds, plan, folder, report)

    def measured_gpu(self) -> int | None:
        if self.provider_library is not None:
            return None
        return None if full_name(self.provider) == CPU else int(self.provider_options.get("device_id", 0))

    def declared_inputs(self, model: Path) -> tuple[TensorSpec, ...]:
        return fix_dimensions(super().declared_inputs(model), self.free_dimensions)

    def library_versions(self, reported: Mapping[str, str]) -> dict[str, str]:
        private = self.private_versions("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml")
        distribution, _, version = read_version("onnxruntime").partition(" ")
        return private or {distribution: version}

    def traits(self, devices: Sequence[str]) -> RuntimeTraits:
        from ndld_flow.profiles.read.onnxruntime_profile import onnxruntime_traits

        return onnxruntime_traits(devices)

    def notes(self, facts: SessionFacts, *, copied: bool) -> Iterator[str]:
        if facts.devices[0] != CPU:
            yield "peak memory is the host's: memory of the device is not counted"
        if copied:
            yield SEPARATE_COPIES

    def plan_recording(self, model: Path, passes: int) -> RecordingPlan:
        from ndld_flow.runtimes.onnxruntime.layer_pass import count_events

        # ONNX Runtime's profiler reads the host's clock: unless each launch on an NVIDIA GPU waits for its kernel, a
        # layer's time is that of its launch, and a layer that waits has the time of those before it.
        captures = any("cuda_graph" in name for name in self.provider_options)
        known = self.provider_library is None
        waits = known and full_name(self.provider) in _ON_NVIDIA and not captures
        return RecordingPlan(passes, count_events(model), environment={"CUDA_LAUNCH_BLOCKING": "1"} if waits else {})

    def read_layers(
        self, model: Path, recordings: Sequence[Path], plan: RecordingPlan, timings: Sequence[Timing]
    ) -> LayerPass:
        from ndld_flow.runtimes.onnxruntime.layer_pass import read_layers

        optimized = self.executed_graph(recordings)
        return read_layers(model, recordings, optimized, plan, parallel=self.execution == "parallel")

    def executed_graph(self, recordings: Sequence[Path]) -> Path | None:
        from ndld_flow.runtimes.onnxruntime.layer_recording import OPTIMIZED

        optimized = recordings[0].parent / OPTIMIZED
        return optimized if optimized.is_file() else None

    def measure_roofs(self, layers: Sequence[Layer]) -> Roofs | None:
        return None if self.provider_library is not None else measure_roofs(self, layers)
