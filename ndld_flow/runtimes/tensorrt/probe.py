"""Probes of TensorRT, TensorRT-RTX and the GPU on this machine, in child processes, which may crash or hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.machine.host import Check, describe_machine
from ndld_flow.processes.launch import name_signal
from ndld_flow.runtimes.tensorrt.library import Library, find_libraries
from ndld_flow.runtimes.tensorrt.release_names import names_of_release

ANSWERS = "answers.jsonl"
GPU = "gpu"
"""The subject that probes the GPU instead of a TensorRT."""

_LIMIT_S = 60.0
"""Time limit of a probe: a large TensorRT takes seconds to load from a slow disk, and a GPU's first start longer."""


@dataclass(frozen=True)
class Probe:
    """The result of one probe."""

    name: str
    works: bool
    found: str
    advice: str = ""


def probe_library(library: Library, limit_s: float = _LIMIT_S) -> list[Probe]:
    """Import a TensorRT, build an engine of one layer ahead of time and for this GPU, and run it.

    Probes that a failure makes pointless are skipped. `library` must be found.
    """
    with tempfile.TemporaryDirectory(prefix="ndld_flow-", ignore_cleanup_errors=True) as folder:
        return _probe(library.backend, Path(folder), library.environment(Path(folder)), limit_s)


def probe_gpu(limit_s: float = _LIMIT_S) -> list[Probe]:
    """Probe GPUs, CUDA's runtime library, the sampling of a GPU and the locking of its clocks."""
    with tempfile.TemporaryDirectory(prefix="ndld_flow-", ignore_cleanup_errors=True) as folder:
        return _probe(GPU, Path(folder), {}, limit_s)


def _probe(subject: str, folder: Path, environment: Mapping[str, str], limit_s: float) -> list[Probe]:
    command = [sys.executable, "-P", "-m", "ndld_flow.runtimes.tensorrt.probe_worker", str(folder), subject]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    try:
        code = process.wait(limit_s)
        crashed = name_signal(-code) if code < 0 else ""
        ended = f"crashed with {crashed}" if crashed else f"ended with code {code}"
    except subprocess.TimeoutExpired:
        ended = f"did not answer within {limit_s:g} s"
    finally:
        process.kill()
        process.wait()
    return list(_read(folder / ANSWERS, ended))


def _read(answers: Path, ended: str) -> Iterator[Probe]:
    """Yield the answers, and the probe that was running when the process ended."""
    lines = answers.read_text(encoding="utf-8", errors="replace").splitlines() if answers.exists() else []
    answers_given = [json.loads(line) for line in lines] or [{"begins": ""}]
    yield from (Probe(**answer) for answer in answers_given if "begins" not in answer)
    if "begins" in answers_given[-1]:
        yield Probe(answers_given[-1]["begins"], works=False, found=f"the process that probed it {ended}")


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
