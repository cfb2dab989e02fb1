"""Locking of a GPU's clock to its base clock, by NVML or nvidia-smi."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any, Protocol

from ndld_flow.base.errors import BackendError
from ndld_flow.measure.gpu_names import find_in_nvml, name_for_nvml

_RIGHTS = (
    "Only root may set clocks: run as root, or let an administrator lock them before (`nvidia-smi -lgc`) and leave out "
    "`lock_clocks`"
)


class Clocks(Protocol):
    """A tool that sets a GPU's clock."""

    def lock(self) -> str:
        """Lock it to the base clock and return a description. Raises `BackendError` when that is refused or not
        possible.
        """

    def free(self) -> None:
        """Unlock the clock. Raises `BackendError` when that fails."""


def find_clocks(gpu: int) -> Clocks:
    """NVML by nvidia-ml-py where that is installed, else nvidia-smi. Raises `BackendError` when neither is here."""
    with contextlib.suppress(ImportError):
        return _Nvml(importlib.import_module("pynvml"), gpu)
    program = shutil.which("nvidia-smi")
    if program is None:
        raise BackendError(
            "lock_clocks: neither nvidia-ml-py (`pip install nvidia-ml-py`) nor nvidia-smi is here; leave it out."
        )
    return _NvidiaSmi(program, gpu)


@dataclass(frozen=True)
class _Nvml:
    nvml: Any
    """The module `pynvml`."""
    gpu: int

    def lock(self) -> str:
        base = self.nvml.NVML_CLOCK_LIMIT_ID_TDP  # the clock that the GPU sustains within its power limit
        self._call("nvmlDeviceSetGpuLockedClocks", base, base)
        return "by NVML"

    def free(self) -> None:
        self._call("nvmlDeviceResetGpuLockedClocks")

    def _call(self, name: str, *arguments: int) -> None:
        try:
            self.nvml.nvmlInit()
            try:
                getattr(self.nvml, name)(find_in_nvml(self.nvml, self.gpu), *arguments)
            finally:
                self.nvml.nvmlShutdown()
        except self.nvml.NVMLError as error:
            advice = _RIGHTS if getattr(error, "value", 0) == self.nvml.NVML_ERROR_NO_PERMISSION else "Leave it out"
            raise BackendError(f"lock_clocks: {name} on GPU {self.gpu} failed: {error}. {advice}.") from None


@dataclass(frozen=True)
class _NvidiaSmi:
    program: str
    gpu: int

    def lock(self) -> str:
        base = self._run("--query-gpu=clocks.default_applications.graphics", "--format=csv,noheader,nounits").strip()
        if not base.isdigit():
            raise BackendError(
                f"lock_clocks: nvidia-smi does not know the base clock of GPU {self.gpu} ({base or 'nothing'}): "
                "`pip install nvidia-ml-py` does without it."
            )
        self._run(f"--lock-gpu-clocks={base},{base}")
        return f"to {base} MHz by nvidia-smi"

    def free(self) -> None:
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
