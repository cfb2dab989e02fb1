"""What an environment holds that NVIDIA ModelOpt is to be run in."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.processes.program import Program, little_environment, run_program
from ndld_flow.step import Foresight

_LIBRARIES = {"modelopt": "nvidia-modelopt", "modelopt's onnx": "onnx", "modelopt's onnxruntime": "onnxruntime-gpu"}
"""What shapes its results -> the distribution."""
_ASK = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_PATIENCE_S = 30.0


def find_interpreter(python: Path) -> str | None:
    """Its path, links not followed: a virtual environment's interpreter is a link. None when there is none."""
    found = shutil.which(python)
    return None if found is None else str(Path(found).absolute())


def modelopt_versions(python: Path) -> dict[str, str]:
    """Versions of what shapes its results; without `modelopt` where it does not have it or cannot be asked."""
    program = find_interpreter(python)
    return {} if program is None else dict(_versions_in(program, Path(program).stat().st_mtime_ns))


@lru_cache
def _versions_in(program: str, _changed_ns: int) -> dict[str, str]:
    """Asked once: it takes a tenth of a second, and plans ask often."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        command = [program, "-c", _ASK, *_LIBRARIES.values()]
        try:
            run_program(Program(command, little_environment(Path(scratch)), _PATIENCE_S, Path(scratch)), lines.append)
            found = json.loads(lines[-1])
        except (NdldFlowError, IndexError, ValueError):  # `foresee_modelopt` says it
            return {}
    if not isinstance(found, dict):
        return {}
    return {called: str(found[name]) for called, name in _LIBRARIES.items() if name in found}


def foresee_modelopt(python: Path) -> Foresight:
    """Whether ModelOpt is there."""
    how = (
        "`python3 -m venv modelopt` and `modelopt/bin/pip install 'nvidia-modelopt[onnx]'` make an environment that has"
        " it; then say `modelopt: {python: modelopt/bin/python}`"
    )
    if find_interpreter(python) is None:
        return Foresight(lacks=(f"`modelopt.python`: there is no program {str(python)!r}. {how}",))
    versions = modelopt_versions(python)
    if "modelopt" not in versions:
        return Foresight(lacks=(f"`modelopt.python`: {str(python)!r} has no nvidia-modelopt. {how}",))
    return Foresight(notes=(f"ModelOpt {versions['modelopt']}",))
