"""Keeps a GPU's clock locked as long as the process that started it lives, and sets it free whatever becomes of that.

`python -P -m ndld_flow.measure.clock_keeper GPU` locks, says `locked HOW` or `refused WHY`, and waits for
the end of its standard input: that comes when the other process closes it, dies, or is killed.
"""

from __future__ import annotations

import os
import signal
import sys

from ndld_flow.base.errors import BackendError
from ndld_flow.measure.gpu_clocks import find_clocks


def main() -> int:
    """Lock, wait, set free; 1 when one of them failed."""
    for word in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, word):
            signal.signal(getattr(signal, word), signal.SIG_IGN)
    try:
        clocks = find_clocks(int(sys.argv[1]))
        how = clocks.lock()
    except BackendError as error:
        print(f"refused {error}", flush=True)
        return 1
    try:
        _say(f"locked {how}")
        while os.read(0, 64):
            pass
    finally:
        clocks.free()
    return 0


def _say(words: str) -> None:
    """Whoever would hear it may be gone already."""
    try:
        print(words, flush=True)
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main())
