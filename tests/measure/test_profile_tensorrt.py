"""Engines measured in real processes, on strict stand-ins of TensorRT and of CUDA's runtime library."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from ndld_flow.base.errors import BackendError, KilledError, RequestError
from ndld_flow.base.extras import EngineBackend
from ndld_flow.compare.measure_model import profile_model
from ndld_flow.machine.host import has_nvidia_gpu
from ndld_flow.measure.worker import Job, TimingPlan, time_passes
from ndld_flow.models.tensors import TensorSpec
from ndld_flow.profiles.diagnose.diagnose import triage
from ndld_flow.profiles.diagnose.subject import Subject
from ndld_flow.records.build import Build
from ndld_flow.records.document import read_document
from ndld_flow.records.profile import Profile
from ndld_flow.report.collect_layers import collect_layers
from ndld_flow.runtimes.protocol import DeviceTimes, Timing
from ndld_flow.runtimes.tensorrt.engine import cuda_runtime
from ndld_flow.runtimes.tensorrt.engine.engine_layers import read_engine_layers
from ndld_flow.runtimes.tensorrt.engine.engine_session import Recording
from ndld_flow.runtimes.tensorrt.engine.engine_tensors import EngineTensor, note_casts, refuse_other_model, refuse_shape
from ndld_flow.runtimes.tensorrt.engine.execution import EngineBinding
from ndld_flow.runtimes.tensorrt.library import find_library
from ndld_flow.runtimes.tensorrt.request import EngineRequest
from ndld_flow.step import Context, Turn
from ndld_flow.steps.profile import ProfileModel
from ndld_flow.store.kinds import Engine, Onnx, ProfileDocument
from tests.support.engine_standins import Standins, make_standins
from tests.support.message_files import CheckMessage
from tests.support.models_engine import constrain
from tests.support.models_run import Given, Ran, run_step, specs, write_model
from tests.support.representatives import thorough_except
from tests.support.tensorrt_standin import write_plugin
from tests.support.timed_passes import Passes

CHAIN = "g (float[n, 8] x) => (float[n, 8] y) { a = Relu(x) b = Exp(a) y = Softmax(b) }"
NONZERO = "g (float[n, 8] x) => (int64[2, m] y) { y = NonZero(x) }"
OTHER = "g (float[n, 9] x, float[n, 8] z) => (float[n, 8] v) { u = Relu(x) v = Exp(z) }"
WEIGHTS = "g (float[n, 2] x) => (float[n, 2] y) <float[2, 2] w = {1, 0, 0, 1}> { y = MatMul(x, w) }"
QUICK = {"runs": 1, "stable": 0, "passes": 5, "duration": 0, "warmup": 0, "warmup_passes": 1, "layer_passes": 0}
TWO_ROWS: Given = {"x": {"shape": [2, 8]}}
UP_TO_FOUR = {"x": {"min": [1, 8], "opt": [2, 8], "max": [4, 8]}}
NAMES = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}


@pytest.fixture(scope="module")
def standins(tmp_path_factory: pytest.TempPathFactory) -> Standins:
    return make_standins(tmp_path_factory)


@dataclass(frozen=True)
class Bench:
    """Where engines are built and measured."""

    standins: Standins
    folder: Path
    library: Path
    backend: EngineBackend
    graph: str = CHAIN

    def engine(self, graph: str = "", **settings: Any) -> Engine:
        given = settings if "profiles" in settings or graph else {"profiles": [UP_TO_FOUR]} | settings
        folder = self.standins.engine(self.library, self.backend, graph or self.graph, given)
        return Engine(folder / Engine.main, "builds", "digest of the engine")

    def profile(
        self,
        engine: Engine | None,
        inputs: Given | None = None,
        graph: str = "",
        **settings: Any,
    ) -> tuple[Ran, Profile]:
        given = QUICK | {"backend": self.backend, "library": str(self.library)} | settings
        artifacts: dict[str, Engine] = {}
        if engine is not None:
            given["engine"] = engine.label
            artifacts = {"engine": engine}
        folder = self.folder / f"ran-{len(list(self.folder.glob('ran-*')))}"
        folder.mkdir()
        model = write_model(folder / "m.onnx", graph or self.graph)
        chosen = TWO_ROWS if inputs is None and not graph else inputs
        ran = run_step(ProfileModel, model, folder, given, chosen, artifacts=artifacts)
        assert list(ran.scratch.iterdir()) == []
        return ran, Profile.model_validate_json((ran.out / ProfileDocument.main).read_text(encoding="utf-8"))

    @property
    def cuda_calls(self) -> list[str]:
        return (self.folder / "cuda.log").read_text().splitlines()


def bench_of(
    backend: EngineBackend, release: str, standins: Standins, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Bench:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(standins.cudart), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_STANDIN_LOG", str(folder / "cuda.log"))
    return Bench(standins, folder, standins.library(backend, release), backend)


@pytest.fixture(params=thorough_except(["tensorrt", "tensorrt_rtx"], "tensorrt_rtx"))
def bench(request: pytest.FixtureRequest, standins: Standins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    release = {"tensorrt": "10.8", "tensorrt_rtx": "1.7"}[request.param]
    return bench_of(request.param, release, standins, tmp_path, monkeypatch)


@pytest.fixture
def trt(standins: Standins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return bench_of("tensorrt", "10.8", standins, tmp_path, monkeypatch)


def test_an_engine_of_a_step_is_measured(bench: Bench) -> None:
    ran, result = bench.profile(bench.engine(), runs=2, passes=6, layer_passes=4)
    assert result.backend == bench.backend
    assert result.providers == (NAMES[bench.backend],)
    assert result.versions[bench.backend.replace("_", "-")].startswith(("10.8", "1.7"))
    assert "onnxruntime" not in " ".join(result.versions)
    assert [(t.name, t.dtype, t.shape) for t in result.inputs] == [("x", "float32", (2, 8))]
    assert [(t.name, t.dtype, t.shape) for t in result.outputs] == [("y", "float32", (2, 8))]
    assert not {"threads", "provider", "optimization"} & set(result.options)
    assert result.options["cuda_graph"] is False
    for run in result.runs:
        assert len(run.latency_ms) == len(run.enqueue_ms) == len(run.compute_ms) == 3
        assert len(run.h2d_ms) == len(run.d2h_ms) == 3
        assert all(0 < c <= wall + 0.01 for c, wall in zip(run.compute_ms, run.latency_ms, strict=True))
        assert run.load_ms > 0
    assert [len(layer.samples_ms) for layer in result.layers] == [4, 4, 4]
    assert result.layer_runs == (2, 2)
    assert result.layers_sum_ms > 0
    assert [set(layer.onnx_nodes) for layer in result.layers] == [{"node_of_a"}, {"node_of_b"}, {"node_of_y"}]
    assert all(layer.type and layer.tactic and layer.stream == 0 for layer in result.layers)
    assert result.layers[0].outputs[0].dtype == "float32"
    lanes = {span.lane for span in result.timeline}
    assert lanes == {"enqueue", "H2D", "compute", "D2H", "stream 0"}
    device = result.conditions["device"]
    assert isinstance(device, dict)
    assert device["device_total_bytes"] == 8 * 2**30
    metrics = ran.result.metrics
    assert metrics["compute.median"].value == statistics.median(statistics.median(r.compute_ms) for r in result.runs)
    assert {"enqueue.median", "h2d.median", "d2h.median", "memory.device_bytes"} <= set(metrics)
    assert f" on {NAMES[bench.backend]}, 3 layers" in ran.result.summary
    assert any("memory are reported separately" in note for note in result.notes)
    assert any("kernels were compiled" in note for note in result.notes) == (bench.backend == "tensorrt_rtx")


@pytest.mark.thorough
def test_copies_are_in_the_latency_when_asked_for(trt: Bench) -> None:
    _, separate = trt.profile(trt.engine())
    _, within = trt.profile(trt.engine(), transfers=True)
    run = within.runs[0]
    parts = zip(run.latency_ms, run.h2d_ms, run.compute_ms, run.d2h_ms, strict=True)
    assert all(h2d + compute + d2h <= latency + 0.01 for latency, h2d, compute, d2h in parts)
    assert any("latency includes the copies" in note for note in within.notes)
    assert "h2d 64" in trt.cuda_calls
    assert "d2h 64" in trt.cuda_calls
    subject = Subject(separate)
    assert subject.latency_with_copies_ms == subject.latency_ms + subject.copies_ms > subject.latency_ms
    assert Subject(within).latency_with_copies_ms == Subject(within).latency_ms


def test_a_pass_is_captured_in_a_cuda_graph(
    trt: Bench, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    _, result = trt.profile(trt.engine(), cuda_graph=True, layer_passes=2)
    assert trt.cuda_calls.count("launch 1") == 6  # warm-up and five passes; the layer pass is without
    assert len(result.layers) == 3
    monkeypatch.setenv("CUDA_STANDIN_CAPTURE", "no")
    with pytest.raises(BackendError) as caught:
        trt.profile(trt.engine(), cuda_graph=True)
    check_message(caught.value)


def test_tensorrt_rtx_captures_graphs_itself(
    standins: Standins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rtx = bench_of("tensorrt_rtx", "1.7", standins, tmp_path, monkeypatch)
    engine = rtx.engine()
    monkeypatch.setenv("STANDIN_RECORD", str(tmp_path / "calls.jsonl"))
    rtx.profile(engine, cuda_graph=True)
    recorded = (tmp_path / "calls.jsonl").read_text()
    assert "WHOLE_GRAPH_CAPTURE" in recorded
    assert "EAGER" in recorded
    assert "launch 1" not in rtx.cuda_calls


def test_tensorrt_rtx_loads_the_kernels_of_a_runtime_cache(
    standins: Standins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    rtx = bench_of("tensorrt_rtx", "1.7", standins, tmp_path, monkeypatch)
    engine, cache, calls = rtx.engine(), tmp_path / "runtime.cache", tmp_path / "calls.jsonl"
    monkeypatch.setenv("STANDIN_RECORD", str(calls))
    release = rtx.profile(engine)[1].versions["tensorrt-rtx"]
    assert '"compiled": true' in calls.read_text()
    calls.unlink()
    cache.write_text(f"STANDIN-RUNTIME-CACHE {release} 8.9 kernels")
    _, result = rtx.profile(engine, runtime_cache=str(cache))
    assert '"compiled": false' in calls.read_text()
    assert '"compiled": true' not in calls.read_text()
    assert any("runtime cache runtime.cache" in note for note in result.notes)
    monkeypatch.setenv("STANDIN_GPU", "12.0")
    with pytest.raises(BackendError) as caught:
        rtx.profile(engine, runtime_cache=str(cache))
    check_message(caught.value)


def test_concurrent_streams(trt: Bench) -> None:
    ran, result = trt.profile(trt.engine(), streams=3)
    assert trt.cuda_calls.count("stream 1") == 3
    per_second = ran.result.metrics["throughput.median"].value
    assert per_second == pytest.approx(3e3 / result.latency.median_ms)
    assert any("3 concurrent inferences" in note for note in result.notes)


class Ticking:
    """A CUDA runtime and an execution context whose first pass takes a millisecond, the second two, and so on."""

    active_optimization_profile = 0

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.clock = 0
        self.at: dict[int, int] = {}

    def make_stream(self) -> int:
        return 1

    def make_event(self, *, spin: bool) -> int:
        self.at[len(self.at) + 1] = 0
        return len(self.at)

    def record(self, event: int, stream: int) -> None:
        self.at[event] = self.clock

    def wait_for_event(self, event: int) -> None:
        self.calls.append(f"wait {self.at[event]}")

    def wait_for_stream(self, stream: int) -> None: ...

    def destroy(self, kind: str, handle: int) -> None: ...

    def elapsed_ms(self, begin: int, end: int) -> float:
        return float(self.at[end] - self.at[begin])

    def infer_shapes(self) -> list[str]:
        return []

    def execute_async_v3(self, stream: int) -> bool:
        self.calls.append("enqueue")
        self.clock += self.calls.count("enqueue")
        return True


@pytest.mark.parametrize(
    ("queue", "calls"),
    [
        (0, ["enqueue", "wait 1", "enqueue", "wait 3", "enqueue", "wait 6"]),
        (1, ["enqueue", "enqueue", "wait 1", "enqueue", "wait 3", "enqueue", "wait 6"]),
    ],
)
def test_the_next_pass_is_enqueued_before_the_running_one_ends(queue: int, calls: list[str]) -> None:
    """Each wait is for the end of the oldest pass, whose times are then read."""
    clock: Any = Ticking()
    request = EngineRequest("tensorrt", Path("e"), Path("m"), (), (), queue=queue)
    binding = EngineBinding(clock, None, request, {}, [clock], {})
    assert clock.calls == ["wait 0"]  # the inputs are copied
    for number in (1, 2, 3):
        binding.run()
        assert binding.device_times().compute_ms == number
    assert clock.calls[1:] == calls
    assert binding.can_copy == (queue == 0)


def test_a_queue_is_recorded_and_noted(trt: Bench) -> None:
    _, result = trt.profile(trt.engine(), queue=1, streams=2)
    [run] = result.runs
    assert len(run.latency_ms) == len(run.compute_ms) == len(run.enqueue_ms)
    assert not run.h2d_ms
    assert any("enqueued before the running" in note for note in result.notes)
    assert result.options["queue"] == 1


@pytest.mark.parametrize(("spin", "calls"), [(True, {"schedule 1", "event 0"}), (False, {"schedule 4", "event 1"})])
def test_waiting_by_spinning_or_sleeping(spin: bool, calls: set[str], trt: Bench) -> None:
    _, result = trt.profile(trt.engine(), spin_wait=spin)
    assert any("includes waking the CPU" in note for note in result.notes) == (not spin)
    assert calls == {call for call in trt.cuda_calls if call.startswith(("schedule", "event"))}


@pytest.mark.parametrize("way", [{}, {"cuda_graph": True, "queue": 1}, {"streams": 2, "batches": [1, 4]}])
def test_all_device_resources_are_released(way: dict[str, Any], trt: Bench) -> None:
    """Also what the session without a profiler held, before the one with it begins."""
    trt.profile(trt.engine(), **way, layer_passes=2)
    calls = [call.partition(" ") for call in trt.cuda_calls]
    counted = {
        "block": (("made", "block"), ("gone", "block")),
        "stream": (("stream", "1"), ("gone", "stream")),
        "event": (("event", ""), ("gone", "event")),
        "graph": (("made", "graph"), ("gone", "graph")),
    }
    for kind, words in counted.items():
        result, gone = (sum(call[0] == word and call[2].startswith(rest) for call in calls) for word, rest in words)
        assert result == gone, kind
        assert result > 0 or kind == "graph"


USE_SESSION = """
import ctypes, json, sys
from pathlib import Path
import numpy as np
from ndld_flow.runtimes.registry import find_runtime

request = find_runtime("tensorrt").read_request(json.loads(Path(sys.argv[1]).read_text()))
session = request.open(request.model)
feeds = {"x": np.ones((2, 8), np.float32)}
session.bind(feeds).run()
binding = session.bind(feeds)
binding.run()
shown = {name: None if array is None else array.shape for name, array in binding.outputs().items()}
read = []
for name in [name for name, shape in shown.items() if shape is not None]:
    for factor in (1, 2):
        computed = np.arange(16, dtype=np.float32).reshape(2, 8) * factor
        # The stand-in computes nothing, and its device memory is the host's.
        ctypes.memmove(session.contexts[0].get_tensor_address(name), computed.ctypes.data, computed.nbytes)
        read.append((binding.outputs()[name], computed))
same = [bool((array == computed).all()) and array.dtype == computed.dtype for array, computed in read]
session.close()
session.close()
print(json.dumps({"shown": shown, "same": same, "engine": session.engine is not None}))
"""


def use_session(bench: Bench, engine: Engine, folder: Path, graph: str) -> dict[str, Any]:
    """Open an engine in a process, run it, read its outputs and close it; return the printed facts."""
    outputs = {CHAIN: (TensorSpec("y", "float32", ("n", 8)),), NONZERO: (TensorSpec("y", "int64", (2, "m")),)}
    library = find_library(bench.backend, bench.library)
    request = EngineRequest(
        bench.backend,
        engine.path,
        write_model(folder / "m.onnx", graph),
        (TensorSpec("x", "float32", ("n", 8)),),
        outputs[graph],
    )
    job = folder / "request.json"
    job.write_text(json.dumps(request.to_json(), default=str))
    environment = {**os.environ, **library.environment(folder)}
    command = [sys.executable, "-P", "-c", USE_SESSION, str(job)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    facts: dict[str, Any] = json.loads(ended.stdout)
    return facts


def test_a_session_copies_its_outputs_and_releases_everything(bench: Bench, tmp_path: Path) -> None:
    """Outputs of an earlier pass stay as they were; a second binding and a second `close` are allowed."""
    facts = use_session(bench, bench.engine(), tmp_path, CHAIN)
    assert facts == {"shown": {"y": [2, 8]}, "same": [True, True], "engine": False}
    calls = bench.cuda_calls
    for kind, created in (("block", "made block"), ("stream", "stream 1"), ("event", "event ")):
        assert sum(call.startswith(created) for call in calls) == sum(
            call.startswith(f"gone {kind}") for call in calls
        ), kind


@pytest.mark.thorough
def test_an_output_of_unknown_shape_is_not_read(trt: Bench, tmp_path: Path) -> None:
    facts = use_session(trt, trt.engine(NONZERO, profiles=[UP_TO_FOUR]), tmp_path, NONZERO)
    assert facts == {"shown": {"y": None}, "same": [], "engine": False}


@pytest.mark.thorough
def test_an_output_of_data_dependent_size_gets_the_largest_buffer(trt: Bench) -> None:
    _, result = trt.profile(trt.engine(NONZERO, profiles=[UP_TO_FOUR]), TWO_ROWS, NONZERO)
    assert result.outputs[0].shape == (2, -1)
    assert "d2h 256" in trt.cuda_calls  # 2 x 16 elements of 8 bytes


@pytest.mark.thorough
def test_a_shape_tensor_stays_on_the_host(trt: Bench, check_message: CheckMessage) -> None:
    graph = "g (float[n, 8] x, int64[2] sizes) => (float[a, b] y) { y = Reshape(x, sizes) }"
    sizes = {"min": [1, 1], "opt": [4, 4], "max": [32, 32]}
    engine = trt.engine(graph, profiles=[UP_TO_FOUR | {"sizes": sizes}])
    given: Given = {"x": {"shape": [2, 8]}, "sizes": {"data": 4}}
    trt.profile(engine, given, graph)
    assert "h2d 64" in trt.cuda_calls
    assert "h2d 16" not in trt.cuda_calls
    with pytest.raises(RequestError) as caught:
        trt.profile(engine, {"x": {"shape": [2, 8]}, "sizes": {"data": 99}}, graph)
    check_message(caught.value)


def test_tensorrts_own_plugins_are_loaded_before_the_engine(trt: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = trt.engine()
    monkeypatch.setenv("STANDIN_RECORD", str(trt.folder / "calls.jsonl"))
    trt.profile(engine)
    assert "init_libnvinfer_plugins" in (trt.folder / "calls.jsonl").read_text()


def test_an_engine_of_plugins_is_inspected_and_measured(trt: Bench) -> None:
    plugin = write_plugin(trt.folder / "plugin.so", ["Magic"])
    graph = "g (float[n, 8] x) => (float[n, 8] y) { a = Relu(x) y = ours.Magic(a) }"
    engine = trt.engine(graph, profiles=[UP_TO_FOUR], plugins=[str(plugin)])
    assert read_document(Build, engine.folder / Build.file_name).layers_basis == "engine inspector"
    assert trt.profile(engine, TWO_ROWS, graph)[1].runs


def test_weights_are_streamed_within_the_budget(trt: Bench, check_message: CheckMessage) -> None:
    rows: Given = {"x": {"shape": [1, 2]}}
    engine = trt.engine(WEIGHTS, typing="strong", advanced={"weight_streaming": True})

    def budget(**settings: Any) -> Any:
        device = trt.profile(engine, rows, WEIGHTS, **settings)[1].conditions["device"]
        assert isinstance(device, dict)
        assert device["streamable_weights_bytes"] == 16
        return device["weight_budget_bytes"]

    assert budget() == 16  # the default streams nothing
    assert budget(weight_streaming_budget="25 %") == 4
    assert budget(weight_streaming_budget="automatic") == 8
    assert budget(weight_streaming_budget=0) == 0
    with pytest.raises(RequestError) as caught:
        trt.profile(trt.engine(WEIGHTS), rows, WEIGHTS, weight_streaming_budget=0)
    check_message(caught.value)


def test_an_engine_without_its_lean_runtime_needs_its_library(
    standins: Standins, trt: Bench, check_message: CheckMessage
) -> None:
    newer = str(standins.library("tensorrt", "10.9"))
    engine = trt.engine(version_compatible=True, exclude_lean_runtime=True)
    with pytest.raises(BackendError) as caught:
        trt.profile(engine, library=newer)
    check_message(caught.value)
    lean = trt.folder / "libnvinfer_lean.so"
    lean.write_bytes(b"STANDIN_LEAN_RUNTIME:10.8.0.43;")
    assert trt.profile(engine, library=newer, lean_runtime=str(lean))[1].runs
    lean.write_bytes(b"something else")
    with pytest.raises(BackendError) as caught:
        trt.profile(engine, library=newer, lean_runtime=str(lean))
    check_message(caught.value)


def test_an_engine_for_a_dla_runs_on_its_core(
    trt: Bench, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.setenv("STANDIN_DLA_CORES", "2")
    engine = trt.engine(advanced={"dla_core": 1, "gpu_fallback": True})
    monkeypatch.setenv("STANDIN_RECORD", str(trt.folder / "calls.jsonl"))
    assert trt.profile(engine)[1].runs
    assert '"set": "DLA_core", "value": "1"' in (trt.folder / "calls.jsonl").read_text()
    monkeypatch.setenv("STANDIN_DLA_CORES", "1")
    with pytest.raises(BackendError) as caught:
        trt.profile(engine)
    check_message(caught.value)


def test_doubles_are_computed_as_floats(trt: Bench) -> None:
    graph = "g (double[n, 8] x) => (double[n, 8] y) { y = Relu(x) }"
    _, result = trt.profile(trt.engine(graph, profiles=[UP_TO_FOUR]), TWO_ROWS, graph)
    assert any("input x is float32" in note for note in result.notes)


def test_only_shape_tensors_are_asked_for_a_range_of_values(trt: Bench, tmp_path: Path) -> None:
    engine = trt.engine()
    plan = engine.path.read_bytes()
    on_host = tmp_path / "on_host.engine"
    # The tensor x on the host, in a file of the same size.
    on_host.write_bytes(
        plan.replace(b'"location": "DEVICE", "mode": "INPUT"', b'"location": "HOST",   "mode": "INPUT"')
    )
    assert on_host.read_bytes() != plan
    # It gets past the ranges; the stand-in then finds its memory on the wrong side.
    with pytest.raises(BackendError, match="execute_async_v3"):
        trt.profile(None, engine_file=str(on_host))


def test_a_tensorrt_that_does_not_start_gives_the_reason(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    """Built for a newer CUDA than the driver knows, though an older CUDA runtime library works."""
    engine = bench.engine()
    monkeypatch.setenv("STANDIN_OLD_DRIVER", "1")
    with pytest.raises(BackendError) as caught:
        bench.profile(engine)
    check_message(caught.value)


def test_a_profiler_without_reports_is_an_error(
    trt: Bench, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    engine = trt.engine()
    monkeypatch.setenv("STANDIN_TELLS_NO_TIMES", "1")
    with pytest.raises(BackendError) as caught:
        trt.profile(engine, layer_passes=1)
    check_message(caught.value)
    assert trt.profile(engine)[1].layers == ()


@pytest.mark.thorough
def test_shapes_must_be_in_the_optimization_profile(trt: Bench) -> None:
    allowed = r'input "x": shape 5x8 is outside of what the engine allows \(1x8 to 4x8, optimization profile 0\)'
    with pytest.raises(RequestError, match=allowed):
        trt.profile(trt.engine(), {"x": {"shape": [5, 8]}})
    _, result = trt.profile(trt.engine(), batches=[1, 4])
    assert [point.inputs[0].shape for point in result.batches] == [(1, 8), (4, 8)]
    with pytest.raises(RequestError, match=allowed):
        trt.profile(trt.engine(), batches=[5])


@pytest.mark.thorough
def test_the_optimization_profile_is_chosen(trt: Bench, check_message: CheckMessage) -> None:
    wide = {"x": {"min": [8, 8], "opt": [8, 8], "max": [8, 8]}}
    engine = trt.engine(profiles=[UP_TO_FOUR, wide])
    _, result = trt.profile(engine, {"x": {"shape": [8, 8]}}, optimization_profile=1)
    assert result.outputs[0].shape == (8, 8)
    with pytest.raises(RequestError) as caught:
        trt.profile(engine, optimization_profile=1)
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        trt.profile(engine, optimization_profile=2)
    check_message(caught.value)


def test_a_prebuilt_engine_of_another_model_is_refused(trt: Bench, check_message: CheckMessage) -> None:
    engine = trt.engine(OTHER)
    with pytest.raises(RequestError) as caught:
        trt.profile(None, engine_file=str(engine.path))
    message = str(caught.value)
    check_message(message)


def test_a_prebuilt_engine_of_the_model_is_measured(bench: Bench) -> None:
    _, result = bench.profile(None, engine_file=str(bench.engine().path), layer_passes=2)
    assert len(result.layers) == 3
    assert not any("refitted" in note for note in result.notes)


def test_an_engine_of_another_step_is_refused_before_anything_starts(
    trt: Bench, tmp_path: Path, check_message: CheckMessage
) -> None:
    engine = trt.engine()
    other = _with_build(engine, tmp_path / "other", model_digest="another", label="half")
    with pytest.raises(RequestError) as caught:
        trt.profile(other)
    check_message(caught.value)
    foreign = _with_build(engine, tmp_path / "foreign", backend="tensorrt_rtx")
    with pytest.raises(RequestError) as caught:
        trt.profile(foreign)
    check_message(caught.value)
    (tmp_path / "other" / Engine.typed_model).write_bytes(write_model(tmp_path / "m.onnx", CHAIN).read_bytes())
    _, result = trt.profile(other)  # the model that was built in place of the other is as good
    assert result.runs
    (tmp_path / "other" / Build.file_name).write_text("{}")
    with pytest.raises(RequestError) as caught:
        trt.profile(other)
    check_message(caught.value)


def test_an_engine_with_marked_outputs_is_not_measured(trt: Bench, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        trt.profile(trt.engine(mark_outputs=["a"]))
    check_message(caught.value)


def test_an_engine_of_another_release_names_both_versions(standins: Standins, trt: Bench) -> None:
    newer = standins.library("tensorrt", "10.9")
    message = r"was built by TensorRT 10\.8\.0\.43, and this is 10\.9\.\S+: rebuild it, .*`version_compatible: true`"
    with pytest.raises(BackendError, match=message):
        trt.profile(trt.engine(), library=str(newer))
    with pytest.raises(BackendError, match=message):
        trt.profile(None, engine_file=str(trt.engine().path), library=str(newer))


def test_code_in_an_engine_needs_trust(trt: Bench, check_message: CheckMessage) -> None:
    engine = trt.engine(version_compatible=True)
    with pytest.raises(RequestError) as refused:
        trt.profile(engine)
    check_message(refused.value)
    with pytest.raises(BackendError) as unavailable:
        trt.profile(None, engine_file=str(engine.path))
    check_message(unavailable.value)
    _, result = trt.profile(engine, trust_engine=True)
    assert result.runs


@pytest.mark.thorough
def test_an_engine_without_weights_is_refitted_with_the_models(trt: Bench, check_message: CheckMessage) -> None:
    rows: Given = {"x": {"shape": [1, 2]}}
    engine = trt.engine(WEIGHTS, weights="strip")
    _, result = trt.profile(engine, rows, WEIGHTS, layer_passes=1)
    assert any("refitted with the model's" in note for note in result.notes)
    with pytest.raises(RequestError) as refused:
        trt.profile(engine, rows, WEIGHTS, refit=False)
    check_message(refused.value)
    with pytest.raises(BackendError) as unavailable:
        trt.profile(None, rows, WEIGHTS, engine_file=str(engine.path), refit=False)
    check_message(unavailable.value)
    _, result = trt.profile(None, rows, WEIGHTS, engine_file=str(engine.path))
    assert any("refitted" in note for note in result.notes)


def test_weights_that_do_not_fit_are_an_error(trt: Bench, check_message: CheckMessage) -> None:
    renamed = WEIGHTS.replace(" w ", " v ").replace(", w)", ", v)")
    with pytest.raises(BackendError) as caught:
        engine = trt.engine(WEIGHTS, weights="strip")
        trt.profile(None, {"x": {"shape": [1, 2]}}, renamed, engine_file=str(engine.path))
    check_message(caught.value)


def test_a_file_that_is_not_an_engine_is_an_error(trt: Bench, tmp_path: Path, check_message: CheckMessage) -> None:
    odd = tmp_path / "odd.engine"
    odd.write_bytes(b"no engine\x1b[31m")
    with pytest.raises(BackendError) as caught:
        trt.profile(None, engine_file=str(odd))
    check_message(caught.value)


@pytest.mark.parametrize(("asked", "shown"), [("fp16", "fp16"), ("nobody understands this", "")])
def test_layers_show_requested_and_measured_precisions(asked: str, shown: str, trt: Bench) -> None:
    engine, given = trt.engine(), QUICK | {"backend": "tensorrt", "library": str(trt.library), "layer_passes": 1}
    model = constrain(write_model(trt.folder / "m.onnx", CHAIN.replace("b =", "[node_of_b] b =")), node_of_b=asked)
    (trt.folder / "ran").mkdir()
    ran = run_step(
        ProfileModel, model, trt.folder / "ran", given | {"engine": "builds"}, TWO_ROWS, artifacts={"engine": engine}
    )
    result = Profile.model_validate_json((ran.out / ProfileDocument.main).read_bytes())
    assert [layer.asked_precision for layer in result.layers] == ["", shown, ""]


@pytest.mark.thorough
def test_layers_known_by_name_only_are_noted(trt: Bench) -> None:
    _, result = trt.profile(trt.engine(verbosity="layer_names"), layer_passes=1)
    assert [layer.name for layer in result.layers] == ["node_of_a", "node_of_b", "node_of_y"]
    assert any("only the names" in note for note in result.notes)


@pytest.mark.thorough
def test_layers_that_only_convert_are_left_out_of_lists_on_request(trt: Bench) -> None:
    engine = trt.engine(fp16=True)
    _, whole = trt.profile(engine, layer_passes=1)
    _, hidden = trt.profile(engine, layer_passes=1, hide_non_compute=True)
    roles = ["reformat", "compute", "compute", "compute", "reformat"]
    assert [layer.role for layer in whole.layers] == [layer.role for layer in hidden.layers] == roles
    assert len(triage(whole).top) == 5
    assert {hidden.layers[top.layer].role for top in triage(hidden).top} == {"compute"}
    shown = collect_layers({"a": hidden})[0]
    assert shown.only_compute
    types = [column.title for column in shown.slowest.columns].index("Type")
    assert {row[types] for row in shown.slowest.rows} == {
        layer.type for layer in hidden.layers if layer.role == "compute"
    }


@pytest.mark.representatives("MEMORY-70", "DRIVER-old")
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DEVICES", "0"),
        ("DRIVER", "old"),
        ("MEMORY", "70"),
        ("FAILS", "cudaEventRecord"),
        ("FAILS", "cudaGetDeviceCount"),
    ],
)
def test_errors_of_cuda_are_quoted(
    variable: str, value: str, trt: Bench, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.setenv(f"CUDA_STANDIN_{variable}", value)
    with pytest.raises(BackendError) as caught:
        trt.profile(trt.engine())
    check_message(caught.value)


def test_a_missing_gpu_is_an_error(trt: Bench, check_message: CheckMessage) -> None:
    with pytest.raises(BackendError) as caught:
        trt.profile(trt.engine(), gpu=3)
    check_message(caught.value)


def test_a_missing_cuda_library_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.setattr(cuda_runtime, "_candidates", lambda: iter(["libcudart.so.0"]))
    with pytest.raises(BackendError) as caught:
        cuda_runtime.open_cuda_runtime()
    check_message(caught.value)


@pytest.mark.thorough
def test_engines_and_onnxruntime_take_turns(trt: Bench, tmp_path: Path, check_message: CheckMessage) -> None:
    model, engine = write_model(tmp_path / "m.onnx", CHAIN), trt.engine()

    def turn(name: str, artifacts: Mapping[str, Engine], **settings: Any) -> Turn:
        out, scratch = tmp_path / name / "out", tmp_path / name / "scratch"
        out.mkdir(parents=True)
        scratch.mkdir()
        step = ProfileModel.model_validate_json(json.dumps(QUICK | {"runs": 2} | settings))
        log = logging.getLogger("ndld_flow.test")
        context = Context(name, specs(TWO_ROWS), artifacts, scratch, log, lambda *_: None, Path())
        return Turn(step, Onnx(model, "source", "digest"), out, context)

    of_engine = {"backend": "tensorrt", "library": str(trt.library), "engine": "builds"}
    turns = [turn("cpu", {}), turn("gpu", {"engine": engine}, **of_engine)]
    ProfileModel.run_together(turns)
    cpu, gpu = (Profile.model_validate_json((turn.out / ProfileDocument.main).read_bytes()) for turn in turns)
    assert (cpu.backend, gpu.backend) == ("onnxruntime", "tensorrt")
    assert cpu.session == gpu.session
    began = sorted((run.started_s, profile.backend) for profile in (cpu, gpu) for run in profile.runs)
    assert [backend for _, backend in began] == ["onnxruntime", "tensorrt"] * 2
    wrong = turn("wrong", {"engine": engine}, **of_engine, gpu=7)
    with pytest.raises(BackendError) as caught:
        ProfileModel.run_together([turn("again", {}), wrong])
    check_message(caught.value)


@pytest.mark.usefixtures("executed_workers")
@pytest.mark.usefixtures("whole_measurements")
def test_a_crash_of_tensorrt_is_reported(trt: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from ndld_flow.processes import launch as parent

    started: list[subprocess.Popen[bytes]] = []

    class Watched(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    def crash(done: int, total: int, what: str) -> None:
        if "pass" in what:
            started[-1].send_signal(signal.SIGSEGV)

    engine = trt.engine()
    monkeypatch.setattr(parent.subprocess, "Popen", Watched)  # type: ignore[attr-defined]
    given = QUICK | {"backend": "tensorrt", "library": str(trt.library), "engine": "builds", "duration": 60_000}
    model = write_model(trt.folder / "m.onnx", CHAIN)
    with pytest.raises(KilledError, match=r"SIGSEGV while .*TensorRT"):
        run_step(ProfileModel, model, trt.folder / "ran", given, TWO_ROWS, artifacts={"engine": engine}, progress=crash)


@pytest.mark.thorough
def test_one_model_without_a_recipe(
    trt: Bench, in_folder: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    """The engine is built on the way; the machine seems to have a GPU."""
    program = in_folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'NVIDIA RTX A4000, 580.82'\n")
    program.chmod(0o755)
    write_model(in_folder / "m.onnx", CHAIN)
    command = [sys.executable, "-m", "ndld_flow", "profile", "m.onnx", "--json", "backend=tensorrt"]
    settings = [f"library={trt.library}", "engine.fp16=true", "runs=1", "passes=3", "duration=0", "stable=0"]
    settings += ["layer_passes=2", "warmup=0", "warmup_passes=1"]
    environment = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([*command, *settings], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    profile = json.loads(done.stdout)["profile"]
    assert profile["backend"] == "tensorrt"
    assert {layer["precision"] for layer in profile["layers"]} == {
        "float32 to float16",
        "float16",
        "float16 to float32",
    }
    with pytest.raises(RequestError) as caught:
        profile_model("m.onnx", ["engine.fp16=true"])
    check_message(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"backend": "tensorrt"},
        {"backend": "tensorrt", "engine": "e", "engine_file": "f"},
        {"backend": "tensorrt", "engine": "e", "threads": 2},
        {"engine": "e", "cuda_graph": True},
        {"lock_clocks": True},
        {"restore_clocks": [1200, 1305]},
        {"provider": "cuda", "lock_clocks": True, "restore_clocks": [1305, 1200]},
        {"backend": "tensorrt", "engine": "e", "runtime_cache": "r"},
        {"backend": "tensorrt", "engine": "e", "streams": 0},
    ],
)
def test_incompatible_settings_are_refused(settings: dict[str, Any], check_message: CheckMessage) -> None:
    with pytest.raises(ValidationError) as caught:
        ProfileModel.model_validate_json(json.dumps(settings))
    check_message(caught.value)


def test_a_dumped_step_is_read_back() -> None:
    """Recipes are kept with every default written out."""
    for given in ({}, {"backend": "tensorrt", "engine": "e", "gpu": 1}):
        step = ProfileModel.model_validate_json(json.dumps(given))
        assert ProfileModel.model_validate_json(step.model_dump_json()) == step
    assert step.device == "gpu-1"


def step_of(**settings: str) -> ProfileModel:
    return ProfileModel.model_validate_json(json.dumps(settings))


def test_missing_requirements_are_foreseen(trt: Bench) -> None:
    if has_nvidia_gpu():
        pytest.skip("needs a machine without a GPU")
    here = step_of(backend="tensorrt", engine="e", library=str(trt.library)).foresee()
    (lack,) = here.lacks
    assert "GPU" in lack and "`on: TARGET`" in lack and "'~steps.NAME'" in lack
    nothing = step_of(backend="tensorrt", engine="e", library=str(trt.folder)).foresee()
    assert "has no TensorRT" in nothing.lacks[0]
    assert step_of(provider="CUDAExecutionProvider").foresee().lacks[0].startswith("provider CUDAExecutionProv")
    assert ProfileModel().foresee().obstacles == ()
    versions = step_of(backend="tensorrt", engine="e", library=str(trt.library)).library_versions()
    assert versions["tensorrt"] == "10.8.0.43"
    assert "onnxruntime" not in versions


def test_a_measuring_process_imports_its_own_library_only(tmp_path: Path) -> None:
    session = EngineRequest("tensorrt", tmp_path / "e", tmp_path / "m", (), ())
    Job(tmp_path / "m", session, ()).write(tmp_path / "job.json")
    code = (
        "import sys, ndld_flow.measure.worker; from pathlib import Path; "
        "from ndld_flow.measure.worker import Job; "
        f"Job.read(Path({str(tmp_path / 'job.json')!r})); "
        "print({'onnxruntime', 'onnx', 'onnx_ir', 'tensorrt', 'polygraphy', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_job_on_an_engine_is_read_as_it_was_written(tmp_path: Path) -> None:
    inputs = (TensorSpec("x", "float32", ("n", 3, None)), TensorSpec("odd </script>", "int64", None))
    session = EngineRequest("tensorrt", Path("a b"), Path("m"), inputs, (), plugins=(Path("p.so"),), streams=2)
    job = Job(Path("m"), session, ())
    job.write(tmp_path / "job.json")
    assert Job.read(tmp_path / "job.json") == job


def test_device_times_are_kept_with_the_latency() -> None:
    times = iter(range(100))
    timing = time_passes(
        Passes(lambda: None, lambda: DeviceTimes(enqueue_ms=float(next(times)), compute_ms=0.5)),
        TimingPlan(passes=3, warmup_passes=1),
        lambda *_: None,
    )
    assert timing.enqueue_ms == [0.0, 1.0, 2.0]
    assert timing.compute_ms == [0.5] * 3
    assert timing.h2d_ms == timing.d2h_ms == []


def _recorded(folder: Path, *passes: list[tuple[str, float]]) -> Path:
    names = list(dict.fromkeys(name for pass_ in passes for name, _ in pass_))
    path = folder / f"layers-{len(list(folder.iterdir()))}.json"
    Recording(names, [[(names.index(n), ms) for n, ms in pass_] for pass_ in passes], [9.0] * len(passes)).write(path)
    return path


def test_layers_are_joined_by_name_and_order(tmp_path: Path) -> None:
    inspected = tmp_path / "engine.json"
    inspected.write_text(json.dumps({"Layers": ["conv", "twin", "twin", "idle"], "Bindings": []}))
    first = _recorded(tmp_path, [("conv", 1.0), ("twin", 2.0), ("twin", 3.0), ("conv", 0.5)])
    second = _recorded(tmp_path, [("conv", 4.0), ("twin", 5.0), ("twin", 6.0), ("unknown", 7.0)])
    layer_pass = read_engine_layers([first, second], write_model(tmp_path / "m.onnx", CHAIN), [])
    assert [(layer.name, layer.samples_ms) for layer in layer_pass.layers] == [
        ("conv", (1.5, 4.0)),  # a loop ran it twice
        ("twin", (2.0, 5.0)),
        ("twin", (3.0, 6.0)),
        ("unknown", (0.0, 7.0)),
        ("idle", (0.0, 0.0)),
    ]
    assert [layer.index for layer in layer_pass.layers] == [0, 1, 2, 3, 4]
    assert layer_pass.layer_runs == (1, 1)
    assert layer_pass.pass_ms == (9.0, 9.0)
    assert any("1 layer of the engine" in note for note in layer_pass.notes)
    assert not first.exists()


def test_times_are_kept_without_the_inspector(tmp_path: Path) -> None:
    inspected = tmp_path / "engine.json"
    inspected.write_text("")
    timing = Timing([3.0, 1.0, 2.0], [0.0, 3.0, 4.0], [0.1] * 3, [0.2] * 3, [0.3] * 3, [2.5, 0.5, 1.5])
    layer_pass = read_engine_layers(
        [_recorded(tmp_path, [("conv", 1.0)])], write_model(tmp_path / "m.onnx", CHAIN), [timing]
    )
    assert [layer.name for layer in layer_pass.layers] == ["conv"]
    compute = next(span for span in layer_pass.timeline if span.lane == "compute")
    assert (compute.start_ms, compute.duration_ms) == (0.1, 1.5)


def _with_build(engine: Engine, folder: Path, **changed: Any) -> Engine:
    folder.mkdir()
    build = read_document(Build, engine.folder / Build.file_name)
    (folder / Build.file_name).write_text(build.model_copy(update=changed).to_json())
    (folder / Engine.main).write_bytes(engine.path.read_bytes())
    return Engine(folder / Engine.main, engine.label, "another digest")


def test_allowed_differences_between_engine_and_model(check_message: CheckMessage) -> None:
    def tensor(**given: Any) -> dict[str, EngineTensor]:
        values: dict[str, Any] = {"name": "x", "dtype": "float32", "shape": (-1, 8), "is_input": True, "on_host": False}
        values |= given
        return {"x": EngineTensor(**values)}

    free = (TensorSpec("x", "float32", ("n", 8)),)
    refuse_other_model(tensor(), free, (), "it")
    refuse_other_model(tensor(shape=(4, 8)), free, (), "it")  # an engine may fix what the model leaves free
    refuse_other_model(tensor(), (TensorSpec("x", "float32", None),), (), "it")
    for odd in (tensor(shape=(-1, 9)), tensor(shape=(8,)), tensor(dtype="int32"), tensor(is_input=False)):
        with pytest.raises(RequestError) as caught:
            refuse_other_model(odd, free, (), "it")
        check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        refuse_other_model(tensor(), (TensorSpec("x", "float32", (4, 8)),), (), "it")
    check_message(caught.value)
    half = tensor(dtype="float16")
    refuse_other_model(half, free, (), "it")
    (note,) = note_casts(half, free)
    assert re.findall(r"\bx\b|float\d+", note) == ["x", "float16", "float32"]
    assert half["x"].values_for(np.ones((2, 8), np.float32)).dtype == np.float16
    assert half["x"].bytes_for((2, 8)) == 32
    assert tensor(padding=(1, 32))["x"].bytes_for((2, 8)) == 2 * 32 * 4
    assert tensor(padding=(1, 8))["x"].bytes_for((2, 3, 5), (10, 1, 1)) == 2 * 10 * 8 * 4  # channels last, filled up
    assert tensor()["x"].bytes_for((2, 3), (32, 1)) == 2 * 32 * 4  # rows with gaps
    assert tensor()["x"].bytes_for((0, 3), (32, 1)) == 0
    assert tensor()["x"].bytes_for(()) == 4
    assert tensor(dtype="int4")["x"].bytes_for((3,), (1,)) == 2


def test_values_of_shape_tensors_have_a_range_too(check_message: CheckMessage) -> None:
    refuse_shape("sizes", [3, 5], [(1, 1), (2, 2), (4, 8)], 0, values=True)
    with pytest.raises(RequestError) as caught:
        refuse_shape("sizes", [9, 5], [(1, 1), (2, 2), (4, 8)], 0, values=True)
    check_message(caught.value)
