"""How much memory this process needed for a piece of work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


class PeakMemory:
    """Peak of resident memory above what the process held when the block began, in bytes; 0 where the system does
    not tell.

    Meant for a fresh process: where memory was freed before, the C library uses it again without being seen. What a
    process's first session needs for itself (ONNX Runtime: about 10 MB) is in it.
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
