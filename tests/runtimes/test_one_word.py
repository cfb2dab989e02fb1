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
from ndld_flow.base.errors import RecipeError
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.activations import Activations
from ndld_flow.records.document import read_document
from ndld_flow.records.profile import Profile
from ndld_flow.records.sweep import SweepRecord
from ndld_flow.report.sweep.outcome import find_own_point
from tests.support.accuracy_cases import IMAGES
from tests.support.message_files import CheckMessage
from tests.support.model_trials.subjects import WHEELS
from tests.support.models import make_cnn
from tests.support.recipes import load_recipe
from tests.support.samples import fetch_pinned, fetch_sample

QUICK = {"runs": 1, "stable": 0, "passes": 3, "duration": 0, "warmup_passes": 1, "warmup": 0, "layer_passes": 2}
RUNTIMES = ("onnxruntime", "openvino")


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
            "inside": {"step": "inspect_activations", "from": "sanitize", "every": 20, **subject.steps},
            "base": {**speed, "from": "source"},
            "speed": {**speed, "from": "sanitize"},
            **({} if subject.steps else {"faster": {"step": "compare_profiles", "base": "base", "from": "speed"}}),
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
def no_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests and users hold the CPU; no test here asserts a time."""
    monkeypatch.setenv("NDLD_FLOW_DEVICE_LOCKS", str(tmp_path))


def write_recipe(folder: Path, subject: Subject, **more: Any) -> None:
    subject.write(folder / "model.onnx")
    (folder / "recipe.yaml").write_text(json.dumps(recipe(folder / "model.onnx", subject, **more)))


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
    "orientation of pages": wheel("page_orientation", x=image([1, 3, 224, 224], "receipt.png", *IMAGENET)),
    "embedding of speech": wheel("speech_embedding", input_1={"shape": [1, 76, 32, 1]}),
    "wake word": wheel("wake_word"),
}


@pytest.mark.slow
@pytest.mark.parametrize("word", RUNTIMES)
@pytest.mark.parametrize("name", REAL)
def test_real_models_run_in_each_runtime(name: str, word: str, tmp_path: Path) -> None:
    write_recipe(tmp_path, REAL[name])
    check_run(tmp_path, word, REAL[name])


def plan_of(folder: Path, word: Any = "openvino", **steps: Any) -> dict[str, Any]:
    """Return the steps of a recipe with a runtime of its own, as they run."""
    make_cnn(folder / "model.onnx")
    (folder / "r.yaml").write_text(json.dumps({"model": str(folder / "model.onnx"), "runtime": word, "steps": steps}))
    return {step.name: step.step for step in load_recipe(folder / "r.yaml").steps}


def test_steps_inherit_the_runtime_unless_they_choose_one(tmp_path: Path) -> None:
    steps = plan_of(
        tmp_path,
        agree={"step": "check_accuracy", "candidate": "source"},
        chosen={"step": "check_accuracy", "candidate": "source", "runtime": "onnxruntime"},
        inside={"step": "inspect_activations"},
        search={"step": "find_precision", "precision": "int8"},
        half={"step": "find_precision", "precision": "fp16"},
        small={"step": "quantize"},
        speed={"step": "profile", "threads": 1},
        here={"step": "profile", "provider": "cpu"},
        cuda={"step": "inspect_activations", "provider": "cuda"},
    )
    backends = {name: getattr(step.runtime, "backend", None) for name, step in steps.items()}
    openvino, ours = dict.fromkeys(("agree", "inside", "search", "speed"), "openvino"), {"here": "onnxruntime"}
    # fp16 is emulated in ONNX Runtime, and a quantized model is the same for every runtime.
    assert backends == {**openvino, **ours, **dict.fromkeys(("chosen", "half", "small", "cuda"))}
    assert steps["speed"].runtime.threads == 1


def test_settings_of_onnxruntime_reach_the_steps_that_have_them(tmp_path: Path) -> None:
    chosen: Any = {"backend": "onnxruntime", "threads": 1, "spinning": False}
    given = {"agree": {"step": "check_accuracy", "candidate": "source"}, "speed": {"step": "profile", "threads": 2}}
    steps = plan_of(tmp_path, chosen, **given)
    assert (steps["agree"].runtime, steps["agree"].threads) == (None, 1)
    assert (steps["speed"].runtime.threads, steps["speed"].runtime.spinning) == (2, False)


@pytest.mark.parametrize(
    "word",
    [
        "openvno",
        "tensorrt",
        {"backend": "openvino", "thread": 1},
        {"threads": 1},
    ],
)
def test_a_wrong_runtime_is_one_mistake(word: Any, tmp_path: Path, check_message: CheckMessage) -> None:
    with pytest.raises(RecipeError) as caught:
        plan_of(tmp_path, word, speed={"step": "profile"}, agree={"step": "check_accuracy", "candidate": "source"})
    check_message(caught.value)
    assert len(caught.value.problems) == 1


def test_a_step_reports_a_setting_of_another_runtime(tmp_path: Path, check_message: CheckMessage) -> None:
    with pytest.raises(RecipeError) as caught:
        plan_of(tmp_path, speed={"step": "profile", "optimization": "basic"})
    check_message(caught.value)


@pytest.mark.thorough
def test_one_sweep_picks_the_faster_runtime_and_its_recipe_repeats_it(tmp_path: Path) -> None:
    """The recorded recipes give the same points: of the sweep, and of each point."""
    make_cnn(tmp_path / "model.onnx")
    steps = {"agree": {"step": "check_accuracy", "candidate": "source"}, "speed": {"step": "profile", **QUICK}}
    over = {"runtime": ["onnxruntime", {"backend": "openvino", "threads": 1}]}
    sweep = {"over": over, "minimize": "speed.latency.median", "subject_to": ["agree.slice_rms <= 1 %"], "winners": 0}
    values = {"model": str(tmp_path / "model.onnx"), "runtime": "onnxruntime", "steps": steps, "sweep": sweep}
    (tmp_path / "recipe.yaml").write_text(json.dumps(values))
    finished = api.run(tmp_path / "recipe.yaml", outputs=tmp_path / "outputs")
    assert finished.passed
    folder = Path(finished.folder)
    record = read_document(SweepRecord, folder / "sweep.json")
    assert record.best in (1, 2)
    own = find_own_point(record)
    assert own is not None
    assert own.number == 1
    for number, backend, threads in ((1, "onnxruntime", 0), (2, "openvino", 1)):
        recorded = load_recipe(folder / f"points/{number:04}/recipe.yaml")
        speed: Any = next(step.step for step in recorded.steps if step.name == "speed")
        assert (speed.runtime.backend, speed.runtime.threads) == (backend, threads)
    repeated = api.run(folder / "recipe.yaml", outputs=tmp_path / "outputs")
    assert repeated.nothing_to_do
