"""How much is measured and when it is enough; what disturbs; what is handed to a measuring process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndld_flow.machine.host import describe_machine
from ndld_flow.measure.preflight import CpuTime, disturbance, disturbed, doubts, look_around, read_cpu_time
from ndld_flow.measure.process_runs import MeasuringPlan, Tally, go_on, spread, spread_text, stopped_because
from ndld_flow.measure.worker import Answer, Job, Part, TimingPlan, read_feeds, write_feeds
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.runtimes.protocol import RecordingPlan, Timing
from ndld_flow.samples.feedback import FedFrom
from tests.support.text_facts import numbers_in

CALM = [10.0, 10.1, 9.95, 10.05, 10.02]
ROUGH = [10.0, 14.0, 9.0, 12.0, 11.0]


def tally(medians_ms: list[float], least: int = 5, each_ms: float = 100.0, **plan: Any) -> Tally:
    result = Tally(MeasuringPlan(**plan), least)
    for median in medians_ms:
        result.add(Timing(latency_ms=[median] * 3), each_ms)
    return result


def test_each_run_takes_its_share() -> None:
    plan = MeasuringPlan(
        passes=100, duration_ms=900.0, budget_ms=30_000.0, warmup_passes=7, warmup_ms=80.0, sleep_ms=2.0
    )
    assert plan.share(3) == TimingPlan(34, 300.0, 10_000.0, 7, 80.0, 2.0)
    assert MeasuringPlan(passes=2).share(5).passes == 1


@pytest.mark.parametrize(
    ("one", "more", "reason", "numbers"),
    [
        (tally(CALM[:4]), True, "budget", [20, 0.7, 4]),
        (tally(CALM), False, "stable", [0.8, 5]),
        (tally(CALM, stable=0.001), True, "budget", [20, 0.8, 5]),
        (tally(CALM, stable=0.001, each_ms=4000.0), False, "budget", [20, 0.8, 5]),
        (tally(CALM[:2], each_ms=10_000.0), False, "budget", [20, 0.5, 2]),
        (tally(ROUGH), True, "budget", [20, 27.3, 5]),
        (tally(ROUGH, stable=0.3), False, "stable", [27.3, 5]),
        (tally(ROUGH, stable=0.0), False, "runs done", [27.3, 5]),
        (tally(ROUGH[:1], least=1, stable=0.0), False, "runs done", [1]),
        # The intervals of fewer than 5 are too short to be believed.
        (tally(CALM[:3], least=2), True, "budget", [20, 1.0, 3]),
        (tally([10.0] * 5, least=2), False, "stable", [0, 5]),
        (tally(CALM, least=8), True, "budget", [20, 0.8, 5]),
        (tally(ROUGH[:1], least=1, stable=0.0, budget_ms=90_000.0, each_ms=95_000.0), False, "runs done", [1]),
    ],
)
def test_runs_go_on_until_stable_or_the_budget_is_used(
    one: Tally, more: bool, reason: str, numbers: list[float]
) -> None:
    assert go_on([one]) == more
    why = stopped_because(one, [one])
    assert why.startswith(reason) and numbers_in(why) == numbers


def test_a_run_cut_short_is_reported() -> None:
    result = Tally(MeasuringPlan(stable=0.0, budget_ms=500.0), 1)
    result.add(Timing(latency_ms=[300.0], limit_reached=True), 400.0)
    assert not go_on([result])
    why = stopped_because(result, [result])
    assert why.startswith("budget of 0.5 s") and numbers_in(why) == [0.5, 1]


def test_models_measured_in_turns_continue_until_all_are_stable() -> None:
    calm, rough = tally(CALM), tally(ROUGH)
    assert go_on([calm, rough])
    assert not go_on([calm, tally(CALM)])
    # What the calm one leaves of its budget is the rough one's.
    hungry = tally(ROUGH, each_ms=5000.0)
    assert go_on([calm, hungry])
    assert not go_on([hungry, hungry])
    both = [calm, hungry]
    assert stopped_because(calm, both) == "stable: ±0.8 % after 5 runs"
    assert numbers_in(stopped_because(hungry, both)) == [40, 2, 27.3, 5]


@given(st.lists(st.floats(1e-3, 1e4), min_size=2, max_size=12))
def test_the_spread_reaches_as_far_as_the_runs_at_most(medians: list[float]) -> None:
    reached = spread(medians)
    middle = float(np.median(medians))
    assert reached is not None
    assert 0 <= reached <= max(max(medians) - middle, middle - min(medians)) / middle + 1e-9


def test_spreads_are_rounded() -> None:
    assert spread([3.0]) is None
    assert [spread_text(ratio) for ratio in (0.0, 0.0004, 0.00123, 0.0123, 0.456, 1.234, 20.0)] == [
        "±0 %",
        "±0.04 %",
        "±0.1 %",
        "±1.2 %",
        "±45.6 %",
        "±123 %",
        "±2,000 %",
    ]


def test_disturbances_are_short_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = describe_machine().cpu_count or 1
    result = "1 CPU" if cpus == 1 else f"{cpus} CPUs"
    assert doubts({"load_average": [cpus * 0.4, 9.0, 9.0], "governors": ["performance"], "affinity": [0]}) == ()
    gpu = {"name": "A100 </script>", "utilization.gpu": "87"}
    conditions: dict[str, Any] = {
        "load_average": [cpus * 0.95, 0.0, 0.0],
        "governors": ["powersave", "performance"],
        "cgroup_cpu_limit": 0.5,
        "measuring_processes": ["trtexec (process 4711)"],
        "gpus": [gpu, {"name": "idle", "utilization.gpu": "0"}, {"name": "odd", "utilization.gpu": "[N/A]"}],
    }
    load, governor, limit, others, busy = doubts(conditions)
    assert f"load {cpus * 0.95:.1f} on {result}" in load
    assert "powersave" in governor and "`cpupower frequency-set -g performance`" in governor
    assert f"0.5 CPUs on {result}" in limit
    assert others.endswith(": trtexec (process 4711)")
    assert busy.startswith("GPU A100 </script> ") and "87 %" in busy


def test_load_of_other_processes_is_reported() -> None:
    cpus = describe_machine().cpu_count or 1
    before = CpuTime(busy_s=100.0, stolen_s=1.0, ours_s=10.0)
    during = disturbance(before, CpuTime(busy_s=100.0 + cpus * 3, stolen_s=1.0 + cpus, ours_s=10.0 + cpus), 4.0)
    assert during == {
        "wall_s": 4.0,
        "cpus_used_by_others": pytest.approx(cpus / 2),
        "cpus_taken_by_host": pytest.approx(cpus / 4),
    }
    assert f"other processes used {0.75 * cpus:.1f}" in disturbed(during)[0]
    assert disturbed(disturbance(before, CpuTime(100.0 + cpus * 3, 1.0, 10.0 + cpus * 3), 4.0)) == ()
    assert disturbance(None, before, 4.0) == disturbance(before, None, 4.0) == disturbance(before, before, 0.0) == {}
    assert disturbed({}) == ()


def test_cpu_time_counts_the_usable_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1}, raising=False)
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\ncpu1 100 200 300 9 9 400 500 600 9 9\nintr 5\n"
    )
    time = read_cpu_time(stat)
    assert time is not None
    assert (time.busy_s, time.stolen_s) == (15.0, 6.0)
    stat.write_text("cpu9 1 1\n")
    assert read_cpu_time(stat) is None
    assert read_cpu_time(tmp_path / "none") is None


def test_gpus_are_queried_only_when_one_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 41, 1980, 1980, 37, 1024, P0'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert "gpus" not in look_around(on_gpu=False)
    gpus = look_around(on_gpu=True)["gpus"]
    assert isinstance(gpus, list)
    assert isinstance(gpus[0], dict)
    assert gpus[0]["name"] == "NVIDIA H200"
    assert gpus[0]["clocks.sm"] == "1980"
    program.write_text("#!/bin/sh\nexit 9\n")
    assert "gpus" not in look_around(on_gpu=True)


def test_a_job_is_read_as_it_was_written(tmp_path: Path) -> None:
    hostile = tmp_path / 'it\'s "a" модель 🦀 \udcff.onnx'
    session = OnnxruntimeRequest("cuda", {"device_id": 1, "flag": True, "text": "x"}, free_dimensions={"n ": 3})
    feeds = write_feeds({"</script>": np.zeros(2)}, tmp_path / "feeds")
    plan = TimingPlan(passes=3, duration_ms=1.5)
    job = Job(
        hostile,
        session,
        (Part(feeds, plan, "batch 2: ", (feeds,), {"s": FedFrom("t", "argmax", 1, (1, 1))}),),
        RecordingPlan(4, None, keep_optimized=False),
    )
    job.write(tmp_path / "job.json")
    assert Job.read(tmp_path / "job.json") == job


def test_an_incomplete_answer_is_none(tmp_path: Path) -> None:
    assert Answer.read(tmp_path) is None
    answer = Answer(load_ms=1.5, timings=[Timing([1.0], [0.0], warmup_passes=2)], outputs=[])
    answer.write(tmp_path)
    assert Answer.read(tmp_path) == answer
    path = tmp_path / "answer.json"
    path.write_text(path.read_text()[:-5])
    assert Answer.read(tmp_path) is None


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
        np.array(True),
        np.zeros((0, 4), np.uint8),
        np.array([1.5, -2.0], ml_dtypes.bfloat16),
        np.array(0.5, ml_dtypes.float8_e4m3fn),
        np.array([3, -4], ml_dtypes.int4),
    ],
    ids=lambda values: f"{values.dtype}{values.shape}",
)
def test_feeds_come_back_as_they_were(values: np.ndarray[Any, Any], tmp_path: Path) -> None:
    read = read_feeds(write_feeds({"../x": values, "y\n": values}, tmp_path / "a folder"))
    assert list(read) == ["../x", "y\n"]
    assert read["../x"].dtype == values.dtype
    assert read["../x"].shape == values.shape
    assert read["../x"].tobytes("A") == np.asarray(values).tobytes("A")
    assert sorted(path.name for path in (tmp_path / "a folder").iterdir()) == ["input-0.npy", "input-1.npy"]
