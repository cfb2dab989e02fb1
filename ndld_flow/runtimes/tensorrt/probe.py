"""Probes of TensorRT and the GPU in child processes, which may crash or hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.processes.launch import name_signal
from ndld_flow.runtimes.tensorrt.library import Library

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
