"""A process that keeps a GPU's clock locked until its parent ends, and then unlocks it.

`python -P -m ndld_flow.measure.clock_keeper GPU` locks the clock, prints `locked HOW` or `refused WHY`, and waits for
the end of its standard input, which comes when the parent closes it, dies, or is killed.
"""

from __future__ import annotations

import os
import signal
import sys

from ndld_flow.base.errors import BackendError
from ndld_flow.measure.gpu_clocks import find_clocks


def main() -> int:
    """Lock, wait and unlock; return 1 when one of them failed."""
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
        _print(f"locked {how}")
        while os.read(0, 64):
            pass
    finally:
        clocks.free()
    return 0


def _print(words: str) -> None:
    """Print a message unless the parent has ended."""
    try:
        print(words, flush=True)
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main())
