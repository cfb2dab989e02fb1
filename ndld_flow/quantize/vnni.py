"""Whether the CPU adds products of 8 bits without saturating in between."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

from ndld_flow.quantize.settings import QuantizeSettings

_X86 = ("x86_64", "amd64", "i386", "i686")
_CPUINFO = Path("/proc/cpuinfo")


def reduces_range(settings: QuantizeSettings) -> bool:
    """Whether weights are to use 7 of 8 bits."""
    if settings.reduce_range != "auto":
        return settings.reduce_range
    return settings.target == "cpu" and settings.weights == "int8" and saturates()


@cache
def saturates() -> bool:
    """Whether sums of two products of uint8 and int8 are cut off at 16 bits here (VPMADDUBSW): x86 without VNNI.

    True where an x86 system does not tell: a bit less of precision is better than sums that are wrong.
    """
    if platform.machine().lower() not in _X86:
        return False
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return not any(flag.endswith("_vnni") for flag in flags)
