"""The ways in which this machine can count instructions and allocations."""

from __future__ import annotations

import functools
import platform
import re
import shutil
import subprocess
import sys
from typing import Final, Literal

from ndld_flow.machine.check import Check
from ndld_flow.machine.perf_events import find_perf_lack

CounterName = Literal["perf", "valgrind"]
CounterChoice = Literal["auto", "perf", "valgrind"]
_INSTALL: Final = "install Valgrind (`apt-get install valgrind`)"
_ARCHITECTURES: Final = ("x86_64",)
"""Those whose client requests `measure/valgrind_requests.py` can write."""


@functools.cache
def find_valgrind() -> tuple[str, str]:
    """Return the path and the version of Valgrind; empty where it is not installed or does not run."""
    path = shutil.which("valgrind") or ""
    try:
        ran = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "", ""
    version = re.search(r"valgrind-(\S+)", ran.stdout)
    return (path, version[1]) if version else ("", "")


def find_valgrind_lack() -> str:
    """Return the reason why Valgrind cannot count here, with the way to change it; empty if it can."""
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        return f"passes are counted in Valgrind only on Linux on {' and '.join(_ARCHITECTURES)}"
    return "" if find_valgrind()[1] else f"Valgrind is not installed: {_INSTALL}"


@functools.cache
def find_address_fixer() -> tuple[str, ...]:
    """Return the command that runs another at addresses that are the same each time; empty if that is not allowed.

    Tables of pointers take other ways at other addresses, which is 0.1 % of the instructions of a small model.
    """
    path = shutil.which("setarch")
    if path is None:
        return ()
    try:
        allowed = subprocess.run([path, "-R", "true"], capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return ()
    return (path, "-R") if allowed else ()


def choose_counter(wanted: CounterChoice) -> tuple[CounterName | None, str]:
    """Return the counter of instructions; None with the reason where there is none."""
    lacks: dict[CounterName, str] = {}
    names: tuple[CounterName, ...] = ("perf", "valgrind") if wanted == "auto" else (wanted,)
    for name in names:
        lack = find_perf_lack() if name == "perf" else find_valgrind_lack()
        if not lack:
            return name, ""
        lacks[name] = lack
    return None, "; ".join(lacks.values())


def describe_counter(name: CounterName) -> str:
    """Return the counter with what its figures depend on, `Valgrind 3.19.0` or `perf events`."""
    return f"Valgrind {find_valgrind()[1]}" if name == "valgrind" else "perf events"


@functools.cache
def describe_caller() -> str:
    """Return the programs besides the runtime whose instructions are counted: `Python 3.11.7, glibc 2.36`."""
    return ", ".join(filter(None, (f"Python {platform.python_version()}", " ".join(platform.libc_ver()).strip())))


def examine_counters() -> Check:
    """Check what can be counted on this machine, for `doctor`."""
    perf, valgrind = find_perf_lack(), find_valgrind_lack()
    found = [
        *([] if perf else ["instructions by perf events"]),
        *([] if valgrind else [f"instructions and allocations by {describe_counter('valgrind')}"]),
    ]
    advice = valgrind or ""
    if not found:
        return Check(name="counters", state="absent", found=f"none: {perf}", advice=advice)
    return Check(name="counters", state="ok", found="; ".join([*found, *([f"no perf events: {perf}"] if perf else [])]))
