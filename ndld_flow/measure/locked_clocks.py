"""A lock on a GPU's clock that is always released."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from ndld_flow.base.errors import BackendError
from ndld_flow.measure import clock_keeper
from ndld_flow.measure.gpu_clocks import find_clocks

_LIMIT_S = 60.0


@contextlib.contextmanager
def locked_clocks(gpu: int) -> Iterator[str]:
    """Lock a GPU's clock to its base clock; yields a description.

    A separate process keeps it locked and outlives this one: when this process is killed, it unlocks the clock. Raises
    `BackendError` when locking is refused, or the clock could not be unlocked.
    """
    command = [sys.executable, "-P", "-m", clock_keeper.__name__, str(gpu)]
    keeper = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C in a terminal is for this process
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        word, _, text = keeper.stdout.readline().strip().partition(" ")
        if word != "locked":
            raise BackendError(text or "lock_clocks: the process that locks the clock died.")
        yield text
    finally:
        keeper.stdin.close()
        code = keeper.wait(_LIMIT_S)
        keeper.stdout.close()
    if code:  # it was killed, or unlocking failed: try it here
        find_clocks(gpu).free()
