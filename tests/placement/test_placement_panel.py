"""The report shows a placement: the result, the sets that were tried, and each region with its evidence."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

from ndld_flow.machine.description import describe_machine
from ndld_flow.records.placement import (
    MeasuredRatio,
    PlacedRegion,
    Placement,
    PlacementTrial,
)
from ndld_flow.records.run_folder import RunDocuments, read_run
from ndld_flow.report.panels.placement import collect_placements
from ndld_flow.report.run_page import draw_report
from tests.support.models_run import write_model
from tests.support.typed_api import run_once

FASTER = MeasuredRatio(float_ms=4.0, ratio=0.5, low=0.48, high=0.52, clock="cpu", rounds=4)
HOSTILE = "<script>alert(1)</script>"
PLACEMENT = Placement(
    model="source",
    objective="latency",
    backend="onnxruntime",
    machine=describe_machine(),
    tolerance={"slice_rms": 0.2},
    least_gain=0.01,
    sample_count=8,
    regions=(
        PlacedRegion(
            node=HOSTILE,
            op_type="Conv",
            output="c",
            followers=("Relu",),
            kind=0,
            macs=1000,
            alone=FASTER,
            error=0.01,
            decision="quantized",
            why="faster alone: 0.50 (0.48 to 0.52)",
        ),
        PlacedRegion(
            node="head", op_type="Conv", output="h", kind=0, decision="inaccurate", why="channel 17 of scores"
        ),
    ),
    trials=(
        PlacementTrial(name="all", regions=1, metrics={"slice_rms": 0.03}, latency=FASTER, outcome="delivered"),
        PlacementTrial(name="intensity", regions=0, metrics={}, outcome="no part of it is accurate"),
    ),
    delivered=FASTER,
    digest="d",
    wall_s=60.0,
)


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
    assert "the result is the source" in view.result
    assert collect_placements(replace(documents, known={Placement: {}})) == ()
