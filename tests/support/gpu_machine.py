"""The GPU libraries of this machine, tried once per process; tests that need more skip with the missing part."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache

import pytest

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.base.extras import EngineBackend
from ndld_flow.runtimes.onnxruntime import try_provider
from ndld_flow.runtimes.tensorrt.library import Library, find_library
from ndld_flow.runtimes.tensorrt.probe import Probe, probe_gpu, probe_library

CLOCKS_VARIABLE = "NDLD_FLOW_TEST_CLOCKS"


def require_gpu() -> None:
    """Skip where no NVIDIA GPU answers."""
    gpu = _gpu_trials()[""]
    if not gpu.works:
        pytest.skip(f"no GPU: {gpu.found}")


def require_provider(provider: str) -> str:
    """The full name of an execution provider of ONNX Runtime; skip where it does not load."""
    require_gpu()
    try:
        return try_provider(provider)
    except NdldFlowError as error:
        pytest.skip(f"no {provider} provider: {error}")


def require_engines(backend: EngineBackend) -> Library:
    """The installed TensorRT; skip where it is not, or does not build and run an engine on this GPU."""
    require_gpu()
    library = find_library(backend)
    if not library.found:
        pytest.skip(library.missing)
    for trial in _engine_trials(library):
        if trial.name in ("", "on this GPU") and not trial.works:
            pytest.skip(f"{backend} {library.version} does not work here: {trial.found}")
    require_cuda_runtime()
    return library


def require_cuda_runtime() -> None:
    """Skip where CUDA's runtime library does not find a GPU."""
    require_gpu()
    runtime = _gpu_trials()["cuda runtime"]
    if not runtime.works:
        pytest.skip(runtime.found)


def require_clocks() -> None:
    """Skip where the GPU's clocks may not be locked, or nobody has allowed it: a lock found there is lost."""
    require_gpu()
    if CLOCKS_VARIABLE not in os.environ:
        pytest.skip(f"it would change the GPU's clocks: set {CLOCKS_VARIABLE}=1 to allow that")
    clocks = _gpu_trials()["gpu clocks"]
    if not clocks.works:
        pytest.skip(clocks.found)


def mig_instances() -> list[str]:
    """The UUIDs of the instances of partitioned GPUs; empty without any, or without `nvidia-smi`."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=30)
    except OSError:
        return []
    return re.findall(r"UUID: (MIG-[\w/-]+)\)", listed.stdout)


@cache
def _gpu_trials() -> dict[str, Probe]:
    return {trial.name: trial for trial in probe_gpu()}


@cache
def _engine_trials(library: Library) -> list[Probe]:
    return probe_library(library)
