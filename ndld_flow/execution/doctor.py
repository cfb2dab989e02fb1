"""Check what works on this machine by trying it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ndld_flow.base import users
from ndld_flow.base.extras import EXTRAS, Extra
from ndld_flow.base.quantities import size
from ndld_flow.execution.devices import describe_holders
from ndld_flow.machine.host import Check, describe_machine
from ndld_flow.machine.versions import CPU_BUILD, Build, find_cuda_lack, installed_builds, read_version
from ndld_flow.runs.collect_garbage import find_kept_libraries
from ndld_flow.runtimes.registry import find_runtimes

NEEDED = ("onnx", "onnx-ir", "onnxruntime", "polygraphy", "protobuf", "numpy", "hydra-core", "pydantic")


def examine(outputs: Path, library: Path | None = None) -> list[Check]:
    """Try everything a run may need; nothing is installed or changed.

    `library` is the environment or archive of a TensorRT to examine instead of the installed one. Raises BackendError
    if there is none.
    """
    machine = describe_machine()
    with ThreadPoolExecutor() as pool:  # most wait for processes of their own
        of_runtimes = pool.map(lambda runtime: list(runtime.examine(library)), find_runtimes())
    return [
        Check(name="python", state="ok", found=f"{sys.version.split()[0]}, ndld-flow {read_version('ndld-flow')}"),
        Check(name="machine", state="ok", found=f"{machine.cpu} x {machine.cpu_count}, {machine.system}"),
        *(_check_library(name) for name in NEEDED),
        check_onnxruntime_files(installed_builds()),
        *(check for checks in of_runtimes for check in checks),
        *map(_describe_extra, EXTRAS.values()),
        describe_holders(),
        _describe_kept_libraries(),
        _check_outputs(outputs),
    ]


def _check_library(name: str) -> Check:
    version = read_version(name)
    if version == "not installed":
        return Check(name=name, state="broken", found=version, advice=f"pip install {name}")
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
    versions = ", ".join(f"{each} {read_version(each).removeprefix(each).strip()}" for each in extra.distributions)
    lack = find_cuda_lack() if extra.name == "gpu" else None
    if extra.is_installed and not lack:
        return Check(name=name, state="ok", found=f"{versions}: {extra.tasks}")
    return Check(
        name=name,
        state="absent",
        found=f"{extra.title} ({extra.size}): {extra.tasks}",
        advice=lack.command if lack else extra.command,
    )


def _describe_kept_libraries() -> Check:
    """Report what runs have created in the user's cache folder, and how to remove it."""
    kept = find_kept_libraries()
    found = "none"
    if kept:
        used = size(sum(library.size_bytes for library in kept))
        root = users.cache_folder()
        names = ", ".join(library.label or library.folder.name for library in kept)
        found = f"{len(kept)} in {root}, {used}: {names}; `ndld-flow gc --libraries` deletes unused ones"
    return Check(name="private environments", state="ok", found=found)


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
