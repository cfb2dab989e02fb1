"""Page data of a sweep and its exports, without a browser."""
# ruff: noqa: RUF001

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from pydantic import JsonValue

from ndld_flow.base.errors import FormatError, RequestError
from ndld_flow.base.quantities import quantity
from ndld_flow.records.document import PLAIN_VERSIONS
from ndld_flow.records.measurement import Metric
from ndld_flow.records.run_folder import SWEEP_RECORD, read_sweep_record
from ndld_flow.records.sweep import MeasuredAgain, SweepObjective, SweepPoint, SweepRecord
from ndld_flow.report.exports.pictures import _curve
from ndld_flow.report.exports.spreadsheets import points_csv, sweep_markdown, write_sweep_exports
from ndld_flow.report.sweep.dimensions import collect_curves, collect_dimensions, saturates_at
from ndld_flow.report.sweep.outcome import find_own_point, points_words, recipe_lines, summarize_sweep, sweep_verdict
from ndld_flow.report.sweep.page import collect_page, draw_sweep
from tests.support import sweep_samples as sweeps
from tests.support.message_files import CheckMessage
from tests.support.text_facts import numbers_in


def said(record: SweepRecord) -> str:
    return sweep_verdict(record).sentence


def changed(record: SweepRecord, number: int, **values: object) -> SweepRecord:
    """The same with one point changed."""
    points = tuple(point.model_copy(update=values) if point.number == number else point for point in record.points)
    return record.model_copy(update={"points": points})


# --- the verdict ---


def test_the_verdict_names_the_best_the_gain_and_the_ties() -> None:
    settings, gain, ties = said(sweeps.session()).split("; ")
    best, _, values = settings.partition(": ")
    assert best.startswith("Point 21 ")
    assert values == "speed.threads 2, speed.optimization all, speed.execution sequential, speed.arena true"
    assert gain.startswith("8.60 ms, 1.64× ") and "(point 9)" in gain and numbers_in(gain)[-2:] == [8.59, 14.0]
    assert numbers_in(ties) == [17, 22]


def remeasured(record: SweepRecord, number: int, value: float, load: float | None = 9.1) -> SweepRecord:
    """Return a sweep in which one winner was measured again with another value, under a load."""
    point = next(point for point in record.points if point.number == number)
    assert point.again is not None
    again = point.again.model_copy(update={"objectives": (value,)})
    sessions = tuple(session.model_copy(update={"load": load}) for session in record.sessions)
    return changed(record, number, again=again).model_copy(update={"sessions": sessions})


@pytest.mark.parametrize(
    ("value", "is_noisy"), [(178.0, True), (0.1, True), (9.3, False), (math.nan, False), (0.0, False)]
)
def test_a_sweep_whose_points_differ_less_than_their_measurements_is_not_ranked(value: float, is_noisy: bool) -> None:
    record = remeasured(sweeps.session(), 21, value)
    verdict = sweep_verdict(record)
    assert (record.too_noisy is not None) == is_noisy == verdict.is_noisy
    assert (verdict.outcome == "inconclusive") == is_noisy
    assert ("load 9.1 on " in verdict.sentence) == is_noisy
    assert (collect_page(record).verdict.outcome == "inconclusive") == is_noisy
    assert ("point 21 was 8.59 ms, then" in sweep_markdown(record)) == is_noisy
    assert next(summarize_sweep(record)).startswith("Too noisy to rank") == is_noisy


def test_a_sweep_is_not_too_noisy_without_a_second_measurement_or_with_one_point() -> None:
    assert sweeps.single().too_noisy is None
    assert sweeps.none_tried().too_noisy is None
    record = remeasured(sweeps.session(), 21, 178.0)
    alone = record.model_copy(update={"points": tuple(p for p in record.points if p.number == 21)})
    assert alone.too_noisy is None


def test_every_surface_of_a_sweep_prints_the_same_numbers() -> None:
    record = sweeps.session()
    view = collect_page(record).winners
    assert view is not None
    rows = {int(row["point"]): row for row in csv.DictReader(io.StringIO(points_csv(record)))}
    markdown = sweep_markdown(record)
    for shown in view.rows:
        point = next(point for point in record.points if point.number == shown.number)
        assert float(rows[point.number]["speed.latency.min ms"]) == pytest.approx(point.objectives[0])
        assert shown.goals[0].first == quantity(point.objectives[0] or 0.0, "ms")
        if point.again is None:
            assert shown.goals[0].decides == "", "it is ranked by its first measurement only"
            continue
        again = point.again.objectives[0] or 0.0
        assert float(rows[point.number]["speed.latency.min ms again"]) == pytest.approx(again)
        assert shown.goals[0].decides == quantity(again, "ms")
        assert f"{shown.goals[0].decides}, first {shown.goals[0].first}" in markdown
        assert shown.ratio in markdown
    assert view.rows[0].goals[0].decides in next(summarize_sweep(record))


def test_all_charted_quantities_of_a_point_are_of_the_measurement_that_ranks_it() -> None:
    record = sweeps.session()
    (point,) = (point for point in record.points if point.number == 21)
    assert point.again is not None
    again = point.again.model_copy(update={"metrics": {"speed.latency.p99": sweeps.ms(99.0)}})
    changed_record = changed(record, 21, again=again)
    dimensions = {
        dimension.label: dimension for dimension in collect_dimensions(changed_record) if dimension.kind != "axis"
    }
    row = record.points.index(point)
    goal, tail = dimensions["speed.latency.min"], dimensions["speed.latency.p99"]
    assert goal.numbers is not None
    assert tail.numbers is not None
    assert goal.finals[row] == pytest.approx(point.again.objectives[0], rel=1e-4) != goal.numbers[row]
    assert tail.finals[row] == 99.0 != tail.numbers[row]
    once = [index for index, point in enumerate(record.points) if point.again is None]
    assert once
    assert all(goal.finals[index] == goal.numbers[index] for index in once)


def test_the_front_is_named_with_several_objectives() -> None:
    text = said(sweeps.variants())
    assert "speed.latency.min 7." in text
    assert "20 is best in speed.latency.min:" in text
    assert re.search(r" points .*; no point ", text)


def test_a_front_of_one_point_is_best_in_everything() -> None:
    record = sweeps.variants()
    points = tuple(point.model_copy(update={"on_front": point.number == record.best}) for point in record.points)
    text = said(record.model_copy(update={"points": points}))
    assert text.startswith("Point 20 is best: ")
    assert "; no other point" in text


def test_larger_values_are_better_when_maximized() -> None:
    record = sweeps.batches()
    own = find_own_point(record)
    assert own is not None
    assert own.values["inputs.x.shape"] == [1, 3, 320, 320]
    assert "recipe's own settings (point 6)" in said(record)


def test_the_recipe_itself_may_be_best_or_as_good_or_fail() -> None:
    record = sweeps.session()
    swapped = record.model_copy(update={"best": 9})
    assert "best, the recipe unchanged:" in said(swapped)
    tie = changed(record, 9, tied=True)
    assert "recipe's own settings (point 9)" in said(tie)
    failed = changed(record, 9, outcome="failed")
    assert "own settings (point 9) failed" in said(failed)


@pytest.mark.parametrize(
    ("best_ms", "own_ms", "words"),
    [
        (8.59, 8.77, "1.021× as fast"),
        (8.59, 8.5901, "against 8.59 ms"),
        (8.59, 8.59, "against 8.59 ms"),
        (8.59, 8.0, "against 8.00 ms"),
        (0.0, 8.0, "against 8.00 ms"),
    ],
)
def test_only_a_significant_gain_is_shown_as_a_factor(best_ms: float, own_ms: float, words: str) -> None:
    record = changed(sweeps.session(), 9, again=None, objectives=(own_ms,))
    record = changed(record, 21, again=None, objectives=(best_ms,))
    assert words in said(record) and "(point 9), " in said(record)
    assert ("as fast" in said(record)) == ("as fast" in words)


def test_both_sides_of_a_gain_are_measured_under_the_same_conditions() -> None:
    """The best measured again is not held against what the recipe was at first, which was another session."""
    record = changed(sweeps.session(), 9, again=None, objectives=(17.18,))
    best = next(point for point in record.points if point.number == 21)
    assert best.again is not None
    record = changed(record, 21, objectives=(8.59,), again=best.again.model_copy(update={"objectives": (4.0,)}))
    first = "by the first measurement: 8.59 ms against 17.2 ms;"
    assert f"recipe's own settings (point 9), {first}" in said(record)


WORSE = {"verdict": "worse"}


@pytest.mark.parametrize(
    ("again", "direction", "words"),
    [
        ({**WORSE, "ratio": 1.25, "ratio_low": 1.1, "ratio_high": 1.5}, "minimize", "1.25× (1.100× to 1.50×) as fast"),
        ({**WORSE, "ratio": 0.8, "ratio_low": 0.5, "ratio_high": 0.9}, "maximize", "1.25× (1.11× to 2.00×) as fast"),
        ({**WORSE, "ratio": 2.0}, "minimize", "ms, 2.00× as fast"),
        (WORSE, "minimize", "ms, faster"),
        ({"verdict": "inconclusive", "ratio": 1.3}, "minimize", "ms, not faster"),
    ],
)
def test_a_gain_over_a_recipe_measured_again_comes_from_process_runs(
    again: dict[str, Any], direction: str, words: str
) -> None:
    record = changed(sweeps.session(), 9, again=MeasuredAgain(metrics={}, objectives=(14.0,), **again))
    goal = record.objectives[0].model_copy(update={"direction": direction})
    text = said(record.model_copy(update={"objectives": (goal,)}))
    confidence = "" if "×" in words else " at 95 % confidence"
    assert f"(point 9){confidence}; points 17 and 22 tie" in text
    assert ("; point 9 " in text) == (again["verdict"] == "inconclusive")


@pytest.mark.parametrize(
    ("make", "words", "counts"),
    [
        (sweeps.none_tried, "No point", []),
        (sweeps.failed_only, "1 refused, 2 failed.", [1, 2]),
        (sweeps.no_objective, "no objective", [4]),
        (sweeps.single, "Point 1 is best: speed.threads 2; 7.96 ms; no point", [1, 2, 7.96]),
    ],
)
def test_a_sweep_without_a_winner_gives_the_reason(
    make: Callable[[], SweepRecord], words: str, counts: list[float]
) -> None:
    assert words in said(make()) and numbers_in(said(make())) == counts


def test_long_lists_of_numbers_are_shortened() -> None:
    assert points_words([4]) == "point 4"
    assert points_words([4, 9]) == "points 4 and 9"
    assert points_words(range(1, 31), most=3) == "points 1, 2, 3 and 27 more"


# --- the recipe's lines ---


def test_recipe_lines_are_valid_in_the_recipe() -> None:
    record = sweeps.batches()
    best = record.points[-1]
    assert recipe_lines(best, record.recipe) == (
        "steps:\n  speed:\n    threads: 2\ninputs:\n  x:\n    shape: [32, 3, 320, 320]"
    )


def test_names_with_dots_stay_whole_when_the_recipe_has_them() -> None:
    recipe: dict[str, JsonValue] = {"inputs": {"x.1": {"shape": [1]}, "x": {"shape": [2]}}}
    assert lines({"inputs.x.1.shape": [3]}, recipe) == {"inputs": {"x.1": {"shape": [3]}}}
    assert lines({"inputs.x.shape": [3]}, recipe) == {"inputs": {"x": {"shape": [3]}}}
    assert lines({"steps.new.threads": 2}, recipe) == {"steps": {"new": {"threads": 2}}}


def test_a_list_with_changed_items_is_written_completely() -> None:
    recipe: dict[str, JsonValue] = {"inputs": {"x": {"shape": [1, 3, 48, 96]}}, "steps": {"e": {"block": [{"a": [1]}]}}}
    changes: dict[str, JsonValue] = {"inputs.x.shape.0": 8, "inputs.x.shape.3": 32, "steps.e.block.0.a.0": 5}
    assert lines(changes, recipe) == {
        "inputs": {"x": {"shape": [8, 3, 48, 32]}}, "steps": {"e": {"block": [{"a": [5]}]}}
    }  # fmt: skip
    whole: dict[str, JsonValue] = {"inputs.x.shape": [4, 3, 2, 1], "inputs.x.shape.0": 9}
    assert lines(whole, recipe) == {"inputs": {"x": {"shape": [9, 3, 2, 1]}}}
    for item in ("4", "7", "-1", "x", "9" * 5000):
        edited = lines({f"inputs.x.shape.{item}": 1}, recipe)
        assert edited == {"inputs": {"x": {"shape": 1}}}, "no traceback for an edited record"


def lines(changes: dict[str, JsonValue], recipe: dict[str, JsonValue]) -> object:
    return yaml.safe_load(recipe_lines(SweepPoint(number=1, values={}, changes=changes, outcome="passed"), recipe))


@pytest.mark.parametrize(
    ("value", "resolved", "is_own"),
    [
        ("16 MiB", 16777216, True),
        ("2 %", 0.02, True),
        ("2 s", 2000.0, True),
        (1, 1.0, True),
        (True, 1, False),
        ("auto", 1, False),
        ("17 MiB", 16777216, False),
        (None, None, True),
        (None, 0, False),
        ("1", "1", True),
        (1, "1", False),
        ([1, 2], [1, 2], True),
    ],
)
def test_the_point_of_the_recipe_is_found_by_the_meaning_of_its_values(
    value: JsonValue, resolved: JsonValue, is_own: bool
) -> None:
    record = sweeps.single()
    point = record.points[0].model_copy(update={"changes": {"steps.a.list.1.key": value}})
    recipe: dict[str, JsonValue] = {"steps": {"a": {"list": [0, {"key": resolved}]}}}
    found = find_own_point(record.model_copy(update={"points": (point,), "recipe": recipe}))
    assert (found is not None) == is_own


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@given(st.dictionaries(st.text("abc_-: #'\"é", min_size=1, max_size=5), _JSON, min_size=1, max_size=3))
def test_recipe_lines_read_back_whatever_the_values(values: dict[str, JsonValue]) -> None:
    point = SweepPoint(
        number=1, values={}, changes={f"steps.{key}": value for key, value in values.items()}, outcome="passed"
    )
    text = recipe_lines(point, {})
    assert "\x1b" not in text
    if all(letter.isprintable() for letter in json.dumps(values, ensure_ascii=False)):
        assert yaml.safe_load(text) == {"steps": values}


# --- page data ---


def test_empty_sections_are_omitted() -> None:
    names = [name for name, _ in collect_page(sweeps.session()).sections]
    assert names == ["winners", "trade", "parallel", "points", "effects", "failures", "sessions", "repeat"]
    assert [name for name, _ in collect_page(sweeps.none_tried()).sections] == ["repeat"]
    assert [name for name, _ in collect_page(sweeps.failed_only()).sections] == ["points", "failures", "repeat"]


def test_the_head_counts_points_steps_and_time() -> None:
    page = collect_page(sweeps.builds())
    figures = {figure.title: (figure.figure, figure.note) for figure in page.figures}
    assert figures["Points tried"][0] == "72"
    assert figures["Points tried"][1].startswith("60 passed, 8 refused, 4 failed, 6 ")
    assert figures["Steps computed"][0] == "213" and numbers_in(figures["Steps computed"][1]) == [71, 1]
    assert figures["Time"][0] == "49 min 48 s" and numbers_in(figures["Time"][1]) == [1.5, 21]
    goals, _, bound = page.objective.rpartition(", ")
    assert goals == "minimize speed.latency.median and minimize engine.build_s"
    assert bound.endswith("agree.cosine >= 0.999")
    assert page.best is not None
    assert page.best.command.splitlines() == [
        "cd /home/ada/models",
        "ndld-flow run pipelines/rtx_build.yaml --best BEST.yaml",
    ]


def test_reapplying_a_sweep_keeps_one_suffix() -> None:
    record = sweeps.session().model_copy(update={"command": ("ndld-flow", "run", "r.yaml", "--best", "x y.yaml")})
    best = collect_page(record).best
    assert best is not None
    assert best.command.endswith("\nndld-flow run r.yaml --best BEST.yaml")


def test_winners_have_intervals_against_the_best_and_mark_ties() -> None:
    winners = collect_page(sweeps.session()).winners
    assert winners is not None
    assert winners.once == ""
    first, second = winners.rows[:2]
    assert (first.comparison, second.comparison, winners.rows[3].comparison) == ("best", "tie", "")
    assert first.plot is not None
    assert second.plot is not None
    assert second.plot.low < second.plot.point < second.plot.high
    assert first.goals[0].decides == "8.60 ms"
    assert first.goals[0].first == "8.59 ms"
    assert winners.rows[3].goals[0].decides == ""
    assert winners.rows[3].goals[0].first == "8.95 ms"
    assert first.lines.startswith("steps:\n  speed:\n    threads: 2\n")


def test_inconclusive_and_worse_winners_are_distinguished() -> None:
    record = sweeps.session()
    again = MeasuredAgain(metrics={}, objectives=(9.0,), verdict="inconclusive", ratio=1.05)
    record = changed(record, 17, again=again, tied=False)
    record = changed(record, 22, again=again.model_copy(update={"verdict": "worse", "ratio": float("nan")}), tied=False)
    winners = collect_page(record).winners
    assert winners is not None
    rows = {row.number: row for row in winners.rows}
    assert (rows[17].comparison, rows[22].comparison) == ("inconclusive", "worse")
    row = rows[22]
    assert (row.plot, row.ratio, row.interval) == (None, "", "")


def test_failures_are_grouped_by_reason_ignoring_numbers() -> None:
    refused, failed = collect_page(sweeps.builds()).failures
    assert (refused.outcome, len(refused.points)) == ("refused", 8)
    assert (failed.outcome, failed.step, failed.points, failed.alike) == ("failed", "engine", (53, 59, 65, 71), False)
    assert failed.rows == (52, 58, 64, 70)


def test_effects_are_paired_on_a_grid_with_their_number() -> None:
    (view,) = collect_page(sweeps.session()).effects
    assert view.paired
    assert [effect.axis for effect in view.effects] == [
        "speed.threads",
        "speed.optimization",
        "speed.execution",
        "speed.arena",
    ]
    first, second = view.effects[0].levels
    assert (first.label, second.label, second.is_best, second.count) == ("1", "2", True, 11)
    assert second.low <= second.point <= second.high < first.low
    assert not second.is_range
    (grown,) = collect_page(sweeps.batches()).effects
    assert grown.effects[0].levels[0].is_range


def test_effects_of_a_search_note_that_other_settings_are_mixed_in() -> None:
    page = collect_page(sweeps.variants())
    assert page.record.method == "tpe"
    assert len(page.effects) == 3
    assert not all(effect.paired for effect in page.effects[0].effects)


def test_a_difference_inside_the_interval_has_no_best_value() -> None:
    view = collect_page(sweeps.builds()).effects[0]
    streams = next(effect for effect in view.effects if effect.axis == "engine.aux_streams")
    assert not any(level.is_best for level in streams.levels)


def test_few_points_prove_no_value_best() -> None:
    """Two blocks or five may lie apart by luck: only intervals that do not meet say something."""
    for view in collect_page(sweeps.batches()).effects:
        assert not any(level.is_best for effect in view.effects for level in effect.levels)
    first, second = [10.0, 10.1, 10.2, 10.3, 10.4, 10.5, 10.6, 12.0], [10.35, 10.45, 11, 11.1, 11.2, 11.3, 11.4, 11.5]
    axes = (sweeps.axis("s.threads", 1, 2), sweeps.axis("s.seed", *range(16)))
    spots: list[sweeps.Values] = [{"s.threads": 1 + (index > 7), "s.seed": index} for index in range(16)]
    goal = (SweepObjective(text="s.ms", direction="minimize", unit="ms"),)

    def measure(values: sweeps.Values) -> sweeps.Measured:
        return sweeps.Measured({"s.ms": sweeps.ms([*first, *second][int(str(values["s.seed"]))])})

    (view,) = collect_page(sweeps.record(sweeps.Sketch("near", axes, goal, spots, measure))).effects
    levels = next(effect for effect in view.effects if effect.axis == "s.threads").levels
    assert [level.is_best for level in levels] == [False, False], "the worst's interval lacks 10.35, but not 10.6"
    second[:2] = [12.1, 12.2]
    (view,) = collect_page(sweeps.record(sweeps.Sketch("far", axes, goal, spots, measure))).effects
    levels = next(effect for effect in view.effects if effect.axis == "s.threads").levels
    assert [level.is_best for level in levels] == [True, False]
    most = (goal[0].model_copy(update={"direction": "maximize"}),)
    (view,) = collect_page(sweeps.record(sweeps.Sketch("most", axes, most, spots, measure))).effects
    levels = next(effect for effect in view.effects if effect.axis == "s.threads").levels
    assert [level.is_best for level in levels] == [False, True]
    places = [place for place, _ in view.ticks]
    assert 1 < len(places) <= 4
    assert min(b - a for a, b in itertools.pairwise(places)) > 18, "the scale's texts have room"


def test_a_combination_has_one_colour_in_all_curves_of_an_axis() -> None:
    record = sweeps.batches()
    memory = SweepObjective(text="speed.memory.peak_bytes", direction="minimize", unit="bytes")
    points = tuple(
        point.model_copy(
            update={"objectives": (*point.objectives, 1e6 * (3 - int(str(point.values["speed.threads"]))))}
        )
        for point in record.points
    )
    both = record.model_copy(update={"objectives": (*record.objectives, memory), "points": points})
    throughput, of_memory = collect_page(both).curves
    assert of_memory.y.label == "speed.memory.peak_bytes"
    assert (
        [line.label for line in throughput.lines]
        == [line.label for line in of_memory.lines]
        == ["threads 2", "threads 1"]
    )
    worse_second = tuple(
        point.model_copy(update={"objectives": (point.objectives[0], 1e6 * int(str(point.values["speed.threads"])))})
        for point in points
    )
    turned = collect_page(both.model_copy(update={"points": worse_second})).curves[1]
    assert [line.label for line in turned.lines] == ["threads 2", "threads 1"], "not the best in memory first"


def test_how_far_a_cosine_is_from_one_is_kept() -> None:
    record = sweeps.variants()
    points = tuple(
        point.model_copy(
            update={"objectives": (*point.objectives[:2], 1 - point.number * 1e-8), "metrics": {}, "again": None}
        )
        for point in record.points
    )
    data = collect_page(record.model_copy(update={"points": points})).data
    cosine = next(dimension for dimension in data.dimensions if dimension.label == "agree.cosine")
    assert (cosine.numbers or ())[:3] == (0.99999999, 0.99999998, 0.99999997)
    points = (points[0].model_copy(update={"objectives": (1.0, 1.0, 0.9912345)}),)
    data = collect_page(record.model_copy(update={"points": points})).data
    assert next(dimension for dimension in data.dimensions if dimension.label == "agree.cosine").numbers == (0.9912345,)


def test_labels_of_the_ratio_axis_do_not_overlap() -> None:
    record = changed(sweeps.session(), 17, again=MeasuredAgain(
        metrics={}, objectives=(50.0,), verdict="worse", ratio=5.6, ratio_low=4.8, ratio_high=6.6
    ))  # fmt: skip
    winners = collect_page(record).winners
    assert winners is not None
    places = [place for place, _ in winners.ticks]
    assert "same" in [text for _, text in winners.ticks]
    assert len(places) > 2
    assert min(b - a for a, b in itertools.pairwise(places)) >= 21


def test_winners_show_varying_settings_and_the_number_of_others() -> None:
    record = sweeps.session()
    same = record.axes[0].model_copy(update={"values": (2,), "numeric": True})
    winners = collect_page(record.model_copy(update={"axes": (same, *record.axes[1:])})).winners
    assert winners is not None
    assert [setting.name for setting in winners.rows[0].settings] == ["optimization", "execution", "arena"]
    names = [f"s.k{index}" for index in range(11)]
    axes = tuple(sweeps.axis(name, 1, 2) for name in names)
    spots: list[sweeps.Values] = [dict.fromkeys(names, 1), dict.fromkeys(names, 2)]
    goal = (SweepObjective(text="s.n", direction="minimize"),)
    many = sweeps.record(
        sweeps.Sketch("many", axes, goal, spots, lambda _: sweeps.Measured({"s.n": Metric(value=3)}), winners=0)
    )
    unmeasured = many.model_copy(
        update={"points": tuple(point.model_copy(update={"session": None}) for point in many.points)}
    )
    view = collect_page(unmeasured).winners
    assert view is not None
    assert (len(view.rows[0].settings), view.rows[0].more) == (8, 3)
    assert [row.tied for row in view.rows] == [False, True]
    assert "exact" in view.once
    for other in (many, unmeasured.model_copy(update={"objectives": (goal[0].model_copy(update={"unit": "s"}),)})):
        view = collect_page(other).winners
        assert view is not None
        assert "not measured again:" in view.once, "what is measured once proves little"
    assert " and 3 more | " in sweep_markdown(unmeasured)
    assert "; s.n 3; point 2 ties; " in said(unmeasured), "a bare number has its name"
    assert collect_page(unmeasured.model_copy(update={"objectives": ()})).winners is None


def test_a_tied_winner_that_was_not_measured_again_is_reported() -> None:
    text = sweep_markdown(changed(sweeps.session(), 21, tied=True, again=None))
    assert "| not measured again, tie" in text


def test_the_terminal_groups_reasons_ignoring_numbers() -> None:
    lines = list(summarize_sweep(sweeps.builds()))
    assert lines[1].startswith("72 points: 60 passed, 8 refused, 4 failed; ")
    (failed,) = lines[2:]
    assert failed.startswith("failed: 53, 59, 65, 71: engine: ") and "130 MiB" in failed and "numbers" in failed
    (failed,) = list(summarize_sweep(sweeps.failed_only()))[2:]
    assert failed.startswith("failed: 1, 2: sanitize: ") and failed.endswith("p2o.Conv.7.") and "numbers" not in failed


def test_curves_follow_the_number_in_which_lists_differ() -> None:
    curves = collect_page(sweeps.batches()).curves
    assert [(curve.axis, curve.y.label) for curve in curves] == [("inputs.x.shape[0]", "speed.throughput.median")]
    two, single = curves[0].lines
    assert (two.label, single.label) == ("threads 2", "threads 1")
    assert two.x == (1, 2, 4, 8, 16, 32)
    assert two.saturated == 3
    assert single.saturated is None, "too few values beyond it to say so"
    assert collect_page(sweeps.session()).curves == (), "two values are no curve"


@pytest.mark.parametrize(
    ("values", "direction", "found"),
    [
        ([1, 2, 4, 4.01, 4.02], "maximize", 2),
        ([1, 2, 4, 4.01], "maximize", None),
        ([1, 2, 4, 4.01, 5, 5, 5], "maximize", 4),
        ([1, None, 4, None, 4.01, 4.02], "maximize", 2),
        ([10, 5, 4.99, 6], "minimize", 1),
        ([1, 2, 3, 4], "minimize", None),
        ([], "minimize", None),
        ([-1, -2, -2, -2], "minimize", 1),
    ],
)
def test_saturation_is_where_gains_end(values: list[float | None], direction: str, found: int | None) -> None:
    assert saturates_at(values, direction, 0.02, 2) == found


def test_columns_are_unique_and_informative_ones_first() -> None:
    data = collect_page(sweeps.builds()).data
    kinds = [(dimension.kind, dimension.label) for dimension in data.dimensions]
    assert ("metric", "speed.latency.median") not in kinds
    assert [label for kind, label in kinds if kind == "objective"] == ["speed.latency.median", "engine.build_s"]
    shown = [dimension.label for dimension in data.dimensions if dimension.is_default and dimension.kind == "metric"]
    assert shown == ["engine.engine_bytes", "agree.cosine"], "not the latencies, which an objective tells already"
    assert len(data.points) == 72
    assert (data.dimensions[4].numbers or ()).count(None) == 4


def test_long_values_that_look_equal_are_numbered() -> None:
    record = sweeps.session()
    long: list[JsonValue] = [{"x": {"min": [size, 3, 48, 320], "max": [size, 3, 48, 320]}} for size in (1, 4)]
    axis = record.axes[0].model_copy(update={"values": (long[:1], long), "numeric": False})
    points = tuple(
        point.model_copy(update={"values": {**point.values, axis.name: axis.values[point.number % 2]}})
        for point in record.points
    )
    data = collect_page(record.model_copy(update={"axes": (axis, *record.axes[1:]), "points": points})).data
    assert [text[:11] for text in data.dimensions[0].texts] == ["1: [{x: {mi", "2: [{x: {mi"]
    assert data.dimensions[1].texts == ("basic", "extended", "all")


def test_links_point_only_to_points() -> None:
    record = sweeps.session()
    for folder in ("../../etc", "points/../..", "javascript:alert(1)", "/points/1", "points/1/..", "points/"):
        evil = changed(record, 1, folder=folder)
        assert "" in {row.report for row in collect_page(evil).plain if row.number == 1}, folder
    assert collect_page(record).plain[0].report == "./points/0021/report.html"


# --- the page as text ---


class Tags(HTMLParser):
    """Which elements a page has, and which attributes run something."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.scripts = 0
        self.handlers: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]


SAMPLES = (
    sweeps.session,
    sweeps.builds,
    sweeps.batches,
    sweeps.variants,
    sweeps.single,
    sweeps.none_tried,
    sweeps.failed_only,
    sweeps.no_objective,
    sweeps.hostile,
)


@pytest.mark.representatives("builds", "session")
@pytest.mark.parametrize("make", SAMPLES, ids=lambda make: make.__name__)
def test_names_create_no_element_and_no_address_on_a_page(make: Callable[[], SweepRecord], tmp_path: Path) -> None:
    page = draw_sweep(make(), tmp_path)
    text = page.read_text("utf-8")
    tags = Tags()
    tags.feed(text)
    assert not {"img", "iframe", "object"} & set(tags.names)
    assert tags.names.count("script") == 3
    assert tags.handlers == []
    allowed = re.compile(r"(#[\w-]*|data:,|\./points/\d+/report\.html)")
    assert [address for address in tags.addresses if not allowed.fullmatch(address)] == []
    assert draw_sweep(make(), tmp_path).read_text("utf-8") == text, "equal records give equal pages"


# --- what leaves it ---


def test_the_spreadsheet_table_holds_first_and_second_measurements() -> None:
    text = points_csv(sweeps.single())
    head = (
        "point,outcome,rank,tied,on_front,speed.threads,speed.latency.min ms,speed.latency.min ms again,verdict,ratio,"
        "ratio_low,ratio_high,failed_step,reason,own_s,folder,speed.latency.min ms,speed.latency.median ms,"
        "speed.latency.mean ms,speed.latency.p90 ms,speed.latency.p99 ms,speed.latency.spread,"
        "speed.throughput.median 1/s,speed.memory.peak_bytes bytes"
    )
    assert text.split("\r\n")[0] == head
    assert text.split("\r\n")[1].startswith("1,passed,1,0,0,2,7.9") is True
    rows = list(csv.DictReader(io.StringIO(points_csv(sweeps.session()), newline="")))
    best = next(row for row in rows if row["rank"] == "1")
    assert (best["point"], best["verdict"], best["speed.arena"], best["folder"]) == (
        "21",
        "best",
        "true",
        "points/0021",
    )
    assert float(best["speed.latency.min ms again"]) == pytest.approx(8.6, abs=0.01)
    failed = rows[3]
    assert (failed["outcome"], failed["rank"], failed["speed.latency.min ms"]) == ("failed", "", "")


def test_no_cell_is_a_formula() -> None:
    rows = list(csv.reader(io.StringIO(points_csv(sweeps.hostile()), newline="")))
    cells = [cell for row in rows for cell in row]
    assert any(cell.startswith("'=cmd") for cell in cells)
    assert [cell for cell in cells if re.match(r"\s*[=+@\t\r-]", cell) and not re.fullmatch(r"-?[\d.e+-]+", cell)] == []


def test_the_summary_for_pull_requests() -> None:
    text = sweep_markdown(sweeps.failed_only())
    assert text == (
        "### ❌ <code>failed</code>: No point passed: 1 refused, 2 failed.\n"
        "\n"
        "Objective: minimize speed.latency.min, subject to agree.cosine >= 0.999. 3 points tried: 1 refused, 2 failed; "
        "2 min 04 s, 63 ms of it overhead of ndld-flow; all 3 points tried.\n"
        "\n"
        "<details><summary>3 points did not pass</summary>\n"
        "\n"
        "| Outcome | Step | Reason | Points |\n"
        "| :-- | :-- | :-- | :-- |\n"
        "| failed | <code>sanitize</code> | sanitize: the graph has a cycle at node p2o.Conv.7. | points 1 and 2 |\n"
        "| refused |  | agree.cosine >= 0.999: 0.91 | point 3 |\n"
        "\n"
        "</details>\n"
    )


def test_the_summary_shows_winners_pictures_and_effects() -> None:
    text = sweep_markdown(sweeps.session(), has_picture=True)
    assert text.startswith("### ✅ <code>ppocr_det_session</code>: Point 21 is best: ")
    assert "](sweep.png)" in text
    assert "| 2 | 22 | threads <code>2</code>, optimization <code>all</code>," in text
    assert "```yaml\nsteps:\n  speed:\n    threads: 2\n" in text
    assert "<code>1</code> 16.2 ms (n 11)<br><code>2</code> 9.92 ms" in text


def test_names_are_escaped_in_markdown() -> None:
    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(sweep_markdown(sweeps.hostile()))
    assert "<img" not in html
    assert "<a " not in html
    fenced = sweeps.single()
    breaking = "```\n# out\n```\u2028```\x85<script>"
    changes: dict[str, JsonValue] = {"```": breaking, "steps.x": breaking, "steps.```\n```": [breaking]}
    points = tuple(point.model_copy(update={"changes": changes}) for point in fenced.points)
    text = sweep_markdown(fenced.model_copy(update={"points": points}))
    html = MarkdownIt("commonmark").render(text)
    assert "<script>" not in html
    assert "<h1>" not in html


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (sweeps.builds, ["sweep.png"]),
        pytest.param(sweeps.batches, ["sweep.png"], marks=pytest.mark.thorough),
        (sweeps.hostile, []),
        (sweeps.failed_only, []),
        (sweeps.none_tried, []),
    ],
    ids=["builds", "batches", "hostile", "failed", "none"],
)
def test_a_picture_is_drawn_only_with_enough_data(
    make: Callable[[], SweepRecord], names: list[str], tmp_path: Path
) -> None:
    assert write_sweep_exports(make(), tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} == {"points.csv", "summary.md", *names}
    for name in names:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert f"]({name})" in (tmp_path / "summary.md").read_text("utf-8")


def test_a_curve_over_many_values_labels_some_of_them() -> None:
    record = sweeps.batches()
    curve = collect_curves(record, collect_dimensions(record))[0]
    x = tuple(map(float, range(1, 101)))
    line = replace(curve.lines[0], x=x, y=x, saturated=None)
    [axes] = _curve(replace(curve, lines=(line,)), is_first=False).axes
    assert 8 < len(axes.get_xticks()) <= 16


@pytest.mark.thorough
def test_equal_records_give_equal_bytes(tmp_path: Path) -> None:
    written = []
    for _ in range(2):
        write_sweep_exports(sweeps.batches(), tmp_path)
        written.append({path.name: path.read_bytes() for path in tmp_path.iterdir()})
    assert written[0] == written[1]


# --- reading ---


def test_a_record_is_read_back(tmp_path: Path) -> None:
    record = sweeps.variants()
    (tmp_path / SWEEP_RECORD).write_text(record.to_json(), encoding="utf-8")
    assert read_sweep_record(tmp_path) == record


@pytest.mark.parametrize(
    ("passed", "outcomes", "inconclusive"),
    [
        (False, ("failed", "inconclusive"), True),
        (False, ("failed", "refused"), False),
        (True, ("passed", "inconclusive"), False),
    ],
)
def test_a_sweep_is_inconclusive_if_no_point_passed_and_one_is_undecided(
    passed: bool, outcomes: tuple[str, str], inconclusive: bool
) -> None:
    record = sweeps.failed_only()
    points = tuple(record.points[0].model_copy(update={"outcome": outcome}) for outcome in outcomes)
    assert record.model_copy(update={"passed": passed, "points": points}).inconclusive == inconclusive


def test_other_records_and_versions_are_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as refused:
        read_sweep_record(tmp_path)
    check_message(refused.value)
    (tmp_path / SWEEP_RECORD).write_text('{"id": 3}', encoding="utf-8")
    with pytest.raises(RequestError) as refused:
        read_sweep_record(tmp_path)
    check_message(refused.value)
    own = PLAIN_VERSIONS["sweep"]
    for version in (own - 1, own + 1):
        other = sweeps.single().model_copy(update={"format_version": version})
        (tmp_path / SWEEP_RECORD).write_text(other.to_json(), encoding="utf-8")
        with pytest.raises(FormatError) as caught:
            read_sweep_record(tmp_path)
        check_message(caught.value)
