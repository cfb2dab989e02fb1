"""A GPU's clock is locked and always set free, and it is sampled meanwhile; on a stand-in of NVML."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import cycle
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ndld_flow.base.errors import BackendError
from ndld_flow.measure import gpu_watch
from ndld_flow.measure.gpu_clocks import find_in_nvml, locked_clocks
from ndld_flow.measure.gpu_watch import GpuSamples, sampled_gpu, watched_gpus
from ndld_flow.measure.process_runs import MeasuringPlan, ProfilingRequest, Side
from ndld_flow.processes.launch import run_worker_module
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.runtimes.protocol import Timing
from tests.support.message_files import CheckMessage

SOON_S = 30.0
PYNVML = """
import json, os
from pathlib import Path
NVML_CLOCK_LIMIT_ID_TDP, NVML_CLOCK_LIMIT_ID_UNLIMITED, NVML_ERROR_NO_PERMISSION = 0xffffff01, 0xffffff02, 4
STATE = Path({state!r})
class NVMLError(Exception):
    def __init__(self, value): self.value = value
    def __str__(self): return {{1: "Uninitialized", 2: "Invalid Argument", 4: "Insufficient Permissions"}}[self.value]
sessions = 0
def nvmlInit(): global sessions; sessions += 1
def nvmlShutdown(): global sessions; sessions -= 1
def nvmlDeviceGetHandleByIndex(index): return f"gpu{{index}}"
def nvmlDeviceGetHandleByUUID(uuid): return uuid
def keep(handle, lock):
    if not sessions: raise NVMLError(1)
    STATE.with_suffix(".new").write_text(json.dumps({{**json.loads(STATE.read_text()), handle: lock}}))
    STATE.with_suffix(".new").replace(STATE)
def nvmlDeviceSetGpuLockedClocks(handle, low, high):
    symbols = (NVML_CLOCK_LIMIT_ID_TDP, NVML_CLOCK_LIMIT_ID_UNLIMITED)
    if low > high or (low in symbols) != (high in symbols): raise NVMLError(2)
    if "REFUSES" in os.environ: raise NVMLError(4)
    keep(handle, [low, high])
def nvmlDeviceResetGpuLockedClocks(handle): keep(handle, None)
"""
"""As nvml.h describes it: a lock is set and removed as a whole, has no getter, and lasts beyond the process."""
TDP = 0xFFFFFF01


LOCKS = """
import sys, time
from ndld_flow.measure.gpu_clocks import locked_clocks
with locked_clocks(1, (1200, 1305)):
    print("locked", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """The processes that lock clocks."""
    from ndld_flow.measure import gpu_clocks as module

    processes: list[subprocess.Popen[str]] = []

    class Watched(subprocess.Popen[str]):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[call-overload]
            processes.append(self)

    monkeypatch.setattr(module.subprocess, "Popen", Watched)  # type: ignore[attr-defined]
    return processes


Locks = Callable[[], Mapping[str, Sequence[int] | None]]


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Locks:
    """The locks of the GPUs of a stand-in of NVML, where an administrator has locked GPU 1."""
    state = tmp_path / "state.json"
    state.write_text('{"gpu1": [1200, 1305]}')
    (tmp_path / "pynvml.py").write_text(PYNVML.format(state=str(state)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    return lambda: dict(json.loads(state.read_text()))


def test_the_clock_is_locked_to_its_base_and_unlocked(locks: Locks) -> None:
    with locked_clocks(0):
        assert locks() == {"gpu0": [TDP, TDP], "gpu1": [1200, 1305]}
    assert locks() == {"gpu0": None, "gpu1": [1200, 1305]}


def test_an_administrators_lock_is_set_again(locks: Locks) -> None:
    with locked_clocks(1, (1200, 1305)):
        assert locks() == {"gpu1": [TDP, TDP]}
    assert locks() == {"gpu1": [1200, 1305]}
    with pytest.raises(KeyboardInterrupt), locked_clocks(1, (1200, 1305)):
        raise KeyboardInterrupt
    assert locks() == {"gpu1": [1200, 1305]}


def test_of_two_measurements_on_a_gpu_one_knows_its_lock(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnnxruntimeRequest, "measured_gpu", lambda self: 1)
    sides = [_side("a", "cuda", lock_clocks=True), _side("b", "cuda", lock_clocks=True, restore_clocks=(1200, 1305))]
    with watched_gpus(sides):
        assert locks() == {"gpu1": [TDP, TDP]}
    assert locks() == {"gpu1": [1200, 1305]}


def test_a_lock_stays_where_locking_is_not_permitted(
    locks: Locks, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.setenv("REFUSES", "1")
    with pytest.raises(BackendError) as caught, locked_clocks(1):
        pytest.fail("it was not locked")
    check_message(caught.value)
    assert locks() == {"gpu1": [1200, 1305]}


@pytest.mark.parametrize("body", [contextlib.nullcontext(), pytest.raises(KeyboardInterrupt)])
def test_a_lock_is_set_again_when_the_locking_process_is_killed(
    locks: Locks, started: list[subprocess.Popen[str]], body: AbstractContextManager[None]
) -> None:
    with body, locked_clocks(1, (1200, 1305)):
        started[0].kill()
        started[0].wait()
        assert locks() == {"gpu1": [TDP, TDP]}
        if not isinstance(body, contextlib.nullcontext):
            raise KeyboardInterrupt
    assert locks() == {"gpu1": [1200, 1305]}


@pytest.mark.parametrize("word", ["SIGKILL", "SIGTERM"])
def test_a_lock_is_set_again_when_everything_is_killed_but_the_locking_process(word: str, locks: Locks) -> None:
    ours = subprocess.Popen([sys.executable, "-c", LOCKS], stdout=subprocess.PIPE, start_new_session=True)
    assert ours.stdout is not None
    assert ours.stdout.readline() == b"locked\n"
    assert locks() == {"gpu1": [TDP, TDP]}
    os.killpg(ours.pid, getattr(signal, word))
    ours.wait()
    ours.stdout.close()
    until = time.monotonic() + SOON_S
    while locks() != {"gpu1": [1200, 1305]} and time.monotonic() < until:
        time.sleep(0.05)
    assert locks() == {"gpu1": [1200, 1305]}


def test_signals_to_a_whole_group_do_not_end_the_locking_process(
    locks: Locks, started: list[subprocess.Popen[str]]
) -> None:
    with locked_clocks(0):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            started[0].send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            started[0].wait(0.2)
        assert locks()["gpu0"] == [TDP, TDP]
    assert locks()["gpu0"] is None


def test_without_nvml_it_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError('hidden')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(BackendError) as caught, locked_clocks(0):
        pytest.fail("it was not locked")
    check_message(caught.value)


def test_a_locking_process_that_never_began_is_not_followed_by_a_reset(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(BackendError, match="died"), locked_clocks(1):
        pytest.fail("it was not locked")
    assert locks() == {"gpu1": [1200, 1305]}


def test_gpus_are_named_as_cuda_sees_them(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML knows nothing of CUDA_VISIBLE_DEVICES."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-8f2a")
    for gpu, name in enumerate(("gpu3", "GPU-8f2a")):
        with locked_clocks(gpu):
            assert locks()[name] == [TDP, TDP]
    handles = SimpleNamespace(nvmlDeviceGetHandleByIndex=lambda n: n, nvmlDeviceGetHandleByUUID=str.lower)
    assert [find_in_nvml(handles, gpu) for gpu in (0, 1)] == [3, "gpu-8f2a"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert find_in_nvml(handles, 1) == 1


def test_working_processes_count_gpus_as_nvidia_smi_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    (tmp_path / "order.py").write_text("import os; print(0, 0, os.environ['CUDA_DEVICE_ORDER'])")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert run_worker_module("order", tmp_path, lambda *_: None).doing == "PCI_BUS_ID"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert run_worker_module("order", tmp_path, lambda *_: None).doing == "FASTEST_FIRST"


class FakeNvml(ModuleType):
    """Tells of a GPU that has no sensor of temperature."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1

    class NVMLError(Exception):
        pass

    reasons = cycle([0x1, 0x4 | 0x1])
    """Idle; and the limit of its power."""

    class Rates:
        gpu, memory, used = 93, 41, 2**30

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index:
            raise self.NVMLError("Not Found")
        return index

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Rates:
        return self.Rates()

    nvmlDeviceGetMemoryInfo = nvmlDeviceGetUtilizationRates

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return {1: 1410, 2: 9500}[kind]

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 68_000

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return next(self.reasons)

    def nvmlDeviceGetPcieThroughput(self, handle: int, kind: int) -> int:
        return 100 + kind


def test_the_gpu_is_sampled_during_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("pynvml"))
    monkeypatch.setattr(gpu_watch, "PERIOD_S", 0.002)
    began = time.monotonic()  # before the first sample, which another thread takes
    with sampled_gpu(0) as samples:
        while len(samples.read) < 3 and time.monotonic() - began < SOON_S:
            time.sleep(0.01)
    everything = samples.within([(began, time.monotonic())])
    assert everything["power_w"] == {"median": 68.0, "min": 68.0, "max": 68.0}
    assert everything["pcie_received_kb_per_s"] == {"median": 101.0, "min": 101.0, "max": 101.0}
    assert "celsius" not in everything
    result = samples.describe(everything)
    assert "kernel running, 1,410 MHz, 68 W," in result
    assert "throttled by heat" in result
    assert "counters" in result
    before = samples.within([(began - 2, began - 1)])
    assert before == {"samples": 0}
    assert "passes finished before" in samples.describe(before)


def test_the_reason_for_missing_samples_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("pynvml"))
    with sampled_gpu(5) as samples:
        pass
    assert samples.describe(samples.within([])).endswith("Not Found")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with sampled_gpu(0) as samples:
        pass
    assert "pip install nvidia-ml-py" in samples.describe({})


def _side(called: str, provider: str, **asked: Any) -> Side:
    plan, session = MeasuringPlan(), OnnxruntimeRequest(provider)
    request = ProfilingRequest(Path("m"), called, "", {}, session, plan, 0, (), 0, {}, **asked)
    return Side(request, Path(), lambda *_: None, called)


def test_all_profiles_of_the_session_get_the_notes(
    locks: Locks, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.setattr(OnnxruntimeRequest, "measured_gpu", lambda self: None if self.provider == "cpu" else 0)
    asks, other, cpu = _side("a", "cuda", lock_clocks=True), _side("b", "cuda"), _side("c", "cpu")
    timing = Timing([1.0], [0.0], began_s=5.0)
    with watched_gpus([asks, other, cpu]) as watch:
        for side in (asks, other):
            conditions, notes = watch.describe(side.request, [timing])
            assert [*conditions] == ["locked_clocks"] and "NVML" in str(conditions["locked_clocks"])
            assert len(notes) == 1
        assert watch.describe(cpu.request, [timing]) == ({}, [])
        assert locks()["gpu0"] == [TDP, TDP]
    monkeypatch.setenv("REFUSES", "1")
    with pytest.raises(BackendError) as caught, watched_gpus([asks]):
        pytest.fail("it was not locked")
    check_message(caught.value)
    watch.samples[0] = GpuSamples(at_s=[5.0005, 6.0], read=[{"power_w": 70.0}, {"power_w": 20.0}])
    conditions, _ = watch.describe(other.request, [timing])
    assert conditions["gpu_samples"] == {"samples": 1, "power_w": {"median": 70.0, "min": 70.0, "max": 70.0}}
