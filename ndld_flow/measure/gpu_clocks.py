"""Locking of a GPU's clock to its base clock, by NVML or nvidia-smi, for as long as a measurement takes.

`python -P -m ndld_flow.measure.gpu_clocks GPU [MIN MAX]` prints `locking`, locks the clock, prints `locked HOW` or
`refused WHY`, and waits for the end of its standard input, which comes when the parent closes it, dies, or is killed.
Then it sets the lock MIN to MAX (MHz), which no tool of NVIDIA's reads, or unlocks the clock."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from ndld_flow.base.errors import BackendError


def name_for_nvml(gpu: int) -> str:
    """Return the name of CUDA's GPU in NVML and nvidia-smi: its index among all, or its UUID.

    Worker processes count GPUs in the order of nvidia-smi (`processes.parent`), and only those in CUDA_VISIBLE_DEVICES.
    """
    seen = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return seen[gpu] if gpu < len(seen) else str(gpu)


def find_in_nvml(nvml: Any, gpu: int) -> Any:  # noqa: ANN401
    """Return the NVML handle of CUDA's GPU. Raises NVMLError if NVML does not know it."""
    name = name_for_nvml(gpu)
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(name)


_RIGHTS = (
    "Only root may set clocks: run as root, or let an administrator lock them first (`nvidia-smi -lgc`) and remove "
    "`lock_clocks`"
)


Range = tuple[int, int]
"""The lowest and the highest clock of a lock, in MHz."""


class Clocks(Protocol):
    """A tool that sets a GPU's clock. All methods raise `BackendError` if that is not allowed or not possible."""

    def lock_to_base(self) -> str:
        """Lock the clock to the base clock and return a description."""

    def lock(self, clocks: Range) -> None:
        """Lock the clock to a range."""

    def unlock(self) -> None:
        """Unlock the clock, whoever locked it."""


def restore(clocks: Clocks, lock: Range | None) -> None:
    """Set the lock that a GPU had, or unlock its clock if it had none. Raises as `Clocks` does."""
    if lock is None:
        clocks.unlock()
    else:
        clocks.lock(lock)


def find_clocks(gpu: int) -> Clocks:
    """Return NVML if nvidia-ml-py is installed, else nvidia-smi. Raises `BackendError` without either."""
    with contextlib.suppress(ImportError):
        return _Nvml(importlib.import_module("pynvml"), gpu)
    program = shutil.which("nvidia-smi")
    if program is None:
        raise BackendError(
            "lock_clocks: neither nvidia-ml-py (`pip install nvidia-ml-py`) nor nvidia-smi is installed; remove it."
        )
    return _NvidiaSmi(program, gpu)


@dataclass(frozen=True)
class _Nvml:
    nvml: Any
    """The module `pynvml`."""
    gpu: int

    def lock_to_base(self) -> str:
        base = self.nvml.NVML_CLOCK_LIMIT_ID_TDP  # the clock that the GPU sustains within its power limit
        self.lock((base, base))
        return "by NVML"

    def lock(self, clocks: Range) -> None:
        self._call("nvmlDeviceSetGpuLockedClocks", *clocks)

    def unlock(self) -> None:
        self._call("nvmlDeviceResetGpuLockedClocks")

    def _call(self, name: str, *arguments: int) -> None:
        try:
            self.nvml.nvmlInit()
            try:
                getattr(self.nvml, name)(find_in_nvml(self.nvml, self.gpu), *arguments)
            finally:
                self.nvml.nvmlShutdown()
        except self.nvml.NVMLError as error:
            advice = _RIGHTS if getattr(error, "value", 0) == self.nvml.NVML_ERROR_NO_PERMISSION else "Remove it"
            raise BackendError(f"lock_clocks: {name} on GPU {self.gpu} failed: {error}. {advice}.") from None


@dataclass(frozen=True)
class _NvidiaSmi:
    program: str
    gpu: int

    def lock_to_base(self) -> str:
        base = self._run("--query-gpu=clocks.default_applications.graphics", "--format=csv,noheader,nounits").strip()
        if not base.isdigit():
            raise BackendError(
                f"lock_clocks: nvidia-smi does not know the base clock of GPU {self.gpu} ({base or 'nothing'}): "
                "install NVML instead with `pip install nvidia-ml-py`."
            )
        self.lock((int(base), int(base)))
        return f"to {base} MHz by nvidia-smi"

    def lock(self, clocks: Range) -> None:
        self._run(f"--lock-gpu-clocks={clocks[0]},{clocks[1]}")

    def unlock(self) -> None:
        self._run("--reset-gpu-clocks")

    def _run(self, *options: str) -> str:
        command = [self.program, "-i", name_for_nvml(self.gpu), *options]
        try:
            completed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            raise BackendError(f"lock_clocks: nvidia-smi does not run: {error}.") from None
        if completed.returncode:
            reason = (
                " ".join((completed.stdout + completed.stderr).split()).rstrip(".") or f"code {completed.returncode}"
            )
            raise BackendError(f"lock_clocks: `nvidia-smi {options[0]}` failed: {reason}. {_RIGHTS}.")
        return completed.stdout


def main() -> int:
    """Lock, wait and restore; return 1 if locking failed."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    gpu, *numbers = map(int, sys.argv[1:])
    try:
        clocks = find_clocks(gpu)
        _print("locking")
        description = clocks.lock_to_base()
    except BackendError as error:
        _print(f"refused {error}")
        return 1
    try:
        _print(f"locked {description}")
        while os.read(0, 64):
            pass
    finally:
        restore(clocks, (numbers[0], numbers[1]) if numbers else None)
    return 0


def _print(message: str) -> None:
    """Print a message unless the parent has ended."""
    with contextlib.suppress(OSError):
        print(message, flush=True)


_LIMIT_S = 60.0


@contextlib.contextmanager
def locked_clocks(gpu: int, before: Range | None = None) -> Iterator[str]:
    """Lock a GPU's clock to its base clock; yields a description.

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
        began = (line := keeper.stdout.readline()) == "locking\n"
        word, _, text = (keeper.stdout.readline() if began else line).strip().partition(" ")
        if word != "locked":
            raise BackendError(text or "lock_clocks: the process that locks the clock died.")
        yield text
    finally:
        keeper.stdin.close()
        code = keeper.wait(_LIMIT_S)
        keeper.stdout.close()
        # It was killed, or could not restore the clock. One that was refused, or never began, changed nothing.
        if code and began and word != "refused":
            restore(find_clocks(gpu), before)


if __name__ == "__main__":
    sys.exit(main())
