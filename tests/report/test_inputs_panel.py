"""The images that models received, in the report of a run."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from ndld_flow.records.document import read_document
from ndld_flow.records.images import ReceivedImage, ReceivedInputs
from ndld_flow.report.run_page import draw_report
from tests.support.run_fixtures import TAG_BREAKER
from tests.support.toys import Toy, make_toy

RECIPE = """
name: toy
model: model.onnx
inputs: {x: {shape: [1, 3, 16, 16], data: photo.png, resize: letterbox, color: bgr, mean: [0.5], std: [0.25]}}
steps:
  agree: {step: check_accuracy, candidate: source}
  speed: {step: profile, from: source, QUICK}
  noise: {step: profile, from: source, QUICK, inputs: {x: random}}
  look: {step: inspect_activations, from: source}
  search: {step: find_precision, from: source}
""".replace("QUICK", "runs: 1, passes: 2, duration: 0, warmup: 0 ms, layer_passes: 0, stable: 0 %")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run on a picture that is red on the left and blue on the right."""
    folder = tmp_path_factory.mktemp("photo")
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :8, 0], pixels[:, 8:, 2] = 255, 255
    Image.fromarray(pixels).save(folder / "photo.png")
    toy: Toy = make_toy(
        folder, RECIPE.replace("photo.png", str(folder / "photo.png")).replace("model.onnx", str(folder / "model.onnx"))
    )
    done, _ = toy.run()
    return Path(done.folder)


def test_the_report_shows_what_the_model_received(finished: Path) -> None:
    received = read_document(ReceivedInputs, finished / "agree" / "inputs.json")
    (image,) = received.images
    assert (image.input, image.width, image.height, image.shape) == ("x", 16, 8, (1, 3, 16, 16))
    assert (image.minimum, image.maximum) == (-2, 2)
    assert image.settings["resize"] == "letterbox"
    assert image.settings["mean"] == "0.5"
    assert "16x8 -> 16x16 (letterbox)" in image.description
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(image.jpeg)))).astype(int)
    assert pixels.shape == (16, 16, 3)
    np.testing.assert_allclose(pixels[8, 2], [255, 0, 0], atol=60)
    np.testing.assert_allclose(pixels[8, 13], [0, 0, 255], atol=60)
    np.testing.assert_allclose(pixels[1, 8], [114] * 3, atol=40)
    page = (finished / "report.html").read_text("utf-8")
    assert page.count("data:image/jpeg;base64,") == 1  # all steps received the same
    assert "agree, speed, look, search" in re.sub(r"<[^>]+>", "", page)
    assert image.jpeg in page


def test_steps_that_read_no_image_write_none(finished: Path) -> None:
    assert not (finished / "noise" / "inputs.json").exists()
    assert (finished / "speed" / "inputs.json").exists()


def test_texts_of_a_changed_record_are_escaped(finished: Path) -> None:
    path = finished / "agree" / "inputs.json"
    before = path.read_bytes()
    tree = json.loads(before)
    tree["images"][0] |= {"input": TAG_BREAKER, "description": TAG_BREAKER, "dtype": TAG_BREAKER, "jpeg": ""}
    tree["images"][0]["settings"] = {TAG_BREAKER: TAG_BREAKER}
    path.chmod(0o644)
    path.write_text(json.dumps(tree))
    page = draw_report(finished).read_text("utf-8")
    path.write_bytes(before)
    assert TAG_BREAKER not in page
    assert "No picture was recorded" in page


@pytest.mark.parametrize("jpeg", ['"><script>', "data:x", "a" * 400_001])
def test_a_picture_is_only_base64_of_bounded_length(jpeg: str, finished: Path) -> None:
    (image,) = read_document(ReceivedInputs, finished / "speed" / "inputs.json").images
    with pytest.raises(ValidationError):
        ReceivedImage.model_validate({**image.model_dump(), "jpeg": jpeg})
