"""ONNX's reference implementation as a runtime: operators in Python, to check others against, not to be fast."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from ndld_flow.plugin import (
    Array,
    HostBinding,
    Layer,
    LayerPass,
    ModelError,
    Onnx,
    ReadArtifact,
    RecordingPlan,
    ReportPasses,
    RequestError,
    Runtime,
    RuntimeNames,
    RuntimeSettings,
    SessionFacts,
    SessionRequest,
    Timing,
    model_inputs,
    model_outputs,
    refuse_unfit_feeds,
)

TITLE = "ONNX's reference"
LIBRARIES = ("onnx",)


class OnnxReferenceSettings(RuntimeSettings):
    """Settings of ONNX's reference implementation."""

    title: ClassVar[str] = TITLE
    libraries: ClassVar[tuple[str, ...]] = LIBRARIES

    backend: Literal["onnx_reference"]
    repeats: int = Field(default=1, ge=1)
    """ONNX's reference: number of inferences in a pass."""

    def request(self, model: Onnx, read: ReadArtifact) -> SessionRequest:
        return OnnxReferenceRequest.of(self)


@dataclass(frozen=True)
class OnnxReferenceRequest(SessionRequest):
    """A model to run in ONNX's reference implementation."""

    runtime: ClassVar[str] = "onnx_reference"
    libraries: ClassVar[tuple[str, ...]] = LIBRARIES

    repeats: int = 1

    def names(self) -> RuntimeNames:
        return RuntimeNames("onnx_reference", TITLE, "cpu", "Use another runtime")

    def open(self, model: Path) -> OnnxReferenceSession:
        return OnnxReferenceSession(model, self.repeats)

    def record_layers(
        self, model: Path, feeds: Mapping[str, Array], plan: RecordingPlan, folder: Path, report: ReportPasses
    ) -> Path:
        session = self.open(model)
        times: dict[str, list[float]] = {name: [] for name in session.time_nodes()}
        binding, passes = session.bind(feeds), []
        for done in range(plan.passes):
            started = time.perf_counter()
            binding.run()
            passes.append((time.perf_counter() - started) * 1e3)
            for name, ms in session.node_ms.items():
                times[name].append(ms)
            report(done + 1, plan.passes)
        recording = folder / "nodes.json"
        recording.write_text(json.dumps({"passes": passes, "times": times}))
        return recording

    def read_layers(
        self, model: Path, recordings: Sequence[Path], plan: RecordingPlan, timings: Sequence[Timing]
    ) -> LayerPass:
        runs = [json.loads(recording.read_text()) for recording in recordings]
        layers = tuple(
            Layer(
                index=index,
                name=name,
                type=name.partition(" ")[0],
                onnx_nodes=(name.partition(" ")[2],),
                samples_ms=tuple(ms for run in runs for ms in run["times"][name]),
            )
            for index, name in enumerate(runs[0]["times"])
        )
        for recording in recordings:
            recording.unlink()
        passes = tuple(ms for run in runs for ms in run["passes"])
        return LayerPass(layers, passes, layer_runs=tuple(len(run["passes"]) for run in runs))


class OnnxReferenceSession(HostBinding):
    """A model in ONNX's reference implementation; with inputs bound, it is its own binding."""

    log = ""

    def __init__(self, model: Path, repeats: int) -> None:
        from onnx.reference import ReferenceEvaluator

        started = time.perf_counter()
        self._model, self._repeats = model, repeats
        self._facts = SessionFacts(("Python",), model_inputs(model), model_outputs(model))
        try:
            self._evaluator = ReferenceEvaluator(str(model))
        except Exception as error:  # it raises the classes of whatever failed
            raise ModelError(f"{TITLE} rejects {model}: {error}.") from None
        self.load_ms = (time.perf_counter() - started) * 1e3
        self.node_ms: dict[str, float] = {}
        self._feeds: dict[str, Array] = {}
        self._outputs: dict[str, Array | None] = {}

    def describe(self) -> SessionFacts:
        return self._facts

    def bind(self, feeds: Mapping[str, Array], on_device: bool = False) -> OnnxReferenceSession:
        refuse_unfit_feeds(self._model, self._facts.inputs, feeds)
        self._feeds = dict(feeds)
        return self

    def run(self) -> None:
        try:
            for _ in range(self._repeats):
                values: Any = self._evaluator.run(None, self._feeds)
        except Exception as error:
            raise ModelError(f"{self._model} fails in {TITLE}: {error}.") from None
        self._outputs = dict(zip(self._evaluator.output_names, values, strict=True))

    def outputs(self) -> dict[str, Array | None]:
        return self._outputs

    def time_nodes(self) -> list[str]:
        """Time each node of the main graph from now on; return `Relu relu_1` for each, in order."""
        names = []
        for node in self._evaluator.rt_nodes_:
            name = f"{node.op_type} {node.onnx_node.name}"
            names.append(name)
            node.run = self._timed(node.run, name)
        if len(set(names)) < len(names):
            raise RequestError(f"{self._model} has nodes without names of their own: set `layer_passes: 0`.")
        return names

    def _timed(self, run: Callable[..., object], name: str) -> Callable[..., object]:
        def timed(*args: object, **kwargs: object) -> object:
            started = time.perf_counter()
            outputs = run(*args, **kwargs)
            self.node_ms[name] = (time.perf_counter() - started) * 1e3
            return outputs

        return timed

    def close(self) -> None:
        self._outputs = {}


class OnnxReference(Runtime):
    """The runtime, as the registry finds it."""

    def settings(self) -> type[RuntimeSettings]:
        return OnnxReferenceSettings

    def read_request(self, values: Mapping[str, Any]) -> SessionRequest:
        return OnnxReferenceRequest(**values)


RUNTIME = OnnxReference()
