"""Images drawn from tensors, in the report of a run."""

from __future__ import annotations

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ndld_flow.records.document import read_document
from ndld_flow.records.images import RenderedImages
from ndld_flow.report.run_page import draw_report
from tests.support.run_fixtures import TAG_BREAKER
from tests.support.toys import Toy, make_toy

RECIPE = """
name: toy
model: model.onnx
inputs: {x: {shape: [1, 3, 16, 16], data: photos}}
steps:
  half: {step: convert_fp16}
  look: {step: render_images, from: half, reference: source, shown: 2, images: {seen: {tensor: x, range: [0, 1]}}}
"""


class Images(HTMLParser):
    """The attributes of every image, and of every link around one."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.images: list[dict[str, str]] = []
        self.links: list[str] = []
        self._link = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "a":
            self._link = values.get("href", "")
        if tag == "img" and "received" not in values.get("class", ""):
            self.images.append(values)
            self.links.append(self._link)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run on three photos of one color each."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "photos").mkdir()
    for number, color in enumerate(["red", "lime", "blue"]):
        Image.new("RGB", (16, 16), color).save(folder / "photos" / f"{number}.png")
    recipe = RECIPE.replace("photos}", f"{folder / 'photos'}}}").replace("model.onnx", str(folder / "model.onnx"))
    toy: Toy = make_toy(folder, recipe)
    done, _ = toy.run()
    return Path(done.folder)


def test_the_report_shows_each_sample_and_links_to_its_files(finished: Path) -> None:
    page = (finished / "report.html").read_text("utf-8")
    found = Images(page)
    assert len(found.images) == 2 * 4  # two samples: input, two models, difference
    for image, link in zip(found.images, found.links, strict=True):
        shown = Image.open(io.BytesIO(base64.b64decode(image["src"].partition("base64,")[2])))
        assert (str(shown.width), str(shown.height)) == (image["width"], image["height"])
        assert (finished / link).is_file()
        assert image["alt"].startswith("seen of ")
    red = np.asarray(Image.open(finished / found.links[2]).convert("RGB"))
    assert (red == (255, 0, 0)).all()
    assert "half" in found.images[2]["alt"]
    assert "1 more sample in look/seen/" in re.sub(r"<[^>]+>", "", page)


def test_texts_of_a_changed_record_are_escaped(finished: Path) -> None:
    path = finished / "look" / "images.json"
    before = path.read_bytes()
    tree = json.loads(before)
    image = tree["images"][0]
    image |= {"name": TAG_BREAKER, "description": TAG_BREAKER}
    image["rows"][0]["sample"] = TAG_BREAKER
    image["rows"][0]["files"][0] |= {
        "title": TAG_BREAKER,
        "captions": [TAG_BREAKER],
        "warnings": [TAG_BREAKER],
        "file": "../../../etc/passwd",
    }
    path.chmod(0o644)
    path.write_text(json.dumps(tree))
    try:
        found = Images(draw_report(finished).read_text("utf-8"))
    finally:
        path.write_bytes(before)
    assert len(found.images) == 8
    assert TAG_BREAKER in found.images[0]["alt"]
    assert not any("passwd" in link for link in found.links)


def test_a_thumbnail_is_base64_only(finished: Path) -> None:
    tree = json.loads((finished / "look" / "images.json").read_text())
    tree["images"][0]["rows"][0]["files"][0]["thumbnail"]["data"] = '"><script>'
    changed = finished / "changed.json"
    changed.write_text(json.dumps(tree))
    with pytest.raises(ValueError, match="pattern"):
        read_document(RenderedImages, changed)
    changed.unlink()
