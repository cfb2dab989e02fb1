"""Precision searches and layer comparisons in a report: text, costs, and exports."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndld_flow.profiles.diagnose.rules_search import SearchSubject, insights_of_search
from ndld_flow.records.accuracy import LayerDivergence, OutputAgreement
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import RunDocuments, read_run
from ndld_flow.report.collect_divergence import NOT_FINITE, bound_of, collect_depth, depth_curves, error_of
from ndld_flow.report.panels.accuracy import collect_accuracy, collect_samples, used_part
from ndld_flow.report.panels.precision import SearchView, collect_cost, collect_searches, script_data
from ndld_flow.report.panels.steps import collect_steps
from ndld_flow.report.run_page import draw_report
from ndld_flow.report.verdict import summarize_run
from tests.support.page_data import data_of
from tests.support.precision_samples import (
    RECIPE,
    deep_accuracy,
    divergences,
    failed_search,
    hostile_accuracy,
    hostile_search,
    search,
    search_documents,
    search_steps,
    trials,
)
from tests.support.run_fixtures import StepSketch, accuracy, run_record, write_run
from tests.support.text_facts import numbers_in


def write_search(folder: Path, found: PrecisionSearch, steps: list[StepSketch] | None = None, **more: Any) -> Path:
    documents = search_documents(found) | {name.replace("__", "/") + ".json": item for name, item in more.items()}
    return write_run(folder, run_record(steps or search_steps(found.passed), recipe=RECIPE), documents)


def documents_of(found: PrecisionSearch) -> RunDocuments:
    """A run of nothing but a search."""
    run = run_record(search_steps()[:1], recipe=RECIPE)
    return RunDocuments(run, known={PrecisionSearch: {"search": found}})


def view_of(documents: RunDocuments) -> SearchView:
    return collect_searches(documents)[0]


def sentences_of(view: SearchView) -> list[str]:
    return ["".join(text for text, _ in sentence) for sentence in (*view.sentences, view.cost_words)]


# --- what is said ---


def test_a_search_shows_the_fault_its_origin_its_repair_and_the_cost(tmp_path: Path) -> None:
    documents = read_run(write_search(tmp_path, search()))
    breaks, starts, mended, cost = sentences_of(view_of(documents))
    assert "unusable: cosine" in breaks and numbers_in(breaks) == [0.7712, 0.999]
    assert "p2o.BatchNormalization.40:" in starts and numbers_in(starts) == [9.8e7, 65504]
    assert mended.startswith("3 nodes") and numbers_in(mended) == [3, 0.99998]
    measured = collect_cost("search", search(), documents).measured
    assert "0.4 % of the multiply-accumulates; 6 Casts" in cost
    assert cost.endswith("in speed.")
    assert measured is not None
    assert 0 < measured.kept_ms < 18


def test_the_cost_is_the_time_of_layers_with_kept_nodes(tmp_path: Path) -> None:
    documents = read_run(write_search(tmp_path, search()))
    view, measured = view_of(documents), collect_cost("search", search(), documents).measured
    expected = documents.of(Profile)["speed"].layer_times.sum_ms((40, 80, 120))
    assert measured is not None
    assert measured.layers == (40, 80, 120)
    assert measured.kept_ms == pytest.approx(expected)
    assert [row.layer for row in view.kept] == [(0, 40), (0, 80), (0, 120)]
    assert [row.depth_row for row in view.kept] == [40, 80, 120]


def test_an_unknown_cost_is_marked_as_unknown(tmp_path: Path) -> None:
    # The only profile is that of the source: it says nothing about the converted model.
    steps = [step for step in search_steps() if step.name != "speed"]
    folder = write_search(tmp_path, search(kept_macs_share=None), steps)
    (folder / "speed/profile.json").unlink()
    work, casts, latency = sentences_of(view_of(read_run(folder)))[-1].split("; ")
    assert "work is unknown" in work and casts == "6 Casts in half"
    assert "latency is unknown" in latency and "profile of half" in latency
    assert "profile of a model" in sentences_of(view_of(documents_of(search())))[-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics_whole": {}}, "fp16 the model does"),
        ({"metrics_whole": {"cosine": math.nan}}, "NaN or infinite"),
        ({"metrics_whole": {"cosine": 1.0, "nonfinite": 12.0}}, "12 values of the outputs"),
        ({"metrics_whole": {"cosine": 0.99}}, "exceeds its bound: cosine 0.99"),
        ({"metrics_whole": {"cosine": 0.9995}}, "meets its bound: cosine 0.99950"),
        ({"tolerance": {"max_abs": 0.1}, "precision": "bf16"}, "bf16 the model exceeds"),
        ({"tolerance": {"cosine": 0.5, "max_abs": 0.1}}, "bound: max_abs 0.98 (bound 0.1)"),
    ],
)  # fmt: skip
def test_severity_depends_on_the_metric_and_its_bound(changes: dict[str, Any], message: str) -> None:
    assert message in sentences_of(view_of(documents_of(search(**changes))))[0]


def test_keeping_no_node_is_not_a_failure() -> None:
    found = search(kept=(), first_divergent="", layers_found=(), metrics_whole={"cosine": 0.9998},
                   metrics_found={"cosine": 0.9998})  # fmt: skip
    view = view_of(documents_of(found))
    whole, kept = sentences_of(view)
    assert "meets its bound" in whole and numbers_in(whole) == [0.9998, 0.999]
    assert kept.startswith("nothing")
    assert view.depth is not None
    assert view.depth.curves == ("all in fp16",)


def test_the_terminal_lists_failed_searches_first(tmp_path: Path) -> None:
    steps = [*search_steps(), StepSketch("second", "find_precision", "precision", passed=False)]
    folder = write_search(tmp_path, search(), steps, second__precision=failed_search())
    lines = [line for line in summarize_run(read_run(folder)) if line.startswith("precision")]
    first, second = lines
    assert re.search(r" second .*\b13 nodes.*cosine NaN -> 0\.9871 .*not met", first)
    assert re.search(r" search .*\b3 nodes.*cosine 0\.7712 -> 0\.999980 ", second) and "not met" not in second


def test_a_skipped_step_is_connected_to_its_search(tmp_path: Path) -> None:
    steps = [search_steps()[0], StepSketch("half", "convert_fp16", outcome="skipped", reason="search failed")]
    view = collect_steps(read_run(write_run(tmp_path, run_record(steps, recipe=RECIPE), {})).run)
    assert view.steps[1].flow.incoming == (view.steps[0].flow.lane,)


# --- what is left open ---


def test_a_model_made_from_the_result_counts_as_its_check(tmp_path: Path) -> None:
    steps = [step for step in search_steps() if step.name != "agree"]
    clean = StepSketch("clean", "sanitize", parents={"from": "half"})
    for candidate in ("clean", "source"):
        agree = StepSketch(
            "agree", "check_accuracy", "accuracy", parents={"reference": "source", "candidate": candidate}
        )
        checked = accuracy().model_copy(update={"candidate": candidate, "arithmetic": "stored"})
        documents = read_run(
            write_search(tmp_path / candidate, search(), [*steps, clean, agree], agree__accuracy=checked)
        )
        titles = [insight.title for insight in view_of(documents).insights]
        assert ("half was not compared" in str(titles)) == (candidate == "source")


def insights(found: PrecisionSearch, **changes: Any) -> list[str]:
    stored = accuracy().model_copy(update={"arithmetic": "stored"})
    subject = SearchSubject("search", found, ("half",), (("agree", stored),), 0.01)
    return [item.name for item in insights_of_search(replace(subject, **changes))]


def test_open_questions_of_a_search_are_reported() -> None:
    assert insights(search()) == []
    assert insights(failed_search()) == ["bound_not_met"]
    assert insights(search(5)) == ["little_left"]
    assert insights(search(sample_count=1)) == ["found_on_one_sample"]
    assert insights(search(), users=(), checks=()) == ["not_used"]
    assert insights(search(), checks=()) == ["not_checked"]
    assert insights(search(), kept_part=0.3) == ["kept_nodes_are_slow"]


def test_native_execution_on_a_cpu_does_not_test_fp16() -> None:
    native = accuracy()
    assert native.arithmetic == "native"
    assert insights(search(), checks=(("agree", native),)) == ["checked_natively_on_cpu"]
    on_gpu = native.model_copy(update={"provider_candidate": "CUDAExecutionProvider"})
    assert insights(search(), checks=(("agree", on_gpu),)) == []
    assert insights(search(), checks=(("agree", native.model_copy(update={"arithmetic": "stored"})),)) == []


# --- layers ---


def layer(position: int, **metrics: float) -> LayerDivergence:
    return LayerDivergence(
        position=position, node=f"n{position}", op_type="Add", tensor=f"t{position}", metrics=metrics
    )


def test_errors_are_shown_as_relative_rms_for_every_metric() -> None:
    assert error_of(layer(0, relative_rms=0.25)) == 0.25
    assert error_of(layer(0, snr_db=40.0)) == pytest.approx(0.01)
    assert error_of(layer(0, relative_rms=math.nan)) == NOT_FINITE
    assert error_of(layer(0, relative_rms=0.5).model_copy(update={"nonfinite": 3})) == NOT_FINITE
    assert error_of(layer(0, cosine=1.0)) is None
    assert error_of(None) is None


def test_a_bound_on_outputs_is_drawn_as_relative_rms() -> None:
    snr, cosine = bound_of({"snr_db": 25.0}), bound_of({"cosine": 0.999})
    assert snr is not None
    assert cosine is not None
    assert snr.error == pytest.approx(10**-1.25)
    assert 1 / math.sqrt(1 + cosine.error**2) == pytest.approx(0.999)
    both = bound_of({"cosine": 0.999, "snr_db": 25.0})
    assert both == cosine  # the stricter of the two
    assert bound_of({"max_abs": 0.1, "cosine": 1.0}) is None


@given(st.lists(st.integers(0, 40), unique=True), st.lists(st.integers(0, 40), unique=True), st.integers(0, 40))
def test_curves_are_aligned_by_tensor(whole: list[int], found: list[int], first: int) -> None:
    curves = {
        "a": [layer(index, relative_rms=index / 10) for index in whole],
        "b": [layer(index, relative_rms=index / 20) for index in found],
    }
    view = collect_depth(curves, lambda point: point.position % 2 == 0, f"n{first}", None)
    everywhere = sorted({*whole, *found})
    if view is None:
        assert everywhere == []
        return
    assert [layer.record.position for layer in view.layers] == everywhere
    assert view.kept == tuple(row for row, position in enumerate(everywhere) if position % 2 == 0)
    assert view.first == (everywhere.index(first) if first in everywhere else None)
    errors = depth_curves(view).error
    for column, there, scale in ((errors[0], whole, 10), (errors[1], found, 20)):
        assert column == [float(f"{index / scale:.3g}") if index in there else None for index in everywhere]


def test_the_layers_with_the_largest_errors_come_first_in_text() -> None:
    errors = [0.1, math.nan, 0.5, 0.0, 0.2]
    view = collect_depth({"a": divergences(5, errors)}, lambda point: False, "", None)
    assert view is not None
    assert [item.record.position for item in view.worst] == [1, 2, 4, 0, 3]
    assert [item.words for item in view.worst][:2] == [("900 NaN or infinite",), ("0.5",)]


# --- accuracy ---


@pytest.mark.parametrize(
    ("metric", "value", "bound", "used"),
    [
        ("cosine", 0.9995, 0.999, 0.5),
        ("cosine", 1.0, 1.0, 0.0),
        ("cosine", 0.9, 1.0, math.inf),
        ("max_abs", 0.2, 0.1, 2.0),
        ("max_abs", 0.0, 0.0, 0.0),
        ("snr_db", 45.0, 25.0, 0.1),
        ("snr_db", math.inf, 25.0, 0.0),
        ("top1", 0.98, 0.99, 2.0),
        ("max_abs", math.nan, 1.0, math.inf),
    ],
)
def test_the_used_share_of_a_bound_is_shown(metric: str, value: float, bound: float, used: float) -> None:
    assert used_part(metric, value, bound) == pytest.approx(used)


def test_a_comparison_names_its_worst_and_its_labelled_metrics() -> None:
    (view,) = collect_accuracy({"agree": deep_accuracy()})
    assert [(row.output, row.metric, row.passed) for row in view.limits] == [
        ("sigmoid_0.tmp_0", "cosine", False),
        ("sigmoid_0.tmp_0", "max_abs", True),
        ("boxes", "cosine", True),
    ]
    assert view.labelled is not None
    assert [[*map(numbers_in, map(str, row[3:5])), row[5]] for row in view.labelled.rows] == [
        [[0.1667, 16.7], [0.2, 0.8], "passed"],
        [[0.11, 12.0], [1], "failed"],
    ]
    assert view.labelled.bad == {(1, 2)} and len(view.labelled_failures) == 1
    assert view.samples is not None
    assert [(row.sample, row.worst, row.scores) for row in view.samples.rows][2] == ("receipt-3.png", True, ("1 → 0",))
    assert [cell for row in view.samples.rows for cell in row.cells if cell[1]] == [("0.9971", True)]
    plot = view.samples.plot
    assert plot is not None
    assert plot.bound is not None
    assert [y < plot.bound for _, y, _ in plot.dots] == [broken for _, _, broken in plot.dots]


def test_only_the_named_metric_fails() -> None:
    metrics = {"snr_db": 40.0, "psnr_db": 20.0}
    failed = ("psnr_db 20 is less than 30",)
    output = OutputAgreement(
        output="y", dtype="float32", shape=(1,), judged_as="numbers", metrics=metrics, failed=failed
    )
    (view,) = collect_accuracy({"agree": deep_accuracy(1).model_copy(update={"outputs": (output,)})})
    cells = dict(zip(view.metrics, view.rows[0].cells, strict=True))
    assert [name for name, (_, broken) in cells.items() if broken] == ["psnr_db"]


def test_the_terminal_names_a_labelled_metric_that_failed(tmp_path: Path) -> None:
    right = tuple(output.model_copy(update={"failed": ()}) for output in deep_accuracy().outputs)
    for compared, text in (
        (deep_accuracy(), "(outside tolerance: f1 dropped by 12 %, more than 1 % and 1 more)"),
        (
            deep_accuracy().model_copy(update={"outputs": right}),
            "(outside tolerance: f1 dropped by 12 %, more than 1 %)",
        ),
    ):
        folder = write_search(tmp_path / str(len(text)), search(9, kept=()), agree__accuracy=compared)
        (line,) = (line for line in summarize_run(read_run(folder)) if line.startswith("accuracy"))
        assert line.endswith(text)


def test_the_worst_of_many_samples_are_shown() -> None:
    few = deep_accuracy()
    many = tuple(
        few.samples[0].model_copy(update={"sample": f"{index}.png", "outputs": {"boxes": {"cosine": 1 - index / 1000}}})
        for index in range(300)
    )
    view = collect_samples(few.model_copy(update={"samples": many, "worst_sample": "299.png"}))
    assert view is not None
    assert view.count == 300
    assert [row.sample for row in view.rows][:3] == ["299.png", "298.png", "297.png"]
    assert len(view.rows) < 100
    by_error = {"samples": tuple(item.model_copy(update={"outputs": {"boxes": {"max_abs": int(item.sample[:-4]) / 9}}})
                                 for item in many), "worst_sample": None, "tolerance": {"max_abs": 1.0}}  # fmt: skip
    worst = collect_samples(few.model_copy(update=by_error))
    assert worst is not None
    assert [row.sample for row in worst.rows][:2] == ["299.png", "298.png"]


@pytest.mark.parametrize(("apart", "is_drawn"), [(1e-3, True), (3e-16, False)])
def test_samples_are_drawn_where_their_values_differ_in_print(apart: float, is_drawn: bool) -> None:
    few = deep_accuracy()
    values = ({"boxes": {"cosine": 1.0}}, {"boxes": {"cosine": 1.0 - apart}})
    two = tuple(few.samples[0].model_copy(update={"outputs": value}) for value in values)
    view = collect_samples(few.model_copy(update={"samples": two, "tolerance": {}}))
    assert view is not None
    assert (view.plot is not None) == is_drawn


@pytest.mark.parametrize(("metric", "of_each"), [("slice_rms", False), ("slice_max", True)])
def test_a_sample_beyond_a_bound_on_all_samples_together_is_not_shown_as_failed(metric: str, of_each: bool) -> None:
    """Two of ten were red, and the check passed: its bound is on the RMS error over all of them."""
    few = deep_accuracy()
    two = tuple(few.samples[0].model_copy(update={"outputs": {"boxes": {metric: value}}}) for value in (0.01, 0.08))
    bounds = {"tolerance": {metric: 0.05}, "output_tolerance": {}}
    view = collect_samples(few.model_copy(update={"samples": two, **bounds}))
    assert view is not None and view.plot is not None
    assert [row.cells[0][1] for row in view.rows] == [dot[2] for dot in view.plot.dots] == [False, of_each]
    assert view.plot.of_each == of_each


# --- the page ---


@given(st.sets(st.integers(0, 30)))
def test_kept_nodes_of_a_trial_are_shown_as_ranges(kept: set[int]) -> None:
    found = search(5, kept=(), trials=(trials((), 320)[0].model_copy(update={"kept": tuple(kept)}),))
    (trials_shown,) = script_data((view_of(documents_of(found)),)).searches
    ranges = trials_shown.ranges[0]
    assert ranges is not None
    pairs = list(zip(ranges[::2], ranges[1::2], strict=True))
    assert {position for first, last in pairs for position in range(first, last + 1)} == kept
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(pairs))


def test_every_state_is_drawn(tmp_path: Path) -> None:
    page = draw_report(write_search(tmp_path, failed_search(), agree__accuracy=deep_accuracy()))
    text = page.read_text("utf-8")
    for name in ("bound 0.999 not met", "NaN or infinite", "receipt-3.png", "at least 0.8", 'class="cause overflow"'):
        assert name in text
    panels = data_of(text)["panels"]
    (search_shown,), (depth,) = panels["precision"]["searches"], panels["precision"]["depths"]
    assert depth["error"][0][45] == NOT_FINITE
    assert panels["accuracy"] != [None]
    assert math.isnan(search_shown["metrics"]["cosine"][10])
    assert search_shown["ranges"][1] == [40, 48]


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    page = draw_report(write_search(tmp_path, hostile_search(), agree__accuracy=hostile_accuracy()))
    text = page.read_text("utf-8")
    assert "<img" not in text
    assert "<svg/onload" not in text
    assert "\x00" not in text
    assert "&lt;/script&gt;&lt;img" in text


@pytest.mark.thorough
def test_a_search_of_5000_layers_stays_small(tmp_path: Path) -> None:
    run = run_record(search_steps()[:1], recipe=RECIPE)
    found = {"search/precision.json": search(5000, kept=range(40, 2000, 40))}
    big, plain = (draw_report(write_run(tmp_path / str(len(item)), run, item)) for item in (found, {}))
    assert big.stat().st_size - plain.stat().st_size < 400_000


def test_a_record_survives_serialization() -> None:
    found = failed_search(60)
    assert PrecisionSearch.model_validate_json(found.to_json()).to_json() == found.to_json()


@pytest.mark.thorough
def test_outputs_without_metrics_are_reported(tmp_path: Path) -> None:
    # Integers that nothing can be said of, in a comparison that has no bound for them.
    bare = OutputAgreement(output="ids", dtype="int64", shape=(), judged_as="exact", metrics={})
    compared = deep_accuracy(3).model_copy(update={"outputs": (bare,), "samples": ()})
    folder = write_search(tmp_path, search(8, kept=(2,)), agree__accuracy=compared)
    assert "ids" in draw_report(folder).read_text("utf-8")
