"""Say what works on this machine, by trying it."""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from ndld_flow.errors import NdldFlowError
from ndld_flow.machine import describe_machine
from ndld_flow.records.base import Record
from ndld_flow.versions import read_version

NEEDED = ("onnx", "onnx-ir", "onnxruntime", "polygraphy", "protobuf", "numpy", "hydra-core", "pydantic")


class Check(Record):
    """One thing that was tried."""

    name: str
    state: Literal["ok", "absent", "broken"]
    """`absent` is what only some recipes need; `broken` is what every run needs."""
    found: str
    advice: str = ""


def examine(outputs: Path) -> list[Check]:
    """Try everything a run may need; nothing is installed or changed."""
    machine = describe_machine()
    gpus = ", ".join(machine.gpus)
    return [
        Check(name="python", state="ok", found=f"{sys.version.split()[0]}, ndld-flow {read_version('ndld-flow')}"),
        Check(name="machine", state="ok", found=f"{machine.cpu} x {machine.cpu_count}, {machine.system}"),
        *(_check_library(name) for name in NEEDED),
        _check_onnxruntime_twins(),
        Check(name="gpu", state="ok" if gpus else "absent", found=gpus or "no NVIDIA GPU; CPU recipes need none"),
        *(_check_provider(name) for name in ("cpu", "cuda", "tensorrt")),
        _check_extra("tensorrt", "tensorrt", "pip install 'ndld-flow[tensorrt]' (fetched from NVIDIA's own index)"),
        _check_extra("tensorrt-rtx", "tensorrt_rtx", "pip install 'ndld-flow[rtx]' (Linux x86-64, Windows)"),
        _check_outputs(outputs),
    ]


def _check_library(name: str) -> Check:
    found = read_version(name)
    if found == "not installed":
        return Check(name=name, state="broken", found=found, advice="pip install ndld-flow")
    return Check(name=name, state="ok", found=found)


def _check_onnxruntime_twins() -> Check:
    """Two distributions of ONNX Runtime write the same files: the later one wins, removing it breaks the other."""
    name = "onnxruntime twins"
    try:
        both = f"onnxruntime {version('onnxruntime')} and onnxruntime-gpu {version('onnxruntime-gpu')}"
    except PackageNotFoundError:
        return Check(name=name, state="ok", found="one distribution of ONNX Runtime is installed")
    advice = "pip uninstall -y onnxruntime onnxruntime-gpu, then pip install ndld-flow"
    return Check(name=name, state="broken", found=f"both {both}: each overwrites the other", advice=advice)


def _check_provider(name: str) -> Check:
    from ndld_flow.backends.running.provider_check import try_provider

    shown = f"onnxruntime {name}"
    try:
        return Check(name=shown, state="ok", found=f"{try_provider(name)} loads and runs")
    except NdldFlowError as error:
        return Check(name=shown, state="broken" if name == "cpu" else "absent", found=str(error))


def _check_extra(name: str, module: str, advice: str) -> Check:
    found = read_version(name)
    if found == "not installed":
        return Check(name=name, state="absent", found=found, advice=advice)
    try:
        importlib.import_module(module)
    except (ImportError, OSError) as error:
        return Check(name=name, state="absent", found=f"{found} is installed but does not load: {error}", advice=advice)
    return Check(name=name, state="ok", found=found)


def _check_outputs(outputs: Path) -> Check:
    name, folder = f"outputs ({outputs})", _existing(outputs)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        advice = "choose another folder with --outputs, or set NDLD_FLOW_OUTPUTS"
        return Check(name=name, state="broken", found=f"cannot be written: {error.strerror}", advice=advice)
    free = shutil.disk_usage(folder).free
    return Check(name=name, state="ok", found=f"writable, {free / 2**30:,.1f} GiB free")


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
