"""Measuring in real processes: turns, errors, crashes, interrupts, and that nothing is left behind."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from ndld_flow.base.errors import BackendError, KilledError, ModelError, RequestError
from ndld_flow.measure import process_runs, worker
from ndld_flow.measure.process_runs import MeasuringPlan, ProcessRuns, ProfilingRequest, Side, Tally, run_worker
from ndld_flow.measure.profiler import measure_sides
from ndld_flow.measure.worker import Answer, Job, TimingPlan, write_feeds
from ndld_flow.processes import launch as parent
from ndld_flow.records.profile import Profile
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings, open_model
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.runtimes.protocol import RecordingPlan
from ndld_flow.step import Context, Turn
from ndld_flow.steps.profile import ProfileModel
from ndld_flow.store.kinds import Onnx, ProfileDocument
from tests.support.message_files import CheckMessage
from tests.support.models_run import specs, write_model

CHAIN = "g (float[n, 8] x) => (float[n, 8] y) { a = Relu(x) b = Exp(a) y = Softmax(b) }"
FAILS = "g (float[n, 8] x, float[m, 4] z) => (float[n, 4] y) { y = MatMul(x, z) }"
HOSTILE = 'it\'s "a" $(model); 模型 🦀 \N{RIGHT-TO-LEFT OVERRIDE}x'
HERE: dict[str, Any] = {"runs": 1, "passes": 4, "stable": 0.0, "warmup_passes": 1, "warmup_ms": 0.0}
FOREVER: dict[str, Any] = {
    "runs": 1,
    "passes": 10**9,
    "stable": 0.0,
    "warmup_passes": 1,
    "warmup_ms": 0.0,
    "budget_ms": 60_000.0,
}
SOON_S = 60

needs_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes in /proc")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.onnx", CHAIN)


def request(
    path: Path, label: str = "a", session: OnnxruntimeRequest | None = None, layer_passes: int = 0, **plan: Any
) -> ProfilingRequest:
    return ProfilingRequest(
        path=path,
        label=label,
        digest="digest",
        inputs={},
        session=session or OnnxruntimeRequest(),
        plan=MeasuringPlan(**HERE | plan),
        layer_passes=layer_passes,
        batches=(),
        seed=0,
        options={},
    )


def measure(
    folder: Path, *requests: ProfilingRequest, progress: Callable[[int, int, str], None] = lambda *_: None
) -> list[Profile]:
    scratch = folder / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        return [profile for profile, _ in measure_sides([Side(request, scratch, progress) for request in requests])]
    finally:
        assert list(scratch.iterdir()) == []


class Watched(subprocess.Popen[bytes]):
    """Remembers every process that was started."""

    started: list[Watched] = []

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.started.append(self)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    Watched.started = []
    monkeypatch.setattr(parent.subprocess, "Popen", Watched)  # type: ignore[attr-defined]
    return Watched.started


def test_process_runs_alternate(model: Path, tmp_path: Path) -> None:
    one_thread = OnnxruntimeRequest(threads=1)
    profiles = measure(
        tmp_path,
        request(model, "a", runs=3, passes=7),
        request(model, "b", one_thread, runs=2, passes=4, sleep_ms=1.0),
        request(model, "c", runs=1, passes=3, warmup_passes=3),
    )
    assert [len(profile.runs) for profile in profiles] == [3, 3, 3]
    assert [[len(run.latency_ms) for run in profile.runs] for profile in profiles] == [[3] * 3, [2] * 3, [1] * 3]
    began = sorted((run.started_s, profile.label) for profile in profiles for run in profile.runs)
    assert "".join(label for _, label in began) == "abcabcabc"
    assert began[0][0] == 0.0
    for profile in profiles:
        peaks = [run.peak_memory_bytes for run in profile.runs]
        assert profile.peak_memory_bytes == sorted(peaks)[1], "the median, as comparisons of profiles have it"
        for run in profile.runs:
            ended = run.started_s + (run.starts_ms[-1] + run.latency_ms[-1]) / 1e3
            assert sum(run.started_s < start < ended for start, _ in began) == 0, "no two measure at the same time"
            assert run.starts_ms[0] == 0.0
            assert list(run.starts_ms) == sorted(run.starts_ms)
            assert run.load_ms > 0
            assert run.h2d_ms == run.compute_ms == run.d2h_ms == ()
    assert len({(profile.session, profile.measured_at) for profile in profiles}) == 1
    assert len(profiles[0].session) == 12
    assert profiles[2].warmup_passes == 3
    process = profiles[1].conditions["process"]
    assert isinstance(process, dict)
    assert process["threads"] == 1
    assert {"before", "after", "during", "process"} == set(profiles[0].conditions)
    (alone,) = measure(tmp_path, request(model))
    assert alone.session not in ("", profiles[0].session)


def test_equal_requests_are_measured_separately(model: Path, tmp_path: Path) -> None:
    first, second = measure(tmp_path, request(model), request(model))
    assert first.session == second.session
    assert first.runs[0].started_s != second.runs[0].started_s


@pytest.mark.usefixtures("whole_measurements")
def test_it_stops_when_stable(model: Path, tmp_path: Path) -> None:
    (result,) = measure(tmp_path, request(model, layer_passes=5, runs=2, stable=1e9))
    assert len(result.runs) == 5
    assert result.layer_runs == (3, 3)  # as many as asked for, and no more for the runs that stability asked for
    assert result.stopped_because.startswith("stable: ±")
    assert result.stopped_because.endswith(" after 5 runs")


@pytest.mark.thorough
@pytest.mark.usefixtures("whole_measurements")
def test_it_stops_when_the_budget_is_used(model: Path, tmp_path: Path) -> None:
    (result,) = measure(tmp_path, request(model, passes=400, stable=1e-9, budget_ms=1500.0))
    assert result.stopped_because.startswith("budget of 1.5 s used: ")
    assert 1 <= len(result.runs) < 400


def test_a_run_that_alone_exceeds_the_budget_is_ended(model: Path, tmp_path: Path) -> None:
    started = time.perf_counter()
    (result,) = measure(tmp_path, request(model, **FOREVER | {"budget_ms": 800.0}))
    assert time.perf_counter() - started < SOON_S
    assert result.stopped_because.startswith("budget of 0.8 s") and result.stopped_because.endswith(" 1 run")
    assert result.runs[0].latency_ms


def test_recording_layers_does_not_use_the_budget(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording_ms = 1e6

    def recorded_for_long(*arguments: Any) -> Answer:
        answer = run_worker(*arguments)
        answer.recording_ms = recording_ms
        return answer

    monkeypatch.setattr(process_runs, "run_worker", recorded_for_long)
    tally = Tally(MeasuringPlan(**HERE), 1)
    ProcessRuns(
        model,
        OnnxruntimeRequest(),
        write_feeds({"x": np.ones((1, 8), np.float32)}, tmp_path),
        tally,
        tmp_path,
        lambda *_: None,
    ).run_once()
    assert -recording_ms < tally.used_ms < 0


def test_layers_that_need_other_variables_are_recorded_in_a_process_of_their_own(model: Path, tmp_path: Path) -> None:
    plan = RecordingPlan(3, environment={"NDLD_FLOW_TEST": "1"})
    runs = ProcessRuns(
        model,
        OnnxruntimeRequest(),
        write_feeds({"x": np.ones((1, 8), np.float32)}, tmp_path),
        Tally(MeasuringPlan(**HERE), 1),
        tmp_path,
        lambda *_: None,
        layers=plan,
    )
    runs.run_once()
    (answer,) = runs.answers
    recording = Path(answer.recording)
    assert recording.parent == tmp_path / "layers-1"
    assert answer.timings[0].latency_ms
    layers = OnnxruntimeRequest().read_layers(model, [recording], plan, answer.timings)
    assert layers.waits_for_device
    assert len(layers.pass_ms) == 3
    assert any("device (NDLD_FLOW_TEST=1)" in note for note in layers.notes)


def test_loading_uses_the_budget() -> None:
    plan = TimingPlan(passes=3, limit_ms=100.0, warmup_passes=2)
    assert worker.within(plan, used_ms=30.0) == replace(plan, limit_ms=70.0)
    assert worker.within(plan, used_ms=300.0) == replace(plan, limit_ms=50.0)
    unlimited = replace(plan, limit_ms=0.0)
    assert worker.within(unlimited, used_ms=30.0) == unlimited


@pytest.mark.thorough
def test_progress_names_each_run(model: Path, tmp_path: Path) -> None:
    reports: list[tuple[int, int, str]] = []
    measure(tmp_path, request(model, "a", runs=2), request(model, "b", runs=2), progress=lambda *it: reports.append(it))
    activities = [what for _, _, what in reports]
    loading = activities.index("run 1: loading")
    assert activities[loading - 1 : loading + 2] == ["run 1: starting a process", "run 1: loading", "run 1: warming up"]
    assert activities.count("run 2: loading") == 2, "one for each model"
    assert all(0 <= done <= total == 4 for done, total, _ in reports[loading:]), reports
    reports.clear()
    started = time.perf_counter()
    measure(tmp_path, request(model, **FOREVER | {"budget_ms": 1000.0}), progress=lambda *it: reports.append(it))
    assert len(reports) <= 4 + 10 * (time.perf_counter() - started)


@pytest.mark.thorough
def test_steps_that_take_turns(model: Path, tmp_path: Path, check_message: CheckMessage) -> None:
    def turn(name: str, **settings: Any) -> Turn:
        out, scratch = tmp_path / name / "out", tmp_path / name / "scratch"
        out.mkdir(parents=True)
        scratch.mkdir()
        quick = {"runs": 2, "passes": 4, "stable": 0, "duration": 0, "warmup": 0, "layer_passes": 3}
        step = ProfileModel.model_validate_json(json.dumps(quick | settings))
        log = logging.getLogger("ndld_flow.test")
        context = Context(name, specs({"x": {"shape": [2, 8]}}), {}, scratch, log, lambda *_: None, Path())
        return Turn(step, Onnx(model, "source", "digest"), out, context)

    turns = [turn("base"), turn("speed", threads=1, layer_passes=0, batches=[3])]
    results = ProfileModel.run_together(turns)
    base, speed = (
        Profile.model_validate_json((turn.out / ProfileDocument.main).read_text(encoding="utf-8")) for turn in turns
    )
    assert base.session == speed.session
    assert base.layer_runs == (2, 2)
    assert all(len(layer.samples_ms) == 4 for layer in base.layers)
    assert base.timeline
    assert base.roofs is not None
    assert speed.roofs is None
    assert speed.layer_runs == ()
    assert speed.options["threads"] == 1
    assert [point.inputs[0].shape for point in speed.batches] == [(3, 8)]
    metrics = results[0].metrics
    assert metrics["latency.runs"].value == 2
    assert metrics["latency.median"].value == sum(run.median_ms for run in base.runs) / 2
    assert metrics["latency.spread"].value >= 0
    assert metrics["memory.peak_bytes"].value == statistics.median(run.peak_memory_bytes for run in base.runs)
    assert "2 runs (4 passes) on CPU, 3" in results[0].summary
    with pytest.raises(BackendError) as caught:
        ProfileModel.run_together([turn("fine"), turn("odd", provider="warp")])
    check_message(caught.value)


def test_a_model_that_fails_at_run_time_is_an_error(tmp_path: Path, check_message: CheckMessage) -> None:
    path = write_model(tmp_path / "m.onnx", FAILS)
    with pytest.raises(ModelError) as caught:
        measure(tmp_path, request(path))
    check_message(caught.value)


def test_a_provider_that_falls_back_is_an_error(model: Path, tmp_path: Path) -> None:
    if "CUDAExecutionProvider" not in ort.get_available_providers() or shutil.which("nvidia-smi"):
        pytest.skip("needs ONNX Runtime with CUDA, and a machine without a GPU")
    with pytest.raises(BackendError, match="CUDAExecutionProvider was requested"):
        measure(tmp_path, request(model), request(model, session=OnnxruntimeRequest(provider="cuda")))


def test_copies_of_a_device_are_reported_separately(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if there were a GPU."""

    def measured_on_a_gpu(*arguments: Any) -> Answer:
        answer = run_worker(*arguments)
        answer.devices.insert(0, "CUDAExecutionProvider")
        answer.timings[0].h2d_ms = [0.5] * len(answer.timings[0].latency_ms)
        answer.timings[0].d2h_ms = [0.25] * len(answer.timings[0].latency_ms)
        return answer

    monkeypatch.setattr(process_runs, "run_worker", measured_on_a_gpu)
    (result,) = measure(tmp_path, request(model))
    assert (result.runs[0].h2d_ms, result.runs[0].d2h_ms) == ((0.5,) * 4, (0.25,) * 4)
    assert result.runs[0].compute_ms == result.runs[0].latency_ms
    assert any("run on the device" in note for note in result.notes)
    assert any("memory is the host's" in note for note in result.notes)


def test_copies_are_measured_only_with_a_device(model: Path) -> None:
    bound = open_model(model, SessionSettings()).bind({"x": np.ones((2, 8), np.float32)}, on_device=True)
    bound.run()
    assert not bound.can_copy
    bound.copy_in()
    bound.copy_out()


def test_an_impossible_batch_sweep_fails_before_measuring(
    tmp_path: Path, workers: list[Watched], check_message: CheckMessage
) -> None:
    path = write_model(tmp_path / "m.onnx", CHAIN.replace("n,", "2,"))
    with pytest.raises(RequestError) as caught:
        measure(tmp_path, replace(request(path), batches=(4,)))
    check_message(caught.value)
    assert workers == []


@pytest.mark.usefixtures("executed_workers")
@pytest.mark.parametrize(
    "word", ["SIGSEGV", *(pytest.param(word, marks=pytest.mark.thorough) for word in ("SIGABRT", "SIGKILL"))]
)
def test_a_crash_is_reported(word: str, model: Path, tmp_path: Path, workers: list[Watched]) -> None:
    def crash(done: int, total: int, what: str) -> None:
        if "pass" in what:
            workers[-1].send_signal(getattr(signal, word))

    with pytest.raises(KilledError) as caught:
        measure(tmp_path, request(model, **FOREVER), progress=crash)
    assert f"killed by {word} while pass" in str(caught.value)
    assert ("short of memory" in str(caught.value)) == (word == "SIGKILL")


def test_a_bug_in_the_worker_brings_its_traceback(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impossible = Job(model, OnnxruntimeRequest(), parts=())
    with pytest.raises(RuntimeError, match=r"(?s)ended with code 1 while starting:.*Traceback.*IndexError"):
        run_worker(impossible, tmp_path / "job", lambda *_: None)
    monkeypatch.setattr(parent, "_NO_SPACE_BYTES", 2**80)
    with pytest.raises(OSError, match="No space left"):
        run_worker(impossible, tmp_path / "full", lambda *_: None)


@pytest.mark.usefixtures("executed_workers")
@pytest.mark.parametrize(
    "moment", [pytest.param(moment, marks=pytest.mark.thorough) for moment in ("loading", "warming up", "pass ")]
)
def test_an_interrupt_ends_the_worker(moment: str, model: Path, tmp_path: Path, workers: list[Watched]) -> None:
    def interrupt(done: int, total: int, what: str) -> None:
        if moment in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, request(model, **FOREVER), progress=interrupt)
    assert len(workers) == 1
    assert workers[0].returncode == -signal.SIGKILL


PARENT = """
import sys
from pathlib import Path
from tests.measure.test_measuring_processes import FOREVER, Watched, measure, request, parent

parent.subprocess.Popen = Watched

def tell(done, total, what):
    if sys.argv[3] in what:
        print(Watched.started[-1].pid, flush=True)

measure(Path(sys.argv[2]), request(Path(sys.argv[1]), **FOREVER, sleep_ms=float(sys.argv[4])), progress=tell)
"""


@needs_proc
@pytest.mark.parametrize(
    ("word", "moment", "sleep_ms"),
    [
        pytest.param("SIGKILL", "loading", 0, marks=pytest.mark.thorough),
        ("SIGKILL", "pass ", 0),
        pytest.param("SIGTERM", "pass ", 0, marks=pytest.mark.thorough),
        pytest.param("SIGINT", "pass ", 0, marks=pytest.mark.thorough),
        # A worker that is silent for long.
        pytest.param("SIGKILL", "warming up", 10 * SOON_S * 1000, marks=pytest.mark.thorough),
    ],
)
def test_workers_end_with_their_parent(word: str, moment: str, sleep_ms: int, model: Path, tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(model), str(tmp_path), moment, str(sleep_ms)],
        cwd=Path(__file__).parent.parent.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert parent.stdout is not None
    number = int(parent.stdout.readline())
    assert is_worker(number)
    parent.send_signal(getattr(signal, word))
    parent.wait(SOON_S)
    parent.stdout.close()
    deadline = time.monotonic() + SOON_S
    while is_worker(number):
        assert time.monotonic() < deadline, "the worker lives on"
        time.sleep(0.01)


def is_worker(process: int) -> bool:
    try:
        return worker.__name__ in Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return False


@pytest.mark.thorough
@pytest.mark.usefixtures("executed_workers")
@needs_proc
def test_another_measurement_is_noticed(model: Path, tmp_path: Path) -> None:
    begun, enough = threading.Event(), threading.Event()

    def tell(done: int, total: int, what: str) -> None:
        if done:  # before, its process starts
            begun.set()
        if enough.is_set():
            raise KeyboardInterrupt

    def measure_aside() -> None:
        with pytest.raises(KeyboardInterrupt):
            measure(tmp_path / "aside", request(model, **FOREVER), progress=tell)

    aside = threading.Thread(target=measure_aside)
    aside.start()
    try:
        assert begun.wait(SOON_S)
        (result,) = measure(tmp_path, request(model))
    finally:
        enough.set()
        aside.join(SOON_S)
    assert any("running: ndld-flow (process" in note for note in result.notes)


def test_files_in_the_current_directory_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / HOSTILE
    folder.mkdir()
    for name in ("json", "numpy", "onnxruntime", "ndld_flow"):
        (folder / f"{name}.py").write_text("raise SystemExit('imported from where the user stands')")
    monkeypatch.chdir(folder)
    path = write_model(Path(f"{HOSTILE}.onnx"), CHAIN)
    (result,) = measure(folder, request(path, label=HOSTILE * 100, layer_passes=2))
    assert len(result.latency_ms) == 4


def test_a_worker_imports_little() -> None:
    heavy = {"onnx", "onnx_ir", "pydantic", "pandas", "matplotlib", "hydra", "polygraphy"}
    code = f"import sys, {worker.__name__}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_onnx_runtimes_telemetry_is_off(model: Path, tmp_path: Path) -> None:
    """ONNX Runtime keeps a database of what it will send below the home folder."""
    kept_quiet_by = ("CI", "ORT_RUNNING_UNIT_TESTS", "ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")
    plain = {name: value for name, value in os.environ.items() if name not in kept_quiet_by}
    home = tmp_path / "home"
    home.mkdir()
    code = (
        "import sys; from pathlib import Path; from ndld_flow.runtimes.onnxruntime.onnxruntime_session import *; "
        "open_model(Path(sys.argv[1]), SessionSettings())"
    )
    subprocess.run([sys.executable, "-P", "-c", code, str(model)], env=plain | {"HOME": str(home)}, check=True)
    assert list(home.rglob("*onnxruntime*")) == []


@pytest.mark.thorough
@pytest.mark.usefixtures("executed_workers")
def test_a_worker_has_its_own_process_group(model: Path, tmp_path: Path, workers: list[Watched]) -> None:
    """So Ctrl-C in a terminal reaches us only, and what it started can be ended with it."""
    groups: list[int] = []

    def note_group(*_: object) -> None:
        groups.extend(os.getpgid(worker.pid) for worker in workers[-1:])  # none before the first has started

    measure(tmp_path, request(model), progress=note_group)
    assert set(groups) == {workers[0].pid}
