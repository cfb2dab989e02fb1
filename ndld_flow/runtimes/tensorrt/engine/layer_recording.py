"""Recording of an engine's layers: passes with TensorRT's profiler on, and the output of the engine inspector.

`engine_layers` reads the recordings, in another process.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ndld_flow.base.errors import BackendError
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.protocol import ReportPasses
from ndld_flow.runtimes.tensorrt.engine.engine_session import open_engine
from ndld_flow.runtimes.tensorrt.engine.engine_settings import EngineSettings
from ndld_flow.runtimes.tensorrt.library import import_bindings

INSPECTED = "engine.json"
"""The output of the engine inspector at these shapes, in the folder of a recording."""
WARMUP_PASSES = 2


@dataclass
class Recording:
    """Passes with the profiler on, in order."""

    names: list[str] = field(default_factory=list)
    """Names of layers, each once."""
    passes: list[list[tuple[int, float]]] = field(default_factory=list)
    """The profiler's reports of each pass, in order: the index of a layer in `names`, and ms."""
    pass_ms: list[float] = field(default_factory=list)
    """Latency of each pass by the host's clock."""

    def add(self, reports: Sequence[tuple[str, float]], took_ms: float) -> None:
        """Add the profiler's reports of one pass."""
        indices = {name: index for index, name in enumerate(self.names)}
        for name, _ in reports:
            if name not in indices:
                indices[name] = len(indices)
                self.names.append(name)
        self.passes.append([(indices[name], ms) for name, ms in reports])
        self.pass_ms.append(took_ms)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Recording:
        raw = json.loads(path.read_text(encoding="utf-8"))
        passes = [[(int(name), float(ms)) for name, ms in each] for each in raw["passes"]]
        return cls(raw["names"], passes, raw["pass_ms"])


def record_engine_layers(
    request: EngineSettings,
    feeds: Mapping[str, Array],
    passes: int,
    folder: Path,
    report: ReportPasses = lambda done, total: None,
) -> Path:
    """Run passes with the profiler on, and return the file of the `Recording`.

    CUDA graph, parallel streams, queue and copies are off: they would hide when a layer begins and ends. Raises as
    `open_engine` does.
    """
    plain = replace(request, cuda_graph=False, streams=1, queue=0, transfers=False)
    trt, session = import_bindings(request.backend), open_engine(plain)
    binding, context = session.bind(feeds), session.contexts[0]
    recording, reports = Recording(), list[tuple[str, float]]()
    profiler = _attach_profiler(trt, context, reports)
    for done in range(-WARMUP_PASSES, passes):
        started = time.perf_counter()
        binding.run()
        took_ms = (time.perf_counter() - started) * 1e3
        if not context.report_to_profiler():
            raise BackendError(
                f"TensorRT's profiler reports nothing about the engine {request.engine}: "
                f"{session.messages.last_error}. Skip the layers with `layer_passes: 0`."
            )
        if done >= 0:
            recording.add(reports, took_ms)
            report(done + 1, passes)
        reports.clear()
    context.profiler = None
    del profiler  # it had to outlive its use by the context
    inspector = session.engine.create_engine_inspector()
    inspector.execution_context = context  # so that it knows the shapes
    inspected = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    (folder / INSPECTED).write_text(inspected, encoding="utf-8")
    path = folder / "layers.json"
    recording.write(path)
    return path


def _attach_profiler(trt: Any, context: Any, reports: list[tuple[str, float]]) -> Any:  # noqa: ANN401
    """Attach a profiler that adds to `reports`, and return it."""

    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)  # the bindings require this explicit call

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            reports.append((layer_name, ms))

    profiler = context.profiler = Profiler()
    context.enqueue_emits_profile = False  # it would be computed within the pass
    return profiler
