"""Counts of passes: by Valgrind and perf events where they work, and what would make a count claim too much."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ndld_flow.base.errors import BackendError
from ndld_flow.history.series import read_measurements
from ndld_flow.machine import counters
from ndld_flow.machine.counters import choose_counter, find_valgrind_lack
from ndld_flow.machine.perf_events import Event, Reading, find_perf_lack, open_counter
from ndld_flow.measure import count_worker
from ndld_flow.measure.count_worker import MARK_BYTES, find_cpu_features, refuse_shared
from ndld_flow.measure.counting import CountedModel, CountingPlan, count_passes, read_allocations, read_callgrind
from ndld_flow.measure.valgrind_requests import ValgrindRequests
from ndld_flow.measure.worker_job import write_feeds
from ndld_flow.records.profile import PassCount
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.runtimes.onnxruntime.settings import OnnxruntimeSettings
from ndld_flow.runtimes.protocol import SessionRequest
from ndld_flow.steps.profile import ProfileModel
from tests.support.models_run import write_model

TASK_CLOCK = Event(1, 1)
"""The kernel counts it in software, so that every machine has it that allows perf events."""
in_valgrind = pytest.mark.skipif(bool(find_valgrind_lack()), reason=find_valgrind_lack() or "Valgrind counts")
by_perf = pytest.mark.skipif(bool(find_perf_lack()), reason=find_perf_lack() or "perf events count")


def chain(path: Path, layers: int, width: int = 64) -> Path:
    """Write a model of `layers` sigmoids of `width` numbers."""
    names = ["x", *(f"v{number}" for number in range(layers - 1)), "y"]
    nodes = " ".join(f"{after} = Sigmoid({before})" for before, after in pairwise(names))
    return write_model(path, f"g (float[{width}] x) => (float[{width}] y) {{ {nodes} }}")


def counted(
    model: Path, width: int, quantity: str = "instructions", counter: counters.CounterName = "valgrind", passes: int = 3
) -> tuple[tuple[PassCount, ...], tuple[str, ...]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        feeds = write_feeds({"x": np.linspace(-1, 1, width, dtype=np.float32)}, folder / "inputs")
        subject = CountedModel(model, OnnxruntimeRequest(threads=2), feeds, folder, {}, lambda *_: None)
        return count_passes(subject, CountingPlan((quantity,), counter, passes))


@in_valgrind
@pytest.mark.slow
def test_equal_models_run_as_many_instructions_and_one_with_more_work_runs_more(tmp_path: Path) -> None:
    base = chain(tmp_path / "base.onnx", 1, 200_000)
    (first,), notes = counted(base, 200_000)
    (again,), _ = counted(base, 200_000)
    more = chain(tmp_path / "more.onnx", 1, 202_000)
    (larger,), _ = counted(more, 202_000)
    assert again.median == pytest.approx(first.median, rel=1e-3)
    assert larger.median / first.median == pytest.approx(1.01, rel=2e-3)
    assert first.threads == 1
    assert "on one thread" in notes[0]
    assert first.cpu_features and first.libc.startswith("glibc")


@in_valgrind
@pytest.mark.thorough
def test_a_node_more_allocates_its_output(tmp_path: Path) -> None:
    model = chain(tmp_path / "base.onnx", 2, 512)
    (blocks, sizes), _ = counted(model, 512, "allocations")
    assert (blocks.quantity, sizes.quantity) == ("allocations", "allocated_bytes")
    assert blocks.spread == sizes.spread == 0
    assert blocks.median > 0 and sizes.median > 0


@in_valgrind
@pytest.mark.slow
def test_a_pass_that_allocates_more_differs_and_a_failing_model_is_reported(tmp_path: Path) -> None:
    def read(name: str, layers: int) -> Sequence[PassCount]:
        return counted(chain(tmp_path / name, layers, 512), 512, "allocations")[0]

    few, many = read("few.onnx", 2), read("many.onnx", 40)
    assert many[0].median > few[0].median
    assert read("again.onnx", 40)[0].samples == many[0].samples
    broken = write_model(tmp_path / "broken.onnx", "g (float[2] x) => (float[n] y) { y = MatMul(x, x) }")
    with pytest.raises(Exception, match="broken"):
        counted(broken, 3)


@by_perf
def test_perf_events_count_equal_passes_alike(tmp_path: Path) -> None:
    model = chain(tmp_path / "m.onnx", 1, 200_000)
    first, again = (counted(model, 200_000, counter="perf", passes=5)[0][0] for _ in range(2))
    assert again.median == pytest.approx(first.median, rel=1e-3)


@pytest.mark.skipif(not Path("/proc/sys/kernel/perf_event_paranoid").exists(), reason="no perf events in this kernel")
def test_a_counter_counts_between_start_and_stop_only() -> None:
    try:
        with open_counter(TASK_CLOCK) as counter:
            counter.start()
            sum(range(10_000))
            short = counter.stop()
            sum(range(3_000_000))
            counter.start()
            sum(range(10_000))
            again = counter.stop()
            counter.start()
            sum(range(3_000_000))
            long = counter.stop()
    except OSError as error:
        pytest.skip(f"perf events are not allowed: {error}")
    assert 0 < short.value < long.value / 3 and 0 < again.value < long.value / 3
    assert short.is_whole and again.is_whole


def test_passes_are_counted_with_the_threads_that_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(count_worker, "open_counter", lambda: open_counter(TASK_CLOCK))

    def run() -> None:
        thread = threading.Thread(target=lambda: sum(range(2_000_000)))
        thread.start()
        thread.join()

    try:
        idle = count_worker._by_perf_events(lambda: None, 2, lambda _: None)
        busy = count_worker._by_perf_events(run, 2, lambda _: None)
    except OSError as error:
        pytest.skip(f"perf events are not allowed: {error}")
    assert len(idle) == len(busy) == 2
    assert min(busy) > 10 * max(idle)


def test_a_shared_or_dead_counter_is_refused() -> None:
    refuse_shared([Reading(1000, 50, 50), Reading(1000, 50, 50)])
    with pytest.raises(BackendError, match=r"ran for 60% of a pass.*counter: valgrind"):
        refuse_shared([Reading(1000, 50, 50), Reading(600, 50, 30)])
    for dead in (Reading(0, 50, 50), Reading(0, 0, 0)):
        with pytest.raises(BackendError):
            refuse_shared([dead])


def test_a_request_has_no_effect_outside_of_valgrind() -> None:
    if find_valgrind_lack().startswith("passes are"):
        pytest.skip(find_valgrind_lack())
    requests = ValgrindRequests()
    requests.start_counting()
    requests.write_counts()
    assert not requests.is_in_valgrind


def test_the_processor_of_kernels_is_known() -> None:
    assert find_cpu_features()


def test_threads_that_only_sometimes_run_are_left_out(tmp_path: Path) -> None:
    totals = {(1, 1): 1000, (1, 2): 0, (1, 3): 70, (2, 1): 1001, (2, 2): 400, (2, 3): 70, (3, 1): 1000, (3, 3): 71}
    for (number, thread), total in totals.items():
        (tmp_path / f"callgrind.out.{number}-{thread:02}").write_text(f"events: Ir\n{thread} 5\n\ntotals: {total}\n")
    (tmp_path / "callgrind.out-01").write_text("totals: 99999\n")  # after the last pass
    assert read_callgrind(tmp_path) == ([1070, 1071, 1071], 400)


def test_missing_counts_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="no counts"):
        read_callgrind(tmp_path)


def test_allocations_between_marks_are_read() -> None:
    mark = f"--7-- malloc({MARK_BYTES}) = 0x1".encode()
    calls = [
        b"--7-- malloc(24) = 0x4A2B040", b"--7-- calloc(3,8) = 0x5", b"--7-- realloc(0x4A2B040,40) = 0x6",
        b"--7-- realloc(0x0,8)malloc(8) = 0x7", b"--7-- memalign(al 64, size 100) = 0x8", b"--7-- _Znwm(56) = 0x9",
        b"--7-- _ZnwmSt11align_val_t(size 128, al 64) = 0x9", b"--7-- _Znam(7) = 0xA", b"==7== text malloc(5)",
        b"--7-- free(0x9)", b"--7-- _ZdlPvm(0x9)", b"--7-- malloc(999",
    ]  # fmt: skip
    outside = b"--7-- malloc(4096) = 0x1"
    passes = read_allocations([outside, mark, *calls, mark, outside, mark, mark, outside])
    assert passes == [[24, 24, 40, 8, 100, 56, 128, 7], []]


class _OtherDevice(OnnxruntimeRequest):
    def on_one_thread(self) -> None:
        return None


def test_a_session_that_has_no_single_thread_is_refused(tmp_path: Path) -> None:
    subject = CountedModel(tmp_path / "m.onnx", _OtherDevice(), {}, tmp_path, {}, lambda *_: None)
    with pytest.raises(BackendError, match="no session on one thread"):
        count_passes(subject, CountingPlan(("instructions",), "valgrind", 1))


def test_counted_sessions_run_on_one_thread() -> None:
    two = OnnxruntimeRequest(threads=2, inter_op_threads=2, execution="parallel", affinity="1")
    one = two.on_one_thread()
    assert one is not None
    assert (one.threads, one.inter_op_threads, one.execution, one.affinity) == (1, 1, "sequential", "")
    assert OnnxruntimeRequest(provider="azure").on_one_thread() is None
    assert SessionRequest.on_one_thread(two) is None


def test_a_missing_counter_is_reported_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "find_perf_lack", lambda: "the system does not allow perf events: do this")
    monkeypatch.setattr(counters, "find_valgrind_lack", lambda: "Valgrind is not installed: install it")
    assert choose_counter("auto")[0] is None
    (lack,) = ProfileModel(count="instructions").foresee().lacks
    assert "perf events: do this; Valgrind is not installed: install it" in lack
    assert ProfileModel().foresee().lacks == ()
    monkeypatch.setattr(counters, "find_valgrind_lack", lambda: "")
    assert choose_counter("auto")[0] == "valgrind"
    (lack,) = ProfileModel(count="instructions", counter="perf").foresee().lacks
    assert "Valgrind" not in lack
    monkeypatch.setattr(counters, "find_perf_lack", lambda: "")
    assert choose_counter("auto")[0] == "perf"
    assert ProfileModel(count=("instructions", "allocations")).foresee().lacks == ()


def test_counts_need_the_cpu() -> None:
    on_gpu = ProfileModel(count="instructions", runtime=OnnxruntimeSettings(provider="cuda"))
    assert any("does its work on another device" in problem for problem in on_gpu.foresee().problems)


def test_keys_of_measurements_without_counts_are_as_before() -> None:
    assert not {"count", "counter", "count_passes"} & ProfileModel().model_dump(mode="json").keys()
    assert ProfileModel(count="instructions").model_dump(mode="json")["count"] == "instructions"
    assert not [name for name in ProfileModel().library_versions() if "counter" in name]
    if not find_valgrind_lack():
        versions = ProfileModel(count="instructions", counter="valgrind").library_versions()
        assert re.match(r"Valgrind \d.* of Python \d", versions["counter of instructions"])


def test_a_history_of_counts_ends_with_another_library() -> None:
    def subjects(version: str) -> list[str]:
        metrics = {"latency.median": {"value": 2.0, "unit": "ms"}, "instructions.median": {"value": 900.0}}
        parts = {
            "step": "profile", "version": 5, "settings": {"backend": "onnxruntime"}, "inputs": {}, "reads": {},
            "libraries": {"onnxruntime": version, "counter of instructions": "Valgrind 3.19.0"},
            "machine": "Linux, CPU",
        }  # fmt: skip
        record = {
            "metrics": metrics, "parts": parts, "key": "k", "started_at": "t", "passed": True, "parents": {},
            "beside": ["another run"],
        }  # fmt: skip
        tree = {"steps": [{"name": "speed", "record": record}], "gates": [], "passed": True}
        found = read_measurements(tree)
        assert [sorted(each.metrics) for each in found] == [["latency.median"], ["instructions.median"]]
        assert [bool(each.doubt) for each in found] == [True, False]  # other work changes times, not counts
        return [each.subject for each in found]

    old, new = subjects("onnxruntime 1.31.1"), subjects("onnxruntime 1.32.0")
    assert old[0] == new[0]
    assert old[1] != new[1] and "Valgrind 3.19.0" in old[1]
