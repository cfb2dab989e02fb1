"""Which GPU is meant: CUDA counts those that it may see, NVML and nvidia-smi count all."""

from __future__ import annotations

import os
from typing import Any


def name_for_nvml(gpu: int) -> str:
    """A GPU that CUDA counts, as NVML and nvidia-smi call it: its number among all, or its UUID.

    Working processes count GPUs in the order of nvidia-smi (`processes.parent`), and only those that
    CUDA_VISIBLE_DEVICES names.
    """
    seen = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return seen[gpu] if gpu < len(seen) else str(gpu)


def find_in_nvml(nvml: Any, gpu: int) -> Any:  # noqa: ANN401
    """The handle of a GPU that CUDA counts. Raises NVMLError where NVML does not know it."""
    name = name_for_nvml(gpu)
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(name)
