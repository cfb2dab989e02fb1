"""Linux's perf events: a hardware counter of the instructions that a thread and its later threads run in user space."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import platform
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SYSCALLS: Final = {"x86_64": 298, "aarch64": 241}
"""Architecture -> the number of `perf_event_open`, which the C library does not export."""
_ATTRIBUTES_BYTES: Final = 128
_DISABLED, _INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 0, 1 << 1, 1 << 5, 1 << 6
_TIMES: Final = 0b11
"""Read the time for which the event was enabled, and the time for which it was counted."""
_ENABLE, _DISABLE = 0x2400, 0x2401
_PARANOID: Final = Path("/proc/sys/kernel/perf_event_paranoid")
_ALLOW: Final = "allow it with `sysctl kernel.perf_event_paranoid=2`, and in a container with `--cap-add PERFMON`"


@dataclass(frozen=True)
class Event:
    """A counted event, by the kernel's type and number."""

    type: int
    config: int


INSTRUCTIONS: Final = Event(0, 1)
"""Instructions retired by the processor."""


@dataclass(frozen=True)
class Reading:
    """A counter between its start and its stop."""

    value: int
    enabled_ns: int
    """Time for which it was switched on, in all threads together."""
    running_ns: int
    """Time for which the processor counted; less if more events were requested than it has counters."""

    @property
    def is_whole(self) -> bool:
        """Return whether nothing was missed. The value of a shared counter would have to be scaled, which is a guess;
        one that never ran is 0 on machines whose counter exists only by name."""
        return self.value > 0 and 0 < self.enabled_ns <= self.running_ns


class Counter:
    """A counter of this thread, and of the threads that it starts from now on."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before = Reading(0, 0, 0)

    def start(self) -> None:
        """Count from 0."""
        self._before = self._read()
        self._control(_ENABLE)

    def stop(self) -> Reading:
        """Count no more, and return the reading since the start."""
        self._control(_DISABLE)
        after, before = self._read(), self._before
        return Reading(
            after.value - before.value, after.enabled_ns - before.enabled_ns, after.running_ns - before.running_ns
        )

    def _control(self, request: int) -> None:
        import fcntl  # not on Windows

        fcntl.ioctl(self._descriptor, request, 0)

    def _read(self) -> Reading:
        return Reading(*struct.unpack("QQQ", os.read(self._descriptor, 24)))


@contextlib.contextmanager
def open_counter(event: Event = INSTRUCTIONS) -> Iterator[Counter]:
    """Open a counter, which is off. Raises OSError where the system has none or does not allow it."""
    number = _SYSCALLS.get(platform.machine())
    if sys.platform != "linux" or number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    attributes = bytearray(_ATTRIBUTES_BYTES)
    struct.pack_into("IIQ", attributes, 0, event.type, _ATTRIBUTES_BYTES, event.config)
    flags = _DISABLED | _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR
    struct.pack_into("QQ", attributes, 32, _TIMES, flags)
    library = ctypes.CDLL(None, use_errno=True)
    buffer = (ctypes.c_char * _ATTRIBUTES_BYTES).from_buffer(attributes)
    descriptor = library.syscall(number, buffer, 0, -1, -1, 0)  # this process, on any CPU
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        yield Counter(descriptor)
    finally:
        os.close(descriptor)


@functools.cache
def find_perf_lack() -> str:
    """Return the reason why instructions cannot be counted here, with the way to change it; empty if they can."""
    try:
        with open_counter() as counter:
            counter.start()
            sum(range(1000))
            reading = counter.stop()
    except OSError as error:
        return _explain(error)
    return "" if reading.is_whole else "the processor's instruction counter does not count, as in many virtual machines"


def _explain(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        try:
            level = f" (kernel.perf_event_paranoid is {_PARANOID.read_text().strip()})"
        except OSError:
            level = ""
        return f"the system does not allow perf events{level}: {_ALLOW}"
    if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV):
        return "the processor offers no instruction counter, as in most virtual machines and CI runners"
    return f"perf events do not work: {error.strerror}"
