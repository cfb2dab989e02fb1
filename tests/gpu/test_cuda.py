"""CUDA's runtime library and NVML on a real GPU: memory, copies, events, graphs, refusals, samples, selection."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec

import pytest

from ndld_flow.base.errors import BackendError
from ndld_flow.machine.gpu_state import visible_gpus
from ndld_flow.measure.gpu_watch import sampled_gpu
from ndld_flow.runtimes.tensorrt.engine.cuda_runtime import TO_DEVICE, TO_HOST, CudaRuntime, open_cuda_runtime
from tests.support.gpu_machine import mig_instances, require_cuda_runtime, require_gpu

pytestmark = pytest.mark.gpu

Record = Callable[[str, object], None]
COPIED = 1 << 26


@pytest.fixture
def cuda() -> CudaRuntime:
    require_cuda_runtime()
    runtime = open_cuda_runtime()
    runtime.select(0, spin=True)
    return runtime


def test_cuda_and_nvml_describe_the_same_gpu(cuda: CudaRuntime, record_property: Record) -> None:
    gpus, memory = visible_gpus(), cuda.read_memory()
    assert cuda.count_devices()[0] == len(gpus)
    assert 0 < memory.free_bytes <= memory.total_bytes
    if gpus[0].memory.isdecimal():  # for a MIG instance, NVML reports the memory of the whole GPU
        assert memory.total_bytes <= int(gpus[0].memory)
    record_property("memory in GiB", round(memory.total_bytes / 2**30, 1))


@pytest.mark.parametrize("spin", [True, False], ids=["spinning", "sleeping"])
def test_copies_return_what_was_sent(cuda: CudaRuntime, spin: bool, record_property: Record) -> None:
    stream, begin, end = cuda.make_stream(), cuda.make_event(spin=spin), cuda.make_event(spin=spin)
    sent, back, device = cuda.allocate_pinned(COPIED), cuda.allocate_pinned(COPIED), cuda.allocate(COPIED)
    ctypes.memset(sent, 0x5A, COPIED)
    ctypes.memset(back, 0, COPIED)
    for name, move in {"to": (device, sent, COPIED, TO_DEVICE), "from": (back, device, COPIED, TO_HOST)}.items():
        started = time.perf_counter()
        cuda.record(begin, stream)
        cuda.copy(*move, stream)
        cuda.record(end, stream)
        cuda.wait_for_event(end)
        host_ms, gpu_ms = (time.perf_counter() - started) * 1e3, cuda.elapsed_ms(begin, end)
        assert 0 < gpu_ms <= host_ms, "the host's clock includes all of it"
        record_property(f"GB/s {name} the GPU", round(COPIED / gpu_ms / 1e6, 1))
    assert ctypes.string_at(back, COPIED) == bytes([0x5A]) * COPIED
    for pointer in (sent, back):
        cuda.free_pinned(pointer)
    cuda.free(device)
    for kind, handle in (("Event", begin), ("Event", end), ("Stream", stream)):
        cuda.destroy(kind, handle)


def test_a_captured_graph_copies_when_it_is_launched(cuda: CudaRuntime) -> None:
    stream, sent, back, device = cuda.make_stream(), *(cuda.allocate_pinned(64) for _ in range(2)), cuda.allocate(64)
    ctypes.memset(sent, 7, 64)
    ctypes.memset(back, 0, 64)
    cuda.begin_capture(stream)
    cuda.copy(device, sent, 64, TO_DEVICE, stream)
    cuda.copy(back, device, 64, TO_HOST, stream)
    graph = cuda.end_capture(stream)
    assert ctypes.string_at(back, 64) == bytes(64)
    cuda.launch(graph, stream)
    cuda.wait_for_stream(stream)
    assert ctypes.string_at(back, 64) == b"\x07" * 64
    cuda.destroy("GraphExec", graph)
    cuda.destroy("Stream", stream)


def test_refusals_have_cudas_reason_and_leave_the_gpu_usable(cuda: CudaRuntime) -> None:
    with pytest.raises(BackendError, match="cudaMalloc failed: the GPU"):
        cuda.allocate(1 << 50)
    with pytest.raises(BackendError, match="cudaSetDevice failed: cudaErrorInvalidDevice"):
        cuda.select(99, spin=True)
    cuda.select(0, spin=True)
    cuda.free(cuda.allocate(1 << 20))


def test_nvml_samples_the_gpu(record_property: Record) -> None:
    require_gpu()
    if find_spec("pynvml") is None:
        pytest.skip("needs nvidia-ml-py: pip install nvidia-ml-py")
    began = time.monotonic()
    with sampled_gpu(0) as samples:
        time.sleep(1)
    summary = samples.within([(began, time.monotonic())])
    assert not samples.missing
    assert len(samples.read) >= 5
    assert {"busy_percent", "sm_mhz", "memory_used_bytes", "throttled"} <= summary.keys()
    record_property("throttled", samples.describe(summary).count("throttled"))
    record_property("samples per second", len(samples.read))


SEEN = """
from ndld_flow.runtimes.tensorrt.engine.cuda_runtime import open_cuda_runtime
from ndld_flow.machine.gpu_state import visible_gpus
cuda = open_cuda_runtime()
print(cuda.count_devices()[0], *(gpu.uuid for gpu in visible_gpus()))
cuda.select(0, spin=True)
print(cuda.read_memory().total_bytes)
try:
    import pynvml
except ImportError:
    print("nvidia-ml-py is missing")
else:
    from ndld_flow.measure.gpu_clocks import find_in_nvml
    pynvml.nvmlInit()
    print(pynvml.nvmlDeviceGetUUID(find_in_nvml(pynvml, 0)))
"""


def see_alone(uuid: str) -> tuple[str, int, str]:
    """Number and names of what a process sees to which only this GPU is visible, its memory, and its name in NVML."""
    seen = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid}
    done = subprocess.run([sys.executable, "-c", SEEN], env=seen, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names, memory, in_nvml = done.stdout.splitlines()
    return names, int(memory), in_nvml


def test_a_gpu_is_selected_by_its_uuid() -> None:
    """By CUDA and NVML alike: the last GPU, which is another than the first where there are several."""
    require_cuda_runtime()
    uuid = visible_gpus()[-1].uuid
    if uuid.startswith("MIG-") or visible_gpus()[-1].mig == "on":
        pytest.skip("the GPU is partitioned (MIG): its instances are selected, not itself")
    names, _, in_nvml = see_alone(uuid)
    assert names == f"1 {uuid}"
    assert in_nvml in (uuid, "nvidia-ml-py is missing")


def test_an_instance_of_a_partitioned_gpu_is_selected_by_its_uuid(record_property: Record) -> None:
    require_cuda_runtime()
    instances = mig_instances()
    if not instances:
        pytest.skip("no GPU here is partitioned (MIG)")
    names, memory, in_nvml = see_alone(instances[-1])
    assert names == f"1 {instances[-1]}"
    assert in_nvml in (instances[-1], "nvidia-ml-py is missing")
    record_property("memory in GiB", round(memory / 2**30, 1))
