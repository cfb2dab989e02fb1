"""Requests of a program to the Valgrind in which it runs: the sequence of instructions that Valgrind recognises.

In C these are the macros of `valgrind.h` and `callgrind.h`. Here the few bytes are written into memory and called by
ctypes, because a compiler is not everywhere. Outside of Valgrind the sequence has no effect.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

_CODE: Final = bytes.fromhex(
    "4889fa"  # mov rdx, rdi: the result without Valgrind
    "4889f0"  # mov rax, rsi: the request and its arguments
    "48c1c703 48c1c70d 48c1c73d 48c1c733"  # rol rdi by 3, 13, 61 and 51, which together leave it as it is
    "4887db"  # xchg rbx, rbx
    "4889d0"  # mov rax, rdx
    "c3"  # ret
)
_RUNNING_ON_VALGRIND: Final = 0x1001
_CALLGRIND: Final = (ord("C") << 24) + (ord("T") << 16)
_DUMP_STATS, _ZERO_STATS, _START_INSTRUMENTATION = _CALLGRIND, _CALLGRIND + 1, _CALLGRIND + 4


class ValgrindRequests:
    """Requests to Valgrind on x86-64."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._memory.write(_CODE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._call = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)(address)
        self._arguments = (ctypes.c_uint64 * 6)()
        self._place = ctypes.addressof(self._arguments)

    @property
    def is_in_valgrind(self) -> bool:
        """Return whether Valgrind runs this process, as the first answer of its requests."""
        return self._request(_RUNNING_ON_VALGRIND) > 0

    def start_counting(self) -> None:
        """Let Callgrind count from now on, in all threads."""
        self._request(_START_INSTRUMENTATION)

    def reset(self) -> None:
        """Set Callgrind's counts to 0."""
        self._request(_ZERO_STATS)

    def write_counts(self) -> None:
        """Let Callgrind write its counts to the next file, and set them to 0."""
        self._request(_DUMP_STATS)

    def _request(self, code: int) -> int:
        self._arguments[0] = code
        return int(self._call(0, self._place))
