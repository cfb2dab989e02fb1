"""What native libraries write to the terminal, caught instead."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass

_ONE_AT_A_TIME = threading.Lock()
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Caught:
    """Text that native code wrote; filled when the block ends."""

    text: str = ""


@contextlib.contextmanager
def catch_native_output() -> Iterator[Caught]:
    """Catch what is written to file descriptor 2 within the block.

    Python's own `sys.stderr` keeps its way to the terminal, so that a progress display goes on. Blocks in several
    threads wait for each other: there is only one descriptor 2.
    """
    caught = Caught()
    with _ONE_AT_A_TIME, tempfile.TemporaryFile() as aside, _descriptor_2_to(aside.fileno()):
        try:
            yield caught
        finally:
            aside.seek(0)
            caught.text = _COLOURS.sub("", aside.read().decode(errors="replace"))


@contextlib.contextmanager
def _descriptor_2_to(target: int) -> Iterator[None]:
    terminal = os.dup(2)
    before = sys.stderr
    try:
        with contextlib.ExitStack() as stack:
            if _writes_to_descriptor_2(before):
                before.flush()
                sys.stderr = stack.enter_context(open(terminal, "w", buffering=1, closefd=False))
            os.dup2(target, 2)
            yield
    finally:
        os.dup2(terminal, 2)
        sys.stderr = before
        os.close(terminal)


def _writes_to_descriptor_2(stream: object) -> bool:
    try:
        return bool(stream.fileno() == 2)  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
