"""GPUs and their settings, which affect measurements.

NVML is called directly, as every plan needs it and nvidia-smi takes most of a second.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ndld_flow.machine.hardware import UNKNOWN

_CARDS = Path("/proc/driver/nvidia/gpus")
_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_REMEMBERED_S = 10.0
_TEXT_BYTES = 96
_CLOCKS = {"graphics": 0, "memory": 2}


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver describes it; missing values are `unknown`."""

    uuid: str
    name: str = UNKNOWN
    memory: str = UNKNOWN
    """In bytes."""
    power_limit: str = UNKNOWN
    """As set, in mW."""
    clocks: str = UNKNOWN
    """Application clocks in MHz. Drivers do not report clocks that were locked in another way."""
    ecc: str = UNKNOWN
    mig: str = UNKNOWN
    compute_capability: str = UNKNOWN
    """Such as `8.6`."""

    @property
    def kind(self) -> str:
        """Return the properties that GPUs of one kind share."""
        memory = f"{round(int(self.memory) / 2**20)} MiB" if self.memory.isdecimal() else f"memory {self.memory}"
        return f"{self.name} {memory}"

    @property
    def settings(self) -> str:
        """Return the settings that an administrator may change."""
        return f"power limit {self.power_limit} mW, clocks {self.clocks}, ECC {self.ecc}, MIG {self.mig}"


def visible_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA sees, in its order: `CUDA_VISIBLE_DEVICES` may select them, by number or UUID.

    An unknown name is kept: it may be a part of a GPU (MIG).
    """
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    every = all_gpus()
    if shown is None:
        return every
    names = [name.strip() for name in shown.split(",") if name.strip()]
    # Numbers are those of nvidia-smi, also in measuring processes, unless the user has set another order.
    ordered = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID") == "PCI_BUS_ID" or len(every) == 1
    return tuple(_find(name, every, ordered=ordered) for name in names)


def _find(name: str, every: tuple[Gpu, ...], *, ordered: bool) -> Gpu:
    if name.isdecimal():
        return every[int(name)] if ordered and int(name) < len(every) else Gpu(f"number {name}")
    return next((gpu for gpu in every if gpu.uuid.startswith(name)), Gpu(name))


def all_gpus() -> tuple[Gpu, ...]:
    """Return every NVIDIA GPU of this machine, in the order of nvidia-smi."""
    return _all_gpus(int(time.monotonic() / _REMEMBERED_S))


@lru_cache(maxsize=1)
def _all_gpus(now: int) -> tuple[Gpu, ...]:
    """Return the GPUs, asking the driver once for all steps of a run."""
    del now  # an administrator may change limits while a process lasts
    try:
        nvml = ctypes.CDLL(_LIBRARY)
        if nvml.nvmlInit_v2():
            return _read_cards()
        try:
            count = ctypes.c_uint()
            if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
                return _read_cards()
            return tuple(_describe(nvml, number) for number in range(count.value))
        finally:
            nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return _read_cards()


def _read_cards() -> tuple[Gpu, ...]:
    """Return the GPUs in the files of the Linux driver, which have only name and UUID."""
    gpus = []
    for path in sorted(_CARDS.glob("*/information")):
        text = path.read_text(errors="replace")
        model = re.search(r"^Model:\s*(.+)$", text, re.MULTILINE)
        uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", text, re.MULTILINE)
        gpus.append(Gpu(uuid[1] if uuid else UNKNOWN, model[1].strip() if model else UNKNOWN))
    return tuple(gpus)


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def _describe(nvml: ctypes.CDLL, number: int) -> Gpu:
    handle = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(handle)):
        return Gpu(f"number {number}")
    memory = _Memory()
    known = nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    clocks = [_number(nvml.nvmlDeviceGetApplicationsClock, handle, ctypes.c_uint(clock)) for clock in _CLOCKS.values()]
    major, minor = ctypes.c_int(), ctypes.c_int()
    ask = getattr(nvml, "nvmlDeviceGetCudaComputeCapability", None)
    failed = ask is None or ask(handle, ctypes.byref(major), ctypes.byref(minor))
    return Gpu(
        uuid=_text(nvml.nvmlDeviceGetUUID, handle),
        name=_text(nvml.nvmlDeviceGetName, handle),
        memory=str(memory.total) if known else UNKNOWN,
        power_limit=_number(nvml.nvmlDeviceGetPowerManagementLimit, handle),
        clocks=UNKNOWN if UNKNOWN in clocks else "/".join(clocks),
        ecc=_mode(nvml.nvmlDeviceGetEccMode, handle),
        mig=_mode(nvml.nvmlDeviceGetMigMode, handle),
        compute_capability=UNKNOWN if failed else f"{major.value}.{minor.value}",
    )


def _text(ask: Callable[..., int], handle: ctypes.c_void_p) -> str:
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    failed = ask(handle, text, ctypes.c_uint(_TEXT_BYTES))
    return UNKNOWN if failed else text.value.decode(errors="replace")


def _number(ask: Callable[..., int], handle: ctypes.c_void_p, *which: ctypes.c_uint) -> str:
    number = ctypes.c_uint()
    return UNKNOWN if ask(handle, *which, ctypes.byref(number)) else str(number.value)


def _mode(ask: Callable[..., int], handle: ctypes.c_void_p) -> str:
    """Return whether a mode is on or off now; the second value applies after the next start."""
    now, later = ctypes.c_uint(), ctypes.c_uint()
    return UNKNOWN if ask(handle, ctypes.byref(now), ctypes.byref(later)) else ("on" if now.value else "off")
