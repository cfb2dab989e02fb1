"""The digest that `plan --digest` prints, as a key for caches of CI."""

from __future__ import annotations

from pathlib import Path

import pytest

from ndld_flow import api
from tests.support.models import make_cnn

RECIPE = "name: ci\nmodel: model.onnx\nsteps:\n  clean: {step: sanitize}\n  half: {step: convert_fp16, from: clean}\n"


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("name: ci", "description: of another kind\nname: ci", True),
        ("from: clean", "from: source", False),
        ("step: sanitize", "step: sanitize, fold_size_threshold: 2 KiB", False),
        ("steps:", "gates: [clean.nodes >= 1]\nsteps:", False),
    ],
)
def test_what_decides_the_results_decides_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, is_same: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    make_cnn(tmp_path / "model.onnx")
    digests = []
    for text in (RECIPE, RECIPE.replace(old, new)):
        Path("ci.yaml").write_text(text)
        digests.append(api.digest("ci.yaml"))
    assert len(digests[0]) == 64
    assert (digests[0] == digests[1]) == is_same
