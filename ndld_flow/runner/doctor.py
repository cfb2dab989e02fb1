"""Examine what works on this machine, by trying it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.base.extras import EXTRAS, Extra
from ndld_flow.machine.description import describe_machine
from ndld_flow.machine.onnxruntime_builds import CPU_BUILD, Build, find_cuda_lack, installed_builds
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
        check_onnxruntime_files(installed_builds()),
        *(_show_gpu(trial, machine.driver) for trial in gpu.result()),
        *(_check_provider(name) for name in ("cpu", "cuda", "tensorrt")),
        *(check for checks in engines for check in checks),
        *map(_describe_extra, EXTRAS.values()),
        _check_outputs(outputs),
    ]


def _check_library(name: str) -> Check:
    version = read_version(name)
    if version == "not installed":
        return Check(name=name, state="broken", found=version, advice="pip install ndld-flow")
    return Check(name=name, state="ok", found=version)


def check_onnxruntime_files(builds: Sequence[Build]) -> Check:
    """Check that one distribution of ONNX Runtime has all its files: several write the same ones."""
    name = "onnxruntime files"
    complete = [build for build in builds if not build.changed]
    if not builds:
        advice = "pip install onnxruntime"
        return Check(name=name, state="broken", found="no distribution of ONNX Runtime", advice=advice)
    if not complete:
        # The build for GPUs runs on CPUs too, and was asked for.
        damaged = next((build for build in builds if build.name != CPU_BUILD), builds[0])
        number = len(damaged.changed)
        files = f"{number:,} files" if number > 1 else "a file"
        lost = f"{files} of {damaged} missing or changed, such as {damaged.changed[0]}"
        others = [str(build) for build in builds if build is not damaged]
        mixture = f"; {' and '.join(others)} wrote the same files" if others else ""
        return Check(name=name, state="broken", found=lost + mixture, advice=damaged.repair)
    used, replaced = complete[-1], [build for build in builds if build is not complete[-1]]
    if not replaced:
        return Check(name=name, state="ok", found=f"{used}, complete")
    found = f"{used}, complete; it replaced files of {' and '.join(map(str, replaced))}"
    if used.name != CPU_BUILD:
        return Check(name=name, state="ok", found=found)
    return Check(name=name, state="absent", found=f"{found}, which cannot be used", advice=replaced[-1].repair)


def _describe_extra(extra: Extra) -> Check:
    """Report whether an extra is installed, and the tasks that need it."""
    name = f"extra [{extra.name}]"
    versions = ", ".join(f"{each} {read_version(each)}" for each in extra.distributions)
    lack = find_cuda_lack() if extra.name == "gpu" else None
    if extra.is_installed and not lack:
        return Check(name=name, state="ok", found=f"{versions}: {extra.tasks}")
    return Check(
        name=name,
        state="absent",
        found=f"{extra.title} ({extra.size}): {extra.tasks}",
        advice=lack.command if lack else extra.command,
    )


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
