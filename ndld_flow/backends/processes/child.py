"""What a working process does for the one that started it: it tells how far it is, and ends with it. Imports little."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

Tell = Callable[[int, int, str], None]

_TOLD_EVERY_S = 0.1
_ORPHANED = 3


def begin() -> Tell:
    """Call this first: the process ends when its standard input does, and standard output becomes ours alone.

    What libraries print goes to standard error. The result writes `DONE TOTAL WHAT`, at most ten lines a second unless
    they begin something: `WHAT` up to the word `pass`.
    """
    told = os.dup(1)
    os.dup2(2, 1)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    return _make_teller(told)


def end() -> None:
    """Call this last: whoever has answered is done. Unloading drivers takes time, and their crashes say nothing."""
    os._exit(0)


def _end_with_stdin() -> None:
    while os.read(0, 64):
        pass
    os._exit(_ORPHANED)


def _make_teller(told: int) -> Tell:
    last, busy_with = 0.0, ""

    def tell(done: int, total: int, what: str) -> None:
        nonlocal last, busy_with
        now, doing = time.monotonic(), what.partition("pass ")[0]
        if doing == busy_with and now - last < _TOLD_EVERY_S:
            return
        last, busy_with = now, doing
        os.write(told, f"{done} {total} {what}\n".encode())

    return tell
