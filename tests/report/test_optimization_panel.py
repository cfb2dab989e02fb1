"""The conclusion of `optimize` on the page, and in the summary, of the run that proved its model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import get_args

import pytest

from ndld_flow.records.measurement import Metric
from ndld_flow.records.optimization import Optimization, Speed, VariantOutcome
from ndld_flow.records.run_folder import OPTIMIZATION_RECORD, read_run
from ndld_flow.report.exports.pull_requests import RUN_SUMMARY, run_markdown
from ndld_flow.report.panel import find_panels
from ndld_flow.report.panels.optimization import OptimizationView, collect
from ndld_flow.report.run_page import draw_report
from ndld_flow.runner.run_folder import write_optimization
from tests.support.optimization_samples import RACE, SEARCH, optimization, variant, write_optimized
from tests.support.run_fixtures import HOSTILE_NAMES, TAG_BREAKER, write_quickstart


def view_of(found: Optimization, folder: Path) -> OptimizationView:
    view = collect(read_run(write_optimized(folder, found)))
    assert view is not None
    return view


def test_a_run_that_optimize_did_not_make_has_no_such_panel(tmp_path: Path) -> None:
    documents = read_run(write_quickstart(tmp_path))
    assert documents.optimization is None
    assert collect(documents) is None
    assert documents.unreadable == ()
    assert 'id="optimization"' not in draw_report(tmp_path).read_text("utf-8")


def test_it_opens_with_the_lines_of_the_conclusion(tmp_path: Path) -> None:
    view = view_of(RACE, tmp_path)
    ship, gain, cost, _, repeat = RACE.conclude()
    (hint,) = (each.hint for each in RACE.variants if each.hint)
    assert (view.gain, f"Repeat it: {view.command}") == (gain, repeat)
    assert view.lines == (cost, ship, RACE.describe_search(), hint)
    text = draw_report(tmp_path).read_text("utf-8")
    assert next(iter(find_panels())) == "optimization"
    assert text.index('id="optimization-title"') < text.index('class="concluded"') < text.index('class="glance"')
    assert text.count('id="optimization"') == 1


@pytest.mark.parametrize(
    ("ending", "outcome", "sign"),
    [("faster", "delivered", "passed"), ("nothing pays", "not the best", "skipped"),
     ("not decided", "not proved", "inconclusive")],
)  # fmt: skip
def test_the_page_opens_with_the_ending_and_the_time_of_the_whole(
    tmp_path: Path, ending: str, outcome: VariantOutcome, sign: str
) -> None:
    """`Passed in 30.6 s`, of the run, stood above `Not decided` after 9.5 minutes."""
    write_optimized(tmp_path, optimization(variant("clean", outcome, 0.9, 0.8, 1.1), ending=ending, wall_s=572.0))
    head = draw_report(tmp_path).read_text("utf-8").partition('class="head"')[2].partition('<p class="meta">')[0]
    assert f'class="outcome {sign}">{ending.capitalize()}<' in head
    assert "9 min 32 s" in head and "Passed" not in head


def test_a_reason_of_several_lines_is_shown_whole(tmp_path: Path) -> None:
    why = "outside tolerance: " + ", ".join(f"output {number} by {number} %" for number in range(20))
    (row,) = view_of(optimization(variant("clean", "not right", why=why)), tmp_path).rows
    assert row.why == why


def test_a_line_that_begins_with_a_variant_keeps_its_name() -> None:
    found = optimization(variant("clean", "not proved"), ending="not decided", delivered="source", speed=None)
    assert found.conclude_page(2000)[1][0].startswith("clean (")


def test_the_headline_of_an_open_result_is_short(tmp_path: Path) -> None:
    """The reason, which names variants and what they waited for, is the first line below it."""
    waited = variant("clean", "not proved", why="the race was waiting for cpu 0, held by " + "a step and " * 50)
    view = view_of(
        optimization(waited, ending="not decided", stopped_because="interrupted", delivered="source", speed=None),
        tmp_path,
    )
    assert view.gain == "Not decided (interrupted)"
    assert "waiting for cpu 0" in view.lines[0] and len(view.lines[0]) < 300


def test_a_reason_that_variants_share_is_named_once() -> None:
    untried = [variant(name, "not tried", why="overtime") for name in ("INT8", "INT8 by minmax")]
    found = optimization(
        *untried,
        variant("clean", "not proved", why="noise"),
        ending="not decided",
        stopped_because="interrupted",
        delivered="source",
        speed=None,
    )
    line = found.conclude()[1]
    assert line.count("overtime") == 1
    assert line.index("INT8 by minmax") < line.index("overtime") < line.index("clean") < line.index("noise")
    assert "1 not proved; 2 not tried" in found.conclude()[3]


@pytest.mark.parametrize(("outcome", "named"), [("not right", True), ("near the bound", True), ("not the best", False)])
def test_what_is_not_right_and_would_be_the_fastest_is_named(outcome: VariantOutcome, named: bool) -> None:
    """Another bound, or more samples, may make it the best; what the race found slower is no such promise."""
    faster, less_fast, unsure = (
        variant("INT8", outcome, 0.4, 0.38, 0.42, why="cosine 0.93"),
        variant("INT4", outcome, 0.6, 0.5, 0.7),
        variant("INT2", outcome, 0.3, 0.1, 0.9),
    )
    line = optimization(less_fast, faster, unsure).conclude()[3]
    assert ("INT8 at 2.50x" in line and "cosine 0.93" in line) is named
    assert "INT2" not in line, "it may be slower than what ships"
    assert "INT4" not in line + optimization(less_fast).conclude()[3], "what ships is faster"


def test_right_variants_come_first_and_the_fastest_of_them(tmp_path: Path) -> None:
    assert [row.name for row in view_of(RACE, tmp_path).rows] == [
        "INT8 of convolutions",
        "INT8 without first and last layer",
        "clean",
        "INT8 with dynamic ranges",
        "OpenVINO's default",
        "INT8 of all operators",
        "INT8 with one scale per weight",
        "INT8 by integer operators",
        "weights in INT8",
        "INT8 where it pays",
    ]


def test_each_row_has_its_speed_and_whether_that_is_proved(tmp_path: Path) -> None:
    delivered, other, *_ = view_of(RACE, tmp_path).rows
    assert (delivered.times, delivered.interval) == ("1.96x", "1.89x to 2.00x, proved")
    assert (other.times, other.interval, other.took, other.accuracy) == (
        "1.82x", "1.75x to 1.85x", "2.1 s", ("cosine 0.99950",)
    )  # fmt: skip


def test_intervals_share_an_axis_with_the_source_at_one(tmp_path: Path) -> None:
    view = view_of(RACE, tmp_path)
    plots = {row.name: row.plot for row in view.rows if row.plot is not None}
    assert len(plots) == 7
    (source,) = {plot.source for plot in plots.values()}
    assert dict(view.ticks)[source] == "1x"
    for plot in plots.values():
        assert 0 < plot.low < plot.point < plot.high < 100
    assert plots["INT8 with dynamic ranges"].high < source < plots["clean"].low


def test_a_wrong_variant_is_never_shown_as_an_improvement(tmp_path: Path) -> None:
    marks = {row.name: row.mark for row in view_of(RACE, tmp_path).rows}
    assert marks["INT8 without first and last layer"] == "improved"
    assert marks["INT8 with dynamic ranges"] == "regressed"
    assert {
        marks[name] for name in ("INT8 of all operators", "INT8 with one scale per weight", "OpenVINO's default")
    } == {""}


def test_a_tie_with_the_source_is_no_improvement(tmp_path: Path) -> None:
    (row,) = view_of(optimization(variant("tie", "not the best", 0.99, 0.97, 1.01)), tmp_path).rows
    assert row.mark == "inconclusive"


def test_a_search_by_a_sweep_has_its_objectives_and_no_axis(tmp_path: Path) -> None:
    view = view_of(SEARCH, tmp_path)
    assert view.ticks == ()
    assert [(row.name, row.times) for row in view.rows] == [
        ("INT8 by minmax", "18.9 ms, 3.60 MiB"),
        ("source", "21.6 ms, 10.4 MiB"),
    ]
    text = draw_report(tmp_path).read_text("utf-8")
    assert ">In the search</th>" in text
    assert ">Accuracy</th>" not in text.partition('id="optimization"')[2].partition("</section>")[0]


@pytest.mark.parametrize(
    ("keep", "shown"),
    [
        (("slice_rms <= 3 %",), ["slice_rms"]),
        (("cosine>=0.99", "max_abs <= 4", "latency <= 1.1x"), ["cosine", "max_abs"]),
        ((), ["cosine", "slice_rms"]),
        (("accuracy >= 0.9",), ["cosine", "slice_rms"]),
    ],
)
def test_accuracy_is_that_of_the_conditions(keep: tuple[str, ...], shown: list[str], tmp_path: Path) -> None:
    view = view_of(RACE.model_copy(update={"keep": keep}), tmp_path)
    assert [part.split()[0] for part in view.rows[0].accuracy] == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        json.dumps({"document": "optimization", "format_version": 1}),
        RACE.to_json().replace("0.48", '"x"'),
    ],
)
def test_a_damaged_record_leaves_a_sentence_and_the_rest_of_the_page(text: str, tmp_path: Path) -> None:
    (write_optimized(tmp_path) / OPTIMIZATION_RECORD).write_text(text)
    documents = read_run(tmp_path)
    assert documents.optimization is None
    (sentence,) = documents.unreadable
    assert OPTIMIZATION_RECORD in sentence
    page = draw_report(tmp_path).read_text("utf-8")
    assert 'id="latency"' in page
    assert 'id="optimization"' not in page


@pytest.mark.parametrize(
    "changed",
    [
        {"speed": Speed(ratio=0, low=0, high=0, clock="cpu")},
        {"wall_s": math.inf, "budget_s": math.nan, "speed": Speed(ratio=0.5, low=0.4, high=0, clock="cpu")},
    ],
)
def test_a_record_with_impossible_numbers_is_not_read(changed: dict[str, object], tmp_path: Path) -> None:
    write_optimized(tmp_path, RACE.model_copy(update=changed))
    assert read_run(tmp_path).optimization is None
    assert 'id="latency"' in draw_report(tmp_path).read_text("utf-8")


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan, math.inf])
def test_impossible_speeds_of_variants_are_not_drawn(ratio: float, tmp_path: Path) -> None:
    odd = variant("odd", "not the best", ratio, ratio, 1.0, took_s=math.nan, latency=Metric(value=math.nan, unit="ms"))
    view = view_of(optimization(*RACE.variants, odd), tmp_path)
    row = next(row for row in view.rows if row.name == "odd")
    assert (row.plot, row.interval, row.took) == (None, "", "")


def test_names_of_strangers_are_text(tmp_path: Path) -> None:
    variants = tuple(
        variant(name, "failed", 0.5, 0.4, 0.6, runtime=name, why=name, metrics={name: Metric(value=1, unit=name)})
        for name in HOSTILE_NAMES
    )
    found = optimization(
        *variants, delivered=TAG_BREAKER, exported=(TAG_BREAKER,), command=TAG_BREAKER, accuracy=TAG_BREAKER,
        keep=(TAG_BREAKER,), not_tried=HOSTILE_NAMES, stopped_because=TAG_BREAKER, runtime=TAG_BREAKER,
    )  # fmt: skip
    page = draw_report(write_optimized(tmp_path, found)).read_text("utf-8")
    section = page.partition('<section id="optimization"')[2].partition("</section>")[0]
    assert len(view_of(found, tmp_path).rows) == len(HOSTILE_NAMES)
    assert "&lt;/script&gt;&lt;img" in section
    assert not any(tag in section for tag in ("<img", "<svg", "</style", "</script"))
    assert "x" * 5000 not in section, "long names are shortened"
    summary = run_markdown(read_run(tmp_path)).partition("PASSED")[0]
    assert "<img" not in summary


@pytest.mark.parametrize("outcome", get_args(VariantOutcome))
def test_every_outcome_has_a_place_and_a_sign(outcome: VariantOutcome, tmp_path: Path) -> None:
    (row,) = view_of(optimization(variant("one", outcome, 0.5, 0.4, 0.6)), tmp_path).rows
    assert row.outcome == outcome
    assert row.outcome and row.sign


def test_thousands_of_variants_are_cut(tmp_path: Path) -> None:
    view = view_of(optimization(*(variant(f"v{number}", "not the best") for number in range(1000))), tmp_path)
    assert (len(view.rows), view.more) == (200, 800)


def test_without_an_output_the_file_in_the_run_is_named() -> None:
    found = optimization(exported=())
    assert found.conclude()[0].startswith(f"Ship {found.file}: ")


def test_the_file_of_weights_is_named_too() -> None:
    found = optimization(exported=("fast.onnx", "fast.onnx.data"))
    assert found.conclude()[0].startswith("Ship fast.onnx and fast.onnx.data: ")


def test_the_record_is_written_into_the_run_whose_page_and_summary_open_with_it(tmp_path: Path) -> None:
    folder = write_quickstart(tmp_path)
    draw_report(folder)
    write_optimization(RACE, folder)
    assert read_run(folder).optimization == RACE
    page = (folder / "report.html").read_text("utf-8")
    assert "<bdi>Ship fast.onnx" in page
    assert f'href="./{OPTIMIZATION_RECORD}"' in page, "among the files of the run"
    first, *lines = (line for line in (folder / RUN_SUMMARY).read_text("utf-8").splitlines() if line)
    assert first == f"### {RACE.conclude()[1]}"
    assert lines[4] == f"- Repeat it: <code>{RACE.command}</code>"
    assert lines[5].startswith("### ") and "PASSED" in lines[5]
