"""Locking of a GPU's clock to its base clock, by NVML, for as long as a measurement takes.

`python -P -m ndld_flow.measure.gpu_clocks GPU [MIN MAX]` prints `locking`, locks the clock, prints `locked` or
`refused WHY`, and waits for the end of its standard input, which comes when the parent closes it, dies, or is killed.
Then it sets the lock MIN to MAX (MHz), which no tool of NVIDIA's reads, or unlocks the clock."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from ndld_flow.base.errors import BackendError


def find_in_nvml(nvml: Any, gpu: int) -> Any:  # noqa: ANN401
    """Return the NVML handle of CUDA's GPU. Raises NVMLError if NVML does not know it."""
    # Worker processes count GPUs in the order of nvidia-smi, and only those in CUDA_VISIBLE_DEVICES.
    seen = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = seen[gpu] if gpu < len(seen) else str(gpu)
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(name)


Range = tuple[int, int]
"""The lowest and the highest clock of a lock, in MHz."""


def restore(gpu: int, lock: Range | None) -> None:
    """Set the lock that a GPU had, or unlock its clock if it had none. Raises as `_call` does."""
    if lock is None:
        _call(gpu, "nvmlDeviceResetGpuLockedClocks")
    else:
        _call(gpu, "nvmlDeviceSetGpuLockedClocks", *lock)


def _import_nvml() -> Any:  # noqa: ANN401
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        raise BackendError(
            "lock_clocks needs NVML's Python package: `pip install nvidia-ml-py`, or remove it."
        ) from None


def _call(gpu: int, name: str, *arguments: int) -> None:
    """Call one of NVML's functions. Raises `BackendError` if that is not allowed or not possible."""
    nvml = _import_nvml()
    try:
        nvml.nvmlInit()
        try:
            getattr(nvml, name)(find_in_nvml(nvml, gpu), *arguments)
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        advice = "Remove it"
        if getattr(error, "value", 0) == nvml.NVML_ERROR_NO_PERMISSION:
            advice = (
                "Only root may set clocks: run as root, or let an administrator lock them first (`nvidia-smi -lgc`) "
                "and remove `lock_clocks`"
            )
        raise BackendError(f"lock_clocks: {name} on GPU {gpu} failed: {error}. {advice}.") from None


def main() -> int:
    """Lock, wait and restore; return 1 if locking failed."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    gpu, *numbers = map(int, sys.argv[1:])
    _print("locking")
    try:
        base = _import_nvml().NVML_CLOCK_LIMIT_ID_TDP  # which the GPU sustains within its power limit
        restore(gpu, (base, base))
    except BackendError as error:
        _print(f"refused {error}")
        return 1
    try:
        _print("locked")
        while os.read(0, 64):
            pass
    finally:
        restore(gpu, (numbers[0], numbers[1]) if numbers else None)
    return 0


def _print(message: str) -> None:
    """Print a message unless the parent has ended."""
    with contextlib.suppress(OSError):
        print(message, flush=True)


_LIMIT_S = 60.0


@contextlib.contextmanager
def locked_clocks(gpu: int, before: Range | None = None) -> Iterator[None]:
    """Lock a GPU's clock to its base clock.

    A separate process keeps it locked and outlives this one: when this process is killed, it sets the lock `before` or
    unlocks the clock. Raises `BackendError` when locking is refused, or the clock could not be restored.
    """
    command = [sys.executable, "-P", "-m", __name__, str(gpu), *map(str, before or ())]
    keeper = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C in a terminal must only reach this process
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    began, word = False, ""
    try:
        began = keeper.stdout.readline() == "locking\n"
        word, _, text = keeper.stdout.readline().strip().partition(" ")
        if word != "locked":
            raise BackendError(text or "lock_clocks: the process that locks the clock died.")
        yield
    finally:
        keeper.stdin.close()
        code = keeper.wait(_LIMIT_S)
        keeper.stdout.close()
        # It was killed, or could not restore the clock. One that was refused, or never began, changed nothing.
        if code and began and word != "refused":
            restore(gpu, before)


if __name__ == "__main__":
    sys.exit(main())
