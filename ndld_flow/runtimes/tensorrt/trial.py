"""Trials of the GPU, and of TensorRT and TensorRT-RTX, on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.machine.check import Check
from ndld_flow.machine.description import describe_machine
from ndld_flow.runtimes.tensorrt.library import Library, find_libraries
from ndld_flow.runtimes.tensorrt.probe import Probe, probe_gpu, probe_library
from ndld_flow.runtimes.tensorrt.release_names import names_of_release


def examine(place: Path | None) -> Iterator[Check]:
    """Try the GPU, and each TensorRT as installed; one of them is replaced by the one in `place`.

    Raises BackendError when there is none.
    """
    driver = describe_machine().driver
    with ThreadPoolExecutor() as pool:  # each waits for a process of its own
        gpu = pool.submit(probe_gpu)
        engines = pool.map(_check_engines, find_libraries(place))
        for trial in gpu.result():
            yield _show_gpu(trial, driver)
        for checks in engines:
            yield from checks


def _show_gpu(trial: Probe, driver: str) -> Check:
    if trial.name:
        return _show_trial(trial, trial.name)
    if trial.works:
        return Check(name="gpu", state="ok", found=trial.found + (f", driver {driver}" if driver else ""))
    return Check(name="gpu", state="absent", found=f"{trial.found}; CPU recipes need none", advice=trial.advice)


def _check_engines(library: Library) -> list[Check]:
    """Check one TensorRT on this machine. Its name has a hyphen, like its distribution."""
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
    try:
        names = names_of_release(library.backend, library.version)
    except NdldFlowError as error:
        return str(error)
    if names.exact:
        return "a known release"
    return f"its settings are guessed from {names.release}, the nearest known release, until it is loaded"


def _show_trial(trial: Probe, name: str) -> Check:
    return Check(name=name, state="ok" if trial.works else "absent", found=trial.found, advice=trial.advice)
