"""The description of this machine, and properties of the host that affect measurements: CPUs, limits, GPUs, variables.

Unlike load and temperature, these do not vary by themselves between runs, so they are part of the keys of measurements.
An unknown property is `unknown`, which differs from all known values. A result may be reused on the machines that agree
in those that decide it.
"""

from __future__ import annotations

import enum
import os
import platform
import time
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from blake3 import blake3
from pydantic import JsonValue

from ndld_flow.machine.hardware import UNKNOWN, describe_cpu, read_hardware, read_limits, usable_cpus
from ndld_flow.records.document import Record
from ndld_flow.records.measurement import Machine

UNKNOWN_HOST = f"host: {UNKNOWN};"
ON_CLUSTER = "NDLD_FLOW_ON_CLUSTER"
"""Set in processes of a cluster, which gives each task another GPU: there, machines of the same kind count as one."""

_SYSTEM = Path("/sys/devices/system")
_REMEMBERED_S = 10.0
_PREFIXES = (
    *("CUBLAS_", "CUDA_", "CUDNN_", "DNNL_", "GLIBC_TUNABLES", "GOMP_", "KMP_", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("MALLOC_", "MIMALLOC_", "MKL_", "NVIDIA_TF32_", "OMP_", "ONEDNN_", "OPENBLAS_", "ORT_", "TBB_", "TCMALLOC_"),
    *("TENSORRT_", "TRT_"),
)
"""Prefixes of environment variables that ONNX Runtime, TensorRT, CUDA, memory allocators and numeric libraries read."""
_RESULT_PREFIXES = ("DNNL_", "NVIDIA_TF32_", "ONEDNN_", "ORT_")
"""Prefixes of environment variables that change the results of ONNX Runtime on a CPU."""
GPU_ORDER = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
"""GPUs are numbered as in nvidia-smi, unless the user has chosen another order: processes that we start have this
variable, and describe the same machine as the one that started them."""
_NEUTRAL_WORDS = ("CACHE", "HOME", "PATH", "ROOT", "VERSION", "VISIBLE_DEVICES", "TELEMETRY")
"""Words in names of CUDA's and ONNX Runtime's variables that change no result; visible GPUs are identified by UUID."""


def describe_circumstances(device: str, *, same_kind: bool) -> str:
    """Return the properties that affect a measurement on a device (`cpu`, `gpu-0`), as `name: value; ...`.

    `same_kind` omits the identity of this host.
    """
    stamp = (*usable_cpus(), *deciding_variables().items(), os.environ.get("CUDA_VISIBLE_DEVICES", "-"))
    on_cluster = ON_CLUSTER in os.environ
    return _describe(device, same_kind or on_cluster, stamp, int(time.monotonic() / _REMEMBERED_S))


@lru_cache(maxsize=8)
def _describe(device: str, same_kind: bool, *stamp: object) -> str:
    """Read the properties once for all steps of a run. An administrator may change limits during a process."""
    del stamp  # only part of the cache's key
    cpus = usable_cpus()
    threads = _read(_SYSTEM / "cpu/smt/active")
    lines = _read(Path("/proc/self/status")).splitlines()
    nodes = next((line.partition(":")[2].strip() for line in lines if line.startswith("Mems_allowed_list")), UNKNOWN)
    # CPUs by number, or by an arrangement that other hosts share.
    described = _arrangement(cpus) if same_kind else f"{ranges(cpus)} (memory {nodes})"
    facts = {
        "host": "any of its kind" if same_kind else identify_host() or UNKNOWN,
        "CPUs": f"{described}{f', SMT {threads}' if threads else ''}",
        **{f"{name} limit": limit for name, limit in read_limits().items()},
        **read_modes(),
        **(_describe_gpus(device, same_kind=same_kind) if device != "cpu" else {}),
        "variables": ", ".join(f"{name}={value}" for name, value in deciding_variables().items()) or "none",
    }
    return "; ".join(f"{name}: {value.replace(';', ',')}" for name, value in facts.items())


def visible_kinds(every: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the GPUs that this process may use, in CUDA's order; `every` has the names of all GPUs."""
    if "CUDA_VISIBLE_DEVICES" not in os.environ or ON_CLUSTER in os.environ or not every:
        return every
    from ndld_flow.machine.gpu_state import visible_gpus

    return tuple(gpu.name if gpu.name != UNKNOWN else gpu.uuid for gpu in visible_gpus())


def deciding_variables(prefixes: Iterable[str] = _PREFIXES) -> dict[str, str]:
    """Return the environment variables that change what libraries compute, or how fast."""
    begins = tuple(prefixes)
    with_paths = ("CUDA_", "ORT_", "TENSORRT_", "TRT_")
    names = sorted(
        name
        for name in os.environ
        if name.startswith(begins)
        and (name, os.environ[name]) != GPU_ORDER
        and not (name.startswith(with_paths) and any(word in name for word in _NEUTRAL_WORDS))
    )
    if not names:
        return {}
    from ndld_flow.store.hidden_credentials import is_secret_variable

    cluster = ON_CLUSTER in os.environ  # Ray sets it for each task
    shown = (name for name in names if not (is_secret_variable(name) or (cluster and name == "OMP_NUM_THREADS")))
    return {name: os.environ[name] for name in shown}


def computing_variables() -> dict[str, str]:
    """Return the environment variables that change results on any machine."""
    return deciding_variables(_RESULT_PREFIXES)


# --- the host --------------------------------------------------------------------------------------------------------


@cache
def identify_host() -> str:
    """Return this host's name with a unique digest; empty if it cannot be identified.

    The machine id survives a restart, but copies of a virtual machine's disk, and containers of one image, share it:
    for these the kernel's boot id is used, which changes with each start.
    """
    machine_id = _read(Path("/etc/machine-id")) or _read(Path("/var/lib/dbus/machine-id"))
    boot_id = _read(Path("/proc/sys/kernel/random/boot_id"))
    name = platform.node()
    if _is_container():
        identity = boot_id
    elif machine_id and not _is_virtual():
        identity = f"{machine_id} {name}"
    elif platform.system() == "Linux":
        identity = f"{machine_id} {name} {boot_id}" if boot_id else ""
    else:
        identity = name
    return f"{name} ({blake3(identity.encode()).hexdigest()[:12]})".strip() if identity else ""


def _is_container() -> bool:
    if any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")):
        return True
    if "KUBERNETES_SERVICE_HOST" in os.environ or "container" in os.environ:
        return True
    mounts = _read(Path("/proc/self/mountinfo")).splitlines()
    return any(line.split()[4] == "/" and " - overlay " in line for line in mounts)


def _is_virtual() -> bool:
    """Return whether this is a virtual machine by the CPU's flags; without flags it may be one."""
    if flags := describe_cpu("flags"):
        return "hypervisor" in flags.split()
    return not Path("/proc/device-tree/model").exists()  # a board, such as a Jetson


# --- CPUs ------------------------------------------------------------------------------------------------------------


def _arrangement(cpus: list[int]) -> str:
    """Return the number of CPUs of each kind, and of their cores, caches and packages."""
    kinds: dict[str, int] = {}
    shared: dict[str, set[str]] = {"cores": set(), "caches": set(), "packages": set()}
    for cpu in cpus:
        folder = _SYSTEM / f"cpu/cpu{cpu}"
        kind = _read(folder / "cpufreq/cpuinfo_max_freq") or _read(folder / "cpu_capacity") or UNKNOWN
        kinds[kind] = kinds.get(kind, 0) + 1
        shared["cores"].add(_read(folder / "topology/thread_siblings_list") or str(cpu))
        shared["caches"].add(_read(folder / "cache/index3/shared_cpu_list"))
        shared["packages"].add(_read(folder / "topology/physical_package_id"))
    described = " and ".join(f"{count} of kHz {kind}" for kind, count in sorted(kinds.items()))
    return f"{described} on {', '.join(f'{len(values)} {name}' for name, values in shared.items())}"


def read_modes() -> dict[str, str]:
    """Return the administrator's settings of the CPUs, without frequencies, which depend on temperature."""
    governors = sorted({_read(path) for path in (_SYSTEM / "cpu/cpufreq").glob("policy*/scaling_governor")})
    boost = _read(_SYSTEM / "cpu/cpufreq/boost")
    turbo = _read(_SYSTEM / "cpu/intel_pstate/no_turbo")
    pages = _read(Path("/sys/kernel/mm/transparent_hugepage/enabled"))
    power = _read(Path("/var/lib/nvpmodel/status"))
    modes = {
        "governor": ", ".join(governors),
        "boost": boost or {"0": "1", "1": "0"}.get(turbo, ""),
        "huge pages": pages[pages.find("[") + 1 : pages.find("]")] if "[" in pages else "",
        "power mode": power,
    }
    return {name: value or UNKNOWN for name, value in modes.items() if value or name != "power mode"}


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers in ascending order as `0-3,8`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ",".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else f"{span[0]}" for span in spans)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


# --- GPUs ------------------------------------------------------------------------------------------------------------


def _describe_gpus(device: str, *, same_kind: bool) -> dict[str, str]:
    """Return the measured GPU, its settings, and the other visible GPUs."""
    from ndld_flow.machine.gpu_state import all_gpus, visible_gpus

    if ON_CLUSTER in os.environ:
        every = all_gpus()
        return {
            "GPUs": ", ".join(sorted({gpu.kind for gpu in every})) or "none",
            "GPU settings": " | ".join(sorted({gpu.settings for gpu in every})) or UNKNOWN,
        }
    seen = visible_gpus()
    number = device.rpartition("-")[2]
    measured = seen[int(number)] if number.isdecimal() and int(number) < len(seen) else None
    return {
        "GPU": UNKNOWN if measured is None else measured.kind if same_kind else f"{measured.kind} {measured.uuid}",
        "GPU settings": UNKNOWN if measured is None else measured.settings,
        "GPUs seen": ", ".join(gpu.kind if same_kind else gpu.uuid for gpu in seen) or "none",
    }


class Reuse(enum.Enum):
    """The machines on which the result of a step may be reused."""

    ANYWHERE = "anywhere"
    """A pure transform: its result is the same on every machine."""
    THIS_MACHINE = "this_machine"
    """Engines, and numbers that depend on the type of CPU and GPU: the same on every machine of a type."""
    THIS_HOST = "this_host"
    """A measurement, valid on this host with the same CPUs, limits, GPUs, power limits and variables."""
    SAME_KIND = "same_kind"
    """A measurement, valid on every host of the same type under the same limits."""
    NEVER = "never"


def describe_place(where: Reuse, device: str) -> str:
    """Return the properties of this machine that determine a result: `FINGERPRINT; name: value; ...`."""
    if where in (Reuse.THIS_HOST, Reuse.SAME_KIND):
        circumstances = describe_circumstances(device or "cpu", same_kind=where is Reuse.SAME_KIND)
        return f"{fingerprint_machine()}; {circumstances}"
    variables = ", ".join(f"{name}={value}" for name, value in deciding_variables().items())
    return f"{fingerprint_machine()}; variables: {variables}" if variables else fingerprint_machine()


def fingerprint_machine() -> str:
    """Return the properties that distinguish kinds of machines for measurements and engines."""
    machine = read_hardware()
    gpus = ", ".join(visible_kinds(machine.gpus)) or "no GPU"
    driver = f", driver {machine.driver}" if machine.driver else ""
    return f"{machine.system} {machine.architecture}, {machine.cpu} x {machine.cpu_count}, {gpus}{driver}"


def is_this_machine(machine: str) -> bool:
    """Return whether a result was computed on a machine of this kind; pure transforms do not record the machine."""
    return machine.partition("; ")[0] in ("", fingerprint_machine())


class Check(Record):
    """The result of one check."""

    name: str
    state: Literal["ok", "absent", "broken"]
    """`absent`: only some recipes need it; `broken`: every run needs it."""
    found: str
    advice: str = ""


_GIB = 2**30
# Jetson's GPU is not a PCI card: neither the driver's list of cards nor older versions of nvidia-smi include it. The
# Windows Subsystem for Linux has one device file for all GPUs.
_GPU_DEVICES = (Path("/dev/nvhost-gpu"), Path("/dev/nvgpu"), Path("/dev/nvidia0"), Path("/dev/dxg"))


@cache
def describe_machine() -> Machine:
    """Return the machine's description, cached per process. Without a GPU it takes some milliseconds."""
    hardware = read_hardware()
    return Machine(
        system=hardware.system,
        architecture=hardware.architecture,
        cpu=hardware.cpu,
        cpu_count=hardware.cpu_count,
        memory_bytes=memory_size() or None,
        gpus=hardware.gpus,
        driver=hardware.driver,
        python=platform.python_version(),
    )


def has_nvidia_gpu() -> bool:
    """Return whether there is, or may be, an NVIDIA GPU: a run is stopped before it starts only if there certainly is
    none."""
    return bool(describe_machine().gpus) or any(path.exists() for path in _GPU_DEVICES)


def read_conditions() -> dict[str, JsonValue]:
    """Return the conditions that may disturb a measurement: load, governors, clock rates, usable CPUs and limits.

    Values that this system does not report are omitted.
    """
    modes = read_modes()
    readers: dict[str, Callable[[], JsonValue]] = {
        "load_average": lambda: list(os.getloadavg()),
        "affinity": lambda: [*sorted(os.sched_getaffinity(0))],
        "governors": lambda: [name for name in modes["governor"].split(", ") if name != UNKNOWN],
        "cpu_mhz": _clock_rates,
        "turbo": lambda: {"1": True, "0": False}.get(modes["boost"]),
        "cgroup_cpu_limit": lambda: float(read_limits()["CPU time"]),  # no number for `none` and `unknown`
    }
    conditions: dict[str, JsonValue] = {}
    for name, read in readers.items():
        try:
            value = read()
        except (OSError, AttributeError, ValueError):  # this system has no such file or call
            continue
        if value not in (None, []):
            conditions[name] = value
    return conditions


def memory_size() -> int:
    """Return the memory in bytes, rounded to GiB: the kernel's share varies a little from boot to boot."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
    return max(1, round(total / _GIB)) * _GIB


def _clock_rates() -> JsonValue:
    """Return the lowest and highest clock rate of the CPUs."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    rates = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return [min(rates), max(rates)] if rates else None
