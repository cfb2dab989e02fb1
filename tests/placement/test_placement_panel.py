"""The report shows a placement: the result, the sets that were tried, and each region with its evidence."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

from ndld_flow.records.placement import Placement
from ndld_flow.records.run_folder import RunDocuments, read_run
from ndld_flow.report.panels.placement import collect_placements
from ndld_flow.report.run_page import draw_report
from tests.support.models_run import write_model
from tests.support.placement_samples import HOSTILE, PLACEMENT
from tests.support.typed_api import run_once


def documents_with(in_folder: Path, placement: Placement) -> tuple[RunDocuments, Path]:
    """Return the documents of a run whose step has a placement beside its model, and the run's folder."""
    write_model(in_folder / "model.onnx", "g (float[2] x) => (float[2] y) { y = Identity(x) }")
    (in_folder / "my.yaml").write_text("model: model.onnx\nsteps:\n  clean: {step: sanitize}\n")
    folder = Path(run_once("my.yaml").folder)
    placement.write(folder / "clean")
    return read_run(folder), folder


def test_a_placement_is_read_and_shown(in_folder: Path) -> None:
    documents, folder = documents_with(in_folder, PLACEMENT)
    assert documents.of(Placement) == {"clean": PLACEMENT}
    draw_report(folder)
    page = (folder / "report.html").read_text()
    section = page.partition('<section id="placement"')[2].partition("</section>")[0]
    assert HOSTILE not in page
    text = " ".join(unescape(re.sub(r"<[^>]+>", " ", section)).split())
    for expected in ("1 region of 2 in INT8", "channel 17 of scores", "Conv + Relu", "no part of it is accurate"):
        assert expected in text


def test_a_source_that_was_delivered_is_called_so(in_folder: Path) -> None:
    documents, _ = documents_with(in_folder, PLACEMENT.model_copy(update={"delivered": None, "digest": ""}))
    (view,) = collect_placements(documents)
    assert "result is the source" in view.result
    assert collect_placements(replace(documents, known={Placement: {}})) == ()
