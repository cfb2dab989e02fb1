"""Rounds of two models, measured in real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.base.errors import BackendError, KilledError, ModelError
from ndld_flow.measure import pair_rounds
from ndld_flow.measure.pair_rounds import PairMeasurement, RoundLimits, measure_rounds, plan_turns
from ndld_flow.measure.process_runs import MeasuringPlan, ProfilingRequest, Side
from ndld_flow.measure.turn_worker import run_turn
from ndld_flow.records.comparison import Comparison
from ndld_flow.records.document import read_document
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import OnnxruntimeSession
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.store.digest import digest_file
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn

RECIPE = """
name: pair
model: model.onnx
steps:
  base: {step: profile, threads: 1, runs: 2, passes: 4, warmup: 0, duration: 0, layer_passes: 0, stable: 0}
  speed: {step: profile, threads: 1, runs: 2, passes: 4, warmup: 0, duration: 0, layer_passes: 0, stable: 0}
  decide: {step: compare_profiles, base: base, rounds: 4, gates: ["latency.median <= +900 %"]}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cnn(tmp_path_factory.mktemp("models") / "model.onnx")


def side(model: Path, scratch: Path, label: str, threads: int = 1) -> Side:
    request = ProfilingRequest(
        path=model,
        label=label,
        digest=digest_file(model),
        inputs={},
        session=OnnxruntimeRequest(threads=threads),
        plan=MeasuringPlan(),
        layer_passes=0,
        batches=(),
        seed=0,
        options={},
    )
    return Side(request, scratch, lambda *_: None, step=label)


def test_two_processes_alternate_pinned_to_one_cpu_and_another_in_the_next_round(model: Path, tmp_path: Path) -> None:
    measurement = PairMeasurement([side(model, tmp_path, name) for name in ("base", "speed")], tmp_path, 15_000)
    rounds = [measurement.measure_round() for _ in range(2)]
    cpus = sorted(os.sched_getaffinity(0))
    assert {item.pinned_to for item in rounds} == set(cpus[:2])
    for item in rounds:
        assert min(item.base.passes, item.candidate.passes) > 1  # passes of microseconds share a turn
        assert item.base.threads == item.candidate.threads == 1
        lengths = {len(times) for each in (item.base, item.candidate) for times in (each.wall_ms, each.cpu_ms)}
        assert lengths.pop() >= 28
        assert not lengths


@pytest.mark.thorough
def test_models_of_several_threads_are_not_pinned(model: Path, tmp_path: Path) -> None:
    pair = [side(model, tmp_path, "base", threads=2), side(model, tmp_path, "speed", threads=2)]
    result = PairMeasurement(pair, tmp_path, 15_000).measure_round()
    assert (result.base.threads, result.pinned_to) == (2, None)


def test_threads_of_one_model_do_not_spin_in_the_turn_of_the_other(model: Path, tmp_path: Path) -> None:
    """ONNX Runtime's threads busy-wait for 40 ms after a pass: alternating passes of two took twice their time."""
    pair = [side(model, tmp_path, name, threads=2) for name in ("base", "speed")]
    for prepared in PairMeasurement(pair, tmp_path, 15_000)._models:
        session = prepared.job.session.open(model)
        assert isinstance(session, OnnxruntimeSession)
        options = session.session.get_session_options()
        assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "1000"


def test_the_time_of_a_round_includes_the_start_of_its_processes(model: Path, tmp_path: Path) -> None:
    """Four rounds of a slow model took half as long again as their budget."""
    pair = [side(model, tmp_path, name) for name in ("base", "speed")]
    result = PairMeasurement(pair, tmp_path, 100).measure_round()
    assert len(result.base.wall_ms) == pair_rounds._SLOW_CYCLES


def test_rounds_end_when_they_decide_or_at_their_limit(model: Path, tmp_path: Path) -> None:
    pair = [side(model, tmp_path, name) for name in ("base", "speed")]
    measured_rounds = measure_rounds(pair, tmp_path, RoundLimits(9, 1e6), lambda rounds: len(rounds) == 2)
    assert len(measured_rounds.rounds) == 2
    assert measured_rounds.stopped_because.startswith("decided after 2 rounds")
    measured_rounds = measure_rounds(pair, tmp_path, RoundLimits(2, 1e6), lambda rounds: False)
    assert len(measured_rounds.rounds) == 2
    assert "rounds after 2 rounds" in measured_rounds.stopped_because
    assert not list(tmp_path.iterdir())


def children_of(folder: Path) -> list[int]:
    """Return the processes that run turns with this folder as the current directory, or with files below it."""
    result = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_text(errors="replace")
                place = f"{(entry / 'cwd').readlink()} {command}"
            except OSError:
                continue
            if str(folder) in place and "turn_worker" in command:
                result.append(int(entry.name))
    return result


def until(happens: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if happens():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("pass_ms", "passes", "cycle_ms"), [((0.5, 4.2), [20, 3], 4 + 10 + 4.2 + 12.6), ((15, 30), [1, 1], 15 + 15 + 30)]
)
def test_short_passes_are_measured_warm(pass_ms: Sequence[float], passes: Sequence[int], cycle_ms: float) -> None:
    """A candidate of 4.2 ms was measured at 5.5 ms: each of its turns was the pass in which its threads woke up."""
    planned, planned_ms = plan_turns(pass_ms, 4.0, 10.0)
    assert planned == passes
    assert planned_ms == pytest.approx(cycle_ms)


def test_a_turn_is_measured_after_the_time_in_which_the_process_wakes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 1_000_000 * len(ran))
    warm = run_turn(lambda: ran.append("pass"), 3, warm_ms=5.0, rewind=lambda: ran.append("rewind"))
    assert ran == ["pass"] * 5 + ["rewind"] + ["pass"] * 3
    assert warm.wall_ms == 3
    ran.clear()
    run_turn(lambda: ran.append("pass"), 3, rewind=lambda: ran.append("rewind"))
    assert ran == ["pass"] * 3


@pytest.mark.thorough
@pytest.mark.usefixtures("executed_workers")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_process_that_dies_during_a_round_ends_it_by_name_and_nothing_is_left(
    model: Path, tmp_path: Path, check_message: CheckMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ndld_flow.measure.pair_rounds.plan_cycles", lambda *_: 28)

    def kill_one(done: int, total: int, what: str) -> None:
        if "cycle 3 of" in what:
            os.kill(children_of(tmp_path)[0], signal.SIGKILL)

    pair = [
        Side(item.request, item.scratch, kill_one, item.step)
        for item in (side(model, tmp_path, name) for name in ("base", "speed"))
    ]
    with pytest.raises(KilledError) as caught:
        measure_rounds(pair, tmp_path, RoundLimits(4, 1e6), lambda rounds: False)
    check_message(caught.value)
    assert not children_of(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_model_that_cannot_be_measured_is_an_error_by_name(
    model: Path, tmp_path: Path, check_message: CheckMessage
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    pair = [side(model, tmp_path, "base"), side(broken, tmp_path, "speed")]
    with pytest.raises((ModelError, BackendError)) as caught:
        measure_rounds(pair, tmp_path, RoundLimits(4, 1e6), lambda rounds: False)
    check_message(caught.value)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not report waiting for a CPU")
def test_a_wait_is_neither_cpu_time_nor_queueing() -> None:
    waits = [run_turn(lambda: time.sleep(0.05), 1) for _ in range(5)]  # other processes may have the CPUs in some
    assert any(turn.wall_ms - turn.cpu_ms - (turn.queued_ms or 0.0) > 40 for turn in waits)
    assert all(turn.queued_ms is not None for turn in waits)
    works = [run_turn(lambda: sum(range(300_000)), 1) for _ in range(5)]  # a virtual CPU may be taken away in one
    assert any(
        turn.wall_ms - turn.cpu_ms - turn.queued_ms < 0.1 * turn.wall_ms + 1
        for turn in works
        if turn.queued_ms is not None
    )


@pytest.mark.thorough
def test_a_recipe_compares_by_rounds(model: Path, in_folder: Path) -> None:
    (in_folder / "model.onnx").write_bytes(model.read_bytes())
    (in_folder / "pair.yaml").write_text(RECIPE)
    finished = api.run("pair.yaml")
    comparison = read_document(Comparison, Path(finished.folder) / "decide" / "comparison.json")
    rounds = comparison.profiles[0].rounds
    assert finished.passed
    assert rounds is not None
    assert len(rounds.rounds) == 4
    assert rounds.rounds_limit == 4
    assert "latency.median" in comparison.why
    assert not comparison.profiles[0].rounds_missing
    # The resolved recipe repeats the run, whatever the step read through others.
    again = api.run(Path(finished.folder) / "recipe.yaml")
    assert again.nothing_to_do


@pytest.mark.thorough
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_ctrl_c_during_rounds_leaves_no_process(model: Path, in_folder: Path) -> None:
    (in_folder / "model.onnx").write_bytes(model.read_bytes())
    (in_folder / "pair.yaml").write_text(RECIPE)
    process = subprocess.Popen([sys.executable, "-m", "ndld_flow", "run", "pair.yaml"], start_new_session=True)
    try:
        assert until(lambda: bool(children_of(in_folder)))
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
        assert until(lambda: not children_of(in_folder))
    finally:
        process.kill()
        process.wait()
