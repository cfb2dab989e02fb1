"""Identification of a GPU: CUDA counts the visible GPUs, NVML and nvidia-smi count all."""

from __future__ import annotations

import os
from typing import Any


def name_for_nvml(gpu: int) -> str:
    """Return the name of CUDA's GPU in NVML and nvidia-smi: its index among all, or its UUID.

    Worker processes count GPUs in the order of nvidia-smi (`processes.parent`), and only those in CUDA_VISIBLE_DEVICES.
    """
    seen = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return seen[gpu] if gpu < len(seen) else str(gpu)


def find_in_nvml(nvml: Any, gpu: int) -> Any:  # noqa: ANN401
    """Return the NVML handle of CUDA's GPU. Raises NVMLError where NVML does not know it."""
    name = name_for_nvml(gpu)
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(name)
