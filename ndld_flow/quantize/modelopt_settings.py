"""Settings of NVIDIA ModelOpt, and the environment that it runs in."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.base.quantities import Milliseconds
from ndld_flow.base.settings import Settings
from ndld_flow.processes.program import Program, minimal_environment, run_program
from ndld_flow.step import Foresight, RunsCode


class ModelOpt(Settings):
    """NVIDIA ModelOpt in its own environment."""

    python: Annotated[Path, RunsCode()]
    """The interpreter of an environment with ModelOpt, such as `modelopt/bin/python`; create one with
    `python3 -m venv modelopt` and `modelopt/bin/pip install 'nvidia-modelopt[onnx]'`. It runs only when the recipe is
    trusted. Its version of ModelOpt is part of the step's key."""
    format: Literal["fp8", "int8", "int4"] = "fp8"
    """`fp8` (E4M3) and `int8`: activations and weights, for TensorRT. `int4`: weights of Gemm and MatMul only, in
    blocks."""
    high_precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    """Type of everything that is not quantised."""
    timeout: Annotated[Milliseconds, Field(gt=0)] = 3_600_000.0
    """Time limit, such as `10 min`; an hour by default."""


_LIBRARIES = {"modelopt": "nvidia-modelopt", "modelopt's onnx": "onnx", "modelopt's onnxruntime": "onnxruntime-gpu"}
"""Libraries that affect its results -> their distributions."""
_QUERY = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_TIMEOUT_S = 30.0


def find_interpreter(python: Path) -> str | None:
    """Return the path of an interpreter without following links (that of a virtual environment is one), or None."""
    found = shutil.which(python)
    return None if found is None else str(Path(found).absolute())


def modelopt_versions(python: Path) -> dict[str, str]:
    """Return the versions of libraries that affect results; without `modelopt` if it is missing or the query fails."""
    program = find_interpreter(python)
    return {} if program is None else dict(_versions_in(program, Path(program).stat().st_mtime_ns))


@lru_cache
def _versions_in(program: str, _changed_ns: int) -> dict[str, str]:
    """Query an interpreter once: it takes 0.1 s, and plans query often."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        command = [program, "-c", _QUERY, *_LIBRARIES.values()]
        try:
            run_program(Program(command, minimal_environment(Path(scratch)), _TIMEOUT_S, Path(scratch)), lines.append)
            found = json.loads(lines[-1])
        except (NdldFlowError, IndexError, ValueError):  # `foresee_modelopt` reports it
            return {}
    if not isinstance(found, dict):
        return {}
    return {key: str(found[name]) for key, name in _LIBRARIES.items() if name in found}


def foresee_modelopt(python: Path) -> Foresight:
    """Report whether ModelOpt is installed."""
    hint = (
        "`python3 -m venv modelopt` and `modelopt/bin/pip install 'nvidia-modelopt[onnx]'` create an environment with"
        " it; then set `modelopt: {python: modelopt/bin/python}`"
    )
    if find_interpreter(python) is None:
        return Foresight(lacks=(f"`modelopt.python`: no program {str(python)!r} was found. {hint}",))
    versions = modelopt_versions(python)
    if "modelopt" not in versions:
        return Foresight(lacks=(f"`modelopt.python`: {str(python)!r} has no nvidia-modelopt. {hint}",))
    return Foresight(notes=(f"ModelOpt {versions['modelopt']}",))
