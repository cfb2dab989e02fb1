"""The stand-ins of TensorRT and of CUDA's runtime library, and engines that tests of a module share."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ndld_flow.base.extras import EngineBackend
from ndld_flow.steps.build_engine import BuildEngine
from tests.support.cuda_standin import compile_cudart
from tests.support.models_run import run_step, write_model
from tests.support.tensorrt_standin import write_standin


@dataclass(frozen=True)
class Standins:
    """Libraries and engines that tests share: building one takes a process."""

    folder: Path
    cudart: Path
    built: dict[str, Path]

    def library(self, backend: EngineBackend, release: str) -> Path:
        path = self.folder / f"{backend}-{release}"
        if not path.exists():
            write_standin(path, release, backend)
        return path

    def engine(self, library: Path, backend: str, graph: str, settings: dict[str, Any]) -> Path:
        """The folder of an engine's files."""
        model = self.folder / f"{hashlib.sha256(graph.encode()).hexdigest()[:16]}.onnx"
        return self.engine_of(library, backend, model if model.exists() else write_model(model, graph), settings)

    def engine_of(self, library: Path, backend: str, model: Path, settings: dict[str, Any]) -> Path:
        """The folder of the files of a model's engine."""
        key = json.dumps([str(library), str(model), settings], sort_keys=True)
        if key not in self.built:
            given = {"backend": backend, "library": str(library)} | settings
            self.built[key] = run_step(BuildEngine, model, self.folder / f"built-{len(self.built)}", given).out
        return self.built[key]


_CUDART: list[Path] = []
"""The library of this process: each folder in `LD_LIBRARY_PATH` would start a server of workers of its own."""


def make_standins(tmp_path_factory: pytest.TempPathFactory) -> Standins:
    """The stand-ins in folders of their own; skips the test where nothing compiles C."""
    if not _CUDART:
        _CUDART.append(compile_cudart(tmp_path_factory.mktemp("cudart")))
    return Standins(tmp_path_factory.mktemp("standins"), _CUDART[0], {})
