"""A candidate with another image input than the reference: camera frames, channels last."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.models_run import write_model
from tests.support.toys import Toy

GRAPH = "g (float[n, 3, h, w] x) => (float[n, 3, h, w] y) { y = Sigmoid(x) }"
RECIPE = """
name: camera
model: model.onnx
inputs: {{x: {{shape: [1, 3, 8, 12], data: p.png, resize: letterbox, mean: [0.4, 0.5, 0.6], std: [0.2, 0.3, 0.4]}}}}
steps:
  camera: {{step: edit, operations: [{operation}]}}
  agree: {{step: check_accuracy, reference: source, candidate: camera}}
"""


@pytest.mark.parametrize(
    "operation",
    [
        "add_preprocessing: {mean: [0.4, 0.5, 0.6], std: [0.2, 0.3, 0.4]}",
        "add_preprocessing: {mean: [0.4, 0.5, 0.6], std: [0.2, 0.3, 0.4], layout: NCHW}",
        "add_preprocessing: {dtype: float32, scale: 1.0}",
    ],
)
def test_the_candidate_gets_the_same_image_in_its_own_form(operation: str, in_folder: Path) -> None:
    write_model(in_folder / "model.onnx", GRAPH)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(pixels).save("p.png")
    toy = Toy(in_folder).write(RECIPE.format(operation=operation))
    done, _ = toy.run()
    accuracy = json.loads((Path(done.folder) / "agree" / "accuracy.json").read_text())
    assert accuracy["outputs"][0]["metrics"]["max_abs"] < 1e-5


def test_wrong_preprocessing_fails(in_folder: Path) -> None:
    write_model(in_folder / "model.onnx", GRAPH)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)).save("p.png")
    wrong = "add_preprocessing: {mean: [0.5, 0.5, 0.6], std: [0.2, 0.3, 0.4]}"
    done, _ = Toy(in_folder).write(RECIPE.format(operation=wrong)).run()
    accuracy = json.loads((Path(done.folder) / "agree" / "accuracy.json").read_text())
    assert any(output["failed"] for output in accuracy["outputs"])
