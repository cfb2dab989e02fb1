"""Profiling: the timing pass, the layer pass with its self times, and where layers come from."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from pydantic import ValidationError

from ndld_flow.base.errors import BackendError, ModelError, RequestError, UnknownNameError
from ndld_flow.measure.process_runs import MeasuringPlan, ProcessRuns, Tally
from ndld_flow.measure.worker import TimingPlan, time_passes
from ndld_flow.models.files import model_inputs
from ndld_flow.profiles.read.onnxruntime_profile import read_passes
from ndld_flow.records.profile import Profile
from ndld_flow.runtimes.onnxruntime import layer_recording, onnxruntime_session
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.runtimes.protocol import LayerPass
from ndld_flow.samples.feeds import make_feeds
from ndld_flow.steps.profile import ProfileModel
from ndld_flow.store.kinds import ProfileDocument
from tests.support.layer_passes import measure_layers
from tests.support.message_files import CheckMessage
from tests.support.models import make_ctrl, make_func, make_tfm
from tests.support.models_run import Given, Ran, run_step, write_model
from tests.support.timed_passes import Passes

QUICK = {"runs": 1, "stable": 0, "passes": 5, "duration": 0, "warmup": 0, "warmup_passes": 1, "layer_passes": 3}
CHAIN = "g (float[n, 8] x) => (float[n, 8] y) { a = Relu(x) b = Exp(a) y = Softmax(b) }"


def profile(model: Path, folder: Path, inputs: Given | None = None, **settings: Any) -> tuple[Ran, Profile]:
    ran = run_step(ProfileModel, model, folder / "ran", QUICK | settings, inputs)
    return ran, Profile.model_validate_json((ran.out / ProfileDocument.main).read_text())


def test_a_profile_has_everything(tmp_path: Path) -> None:
    _, result = profile(write_model(tmp_path / "m.onnx", CHAIN), tmp_path, {"x": {"shape": [2, 8]}}, threads=1)
    assert result.label == "candidate"
    assert result.model_digest == "digest"
    assert result.providers == ("CPUExecutionProvider",)
    assert result.stopped_because == "runs done: after 1 run"
    assert len(result.latency_ms) == 5
    assert result.runs[0].load_ms > 0
    assert result.warmup_passes == 1
    assert result.latency_ms[result.latency.median_pass] == result.latency.median_ms
    assert [(t.name, t.dtype, t.shape) for t in result.inputs] == [("x", "float32", (2, 8))]
    assert result.inputs[0].data == "random uniform [0, 1), seed 0, float32 2x8"
    assert [(t.name, t.dtype, t.shape) for t in result.outputs] == [("y", "float32", (2, 8))]
    assert result.options["threads"] == 1
    assert result.options["optimization"] == "all"
    assert result.machine.cpu
    assert any(name.startswith("onnxruntime") for name in result.versions)
    assert "load_average" in str(result.conditions)
    assert [layer.type for layer in result.layers] == ["Relu", "Exp", "Softmax"]
    assert [layer.index for layer in result.layers] == [0, 1, 2]
    assert all(len(layer.samples_ms) == 3 for layer in result.layers)
    assert result.layers[1].inputs[0].name == "a"
    assert result.layers[1].precision == "float32"
    assert len(result.layer_pass_ms) == 3
    assert result.profiler_overhead > 0
    assert 0 < result.layers_sum_ms <= max(result.layer_pass_ms)


def test_metrics_that_gates_may_name(tmp_path: Path) -> None:
    ran, result = profile(write_model(tmp_path / "m.onnx", CHAIN), tmp_path)
    assert any("input x " in note and "1x8" in note for note in result.notes)
    metrics = ran.result.metrics
    assert metrics["latency.median"].value == result.latency.median_ms
    assert metrics["latency.median"].unit == "ms"
    assert metrics["throughput.median"].value == pytest.approx(1e3 / result.latency.median_ms)
    assert metrics["throughput.median"].unit == "1/s"
    assert metrics["throughput.items"].value == metrics["throughput.median"].value, "a batch of 1"
    assert metrics["layers.count"].value == 3
    expected = {f"latency.{word}" for word in ("min", "max", "mean", "p90", "p95", "p99", "std", "cov")}
    assert expected | {"load_ms", "layers.sum", "profiler.overhead"} <= set(metrics)
    assert ran.result.summary.startswith("median ")
    assert ran.result.passed


def test_no_layer_pass_and_no_stray_files(tmp_path: Path, in_folder: Path) -> None:
    model = write_model(tmp_path / "m.onnx", CHAIN)
    before = sorted(tmp_path.iterdir())
    ran, result = profile(model, tmp_path, layer_passes=0)
    assert result.layers == ()
    assert result.profiler_overhead == 0
    assert result.layers_sum_ms == 0
    assert sorted(tmp_path.iterdir()) == [*before, tmp_path / "ran"]
    assert list(ran.scratch.iterdir()) == []
    assert [path.name for path in ran.out.iterdir()] == ["profile.json"]


def test_an_interrupted_layer_pass_leaves_files_in_scratch_only(tmp_path: Path, in_folder: Path) -> None:
    model = write_model(tmp_path / "m.onnx", CHAIN)

    def interrupt(done: int, total: int, what: str) -> None:
        if "layers" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_step(ProfileModel, model, tmp_path / "ran", QUICK, progress=interrupt)
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx", "ran"}
    assert list((tmp_path / "ran" / "out").iterdir()) == []


@pytest.mark.parametrize(
    "level", ["disabled", *(pytest.param(level, marks=pytest.mark.thorough) for level in ("basic", "extended")), "all"]
)
def test_times_of_if_and_loop_exclude_their_bodies(level: str, tmp_path: Path) -> None:
    _, result = profile(make_ctrl(tmp_path / "m.onnx"), tmp_path, optimization=level)
    depths = {layer.type: layer.depth for layer in result.layers}
    assert depths["If"] == depths["Loop"] == 0
    assert max(depths.values()) == 1
    for number, whole in enumerate(result.layer_pass_ms):
        self_times = [layer.samples_ms[number] for layer in result.layers]
        assert min(self_times) >= 0
        assert sum(self_times) <= whole


def test_a_loop_is_one_layer_for_each_node_of_its_body(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Tanh", ["h"], ["h_out"], name="inner"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h", TensorProto.FLOAT, ["n"]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h_out", TensorProto.FLOAT, ["n"]),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body, name="outer")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor("trips", TensorProto.INT64, [], [200])],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    _, result = profile(path, tmp_path, {"x": {"shape": [20000]}})
    by_name = {layer.name: layer for layer in result.layers}
    assert by_name["inner"].depth == 1
    assert by_name["inner"].onnx_nodes == ("inner",)
    assert by_name["outer"].onnx_nodes == ("outer",)
    inner, outer = by_name["inner"].samples_ms, by_name["outer"].samples_ms
    # Tanh takes most of the pass: counted in the Loop too, the sum would be more than the whole.
    assert all(
        whole >= nested + around for whole, nested, around in zip(result.layer_pass_ms, inner, outer, strict=True)
    )


def test_fused_nodes_are_traced_to_the_models(tmp_path: Path) -> None:
    _, result = profile(make_tfm(tmp_path / "m.onnx"), tmp_path)
    assert all(layer.onnx_nodes for layer in result.layers)
    assert any(len(layer.onnx_nodes) > 2 for layer in result.layers)
    known = {node.name for node in onnx.load(tmp_path / "m.onnx").graph.node}
    assert {name for layer in result.layers for name in layer.onnx_nodes} <= known


def test_nodes_of_local_functions_come_from_their_calls(tmp_path: Path) -> None:
    _, result = profile(make_func(tmp_path / "m.onnx"), tmp_path, optimization="disabled")
    calls = {node.name or node.output[0] for node in onnx.load(tmp_path / "m.onnx").graph.node}
    assert {name for layer in result.layers for name in layer.onnx_nodes} == calls


def test_unnamed_nodes_are_called_by_their_output(tmp_path: Path) -> None:
    graph = "g (float[n] x) => (float[n] y) { a = Exp(x) b = Exp(a) y = Tanh(b) }"
    _, result = profile(write_model(tmp_path / "m.onnx", graph), tmp_path)
    assert [layer.onnx_nodes for layer in result.layers] == [("a",), ("b",), ("y",)]


def test_a_merged_twin_belongs_to_its_reader_and_nothing_before_it(tmp_path: Path) -> None:
    graph = "g (float[n] x) => (float[n] y) { r = Relu(x) a = Exp(r) twin = Exp(r) y = Div(a, twin) }"
    _, result = profile(write_model(tmp_path / "m.onnx", graph), tmp_path)
    assert result.layers[0].onnx_nodes == ("r",)
    assert sorted(name for layer in result.layers for name in layer.onnx_nodes) == ["a", "r", "twin", "y"]


def test_fp16_on_the_cpu_is_traced_through_the_casts_it_needs(tmp_path: Path) -> None:
    graph = "g (float16[1, 3, 8, 8] x, float16[4, 3, 3, 3] w) => (float16[1, 4, 6, 6] y) { a = Conv(x, w) y = Relu(a) }"
    _, result = profile(write_model(tmp_path / "m.onnx", graph), tmp_path)
    assert {layer.onnx_nodes for layer in result.layers if layer.type != "Cast"} == {("a",), ("y",)}
    assert all(layer.onnx_nodes == () for layer in result.layers if layer.type == "Cast")


@pytest.mark.thorough
def test_every_node_of_a_real_model_is_accounted_for(sample_model: Callable[[str], Path], tmp_path: Path) -> None:
    det = sample_model("det")
    _, result = profile(det, tmp_path, {"x": {"shape": [1, 3, 320, 320]}})
    put_in = {layer.type for layer in result.layers if not layer.onnx_nodes}
    assert put_in <= {"ReorderInput", "ReorderOutput"}
    computing = [node.name for node in onnx.load(det).graph.node if node.op_type != "Constant"]
    traced = [name for layer in result.layers for name in layer.onnx_nodes]
    assert sorted(traced) == sorted(computing)


def test_state_inputs_and_subgraphs_of_a_real_model(sample_model: Callable[[str], Path], tmp_path: Path) -> None:
    given: Given = {"input": {"shape": [1, 512]}, "state": {"data": "zeros"}, "sr": {"range": [16000, 16001]}}
    _, result = profile(sample_model("silero"), tmp_path, given)
    assert max(layer.depth for layer in result.layers) >= 2
    assert all(layer.onnx_nodes for layer in result.layers)
    assert [tensor.shape for tensor in result.inputs] == [(1, 512), (2, 1, 128), ()]


def test_a_batch_sweep(tmp_path: Path) -> None:
    ran, result = profile(write_model(tmp_path / "m.onnx", CHAIN), tmp_path, batches=[1, 4])
    assert [point.batch for point in result.batches] == [1, 4]
    assert result.batches[1].inputs[0].shape == (4, 8)
    assert len(result.batches[1].latency_ms) == 5
    median = ran.result.metrics["batch_4.latency.median"].value
    assert ran.result.metrics["batch_4.throughput.median"].value == pytest.approx(4e3 / median)


def test_items_a_second_count_the_batch(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", CHAIN)
    metrics = profile(model, tmp_path, {"x": {"shape": [4, 8]}})[0].result.metrics
    assert metrics["throughput.items"].value == pytest.approx(4 * metrics["throughput.median"].value)
    pair = "g (float[n, 8] x, float[1, 8] z) => (float[n, 8] y) { y = Add(x, z) }"
    two = write_model(tmp_path / "two.onnx", pair)
    metrics = profile(two, tmp_path / "of two", {"x": {"shape": [4, 8]}})[0].result.metrics
    assert "throughput.items" not in metrics, "inputs that differ in their first dimension have no batch"


def test_free_dimensions_are_fixed_before_optimizing(tmp_path: Path) -> None:
    graph = "g (float[n, 8] x) => (int64[d] y) { y = Shape(x) }"
    _, result = profile(write_model(tmp_path / "m.onnx", graph), tmp_path, free_dimensions={"n": 3})
    assert result.inputs[0].shape == (3, 8)
    assert result.layers == ()  # the shape is a constant now
    with pytest.raises(UnknownNameError) as caught:
        profile(tmp_path / "m.onnx", tmp_path / "again", free_dimensions={"m": 3})
    assert caught.value.name == "m"


@pytest.mark.parametrize(
    "settings",
    [
        {"execution": "parallel", "inter_op_threads": 2},
        pytest.param({"memory_arena": False}, marks=pytest.mark.thorough),
    ],
)
def test_other_session_settings(settings: dict[str, Any], tmp_path: Path) -> None:
    _, result = profile(make_ctrl(tmp_path / "m.onnx"), tmp_path, **settings)
    assert len(result.layer_pass_ms) == 3
    assert any("parallel" in note for note in result.notes) == ("execution" in settings)


def test_durations_are_written_with_units() -> None:
    given = {"warmup": "1 s", "duration": "200 ms", "budget": "2 min", "stable": "2 %"}
    step = ProfileModel.model_validate_json(json.dumps(given))
    assert (step.warmup, step.duration, step.budget, step.stable) == (1000.0, 200.0, 120_000.0, 0.02)
    for wrong in (
        {"runs": 0},
        {"budget": 0},
        {"stable": -1},
        {"passes": 0},
        {"warmup": "soon"},
        {"batches": [0]},
        {"backend": "tflite"},
        {"threads": -1},
    ):
        with pytest.raises(ValidationError):
            ProfileModel.model_validate_json(json.dumps(wrong))


def test_a_measured_device_is_held_exclusively() -> None:
    assert ProfileModel().device == "cpu"
    assert ProfileModel.model_validate_json('{"provider": "CPUExecutionProvider"}').device == "cpu"
    on_gpu = ProfileModel.model_validate_json('{"provider": "cuda", "provider_options": {"device_id": 1}}')
    assert on_gpu.device == "gpu-1"


def test_models_that_cannot_be_profiled_are_errors(tmp_path: Path, check_message: CheckMessage) -> None:
    model = write_model(tmp_path / "m.onnx", CHAIN)
    with pytest.raises(BackendError) as unavailable:
        profile(model, tmp_path / "a", provider="warp")
    check_message(unavailable.value)
    with pytest.raises(UnknownNameError) as unknown:
        profile(model, tmp_path / "b", {"z": {"shape": [1]}})
    assert unknown.value.name == "z"
    with pytest.raises(RequestError) as refused:
        profile(model, tmp_path / "c", {"x": {"shape": [1, 9]}})
    check_message(refused.value)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(model.read_bytes()[:40])
    with pytest.raises(ModelError):
        profile(broken, tmp_path / "d")


def test_too_many_events_mean_fewer_layer_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_recording, "_EVENT_BUDGET", 30)  # three nodes and two more events a pass
    layer_pass = layers_here(write_model(tmp_path / "m.onnx", CHAIN), tmp_path, 10)
    assert len(layer_pass.pass_ms) == 4
    assert any(note.startswith("4 layer passes instead of 10") for note in layer_pass.notes)


def test_layers_stay_where_the_optimized_model_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = onnxruntime_session.open_model

    def refuse(path: Path, settings: Any) -> Any:
        if settings.optimized_model is not None:
            raise ModelError("Unable to serialize model as it contains compiled nodes")
        return opened(path, settings)

    monkeypatch.setattr(layer_recording, "open_model", refuse)
    layer_pass = layers_here(write_model(tmp_path / "m.onnx", CHAIN), tmp_path, 3)
    assert [layer.type for layer in layer_pass.layers] == ["Relu", "Exp", "Softmax"]
    assert any("not traced back" in note for note in layer_pass.notes)


def layers_here(model: Path, folder: Path, passes: int) -> LayerPass:
    """The layer pass in this process, where parts of it can be replaced."""
    feeds = {name: feed.values for name, feed in make_feeds(model_inputs(model), {}).items()}
    return measure_layers(model, SessionSettings(), feeds, passes, folder)


class FakeClock:
    """Time that only passes when a pass or a rest does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pass_ms: float) -> None:
        self.now_ns = 0
        self._pass_ns = int(pass_ms * 1e6)
        self.passes = 0
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.now_ns)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)

    def once(self) -> None:
        self.passes += 1
        self.now_ns += self._pass_ns


@pytest.mark.parametrize(
    ("plan", "measured", "warm", "limited"),
    [
        (TimingPlan(passes=10), 10, 0, False),
        (TimingPlan(passes=10, duration_ms=50), 10, 0, False),
        (TimingPlan(passes=10, duration_ms=200), 40, 0, False),
        (TimingPlan(passes=10, limit_ms=50), 10, 0, False),
        (TimingPlan(passes=100, limit_ms=50), 10, 0, True),
        (TimingPlan(passes=100, limit_ms=1), 1, 0, True),
        (TimingPlan(passes=5, duration_ms=1e6, limit_ms=100), 20, 0, True),
        (TimingPlan(passes=3, warmup_passes=4), 3, 4, False),
        (TimingPlan(passes=3, warmup_passes=4, warmup_ms=50), 3, 10, False),
        (TimingPlan(passes=100, warmup_passes=100, limit_ms=100), 10, 11, True),
        (TimingPlan(passes=100, warmup_passes=1, limit_ms=1), 1, 1, True),
        (TimingPlan(passes=10, sleep_ms=5, duration_ms=200), 20, 0, False),
    ],
)
def test_measuring_stops_at_passes_duration_or_limit(
    plan: TimingPlan, measured: int, warm: int, limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(monkeypatch, 5.0)
    timing = time_passes(Passes(clock.once), plan, lambda done, total: None)
    assert timing.limit_reached == limited
    assert timing.latency_ms == [5.0] * measured  # rests are not counted
    assert timing.starts_ms == pytest.approx([(5.0 + plan.sleep_ms) * number for number in range(measured)])
    assert timing.warmup_passes == warm
    assert timing.warmup_ms == warm * 5.0
    assert clock.passes == measured + warm


def test_a_slow_first_pass_leaves_time_for_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, the first pass of this session searches for algorithms: it took 7 s of a share of 2 s."""
    clock = FakeClock(monkeypatch, 5.0)

    def once() -> None:
        clock.sleep(0 if clock.passes else 7)
        clock.once()

    timing = time_passes(Passes(once), TimingPlan(passes=100, warmup_passes=5, limit_ms=2000), lambda done, total: None)
    assert (timing.first_pass_ms, timing.warmup_passes) == (7005.0, 5)
    assert timing.latency_ms == [5.0] * 100
    assert not timing.limit_reached


def test_copies_are_timed_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(monkeypatch, 5.0)
    passes = Passes(clock.once, copies=(lambda: clock.sleep(0.002), lambda: clock.sleep(0.001)))
    timing = time_passes(passes, TimingPlan(passes=3, warmup_passes=1), lambda done, total: None)
    assert (timing.h2d_ms, timing.latency_ms, timing.d2h_ms) == ([2.0] * 3, [5.0] * 3, [1.0] * 3)
    assert timing.starts_ms == [0.0, 8.0, 16.0]


def test_progress_is_reported_ten_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[tuple[int, int]] = []
    clock = FakeClock(monkeypatch, 5.0)
    time_passes(Passes(clock.once), TimingPlan(passes=200), lambda done, total: reports.append((done, total)))
    assert 8 <= len(reports) <= 10
    assert reports[0][1] == 200


@pytest.mark.parametrize(
    ("plan", "foreseen"),
    [
        (TimingPlan(passes=1000, limit_ms=2000, warmup_passes=100), 301),
        (TimingPlan(passes=10, duration_ms=1500, warmup_passes=0), 300),
    ],
)
def test_the_foreseen_passes_are_those_that_the_limits_allow(
    plan: TimingPlan, foreseen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[tuple[int, int]] = []
    clock = FakeClock(monkeypatch, 5.0)
    timing = time_passes(Passes(clock.once), plan, lambda done, total: reports.append((done, total)))
    assert {total for _, total in reports} == {foreseen}
    assert len(timing.latency_ms) == pytest.approx(foreseen, abs=1)


@pytest.mark.parametrize(("budget_s", "left_s"), [(1000.0, "100 s"), (60.0, "55 s"), (10.0, "10 s")])
def test_the_time_of_all_runs_is_foreseen_from_the_first_passes(
    budget_s: float, left_s: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of 10 s to load and 1 s a pass: after 2 of 12 passes, 10 s of this run are left, and 22 s of each later one;
    but the budget may end them.
    """
    clock = FakeClock(monkeypatch, 5.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now_ns / 1e9)
    messages: list[str] = []
    plan = MeasuringPlan(runs=5, passes=60, budget_ms=budget_s * 1e3)
    request = OnnxruntimeRequest()
    runs = ProcessRuns(tmp_path, request, {}, Tally(plan, 5), tmp_path, lambda *report: messages.append(report[2]))
    report = runs._reporter(1, 12)
    clock.sleep(10)
    report(0, 12, "warming up")
    for done in (1, 2):
        clock.sleep(1)
        report(done, 12, f"pass {done} of 12")
    assert messages[1] == "run 1: pass 1 of 12", "one report has no pace"
    assert messages[2].startswith(f"run 1: pass 2 of 12, {left_s} ")


def test_peak_memory_is_measured_for_each_block() -> None:
    """In a new process: the C library of one that has worked reuses freed memory without a trace."""
    code = (
        "from ndld_flow.measure.worker import PeakMemory\n"
        "for _ in range(2):\n"
        "    with PeakMemory() as memory:\n"
        "        block = bytearray(b'\\1') * (64 << 20)\n"
        "        del block\n"
        "    print(memory.peak_bytes)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    peaks = [int(line) for line in done.stdout.split()]
    if not peaks[0]:
        pytest.skip("this system does not report how much memory a process uses")
    assert all(60 << 20 < peak < 90 << 20 for peak in peaks)


def test_a_measuring_process_imports_little() -> None:
    """Each proof of `optimize` starts ten: onnx-ir and pydantic took them a second of CPU time each."""
    code = (
        "import sys, ndld_flow.measure.turn_worker\n"
        "from ndld_flow.runtimes.registry import find_runtime\n"
        "find_runtime('onnxruntime').read_request({'provider': 'cpu'})\n"
        "print({'onnx', 'onnx_ir', 'pydantic', 'sympy', 'yaml'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def event(name: str, ts: int, dur: int, **args: Any) -> str:
    return json.dumps({"cat": "Node", "name": name, "ts": ts, "dur": dur, "args": args})


def node(name: str, ts: int, dur: int, index: int = 0, op: str = "Op") -> str:
    return event(f"{name}_kernel_time", ts, dur, op_name=op, node_index=str(index), provider="CPU")


def write_events(path: Path, lines: list[str]) -> Path:
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    return path


def test_events_are_nested_by_the_order_in_which_they_end(tmp_path: Path) -> None:
    lines = [
        event("session_initialization", 0, 90),
        node("a", 100, 10),
        node("b", 115, 5, index=0),  # the same index as `a`: another graph
        event("SequentialExecutor::Execute", 114, 8),
        node("b", 130, 7, index=0),
        event("SequentialExecutor::Execute", 129, 10),
        node("if", 111, 40, index=1, op="If"),
        event("SequentialExecutor::Execute", 99, 60),
        event("model_run", 98, 65),
    ]
    passes = read_passes(write_events(tmp_path / "p.json", lines))
    assert passes.pass_ms == [0.065]
    assert [(n.name, n.depth, n.self_ms) for n in passes.nodes.values()] == [
        ("a", 0, (0.01,)),
        ("if", 0, (0.028,)),
        ("b", 1, (0.012,)),
    ]


def test_passes_that_skip_a_node_and_passes_that_were_cut_off(tmp_path: Path) -> None:
    def run(at: int, names: str) -> list[str]:
        nodes = [node(name, at + 2 + 10 * i, 5, ord(name)) for i, name in enumerate(names)]
        return [*nodes, event("SequentialExecutor::Execute", at + 1, 97), event("model_run", at, 99)]

    lines = list(itertools.chain(run(0, "xyz"), run(100, "ab"), run(200, "b"), run(300, "abc")[:2]))
    passes = read_passes(write_events(tmp_path / "p.json", [*lines, '{"cat": broken']), skip=1)
    assert passes.pass_ms == [0.099, 0.099]
    assert {n.name: n.self_ms for n in passes.nodes.values()} == {"a": (0.005, 0.0), "b": (0.005, 0.005)}
    assert passes.unreadable_lines == 1
