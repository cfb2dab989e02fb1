"""Record what each layer of an engine takes: passes with TensorRT's profiler on, and what the inspector says.

Nothing is read here: `measuring.engine_layers` does that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ndld_flow.base.errors import BackendError
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.tensorrt.engine.engine_session import EngineSession
from ndld_flow.runtimes.tensorrt.engine.open_engine import open_engine
from ndld_flow.runtimes.tensorrt.library import import_bindings

INSPECTED = "engine.json"
"""What the engine inspector says of the engine at these shapes, in the folder of a recording."""
WARMUP_PASSES = 2


@dataclass
class Recording:
    """Passes with the profiler on, in order."""

    names: list[str] = field(default_factory=list)
    """Of layers, each once."""
    passes: list[list[tuple[int, float]]] = field(default_factory=list)
    """What the profiler told of each pass, in its order: a layer by its place in `names`, and ms."""
    pass_ms: list[float] = field(default_factory=list)
    """By the host's clock."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Recording:
        raw = json.loads(path.read_text(encoding="utf-8"))
        passes = [[(int(name), float(ms)) for name, ms in each] for each in raw["passes"]]
        return cls(raw["names"], passes, raw["pass_ms"])


def record_engine_layers(
    session: EngineSession,
    feeds: Mapping[str, Array],
    passes: int,
    folder: Path,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Run so many passes with the profiler on, and return the file that holds them, a `Recording`.

    Without CUDA graph, parallel streams and copies: they would hide when a layer begins and ends. Raises as
    `open_engine` does.
    """
    plain = replace(session, cuda_graph=False, streams=1, transfers=False)
    trt, opened = import_bindings(session.backend), open_engine(plain)
    bound, context = opened.bind(feeds), opened.contexts[0]
    recording, told = Recording(), list[tuple[str, float]]()
    profiler = _attach_profiler(trt, context, told)
    for done in range(-WARMUP_PASSES, passes):
        started = time.perf_counter()
        bound.once()
        took_ms = (time.perf_counter() - started) * 1e3
        if not context.report_to_profiler():
            raise BackendError(
                f"TensorRT's profiler tells nothing of the engine {session.engine}: {opened.messages.last_error}. "
                "Leave the layers out with `layer_passes: 0`."
            )
        if done >= 0:
            _keep(recording, told, took_ms)
            tell(done + 1, passes)
        told.clear()
    context.profiler = None
    del profiler  # it had to live as long as the context used it
    _inspect(trt, opened.engine, context, folder / INSPECTED)
    path = folder / "layers.json"
    recording.write(path)
    return path


def _attach_profiler(trt: Any, context: Any, told: list[tuple[str, float]]) -> Any:  # noqa: ANN401
    """The profiler; `told` gets what it reports."""

    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)  # bindings need it called in full

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            told.append((layer_name, ms))

    profiler = context.profiler = Profiler()
    context.enqueue_emits_profile = False  # it would be computed within the pass
    return profiler


def _keep(recording: Recording, told: list[tuple[str, float]], took_ms: float) -> None:
    places = {name: place for place, name in enumerate(recording.names)}
    for name, _ in told:
        if name not in places:
            places[name] = len(places)
            recording.names.append(name)
    recording.passes.append([(places[name], ms) for name, ms in told])
    recording.pass_ms.append(took_ms)


def _inspect(trt: Any, engine: Any, context: Any, path: Path) -> None:  # noqa: ANN401
    inspector = engine.create_engine_inspector()
    inspector.execution_context = context  # so that it knows the shapes
    path.write_text(inspector.get_engine_information(trt.LayerInformationFormat.JSON), encoding="utf-8")
