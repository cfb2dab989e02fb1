"""One number for one name: whatever surface prints a metric, a layer's time or a ratio prints the record's value."""

from __future__ import annotations

import csv
import html
import io
import random
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from ndld_flow.base.quantities import ABSENT, apart, milliseconds, number, quantity, ratio_change, size
from ndld_flow.cli.comparison_table import _changed_layers, _metric_table
from ndld_flow.cli.live import draw_variants
from ndld_flow.cli.plain import describe_variant
from ndld_flow.execution.events import VariantTried
from ndld_flow.measure.profiler import metrics_of
from ndld_flow.profiles.compare.comparison import compare
from ndld_flow.profiles.compare.measured import Measured, Rules, compare_metrics
from ndld_flow.profiles.diagnose.diagnose import triage
from ndld_flow.profiles.diagnose.subject import Subject as Diagnosed
from ndld_flow.records.comparison import Comparison, ProfileComparison, Subject
from ndld_flow.records.optimization import Optimization
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import read_run
from ndld_flow.report.comparison.page import collect_comparison
from ndld_flow.report.comparison.verdicts import metric_values
from ndld_flow.report.exports.pictures import largest_changes, picture_groups, sweep_drawing
from ndld_flow.report.exports.pull_requests import comparison_markdown, run_markdown
from ndld_flow.report.exports.spreadsheets import comparison_csv, layers_csv, points_csv, sweep_markdown
from ndld_flow.report.panels.optimization import collect
from ndld_flow.report.run_page import draw_report
from tests.support import comparison_fixtures, sweep_samples
from tests.support.compare_samples import layer, profile_of
from tests.support.optimization_samples import FRONT, RACE, SEARCH, write_optimized

_NAMES = {"throughput": "throughput.median"}
"""Metric of comparisons -> its name in profiles, if that differs."""
RUNS = st.lists(st.lists(st.floats(0.01, 1e3), min_size=1, max_size=5), min_size=1, max_size=7)


def uneven(scale: float, runs: int = 6, seed: int = 1) -> Profile:
    """A profile whose runs differ, in the timing pass and in the layer pass, so that medians of runs, of passes and of
    sums all differ."""
    rng = random.Random(seed)
    passes = [5, 7, 3][:runs]
    layers = [
        layer(name, nodes=[name], dims=(1, size), ms=[scale * rng.lognormvariate(0, 0.6) * size for _ in range(15)])
        for size, name in enumerate(("stem", "body", "neck", "head"), start=1)
    ]
    timed = [[scale * 12 * rng.lognormvariate(0, 0.4) for _ in range(4)] for _ in range(runs)]
    return profile_of(timed, layers, layer_runs=tuple(passes), layer_pass_ms=(1.0,) * 15)


def printed(compared: ProfileComparison) -> str:
    """Return the table of metrics that the terminal shows."""
    console = Console(file=io.StringIO(), width=250)
    console.print(_metric_table(compared, 1, ["main", "branch"]))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def comparison_of_uneven() -> tuple[Comparison, list[list[Profile]]]:
    profiles = [uneven(10.0), uneven(9.0, seed=2)]
    subjects = [Subject(label=label, location="", kind="run") for label in ("main", "branch")]
    measured = [Measured(index, "", profile) for index, profile in enumerate(profiles)]
    return compare(subjects, {"speed": measured}, Rules(metric="latency.median")), [profiles]


@settings(deadline=None)
@given(RUNS, st.booleans())
def test_a_comparison_has_the_metrics_of_its_profiles(runs: list[list[float]], layered: bool) -> None:
    measured = profile_of(runs) if not layered else uneven(1.0).model_copy(update={"runs": profile_of(runs).runs})
    own = metrics_of(measured)
    shared = {
        metric.metric: metric.values[0]
        for metric in compare_metrics([Measured(0, "", measured)])
        if _NAMES.get(metric.metric, metric.metric) in own
    }
    assert {"latency.median", "latency.min", "latency.p99", "throughput"} <= shared.keys()
    assert shared == pytest.approx({name: own[_NAMES.get(name, name)].value for name in shared})


def test_each_statistic_is_that_of_a_typical_run() -> None:
    """The smallest of all passes would depend on the number of runs, and comparisons need a value for each run."""
    own = metrics_of(profile_of([[5.0, 9.0, 7.0], [1.0, 8.0, 3.0], [4.0, 6.0, 6.5]]))
    assert own["latency.min"].value == 4.0
    assert own["latency.p99"].value == 8.0
    assert own["latency.median"].value == 6.0


def test_layers_add_up_to_their_sum_in_every_surface() -> None:
    measured = uneven(1.0)
    subject = Diagnosed(measured)
    passes = statistics.median(map(sum, zip(*(layer.samples_ms for layer in measured.layers), strict=True)))
    total = metrics_of(measured)["layers.sum"].value
    assert total == pytest.approx(sum(measured.layer_times.ms))
    assert total != pytest.approx(passes)
    assert (subject.layers_ms, triage(measured).layers_ms) == pytest.approx((total, total))
    assert sum(group.sum_ms for group in triage(measured).by_type) == pytest.approx(total)
    cells = list(csv.DictReader(io.StringIO(layers_csv([("one", measured)]))))
    assert [float(row["median_ms"]) for row in cells] == pytest.approx(measured.layer_times.ms)


def test_the_changes_of_layers_add_up_to_the_change_of_their_sum() -> None:
    comparison, profiles = comparison_of_uneven()
    (compared,) = comparison.profiles
    (sums,) = (metric.values for metric in compared.metrics if metric.metric == "layers.sum")
    rows = csv.DictReader(io.StringIO(comparison_csv(comparison, profiles)))
    assert sum(float(row["delta_ms"]) for row in rows) == pytest.approx((sums[1] or 0) - (sums[0] or 0))
    (verdict,) = (verdict for verdict in compared.verdicts if (verdict.metric, verdict.base) == ("layers.sum", 0))
    assert verdict.ratio == pytest.approx((sums[1] or 0) / (sums[0] or 1))


def test_every_surface_of_a_comparison_prints_the_same_numbers() -> None:
    comparison, profiles = comparison_of_uneven()
    (compared,) = comparison.profiles
    (page,) = collect_comparison(comparison, profiles).profiles
    markdown = comparison_markdown(comparison, profiles)
    terminal = [re.split(r" {2,}", line.strip()) for line in printed(compared).splitlines()]
    html = {row.metric: [cell.value for cell in row.cells] for row in page.metrics}
    for metric in compared.metrics:
        record = [metrics_of(item).get(_NAMES.get(metric.metric, metric.metric)) for item in profiles[0]]
        if None not in record:
            assert metric.values == pytest.approx([item.value for item in record if item is not None])
        texts = [quantity(value, metric.unit) for value in metric.values if value is not None]
        verdict = next(
            (verdict for verdict in compared.verdicts if (verdict.metric, verdict.base) == (metric.metric, 0)), None
        )
        behind = metric_values(metric, 1, verdict)
        values = (
            metric.values if verdict is None or None in metric.values else (verdict.base_value, verdict.candidate_value)
        )
        assert html[metric.metric] == [quantity(value, metric.unit) for value in values if value is not None]
        assert [metric.metric, *behind] in [row[: 1 + len(texts)] for row in terminal]
        assert " | ".join(behind) in markdown
    (group,) = picture_groups(comparison)
    (deciding,) = (item for item in compared.deciding if item.base == 0)
    assert [row.value for row in group.rows] == [deciding.base_value, deciding.candidate_value]


def test_cells_of_many_subjects_print_the_values_of_the_sentence() -> None:
    subjects = [comparison_fixtures.subject(f"v{index}", index) for index in range(4)]
    measured = {index: comparison_fixtures.in_turns("x", 10.0 + index, 1 + index, turn=index) for index in range(4)}
    four = comparison_fixtures.compared(subjects, {"x": measured})
    (compared,), (page,) = four.comparison.profiles, collect_comparison(four.comparison, four.profiles).profiles
    (row,) = (metric for metric in page.metrics if metric.decides)
    for verdict in compared.deciding:
        printed_pair = verdict.why.partition(" in the middle pair")[0].rpartition("latency.min ")[2]
        base, candidate = row.cells[0].value, row.cells[verdict.candidate]
        assert printed_pair.replace("->", "→") in (f"{base} → {candidate.value}", candidate.pair[len("in pairs ") :])


def test_every_surface_of_a_comparison_prints_the_same_times_of_layers() -> None:
    comparison, profiles = comparison_of_uneven()
    (compared,) = comparison.profiles
    expected = {
        " + ".join(profiles[0][0].layers[at].name for at in row.layers[0]): [
            item.layer_times.sum_ms(places) for item, places in zip(profiles[0], row.layers, strict=True)
        ]
        for row in compared.rows
    }
    (page,) = collect_comparison(comparison, profiles).profiles
    assert {row.name: [row.base_ms, row.candidate_ms] for row in page.largest} == expected
    table = list(csv.DictReader(io.StringIO(comparison_csv(comparison, profiles))))
    found = {row["base_layers"]: [float(row["base_ms"]), float(row["candidate_ms"])] for row in table}
    assert found == {name: pytest.approx(times) for name, times in expected.items()}
    ratios = {row["base_layers"]: float(row["ratio"]) for row in table}
    assert ratios == pytest.approx({name: after / before for name, (before, after) in expected.items()})
    picture = {change.name: [change.base_ms, change.candidate_ms] for change in largest_changes(comparison, profiles)}
    assert picture == expected
    shown = _changed_layers(compared, profiles[0], 1)
    assert shown is not None
    assert sorted(row[:2] for row in shown.rows) == sorted(tuple(times) for times in expected.values())
    markdown = comparison_markdown(comparison, profiles)
    assert all(f"| {milliseconds(a)} | {milliseconds(b)} |" in markdown for a, b in expected.values())


@pytest.mark.parametrize("runs", [2, 5, 6])
def test_a_ratio_of_other_values_is_labelled(runs: int) -> None:
    """Pairs of runs on a machine that drifts have another ratio than the medians of both sides."""
    drifting: Sequence[float] = [8.0, 9.0, 9.38, 20.0, 30.0, 31.0][:runs]
    slower: Sequence[float] = [9.0, 10.2, 18.0, 22.6, 33.0, 36.0][:runs]
    profiles = [profile_of([[ms] * 3 for ms in side], session="one") for side in (drifting, slower)]
    subjects = [Subject(label=label, location="", kind="run") for label in ("main", "branch")]
    measured = [Measured(index, "", profile) for index, profile in enumerate(profiles)]
    comparison = compare(subjects, {"speed": measured}, Rules(metric="latency.median"))
    (compared,) = comparison.profiles
    (verdict,) = compared.deciding
    (metric,) = (metric for metric in compared.metrics if metric.metric == "latency.median")
    before, after = (value or 0.0 for value in metric.values)
    is_apart = abs(after / before / verdict.ratio - 1) > 0.003
    assert is_apart == (runs >= 5)
    (page,) = collect_comparison(comparison, [profiles]).profiles
    assert [cell.value for cell in page.metrics[0].cells] == [
        quantity(verdict.base_value, "ms"),
        quantity(verdict.candidate_value, "ms"),
    ]
    assert page.metrics[0].cells[1].pair == ""
    behind = apart((verdict.base_value, verdict.candidate_value), "ms")
    assert f"| {' | '.join(behind)} | {verdict.ratio:.3f}" in comparison_markdown(comparison, [profiles])
    ranked = collect_comparison(comparison, [profiles]).ranked
    assert [row.value for row in ranked] == [
        quantity(value, "ms") for value in (verdict.base_value, verdict.candidate_value)
    ]
    assert any(
        "latency.median" in line and all(text in line for text in behind) for line in printed(compared).splitlines()
    )


@pytest.mark.parametrize("found", [RACE, SEARCH, FRONT], ids=["race", "search", "front"])
def test_every_surface_of_an_optimization_prints_the_same_conclusion(found: Optimization, tmp_path: Path) -> None:
    folder = write_optimized(tmp_path, found)
    documents = read_run(folder)
    assert documents.optimization == found
    page = html.unescape(re.sub(r"<[^>]+>", "", draw_report(folder).read_text("utf-8")))
    markdown = html.unescape(re.sub(r"</?code>|\\\\", "", run_markdown(documents)))
    terminal = "\n".join(found.conclude_fully())
    _, _, _, tried, *_ = found.conclude()
    for line in terminal.replace(tried, found.describe_search()).splitlines():
        assert line in page
        assert line in markdown
    assert tried.startswith(found.describe_search())
    assert (size(found.size_bytes), size(found.source_bytes)) == tuple(re.findall(r"[\d.]+ MiB", terminal)[:2])
    if found is RACE and found.speed is not None:
        assert found.speed.describe()[0] in page
    for gain in (*found.gains, *(gain for point in found.front for gain in point.gains)):
        assert f"{gain.objective} {ratio_change(gain.ratio)}" in terminal


def test_every_surface_of_a_race_prints_the_same_speeds(tmp_path: Path) -> None:
    view = collect(read_run(write_optimized(tmp_path, RACE)))
    assert view is not None
    rows = {row.name: row for row in view.rows}
    console = Console(file=io.StringIO(), width=250)
    console.print(draw_variants([VariantTried(variant=variant) for variant in RACE.variants], 250, 50))
    assert isinstance(console.file, io.StringIO)
    live = console.file.getvalue()
    for variant in RACE.variants:
        row, line = rows[variant.name], describe_variant(VariantTried(variant=variant))
        for name, metric in list(variant.metrics.items())[:1]:
            assert f"{name} {number(metric.value)}" in row.accuracy
            assert f"{name} {number(metric.value)}" in line
            assert f"{name} {number(metric.value)}" in live
        assert row.times == (f"{1 / variant.speed.ratio:.2f}x" if variant.speed is not None else ABSENT)
        if variant.speed is not None:
            times = f"{1 / variant.speed.ratio:.2f}x"
            assert (
                f"{times} as fast as the source ({1 / variant.speed.high:.2f}x to {1 / variant.speed.low:.2f}x)" in line
            )
            assert times in live


def test_variants_of_a_sweep_share_one_column_of_objectives(tmp_path: Path) -> None:
    """The proof of the best has a ratio, which is no objective."""
    view = collect(read_run(write_optimized(tmp_path, FRONT)))
    assert view is not None
    assert {row.name: row.times for row in view.rows} == {
        variant.name: ", ".join(quantity(metric.value, metric.unit) for metric in variant.objectives.values())
        for variant in FRONT.variants
    }
    assert view.ticks == ()


@pytest.mark.parametrize("is_curve", [False, True])
def test_the_picture_of_a_sweep_has_the_numbers_of_its_table(is_curve: bool) -> None:
    record = sweep_samples.batches() if is_curve else sweep_samples.variants()
    assert any(point.again for point in record.points)
    draw = sweep_drawing(record)
    assert draw is not None
    figure = draw()
    (axes,) = figure.axes
    goal = record.objectives[0]
    rows = csv.DictReader(io.StringIO(points_csv(record)))
    name = f"{goal.text} {goal.unit}"
    # A trade-off has the second measurements, which rank; a curve the first ones, which all points have.
    shown = [float(text) for row in rows if (text := (not is_curve and row[f"{name} again"]) or row[name])]
    drawn = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.lines])
    assert len(drawn) > 10
    assert all(any(y == pytest.approx(value, rel=1e-3) for value in shown) for y in drawn)
    assert any(text.get_text().startswith("first measurement") for text in figure.texts) == is_curve
    assert "as first measured" in sweep_markdown(record)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0009999, "0.001"), (0.00012345, "0.00012"), (0.0012345, "0.001234"), (999.96, "1,000"), (1234.56, "1,234.6"),
        (999_999.9, "999,999.9"), (1_234_567.8, "1.2e+06"), (-0.00012345, "-0.00012"), (0.99998, "0.999980"),
    ],
)  # fmt: skip
def test_numbers_have_the_digits_that_are_read(value: float, text: str) -> None:
    assert number(value) == text
