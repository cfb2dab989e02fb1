"""The report of a run without a browser: its data, files, and escaping."""

from __future__ import annotations

import errno
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from ndld_flow.base import quantities
from ndld_flow.base.errors import OutputsError, RequestError
from ndld_flow.base.text import short_name, visible_name, visible_text
from ndld_flow.profiles.compare.comparison import compare
from ndld_flow.profiles.compare.measured import Measured, Rules
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.comparison import Comparison, ComparisonGate, Subject
from ndld_flow.records.measurement import FIXED_SIZES, SIZES_ASSUMED, Machine
from ndld_flow.records.profile import BatchPoint, Profile, ProfileRun, TensorInfo
from ndld_flow.records.run_folder import RunDocuments, read_run
from ndld_flow.records.run_record import GateResult, RunRecord
from ndld_flow.report.activations.page import ACTIVATIONS_PAGE
from ndld_flow.report.collect_footprint import collect_footprint
from ndld_flow.report.collect_latency import collect_latency
from ndld_flow.report.collect_layers import collect_layers
from ndld_flow.report.collect_summary import collect_gates
from ndld_flow.report.comparison.page import COMPARISON_PAGE
from ndld_flow.report.engines_page import ENGINES_PAGE
from ndld_flow.report.history_page import HISTORY_PAGE
from ndld_flow.report.measured import machine_settings, profiler_words, settings_of, shape_text
from ndld_flow.report.model_page import DIFF_PAGE
from ndld_flow.report.panels.accuracy import collect_accuracy
from ndld_flow.report.panels.latency import collect_profiles
from ndld_flow.report.panels.steps import lay_out
from ndld_flow.report.render import (
    EARLY_SCRIPT,
    MODEL_PAGE,
    PROFILE_REPORT,
    RUN_REPORT,
    environment,
    modules_of,
    report_files,
    write_page,
)
from ndld_flow.report.run_page import RunPage, collect_page, draw_report
from ndld_flow.report.sweep.page import SWEEP_PAGE
from ndld_flow.report.verdict import describe_results, remedy_words, summarize_run
from tests.support.message_files import CheckMessage
from tests.support.page_data import data_of, texts_of
from tests.support.run_fixtures import (
    HOSTILE_NAMES,
    STARTED,
    Sitting,
    StepSketch,
    accuracy,
    profile,
    quickstart_steps,
    run_record,
    write_big,
    write_failed,
    write_hostile,
    write_quickstart,
    write_run,
)
from tests.support.text_facts import numbers_in

INPUT = f"x {shape_text((1, 3, 320, 320))} float32"


def page_of(folder: Path) -> RunPage:
    return collect_page(read_run(folder))


def verdict_of(folder: Path) -> list[str]:
    return summarize_run(read_run(folder))


# --- the verdict ---


def test_the_verdict_of_a_run_is_five_lines_with_its_numbers(tmp_path: Path) -> None:
    assert verdict_of(write_quickstart(tmp_path)) == [
        "PASSED ppocr-det in 8.2 s (2 of 6 steps reused)",
        "graph 672 -> 337 nodes, 4.53 -> 2.28 MiB",
        "accuracy cosine 0.99999987, max abs 9.2e-07 (within tolerance)",
        "latency half 18.4 ms vs source 14.5 ms: 0.79x as fast "
        f"({INPUT}; median of 400 passes in 5 process runs each, in turns: 0.77x to 0.79x as fast over 5 pairs)",
        "gates 2 of 2 passed",
    ]


@pytest.mark.parametrize(
    ("median_ms", "runs", "session", "gain"),
    [
        (7.1, 5, "one", True),
        (18.2, 5, "one", False),  # slower
        (14.3, 5, "one", False),  # as fast
        (7.1, 1, "", False),  # one process run each, apart: nothing is known of the spread
    ],
)
def test_a_result_is_faster_only_if_that_is_proved(
    median_ms: float, runs: int, session: str, gain: bool, tmp_path: Path
) -> None:
    documents = read_run(write_quickstart(tmp_path))
    measured = {
        step: profile(label, ms, number, 330, runs=runs, passes=80, session=Sitting(number, 2, session))
        for number, (step, label, ms) in enumerate([("speed", "half", median_ms), ("base", "source", 14.3)])
    }
    results = describe_results(replace(documents, known={Profile: measured}))
    assert ("not proven faster" not in results["half"]) == gain
    assert "not proven faster" in results["sanitize"], "not measured"


def test_the_verdict_of_a_failed_run_names_the_failed_checks(tmp_path: Path) -> None:
    lines = verdict_of(write_failed(tmp_path))
    assert [line.partition(" ")[0] for line in lines] == [
        "FAILED", "and", "graph", "accuracy", "next", "latency", "gates"
    ]  # fmt: skip
    assert lines[0].startswith("FAILED ppocr-det in 2.1 s: agree: ")
    assert lines[1].startswith("and gate agree.cosine >= 0.999:")
    assert [numbers_in(line) for line in lines] == [
        [2.1, 0.0312, 0.999, 1],
        [0.999, 0.0312, 0.999],
        [672, 337, 4.53, 2.28],
        [0.0312, 0.99987, 0.0312, 0.999, 1],
        [],
        [],
        [0, 2, 1],
    ]


def test_a_run_without_measurements_states_what_was_not_checked(tmp_path: Path) -> None:
    run = run_record([StepSketch("lint", "lint", "lint")], recipe={})
    assert summarize_run(RunDocuments(run, tmp_path))[1:] == [
        "graph not changed, 4.53 MiB",
        "accuracy not checked",
        "latency not measured",
        "gates none requested",
    ]


def test_an_input_without_a_size_is_a_warning_once(tmp_path: Path) -> None:
    note = f"input x runs at 1x3x1x1, {SIZES_ASSUMED}: set 'inputs.x.shape=[1,3,h,w]' <b>"
    run = run_record([StepSketch(name, "profile", "profile") for name in ("a", "b")])
    noted = profile("source", 14.0, 1, 0, runs=3).model_copy(update={"notes": ("cold caches", note)})
    write_run(tmp_path, run, {"a/profile.json": noted, "b/profile.json": noted})
    assert [line for line in verdict_of(tmp_path) if line.startswith("warning")] == [f"warning {note}"]
    page = draw_report(tmp_path).read_text("utf-8")
    head = page.split('class="glance"')[0]
    assert head.count("input x runs at 1x3x1x1") == 1
    assert "<b>" not in head


def test_a_gate_of_a_comparison_is_the_reason_and_counts(tmp_path: Path) -> None:
    """Its number and limit say why, not the sentence that the step printed; none of the recipe's own is needed."""
    steps = [
        StepSketch("decide", "compare_profiles", "comparison", passed=False, summary="latency.median in many words")
    ]
    bounds = [("latency.median <= +3 %", "failed", "+9 % (+7 % to +11 %)"), ("model.bytes <= +0 %", "passed", "less")]
    gates = [
        ComparisonGate(gate=gate, name="speed", candidate=1, outcome=outcome, why=why) for gate, outcome, why in bounds
    ]
    sides = tuple(Subject(label=label, location=label, kind="profile") for label in ("base", "speed"))
    document = Comparison(subjects=sides, profiles=(), gates=tuple(gates), verdict="regressed", why="slower")
    write_run(tmp_path, run_record(steps), {"decide/comparison.json": document})
    lines = verdict_of(tmp_path)
    assert "gate `latency.median <= +3 %` failed (+9" in lines[0]
    assert "many words" not in lines[0]
    assert "gates 1 of 4 passed, 2 not" in str(lines), "the recipe has two"
    assert "2 more under <a" in draw_report(tmp_path).read_text("utf-8")


@pytest.mark.parametrize("candidate", ["given", "half"])
def test_sizes_that_another_file_fixes_are_a_warning(candidate: str, tmp_path: Path) -> None:
    """The recipe's own steps fix them on purpose."""
    steps = [StepSketch("agree", "check_accuracy", "accuracy")]
    run = run_record(steps)
    run = run.model_copy(update={"models": {"given": run.source}})
    noted = accuracy().model_copy(update={"candidate": candidate, "notes": (f"{FIXED_SIZES}: x 1x4, not nx4",)})
    write_run(tmp_path, run, {"agree/accuracy.json": noted})
    assert any(FIXED_SIZES in line for line in verdict_of(tmp_path)) == (candidate == "given")


def test_one_profile_alone_makes_no_claim(tmp_path: Path) -> None:
    run = run_record([StepSketch("speed", "profile", "profile")])
    write_run(tmp_path, run, {"speed/profile.json": profile("source", 14.0, 1, 0, runs=3)})
    line = verdict_of(tmp_path)[3]
    assert line.startswith(f"latency source 14.3 ms ({INPUT};") and numbers_in(line.partition(INPUT)[2]) == [600, 3]


def test_the_same_model_twice_is_unchanged(tmp_path: Path) -> None:
    """However far apart the passes are: nothing but noise can differ."""
    steps = [
        StepSketch("speed", "profile", "profile", parents={"from": "half"}),
        StepSketch("base", "profile", "profile"),
    ]
    slow, fast = (profile("source", ms, 1, 0).model_copy(update={"artifact_digest": "0" * 64}) for ms in (20, 10))
    write_run(tmp_path, run_record(steps), {"speed/profile.json": fast, "base/profile.json": slow})
    assert ": unchanged (" in verdict_of(tmp_path)[3]


def test_profiles_of_different_sessions_are_marked(tmp_path: Path) -> None:
    steps = [
        StepSketch("speed", "profile", "profile", parents={"from": "half"}),
        StepSketch("base", "profile", "profile", "reused", "reused", started_s=-7200),
    ]
    documents = {
        "speed/profile.json": profile("half", 10, 1, 0),
        "base/profile.json": profile("source", 20, 1, 0).model_copy(
            update={"measured_at": STARTED - timedelta(hours=2)}
        ),
    }
    write_run(tmp_path, run_record(steps), documents)
    line = verdict_of(tmp_path)[3]
    assert ": 2.00x as fast" in line
    assert "indicative" in line and "2 h 00 min apart" in line


@pytest.mark.parametrize(
    ("speed", "shown"),
    [
        ((0.5, 0.8, 0.9, 1.6, 2.0), "in turns: 0.50x to 2.00x "),
        ((0.95, 0.96, 0.98, 0.99, 0.99), ": 1.02x as fast ("),  # on which side is certain, beyond 3 % is not
        ((0.98, 0.99, 0.995, 1.0, 1.01), ": unchanged ("),  # within the threshold, in both directions
        ((0.1, 20.0), "in turns: no interval"),
    ],
    ids=["both directions", "one direction", "unchanged", "no interval"],
)
def test_an_interval_that_holds_both_directions_is_undecided(
    tmp_path: Path, speed: tuple[float, ...], shown: str
) -> None:
    """Pairs of process runs between half as fast and twice as fast show nothing, whatever their median is."""
    steps = [StepSketch("speed", "profile", "profile"), StepSketch("base", "profile", "profile")]
    factors = {"speed": speed, "base": (1.0,) * len(speed)}
    documents = {}
    for index, (name, label) in enumerate((("speed", "half"), ("base", "source"))):
        steady = profile(label, 10, 1, 0, runs=len(speed), passes=20, session=Sitting(index, 2, "one"))
        runs = [
            run.model_copy(update={"latency_ms": tuple(10.0 * factor for _ in run.latency_ms)})
            for run, factor in zip(steady.runs, factors[name], strict=True)
        ]
        # Of fewer runs than five on a busy machine, no interval is known.
        busy = {"during": {"cpus_used_by_others": 8.0}} if len(speed) < 5 else {}
        conditions = steady.conditions | busy
        documents[f"{name}/profile.json"] = steady.model_copy(update={"runs": tuple(runs), "conditions": conditions})
    write_run(tmp_path, run_record(steps), documents)
    line = verdict_of(tmp_path)[3]
    assert shown in line


def test_values_of_pairs_are_not_called_medians_of_passes(tmp_path: Path) -> None:
    """On a drifting machine, the pair of runs with the median ratio is not that of the medians."""
    steps = [StepSketch("speed", "profile", "profile"), StepSketch("base", "profile", "profile")]
    times = {"base": (10.0, 20.0, 30.0, 40.0, 50.0), "speed": (8.0, 10.0, 27.0, 32.0, 45.0)}
    documents = {}
    for index, (name, label) in enumerate((("speed", "half"), ("base", "source"))):
        steady = profile(label, 10, 1, 0, runs=5, passes=20, session=Sitting(index, 2, "one"))
        runs = [
            run.model_copy(update={"latency_ms": tuple(ms for _ in run.latency_ms)})
            for run, ms in zip(steady.runs, times[name], strict=True)
        ]
        documents[f"{name}/profile.json"] = steady.model_copy(update={"runs": tuple(runs)})
    write_run(tmp_path, run_record(steps), documents)
    latency = collect_latency(read_run(tmp_path))
    assert latency is not None
    assert latency.values_ms[1] / latency.values_ms[0] == pytest.approx(0.8)
    assert latency.values_ms != (30.0, 27.0)
    assert "median of" not in latency.basis


def test_runs_that_were_not_interleaved_are_indicative(tmp_path: Path) -> None:
    steps = [StepSketch("first", "profile", "profile"), StepSketch("last", "profile", "profile")]
    documents = {
        "first/profile.json": profile("half", 10, 1, 0, runs=5, passes=20, session=Sitting(0, 2, "monday")),
        "last/profile.json": profile("source", 20, 1, 0, runs=5, passes=20, session=Sitting(1, 2, "tuesday")),
    }
    write_run(tmp_path, run_record(steps), documents)
    line = verdict_of(tmp_path)[3]
    assert "10.1 ms vs source 20.2 ms:" in line  # the source is the base, though measured last
    assert "indicative" in line and numbers_in(line.partition(INPUT)[2]) == [100, 5]
    assert [view.in_turns_with for view in page_of(tmp_path).views["latency"]] == [(), ()]


def test_profiles_of_the_same_model_are_distinguished_by_their_steps(tmp_path: Path) -> None:
    names = ("one", "two")
    steps = [StepSketch(name, "profile", "profile") for name in names]
    documents = {f"{name}/profile.json": profile("source", 10, 1, 5) for name in names}
    page = page_of(write_run(tmp_path, run_record(steps), documents))
    assert [view.label for view in page.views["latency"]] == ["source (one)", "source (two)"]
    assert [view.label for view in page.views["layers"]] == ["source (one)", "source (two)"]
    assert "10.2 ms vs source (one) 10.2" in verdict_of(tmp_path)[3]


def shipped_and_proposed(folder: Path, recipe: dict[str, JsonValue], **fields: Any) -> list[str]:
    """A run that measured a source, what is shipped, and what is proposed, each faster than the one before."""
    names = {"base": ("source", 20.0), "shipped": ("shipped", 8.0), "speed": ("proposed", 10.0)}
    steps = [StepSketch(name, "profile", "profile") for name in names]
    documents = {
        f"{name}/profile.json": profile(label, ms, 1, 0, runs=5, passes=20, session=Sitting(0, 3, "one"))
        for name, (label, ms) in names.items()
    }
    documents["speed/profile.json"] = documents["speed/profile.json"].model_copy(update=fields)
    write_run(folder, run_record(steps, recipe=recipe), documents)
    return verdict_of(folder)


def test_the_base_is_the_one_in_the_recipe(tmp_path: Path) -> None:
    line = shipped_and_proposed(tmp_path, {"gates": ["speed.latency.median <= 1.5 * shipped.latency.median"]})[3]
    assert "10.1 ms vs shipped 8.09 ms: 0.80x" in line
    assert "vs source" in shipped_and_proposed(tmp_path, {"gates": ["speed.latency.median <= 30"]})[3]


def test_the_base_is_that_of_the_comparing_step(tmp_path: Path) -> None:
    shipped_and_proposed(tmp_path, {})
    documents = read_run(tmp_path)
    pair = [Measured(at, step, documents.of(Profile)[step]) for at, step in enumerate(("shipped", "speed"))]
    found = compare([Subject(label=label, location="", kind="profile") for label in ("s", "p")], {"x": pair}, Rules())
    outcome = collect_latency(replace(documents, known={Comparison: {"decide": found}}))
    assert outcome is not None
    assert outcome.base is not None
    assert (outcome.candidate.step, outcome.base.step, outcome.change) == ("speed", "shipped", "0.80x as fast")


def test_incomparable_measurements_make_no_claim_in_the_summary(tmp_path: Path) -> None:
    batch = TensorInfo(name="x", dtype="float32", shape=(8, 3, 320, 320), data="random uniform [0, 1)")
    line = shipped_and_proposed(tmp_path, {"gates": ["speed.latency.min < shipped.latency.min"]}, inputs=(batch,))[3]
    assert "shipped 8.09 ms: not comparable" in line
    assert "batch" in line and "1x3x320x320 and 8x3x320x320" in line


def test_values_missing_in_an_import_are_not_zero() -> None:
    """As ONNX Runtime's own profile: no machine, tensors without names or weights, and the profiler attached."""
    made = profile("half", 10, 1, 5)
    nameless = [
        layer.model_copy(
            update={
                "weight_bytes": 0,
                "outputs": tuple(output.model_copy(update={"name": ""}) for output in layer.outputs),
            }
        )
        for layer in made.layers
    ]
    machine = Machine()
    fields = {"machine": machine, "profiler": "on", "layers": tuple(nameless)}
    imported = made.model_copy(update=fields)
    measured = [made, imported, made.model_copy(update={"profiler": ""})]
    (view,) = collect_profiles({"imported": imported})
    assert machine_settings(view.profile.machine) == ()
    assert collect_footprint(imported) is None
    assert "no profiler" in profiler_words(measured[:1])
    assert "the profiler" in profiler_words(measured[1:2])
    assert "not recorded" in profiler_words(measured[2:])
    assert "no profiler" not in profiler_words(measured)


def test_a_noisy_measurement_is_marked(tmp_path: Path) -> None:
    steps = [StepSketch("speed", "profile", "profile"), StepSketch("base", "profile", "profile")]
    shaken = profile("half", 10, 1, 0).model_copy(update={"runs": (ProfileRun(latency_ms=(7.0, 7.5, 8.0, 33.0)),)})
    documents = {"speed/profile.json": shaken, "base/profile.json": profile("source", 20, 1, 0)}
    write_run(tmp_path, run_record(steps), documents)
    line = verdict_of(tmp_path)[3]
    assert "indicative; noisy" in line and numbers_in(line)[-3:] == [4, 200, 92]


def test_settings_are_formatted_as_in_the_recipe_and_mark_defaults() -> None:
    given: dict[str, JsonValue] = {"tolerance": {"cosine": 0.999, "atol": None}, "limit": 65504.0, "block": {}}
    found = settings_of(given | {"seed": 0}, given)
    assert [(item.name, item.value, item.given) for item in found] == [
        ("tolerance", "{cosine: 0.999}", True),
        ("limit", "65504", True),
        ("block", "{}", False),
        ("seed", "0", False),
    ]


def test_an_output_with_its_own_tolerance_shows_it() -> None:
    document = accuracy().model_copy(
        update={
            "tolerance": {"rtol": 0.1, "atol": 0.01, "top1": 0.9},
            "output_tolerance": {"sigmoid_0.tmp_0": {"cosine": 0.9}},
        }
    )
    (view,) = collect_accuracy({"agree": document})
    assert view.metrics[-2:] == ("mismatched", "top1")
    assert view.tolerances[-1] == "≥ 0.9"
    assert view.elementwise == "mismatched: elements where |candidate - reference| > 0.01 + 0.1 |reference|"
    assert view.rows[0].own_tolerance == "cosine ≥ 0.9"


def test_a_batch_sweep_has_a_table(tmp_path: Path) -> None:
    points = tuple(BatchPoint(batch=size, inputs=(), latency_ms=(2.0 * size, 3.0 * size)) for size in (1, 8))
    swept = profile("half", 10, 1, 0).model_copy(update={"batches": points})
    write_run(tmp_path, run_record([StepSketch("speed", "profile", "profile")]), {"speed/profile.json": swept})
    (view,) = page_of(tmp_path).views["latency"]
    assert [(point.batch, point.items_per_s) for point in view.profile.batches] == [(1, 400), (8, 400)]
    assert "Batch sweep of" in draw_report(tmp_path).read_text("utf-8")


def test_failed_comparisons_come_before_passed_ones(tmp_path: Path) -> None:
    steps = [StepSketch(name, "check_accuracy", "accuracy") for name in ("first", "second")]
    documents = {
        "first/accuracy.json": accuracy(0.5, 2.0, ("cosine 0.5 is below 0.999",)),
        "second/accuracy.json": accuracy(),
    }
    write_run(tmp_path, run_record(steps), documents)
    line = verdict_of(tmp_path)[2]
    assert line.startswith("accuracy cosine 0.5,") and numbers_in(line) == [0.5, 2, 0.5, 0.999, 1, 2]


def test_nan_is_the_worst_value(tmp_path: Path) -> None:
    output = accuracy().outputs[0]
    outputs = [output.model_copy(update={"metrics": {"cosine": value}}) for value in (0.9, float("nan"), 0.99)]
    document = accuracy().model_copy(update={"outputs": tuple(outputs)})
    write_run(tmp_path, run_record([StepSketch("agree", "check_accuracy")]), {"agree/accuracy.json": document})
    assert verdict_of(tmp_path)[2].startswith("accuracy cosine NaN ")


# --- what is collected ---


def test_steps_summarize_their_work(tmp_path: Path) -> None:
    steps = {step.run_step.name: step for step in page_of(write_quickstart(tmp_path)).views["steps"].steps}
    sanitize, half = steps["sanitize"], steps["half"]
    assert sanitize.change is not None
    assert [(item.op_type, item.delta) for item in sanitize.change.changed[:3]] == [
        ("Constant", -287),
        ("Shape", -20),
        ("Slice", -16),
    ]
    assert sanitize.change.totals[0] == ("nodes", 672, 329, "")
    assert "3 days" in sanitize.reuse and sanitize.reuse.endswith("4 ms")
    assert half.run_step.reason == "settings changed"
    assert half.change is not None
    assert half.change.casts_added == 8
    assert {setting.name: setting.given for setting in half.settings} == {
        "keep_io": True,
        "block": True,
        "min_positive": False,
        "max_finite": False,
    }
    assert steps["agree"].reads == (("reference", "source"), ("candidate", "half"))


def test_a_skipped_step_is_drawn_in_recipe_order(tmp_path: Path) -> None:
    speed = page_of(write_failed(tmp_path)).views["steps"].steps[4]
    assert (speed.run_step.outcome, speed.run_step.reason) == ("skipped", "agree failed")
    assert speed.reads == (("from", "half"),)
    assert speed.flow.incoming == (1,)


def test_a_gate_that_was_never_reached_is_listed(tmp_path: Path) -> None:
    gates = page_of(write_failed(tmp_path)).views["gates"]
    assert [gate.outcome for gate in gates] == ["not reached", "failed"]
    assert (gates[1].left, gates[1].relation, gates[1].right) == ("0.0312", "≥", "0.999")


def test_gates_show_units_and_their_position_relative_to_the_limit() -> None:
    median = GateResult(gate="a.latency.median <= 9", passed=False, left=18, right=9, unit="ms")
    share = GateResult(gate="a.slice_rms <= 5 %", passed=True, left=0.00486, right=0.05)
    views = collect_gates(run_record([], [median, share], recipe={}))
    shown = [(view.left, view.relation, view.right) for view in views]
    assert shown == [("18.0 ms", "≤", "9.00 ms"), ("0.49 %", "≤", "5 %")]
    assert views[0].fraction == 2


def test_layer_shares_add_up_and_small_types_are_grouped() -> None:
    measured = profile("half", 10, 3, 300)
    renamed = [layer.model_copy(update={"type": f"T{index % 20}"}) for index, layer in enumerate(measured.layers)]
    (view,) = collect_layers({"speed": measured.model_copy(update={"layers": tuple(renamed)})})
    assert sum(item.sum_ms for item in view.types) == pytest.approx(view.times.sum_ms)
    assert sum(item.share for item in view.types) == pytest.approx(1)
    assert sum(item.count for item in view.types) == 300
    page = (
        environment()
        .get_template("panels/layers.html.j2")
        .render(panel={"view": [view], "tabs": ()}, page={"views": {}})
    )
    assert "8 more types" in page and page.count("width:100.00%") >= 1
    assert view.slowest.rows[0][-1] == max(view.times.median_ms)


def test_the_worst_findings_come_first(tmp_path: Path) -> None:
    findings = page_of(write_quickstart(tmp_path)).views["findings"]
    assert findings is not None
    assert [row.severity for row in findings.rows] == ["warning", "warning", "info"]
    assert findings.counts == {"warning": 2, "info": 1}


@given(st.lists(st.lists(st.integers(0, 30), max_size=3), max_size=30))
def test_rails_connect_every_step_with_its_inputs(wanted: list[list[int]]) -> None:
    reads = [()] + [tuple(sorted({p for p in parents if p <= row})) for row, parents in enumerate(wanted)]
    rows = lay_out(reads)
    for row, parents in enumerate(reads):
        for parent in parents:
            lane = rows[parent].lane
            assert rows[parent].continues
            assert lane in rows[row].incoming
            # The rail is drawn through every row in between, and nobody else stands on it.
            assert all(lane in between.passing and between.lane != lane for between in rows[parent + 1 : row])
    assert all(flow.lane not in flow.passing for flow in rows)


# --- numbers and texts ---


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123, "12.3 µs"),
        (0.87, "870 µs"),
        (0.9996, "1.00 ms"),
        (12.149, "12.1 ms"),
        (1234.5, "1,234 ms"),
        (0, "0"),
        (83_000, "1 min 23 s"),
    ],
)
def test_durations_are_readable(value: float, text: str) -> None:
    assert quantities.milliseconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.99999987, "0.99999987"),
        (1.0, "1"),
        (0.031234, "0.03123"),
        (9.2e-7, "9.2e-07"),
        (65504, "65,504"),
        (float("nan"), "NaN"),
        (-0.25, "-0.25"),
    ],
)
def test_unitless_numbers_keep_their_nines(value: float, text: str) -> None:
    assert quantities.number(value) == text


@pytest.mark.parametrize(
    ("values", "unit", "message"),
    [
        ((0.99999999, 1.0), "", ("0.999999990", "1")),
        ((1.0, 1.0), "", ("1", "1")),
        ((20.0004, 20.0), "ms", ("20.0004 ms", "20.0000 ms")),
        ((0.5, 20.0), "ms", ("500 µs", "20.0 ms")),
        ((2.0**30 + 1, 2.0**30), "bytes", ("1,073,741,825 bytes", "1,073,741,824 bytes")),
        ((math.nan, 1.0), "", ("NaN", "1")),
        ((1e-9, 1.0000001e-9), "", None),
        ((0.0, 1e-300), "ms", None),
    ],
)
def test_values_that_differ_look_different(
    values: tuple[float, float], unit: str, message: tuple[str, str] | None
) -> None:
    found = quantities.apart(values, unit)
    assert found == message if message else len(set(found)) == 2


def test_sizes_keep_their_unit_until_one_would_vanish() -> None:
    assert quantities.size_change(4_745_517, 2_391_040) == "4.53 -> 2.28 MiB"
    assert quantities.size_change(10_911_234, 5_452_595) == "10.4 -> 5.2 MiB"
    assert quantities.size_change(4_745_517, 2000) == "4.53 MiB -> 1.95 KiB"
    assert quantities.size_change(2 * 1024**3, 1024**3) == "2.00 -> 1.00 GiB"


def test_control_characters_become_visible() -> None:
    assert visible_name("a\x00b\nc\x1b[31md\ud800") == "a␀b␊c␛[31md\ufffd"
    assert visible_text("\x1b[31mred\x1b[0m\r\nnext\x07") == "red\nnext␇"
    assert short_name("x" * 10_000) == "x" * 106 + "…" + "x" * 53


# --- the file ---


class Tags(HTMLParser):
    """Every tag and attribute that a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("write", [write_quickstart, write_failed, write_hostile])
def test_a_report_has_no_external_references(tmp_path: Path, write: object) -> None:
    assert callable(write)
    tags = Tags(draw_report(write(tmp_path)).read_text("utf-8")).found
    names = [tag for tag, _ in tags]
    assert names.count("script") == 3
    assert not {"img", "iframe", "object", "embed", "form", "base", "audio", "video"} & set(names)
    for _, attributes in tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "action", "srcset")]
        link = attributes.get("href") or "#"
        assert link.startswith(("#", "data:,", "./"))
        assert not link.startswith("./") or ".." not in link.split("/"), "a link leads out of the run's folder"
    policy = next(a["content"] for _, a in tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    text = draw_report(write_hostile(tmp_path)).read_text("utf-8")
    assert "<img" not in text
    assert "<svg/onload" not in text
    assert "\x00" not in text
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in text
    assert {visible_name(name) for name in HOSTILE_NAMES} <= texts_of(data_of(text))


def test_a_step_name_cannot_leave_the_run_folder(tmp_path: Path) -> None:
    inside = tmp_path / "runs" / "one"
    write_hostile(inside)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "profile.json").write_text(profile("stolen", 1, 1, 1).to_json())
    assert "../../outside" not in read_run(inside).of(Profile)


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    first = draw_report(write_quickstart(tmp_path / "a")).read_bytes()
    second = draw_report(write_quickstart(tmp_path / "b")).read_bytes()
    assert first == second


def test_the_page_holds_every_sample_and_layer(tmp_path: Path) -> None:
    data = data_of(draw_report(write_quickstart(tmp_path)).read_text("utf-8"))
    layers = data["layers"]
    assert [len(run["ms"]) for item in data["panels"]["latency"] for run in item["runs"]] == [80] * 10
    assert [len(layer["columns"]["name"]) for layer in layers] == [337, 330]
    assert [len(layer["timeline"]["lane"]) for layer in layers] == [406, 398]


def test_many_layers_stay_small(tmp_path: Path) -> None:
    report = draw_report(write_big(tmp_path, layer_count=5000, profiles=1))
    assert report.stat().st_size < 560_000


def test_a_non_finite_sample_does_not_prevent_a_report(tmp_path: Path) -> None:
    broken = profile("half", 10, 1, 3).model_copy(update={"runs": (ProfileRun(latency_ms=(1.0, float("nan"), 2.0)),)})
    folder = write_run(tmp_path, run_record([StepSketch("speed", "profile")]), {"speed/profile.json": broken})
    (charts,) = data_of(draw_report(folder).read_text("utf-8"))["panels"]["latency"]
    assert [run["ms"] for run in charts["runs"]] == [[1.0, 2.0]]


def test_every_static_file_is_used() -> None:
    files = report_files()
    reports = (RUN_REPORT, PROFILE_REPORT, COMPARISON_PAGE, SWEEP_PAGE, HISTORY_PAGE)
    others = (MODEL_PAGE, DIFF_PAGE, ACTIVATIONS_PAGE, ENGINES_PAGE)
    pages = (*reports, *others)
    scripts = {module.path for page in pages for module in modules_of(page.entry, files, page.panels)}
    static = {EARLY_SCRIPT, *(name for page in pages for name in page.styles)}
    used = {*scripts, *(f"static/{name}" for name in static)}
    folder = Path(str(files))
    assert used == {str(path.relative_to(folder)) for path in folder.rglob("*.*") if path.suffix in (".js", ".css")}
    assert all(len(set(page.styles)) == len(page.styles) for page in pages)


def test_an_unreadable_document_is_reported(tmp_path: Path) -> None:
    write_quickstart(tmp_path)
    (tmp_path / "lint" / "findings.json").unlink()
    (tmp_path / "lint" / "findings.json").mkdir()
    (problem,) = read_run(tmp_path).unreadable
    assert problem.startswith("lint/findings.json ") and os.strerror(errno.EISDIR) in problem


def test_a_damaged_document_is_reported_and_the_rest_is_drawn(tmp_path: Path) -> None:
    write_quickstart(tmp_path)
    (tmp_path / "speed" / "profile.json").write_text('{"format_version": 1, "la')
    page = page_of(tmp_path)
    assert [sentence.split(":")[0] for sentence in page.unreadable] == ["speed/profile.json cannot be read"]
    assert [item.label for item in page.views["latency"]] == ["source"]
    assert "speed/profile.json cannot be read" in draw_report(tmp_path).read_text("utf-8")


@pytest.mark.parametrize(("document", "line"), [("accuracy", 2), ("profile", 3)])
def test_a_result_whose_record_cannot_be_read_is_unknown(tmp_path: Path, document: str, line: int) -> None:
    """It was checked or measured, so "not checked" would be wrong."""
    write_quickstart(tmp_path)
    for path in tmp_path.glob(f"*/{document}.json"):
        path.write_text('{"format_version": 1, "la')
    assert "unknown" in verdict_of(tmp_path)[line]
    assert "unknown" in draw_report(tmp_path).read_text("utf-8").split('class="glance"')[1]


@pytest.mark.parametrize("content", [None, "", "{}", '{"format_version": 1'])
def test_a_folder_without_a_readable_run_is_refused_in_one_paragraph(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(RequestError) as caught:
        draw_report(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_report_that_cannot_be_written_leaves_no_files(tmp_path: Path, check_message: CheckMessage) -> None:
    write_quickstart(tmp_path)
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OutputsError) as caught:
        draw_report(tmp_path)
    check_message(caught.value)
    assert not list(tmp_path.glob(".report*"))


def test_a_page_is_written_through_a_link_and_into_a_pipe(tmp_path: Path) -> None:
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    link.symlink_to(page)
    assert write_page(link, "text", "again") == link
    assert link.is_symlink()
    assert page.read_text() == "text"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        write_page(pipe, "text", "again")
        assert reader.read() == "text"
    assert not pipe.is_file(), "a device such as /dev/null remains one"


def test_an_empty_run_has_a_report(tmp_path: Path) -> None:
    folder = write_run(tmp_path, run_record([], recipe={}), {})
    assert "Steps" in draw_report(folder).read_text("utf-8")


def test_profiles_without_samples_or_layers_have_a_report(tmp_path: Path) -> None:
    empty = profile("half", 1, 1, 0).model_copy(update={"runs": (), "layer_pass_ms": ()})
    no_samples = profile("source", 1, 1, 2)
    bare = tuple(layer.model_copy(update={"samples_ms": ()}) for layer in no_samples.layers)
    documents = {
        "speed/profile.json": empty,
        "base/profile.json": no_samples.model_copy(update={"layers": bare}),
        "agree/accuracy.json": Accuracy.model_validate(accuracy().model_dump() | {"outputs": ()}),
    }
    write_run(tmp_path, run_record(quickstart_steps()), documents)
    assert "not measured" not in draw_report(tmp_path).read_text("utf-8").split('id="gates"')[0]


def test_a_record_survives_serialization(tmp_path: Path) -> None:
    run = run_record(quickstart_steps())
    assert RunRecord.model_validate_json(run.to_json()) == run


HEAVY = ("onnx", "onnxruntime", "numpy", "pandas", "matplotlib", "polygraphy", "onnx_ir", "hydra", "omegaconf")


def test_drawing_imports_nothing_heavy(tmp_path: Path) -> None:
    folder = write_quickstart(tmp_path)
    program = (
        "import sys, pathlib\n"
        "from ndld_flow.report.run_page import draw_report\n"
        "assert 'jinja2' not in sys.modules\n"
        f"draw_report(pathlib.Path({str(folder)!r}))\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert printed.stdout == "[]\n"
    assert printed.stderr == ""


def test_bars_of_fractions_of_a_millisecond_are_long() -> None:
    bars = environment().from_string('{% from "macros.html.j2" import pair %}{{ pair(0.04, 0.05) }}{{ pair(0, 0) }}')
    assert re.findall(r"width:([\d.]+)%", bars.render()) == ["80.00", "100.00", "0.00", "0.00"]


def test_a_setting_in_a_warning_is_code(tmp_path: Path) -> None:
    write_run(tmp_path, run_record(quickstart_steps()).model_copy(update={"doubts": ("Add `check_accuracy` <b>",)}), {})
    assert "Add <code>check_accuracy</code> &lt;b&gt;" in draw_report(tmp_path).read_text("utf-8")


@pytest.mark.parametrize(
    ("steps", "outcome", "advised"),
    [
        (("quantize",), "failed", True),
        (("convert_fp16",), "failed", True),
        (("quantize",), "passed", False),
        (("find_precision", "quantize"), "failed", False),
        (("sanitize",), "failed", False),
    ],
)
def test_a_search_is_advised_where_a_reduced_precision_fails_its_check(
    steps: Sequence[str], outcome: str, advised: bool
) -> None:
    run = SimpleNamespace(steps=[SimpleNamespace(step=name) for name in (*steps, "check_accuracy")])
    summary: Any = SimpleNamespace(run=run, accuracy=SimpleNamespace(accuracy=SimpleNamespace(outcome=outcome)))
    assert ("find_precision" in remedy_words(summary)) is advised
