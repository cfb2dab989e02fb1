"""The properties of this machine that variants of packages require. No model is opened."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ndld_flow.machine.container_limits import UNKNOWN, read_limits
from ndld_flow.machine.description import describe_machine
from ndld_flow.machine.gpu_state import visible_gpus
from ndld_flow.machine.onnxruntime_builds import build_in_use
from ndld_flow.measure.preflight import look_around
from ndld_flow.records.package import HostFacts, Runtime

_CPUINFO = Path("/proc/cpuinfo")
_DISTRIBUTIONS: dict[Runtime, str] = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}


def read_host_facts() -> HostFacts:
    """Return the facts of this machine and of this Python environment."""
    machine, gpus = describe_machine(), visible_gpus()
    capabilities = tuple(gpu.compute_capability for gpu in gpus)
    memories = [int(gpu.memory) for gpu in gpus if gpu.memory.isdecimal()]
    return HostFacts(
        machine=machine,
        cpu_features=_cpu_features(),
        memory_bytes=_usable_memory(machine.memory_bytes),
        compute_capabilities=None if UNKNOWN in capabilities else capabilities,
        device_memory_bytes=max(memories, default=None),
        providers=_providers(),
        versions=_versions(),
        conditions=look_around(on_gpu=bool(gpus)),
    )


def _cpu_features() -> tuple[str, ...] | None:
    """Return the flags of the first CPU, `Features` on ARM; None on systems without /proc/cpuinfo."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    found = (
        line.partition(":")[2].split() for line in lines if line.partition(":")[0].strip() in ("flags", "Features")
    )
    features = next(found, None)
    return tuple(features) if features else None


def _usable_memory(total_bytes: int | None) -> int | None:
    """Return the memory of the machine, or the limit of the container if that is smaller."""
    limit = read_limits()["memory"]
    known = [each for each in (total_bytes, int(float(limit)) if limit[:1].isdecimal() else None) if each]
    return min(known, default=None)


def _providers() -> tuple[str, ...]:
    """Return the execution providers that the installed build of ONNX Runtime includes, whether or not they load."""
    try:
        import onnxruntime
    except ImportError:
        return ()
    return tuple(onnxruntime.get_available_providers())


def _versions() -> dict[Runtime, str]:
    build = build_in_use()
    versions: dict[Runtime, str] = {"onnxruntime": build.version} if build is not None else {}
    for runtime, name in _DISTRIBUTIONS.items():
        try:
            versions[runtime] = version(name)
        except PackageNotFoundError:
            continue
    return versions
