"""Engines measured in real processes, on strict stand-ins of TensorRT and of CUDA's runtime library."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ndld_flow.artifacts.kinds import Engine, Onnx, ProfileDocument
from ndld_flow.errors import BackendError, RequestError
from ndld_flow.records.build import EngineBackend
from ndld_flow.records.profile import Profile
from ndld_flow.steps.build_engine import BuildEngine
from ndld_flow.steps.profile import ProfileModel
from tests.cuda_standin import compile_cudart
from tests.models_run import Given, Ran, run_step, write_model
from tests.tensorrt_standin import write_standin

CHAIN = "g (float[n, 8] x) => (float[n, 8] y) { a = Relu(x) b = Exp(a) y = Softmax(b) }"
OTHER = "g (float[n, 9] x, float[n, 8] z) => (float[n, 8] y) { y = Relu(z) u = Relu(x) }"
QUICK = {"runs": 1, "stable": 0, "passes": 5, "duration": 0, "warmup": 0, "warmup_passes": 1, "layer_passes": 3}
DYNAMIC: Given = {"x": {"min": [1, 8], "opt": [2, 8], "max": [4, 8]}}


@pytest.fixture(scope="session")
def cudart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_cudart(tmp_path_factory.mktemp("cudart"))


@dataclass(frozen=True)
class Bench:
    """Where engines are built and measured."""

    folder: Path
    library: Path
    backend: EngineBackend
    model: Path
    cuda_log: Path

    def build(self, name: str = "engine", inputs: Given | None = None, **settings: Any) -> Engine:
        given = {"backend": self.backend, "library": str(self.library)} | settings
        ran = run_step(BuildEngine, self.model, self.folder / name, given, DYNAMIC if inputs is None else inputs)
        return Engine(ran.out / Engine.main, name, "digest of the engine")

    def profile(
        self, engine: Engine | None, inputs: Given | None = None, name: str = "ran", **settings: Any
    ) -> tuple[Ran, Profile]:
        given = QUICK | {"backend": self.backend, "library": str(self.library)} | settings
        artifacts: Mapping[str, Engine] = {}
        if engine is not None:
            given["engine"] = engine.label
            artifacts = {"engine": engine}
        ran = run_step(
            ProfileModel,
            self.model,
            self.folder / name,
            given,
            {"x": {"shape": [2, 8]}} if inputs is None else inputs,
            artifacts=artifacts,
        )
        return ran, Profile.model_validate_json((ran.out / ProfileDocument.main).read_text(encoding="utf-8"))

    def cuda_calls(self) -> list[str]:
        return self.cuda_log.read_text().splitlines() if self.cuda_log.exists() else []


@pytest.fixture(params=["tensorrt 10.8", "tensorrt_rtx 1.7"], ids=["tensorrt", "rtx"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, cudart: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return _bench(request.param, tmp_path, cudart, monkeypatch)


@pytest.fixture
def trt(tmp_path: Path, cudart: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return _bench("tensorrt 10.8", tmp_path, cudart, monkeypatch)


def _bench(which: str, folder: Path, cudart: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    backend, release = which.split()
    write_standin(folder / "library", release, backend)  # type: ignore[arg-type]
    monkeypatch.setenv("LD_LIBRARY_PATH", str(cudart), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_STANDIN_LOG", str(folder / "cuda.log"))
    model = write_model(folder / "m.onnx", CHAIN)
    return Bench(folder, folder / "library", backend, model, folder / "cuda.log")  # type: ignore[arg-type]


def test_an_engine_of_a_step_is_measured(bench: Bench) -> None:
    ran, found = bench.profile(bench.build(), runs=2)
    assert found.backend == bench.backend
    assert found.providers == ({"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}[bench.backend],)
