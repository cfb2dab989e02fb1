"""Text that native code of libraries writes to standard output and standard error."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

_LOCK = threading.Lock()
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Caught:
    """Text that native code wrote; filled when the block ends."""

    text: str = ""


@contextlib.contextmanager
def catch_native_output(descriptor: Literal[1, 2] = 2) -> Iterator[Caught]:
    """Catch text written to a file descriptor within the block: 1 is standard output, 2 is standard error.

    Python's own `sys.stdout` and `sys.stderr` still write to the terminal, so that a progress display continues. Blocks
    in several threads wait for each other, because there is only one descriptor of each.
    """
    caught = Caught()
    with _LOCK, tempfile.TemporaryFile() as aside, _redirected(descriptor, aside.fileno()):
        try:
            yield caught
        finally:
            if descriptor == 1:
                # C's streams hold output back unless standard output is a terminal.
                with contextlib.suppress(AttributeError, OSError, TypeError):  # not on Windows
                    ctypes.CDLL(None).fflush(None)
            aside.seek(0)
            caught.text = _COLOURS.sub("", aside.read().decode(errors="replace"))


@contextlib.contextmanager
def _redirected(descriptor: int, target: int) -> Iterator[None]:
    name = {1: "stdout", 2: "stderr"}[descriptor]
    terminal, before = os.dup(descriptor), getattr(sys, name)
    try:
        is_terminal = before.fileno() == descriptor
    except (AttributeError, OSError, ValueError):  # a replaced stream
        is_terminal = False
    try:
        with contextlib.ExitStack() as stack:
            if is_terminal:
                before.flush()
                setattr(sys, name, stack.enter_context(open(terminal, "w", buffering=1, closefd=False)))
            os.dup2(target, descriptor)
            yield
    finally:
        os.dup2(terminal, descriptor)
        setattr(sys, name, before)
        os.close(terminal)
