"""Memory that this process needed for a piece of work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


class PeakMemory:
    """Peak of resident memory above that at the start of the block, in bytes; 0 where the system does not report it.

    Meant for a new process: the C library reuses freed memory without a trace. Memory that a process's first session
    needs for itself (ONNX Runtime: about 10 MB) is included.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._before = 0
        self._reset = False

    def __enter__(self) -> PeakMemory:
        self._before = _status_bytes("VmRSS")
        try:
            _RESET.write_text("5")  # makes the kernel forget the high-water mark of this process
            self._reset = True
        except OSError:
            pass
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        peak = _status_bytes("VmHWM" if self._reset else "VmRSS")
        self.peak_bytes = max(0, peak - self._before) if self._before else 0


def _status_bytes(field: str, read: Callable[[], str] = _STATUS.read_text) -> int:
    try:
        lines = read().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0
