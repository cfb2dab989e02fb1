"""Examine what works on this machine, by trying it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.machine.description import describe_machine
from ndld_flow.machine.versions import read_version
from ndld_flow.records.document import Record

if TYPE_CHECKING:
    from ndld_flow.runtimes.tensorrt.library import Library
    from ndld_flow.runtimes.tensorrt.probe import Probe

NEEDED = ("onnx", "onnx-ir", "onnxruntime", "polygraphy", "protobuf", "numpy", "hydra-core", "pydantic")


class Check(Record):
    """The result of one check."""

    name: str
    state: Literal["ok", "absent", "broken"]
    """`absent`: only some recipes need it; `broken`: every run needs it."""
    found: str
    advice: str = ""


def examine(outputs: Path, library: Path | None = None) -> list[Check]:
    """Try everything a run may need; nothing is installed or changed.

    `library` is the environment or archive of a TensorRT to examine instead of the installed one. Raises BackendError
    when there is none.
    """
    from ndld_flow.runtimes.tensorrt.library import find_libraries
    from ndld_flow.runtimes.tensorrt.probe import probe_gpu

    machine = describe_machine()
    with ThreadPoolExecutor() as pool:  # each waits for a process of its own
        engines = pool.map(_check_engines, find_libraries(library))
        gpu = pool.submit(probe_gpu)
    return [
        Check(name="python", state="ok", found=f"{sys.version.split()[0]}, ndld-flow {read_version('ndld-flow')}"),
        Check(name="machine", state="ok", found=f"{machine.cpu} x {machine.cpu_count}, {machine.system}"),
        *(_check_library(name) for name in NEEDED),
        _check_onnxruntime_duplicates(),
        *(_show_gpu(trial, machine.driver) for trial in gpu.result()),
        *(_check_provider(name) for name in ("cpu", "cuda", "tensorrt")),
        *(check for checks in engines for check in checks),
        _check_outputs(outputs),
    ]


def _check_library(name: str) -> Check:
    version = read_version(name)
    if version == "not installed":
        return Check(name=name, state="broken", found=version, advice="pip install ndld-flow")
    return Check(name=name, state="ok", found=version)


def _check_onnxruntime_duplicates() -> Check:
    """Check for two distributions of ONNX Runtime: they write the same files, and removing one breaks the other."""
    name = "onnxruntime twins"
    try:
        both = f"onnxruntime {version('onnxruntime')} and onnxruntime-gpu {version('onnxruntime-gpu')}"
    except PackageNotFoundError:
        return Check(name=name, state="ok", found="one distribution of ONNX Runtime is installed")
    advice = "pip uninstall -y onnxruntime onnxruntime-gpu, then pip install ndld-flow"
    return Check(name=name, state="broken", found=f"both {both}: each overwrites the other", advice=advice)


def _check_provider(name: str) -> Check:
    from ndld_flow.runtimes.onnxruntime.onnxruntime_session import try_provider

    shown = f"onnxruntime {name}"
    try:
        return Check(name=shown, state="ok", found=f"{try_provider(name)} loads and runs")
    except NdldFlowError as error:
        return Check(name=shown, state="broken" if name == "cpu" else "absent", found=str(error))


def _show_gpu(trial: Probe, driver: str) -> Check:
    if trial.name:
        return _show_trial(trial, trial.name)
    if trial.works:
        return Check(name="gpu", state="ok", found=trial.found + (f", driver {driver}" if driver else ""))
    return Check(name="gpu", state="absent", found=f"{trial.found}; CPU recipes need none", advice=trial.advice)


def _check_engines(library: Library) -> list[Check]:
    """Check one TensorRT on this machine. Its name has a hyphen, like its distribution."""
    from ndld_flow.runtimes.tensorrt.probe import probe_library

    name = library.backend.replace("_", "-")
    if not library.found:
        what, _, advice = library.missing.partition(": ")
        return [Check(name=name, state="absent", found=what, advice=advice)]
    return list(_show_engines(library, name, probe_library(library)))


def _show_engines(library: Library, name: str, trials: list[Probe]) -> Iterator[Check]:
    for trial in trials:
        shown = f"{name} {trial.name}".strip()
        if trial.name or not trial.works:
            yield _show_trial(trial, shown)
        else:
            yield Check(name=shown, state="ok", found=f"{trial.found}, {library.origin}; {_describe_names(library)}")


def _describe_names(library: Library) -> str:
    """Describe whether recipes are checked against the names of this release."""
    from ndld_flow.runtimes.tensorrt.release_names import names_of_release

    try:
        names = names_of_release(library.backend, library.version)
    except NdldFlowError as error:
        return str(error)
    if names.exact:
        return "a known release"
    return f"its settings are guessed from {names.release}, the nearest known release, until it is loaded"


def _show_trial(trial: Probe, name: str) -> Check:
    return Check(name=name, state="ok" if trial.works else "absent", found=trial.found, advice=trial.advice)


def _check_outputs(outputs: Path) -> Check:
    name, folder = f"outputs ({outputs})", outputs
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        advice = "choose another folder with --outputs, or set NDLD_FLOW_OUTPUTS"
        return Check(name=name, state="broken", found=f"cannot be written: {error.strerror}", advice=advice)
    free = shutil.disk_usage(folder).free
    return Check(name=name, state="ok", found=f"writable, {free / 2**30:,.1f} GiB free")
