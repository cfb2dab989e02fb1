"""Tries what TensorRT and the GPU can do here, in child processes: neither a crash nor a hang of theirs is ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.runtimes.tensorrt.library import Library

ANSWERS = "answers.jsonl"
GPU = "gpu"
"""What the child is told to try when it is no TensorRT."""

_LIMIT_S = 60.0
"""A large TensorRT takes seconds to load from a slow disk, and a first start of a GPU takes more."""


@dataclass(frozen=True)
class Trial:
    """One thing that was tried."""

    name: str
    works: bool
    found: str
    advice: str = ""


def try_library(library: Library, limit_s: float = _LIMIT_S) -> list[Trial]:
    """Import a TensorRT, build an engine of one layer ahead of time and for this GPU, and run that.

    What comes after a failure that makes it hopeless is left out. `library` must be found.
    """
    with tempfile.TemporaryDirectory(prefix="ndld_flow-", ignore_cleanup_errors=True) as folder:
        return _try(library.backend, Path(folder), library.environment(Path(folder)), limit_s)


def try_gpu(limit_s: float = _LIMIT_S) -> list[Trial]:
    """Look for GPUs, CUDA's runtime library, and what samples a GPU and locks its clocks."""
    with tempfile.TemporaryDirectory(prefix="ndld_flow-", ignore_cleanup_errors=True) as folder:
        return _try(GPU, Path(folder), {}, limit_s)


def _try(subject: str, folder: Path, environment: Mapping[str, str], limit_s: float) -> list[Trial]:
    command = [sys.executable, "-P", "-m", "ndld_flow.runtimes.tensorrt.trial_worker", str(folder), subject]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    try:
        ended = _tell_end(process.wait(limit_s))
    except subprocess.TimeoutExpired:
        ended = f"did not answer within {limit_s:g} s"
    finally:
        process.kill()
        process.wait()
    return list(_read(folder / ANSWERS, ended))


def _tell_end(code: int) -> str:
    known = {each.value for each in signal.Signals}
    return f"crashed with {signal.Signals(-code).name}" if -code in known else f"ended with code {code}"


def _read(answers: Path, ended: str) -> Iterator[Trial]:
    """What was answered, and what had begun when the process ended."""
    lines = answers.read_text(encoding="utf-8", errors="replace").splitlines() if answers.exists() else []
    told = [json.loads(line) for line in lines] or [{"begins": ""}]
    yield from (Trial(**answer) for answer in told if "begins" not in answer)
    if "begins" in told[-1]:
        yield Trial(told[-1]["begins"], works=False, found=f"the process that tried it {ended}")
