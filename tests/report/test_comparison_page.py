"""The page of a comparison without a browser: its data, files, and escaping."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ndld_flow.base.errors import OutputsError
from ndld_flow.base.text import visible_name
from ndld_flow.profiles.compare.measured import Rules
from ndld_flow.profiles.read.read_profile import read_profile
from ndld_flow.records.comparison import MetricVerdict
from ndld_flow.report.comparison.page import ComparisonPage, collect_comparison, comparison_data, draw_comparison
from ndld_flow.report.comparison.subjects import collect_differences, collect_settings, collect_subjects, rank_subjects
from ndld_flow.report.comparison.verdicts import IntervalScale, have_ratio, with_values_of_verdicts
from ndld_flow.report.exports.pull_requests import comparison_markdown
from ndld_flow.report.panels.comparisons import collect_comparisons
from ndld_flow.report.render import environment
from tests.report.test_report import Tags
from tests.support import comparison_fixtures as comparisons
from tests.support.a100_exports import a100_exports
from tests.support.comparison_fixtures import Compared
from tests.support.message_files import CheckMessage
from tests.support.page_data import data_of, texts_of
from tests.support.run_fixtures import HOSTILE_NAMES

Make = Callable[[], Compared]


def page_of(compared: Compared) -> ComparisonPage:
    return collect_comparison(compared.comparison, compared.profiles)


def draw(compared: Compared, folder: Path) -> str:
    return draw_comparison(compared.comparison, compared.profiles, folder / "compare.html").read_text("utf-8")


# --- what is collected ---


def test_the_verdict_matches_the_comparison() -> None:
    page = page_of(comparisons.pair())
    assert (page.title, page.comparison.verdict) == ("half against main", "improved")
    (decision,) = page.decisions
    assert (decision.candidate, decision.metric) == (1, "latency.min")
    assert (decision.view.verdict, decision.view.ratio, decision.view.change) == ("improved", "0.712×", "−29 %")  # noqa: RUF001
    assert decision.view.plot is not None
    plot = decision.view.plot
    assert 0 < plot.low <= plot.point <= plot.high < plot.band_low < plot.band_high < 100


def test_every_profile_and_candidate_is_decided_and_the_title_names_them() -> None:
    page = page_of(comparisons.three())
    assert re.findall("half|tuned|main", page.title) == ["half", "tuned", "main"]
    assert [(decision.profile, decision.candidate, decision.view.verdict) for decision in page.decisions] == [
        ("det", 1, "improved"),
        ("det", 2, "inconclusive"),
        ("rec", 1, "regressed"),
    ]
    (left_out,) = page.left_out
    assert re.findall("half|tuned|main|`.*?`", left_out) == ["tuned", "`rec`"]
    assert [gate.outcome for gate, _ in page.gates] == ["failed", "passed", "passed"]
    assert (page.gates[0][0].name, page.gates[0][1]) == ("rec", 1)


def test_the_deciding_metric_comes_first_and_marks_what_differs() -> None:
    (profile,) = page_of(comparisons.pair()).profiles
    first = profile.metrics[0]
    assert (first.metric, first.decides, first.differs) == ("latency.min", True, True)
    assert first.cells[0].verdict is None
    rows = {row.metric: row for row in profile.metrics}
    assert rows["memory.peak"].differs is False
    assert rows["layers.sum"].cells[1].value == "7.94 ms"


def test_reasons_against_a_verdict_come_first() -> None:
    page = page_of(comparisons.elsewhere())
    assert page.comparison.verdict == "incomparable"
    assert [(difference.effect, difference.detail) for difference in page.differences][:2] == [
        ("forbids", "CPU"),
        ("forbids", "CPU count"),
    ]
    assert page.differences[0].values == ("AMD EPYC 9B14", "Intel Xeon 8481C")


def test_differences_are_grouped_by_meaning() -> None:
    comparison = comparisons.elsewhere().comparison
    (profile,) = comparison.profiles
    cpu = profile.differences[0]
    given = (
        cpu.model_copy(update={"forbids": False, "detail": "a note"}),
        cpu.model_copy(update={"allowed": True, "detail": "by name"}),
        cpu,
    )
    differences = collect_differences(
        comparison.model_copy(update={"profiles": (profile.model_copy(update={"differences": given}),)})
    )
    assert [(view.effect, view.detail) for view in differences] == [
        ("forbids", "CPU"),
        ("allowed", "by name"),
        ("noted", "a note"),
    ]


def test_a_difference_common_to_several_profiles_is_listed_once() -> None:
    differences = page_of(comparisons.three()).differences
    (fp16,) = [difference for difference in differences if difference.detail == "fp16"]
    assert (fp16.profiles, fp16.values) == (("det", "rec"), ("n/a", "true", "n/a"))


def test_settings_are_side_by_side_and_differences_are_marked() -> None:
    (profile,) = page_of(comparisons.pair()).profiles
    options = next(group for group in profile.settings if group.title == "Options")
    assert [(row.name, row.values) for row in options.differing] == [("fp16", ("", "true"))]
    assert {row.name for row in options.rows} >= {"passes", "threads", "fp16"}


def test_the_largest_changes_come_first_with_new_layers_and_kinds_of_match() -> None:
    (profile,) = page_of(comparisons.pair()).profiles
    assert len(profile.largest) == 20
    assert (profile.largest[0].name, profile.largest[0].change) == ("p2o.Conv.50", "−64 %")  # noqa: RUF001
    assert profile.largest[0].precision == "float32 → float16"
    (cast,) = [row for row in profile.largest if row.type == "Cast"]
    assert (cast.base_ms, cast.change, cast.method) == (None, "new", "unmatched")
    (fused,) = [row for row in profile.largest if row.name == "p2o.Mul.3 + p2o.Add.4"]
    assert fused.method == "names"


def test_layer_times_agree_with_the_coverage() -> None:
    compared = comparisons.pair()
    (pair,) = compared.comparison.profiles
    times = compared.profiles[0][1].layer_times
    coverage = pair.coverage[1]
    assert coverage is not None
    matched = sum(times.sum_ms(row.layers[1]) for row in pair.rows if row.layers[0] and row.layers[1])
    assert matched == pytest.approx(coverage.matched_ms)
    assert sum(times.ms) == pytest.approx(coverage.matched_ms + coverage.unmatched_ms)


def test_a_row_without_a_layer_is_an_error() -> None:
    compared = comparisons.pair()
    short = compared.profiles[0][1].model_copy(update={"layers": compared.profiles[0][1].layers[:5]})
    with pytest.raises(IndexError, match="speed"):
        collect_comparison(compared.comparison, [[compared.profiles[0][0], short]])


def test_a_single_profile_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        collect_comparison(comparisons.pair().comparison, [])


UNKNOWN = Rules(allow=frozenset(["unknown"]))
"""Exports leave out the driver and more."""


def test_the_page_of_real_exports_shows_an_improvement(tmp_path: Path) -> None:
    profiles = {index: read_profile(a100_exports() / name) for index, name in enumerate(("fp32", "fp16"))}
    compared = comparisons.compared(
        [comparisons.subject("fp32"), comparisons.subject("fp16", 1)], {"resnet": profiles}, UNKNOWN
    )
    page = page_of(compared)
    assert page.comparison.verdict == "improved"
    ((place, coverage),) = page.profiles[0].coverage
    assert place == 1 and coverage.matched_share == pytest.approx(0.913, abs=0.005)
    assert page.profiles[0].largest[0].name == "Conv_0 + Relu_1"
    assert page.profiles[0].timelines == 2
    assert len(draw(compared, tmp_path)) < 400_000


# --- in a run's report ---


@pytest.mark.parametrize("make", [comparisons.three, comparisons.elsewhere, comparisons.hostile])
def test_the_report_of_a_run_can_hold_the_comparisons_of_its_steps(make: Make) -> None:
    comparison = make().comparison
    sections = collect_comparisons({"ab": comparison, HOSTILE_NAMES[0]: comparison})
    assert [section.comparison.verdict for section in sections] == [comparison.verdict] * 2
    page = {"comparison_pages": {"ab": "ab/compare.html"}}
    text = environment().get_template("panels/comparisons.html.j2").render(panel={"view": sections}, page=page)
    assert text.count("<h3>") == 2
    assert 'href="ab/compare.html"' in text
    assert "<img" not in text


# --- intervals ---


def verdict(ratio: float, low: float, high: float, threshold: float = 0.03) -> MetricVerdict:
    return MetricVerdict(
        metric="m",
        base=0,
        candidate=1,
        verdict="unchanged",
        ratio=ratio,
        base_value=1.0,
        candidate_value=ratio,
        low=low,
        high=high,
        threshold=threshold,
        why="",
    )


@pytest.mark.parametrize(
    ("before", "after", "ratio", "agree"),
    [
        (2.0, 0.0, 0.0, True),
        (2.0, 0.001, 0.0, False),
        (2.0, 1.0, 0.5, True),
        (2.0, 1.0, 0.6, False),
        (0.0, 1.0, math.inf, True),
        (2.0, 1.0, math.inf, False),
    ],
)
def test_values_agree_with_a_ratio(before: float, after: float, ratio: float, agree: bool) -> None:
    assert have_ratio(before, after, verdict(ratio, ratio, ratio)) == agree


any_ratio = st.floats(allow_nan=True, allow_infinity=True)


@given(any_ratio, any_ratio, any_ratio, st.floats(0, 1e9))
@example(1.0, math.nan, math.inf, 0.03)
def test_no_interval_leaves_its_axis(ratio: float, low: float, high: float, threshold: float) -> None:
    judged = verdict(ratio, low, high, threshold)
    scale = IntervalScale.around([judged])
    plot = scale.plot(judged)
    if plot is None:
        assert not (math.isfinite(ratio) and ratio > 0)
        return
    places = (plot.low, plot.point, plot.high, plot.band_low, plot.band_high)
    assert all(0 <= place <= 100 for place in places)
    assert plot.band_low <= plot.band_high


def test_twice_and_half_are_equally_far_from_one() -> None:
    scale = IntervalScale.around([verdict(2, 2, 2), verdict(0.5, 0.5, 0.5)])
    assert scale.place(1) == pytest.approx(50)
    assert scale.place(2) - 50 == pytest.approx(50 - scale.place(0.5))


def test_an_axis_marks_one_and_spaces_its_ticks() -> None:
    ticks = IntervalScale.around([verdict(0.43, 0.35, 0.54), verdict(1.04, 1.03, 1.05)]).ticks()
    assert "same" in [text for _, text in ticks]
    places = [place for place, _ in ticks]
    assert all(after - before >= 13 for before, after in pairwise(places))


# --- the file ---


@pytest.mark.parametrize("make", [comparisons.pair, comparisons.three, comparisons.elsewhere, comparisons.hostile])
def test_a_page_has_no_external_references(tmp_path: Path, make: Make) -> None:
    tags = Tags(draw(make(), tmp_path)).found
    names = [tag for tag, _ in tags]
    assert names.count("script") == 3
    assert not {"img", "iframe", "object", "embed", "form", "base", "audio", "video"} & set(names)
    for _, attributes in tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "action", "srcset")]
        assert (attributes.get("href") or "#").startswith(("#", "data:,"))


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    text = draw(comparisons.hostile(), tmp_path)
    assert "<img" not in text
    assert "<svg/onload" not in text
    assert "\x00" not in text
    assert {visible_name(name) for name in HOSTILE_NAMES} <= texts_of(data_of(text))


def test_equal_comparisons_give_equal_bytes(tmp_path: Path) -> None:
    assert draw(comparisons.three(), tmp_path) == draw(comparisons.three(), tmp_path)


def test_the_page_has_verdicts_for_every_ordered_pair(tmp_path: Path) -> None:
    profiles = data_of(draw(comparisons.three(), tmp_path))["profiles"]
    pairs = {(verdict["base"], verdict["candidate"]) for verdict in profiles[0]["verdicts"]}
    assert pairs == {(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)}


def test_every_layer_of_every_report_is_in_one_row(tmp_path: Path) -> None:
    (profile,) = data_of(draw(comparisons.pair(), tmp_path))["profiles"]
    for cells, count in zip(profile["rows"]["layers"], (60, 61), strict=True):
        places = [place for cell in cells for place in cell]
        assert sorted(places) == list(range(count))


def test_non_finite_values_are_unknown_on_the_page(tmp_path: Path) -> None:
    compared = comparisons.pair()
    (matched,) = compared.comparison.profiles
    broken = matched.verdicts[0].model_copy(update={"ratio": math.nan, "low": math.inf})
    profile = matched.model_copy(update={"verdicts": (broken, *matched.verdicts[1:])})
    comparison = compared.comparison.model_copy(update={"profiles": (profile,)})
    verdicts = data_of(draw(Compared(comparison, compared.profiles), tmp_path))["profiles"][0]["verdicts"]
    assert (verdicts[0]["ratio"], verdicts[0]["low"]) == (None, None)


def test_the_page_is_written_completely_or_not_at_all(tmp_path: Path, check_message: CheckMessage) -> None:
    compared = comparisons.pair()
    taken = tmp_path / "compare.html"
    taken.mkdir()
    with pytest.raises(OutputsError) as caught:
        draw_comparison(compared.comparison, compared.profiles, taken)
    check_message(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["compare.html"]


def test_conditions_come_first_only_if_they_forbid_a_verdict() -> None:
    def order(compared: comparisons.Compared) -> list[str]:
        return [name for name, _ in page_of(compared).sections if name in ("conditions", "where")]

    assert order(comparisons.elsewhere()) == ["conditions", "where"]
    assert order(comparisons.pair()) == ["where", "conditions"]


def test_the_contents_have_the_order_of_the_page(tmp_path: Path) -> None:
    """With three subjects, the side-by-side bars come early; with different machines, the conditions do."""
    profiles = {0: comparisons.in_turns("x", 14.0, 1), 1: comparisons.in_turns("x", 10.0, 2, turn=1)}
    elsewhere = profiles[0].machine.model_copy(update={"cpu": "Intel Xeon 8481C"})
    profiles[2] = profiles[1].model_copy(update={"machine": elsewhere})
    compared = comparisons.compared(
        [comparisons.subject(f"v{profile}", profile) for profile in profiles], {"x": profiles}
    )
    page = draw_comparison(compared.comparison, compared.profiles, tmp_path / "report.html").read_text("utf-8")
    listed = [name for name, _ in page_of(compared).sections]
    assert listed.index("conditions") < listed.index("stacks")
    assert listed == re.findall(r'<section id="(\w+)"', page)


# --- ranks ---


def four(*, other_machine: bool = False) -> ComparisonPage:
    """Return the page of four subjects, the second and third of which are equally fast."""
    times = {"a": 14.0, "b": 10.0, "c": 10.0, "d": 20.0}
    profiles = {index: comparisons.in_turns("x", ms, 1 + index, turn=index) for index, ms in enumerate(times.values())}
    if other_machine:
        machine = profiles[3].machine.model_copy(update={"cpu": "Intel Xeon 8481C"})
        profiles[3] = profiles[3].model_copy(update={"machine": machine})
    return page_of(
        comparisons.compared([comparisons.subject(label, index) for index, label in enumerate(times)], {"x": profiles})
    )


def test_a_subject_ranks_behind_those_that_are_better_beyond_noise() -> None:
    page = four()
    assert [(row.subject.label, row.rank) for row in page.ranked] == [("b", "1"), ("c", "1"), ("a", "3"), ("d", "4")]
    assert page.fastest.startswith("Fastest: b, c;")
    assert all(row.measured is not None and row.measured.batch == "1" for row in page.ranked)


def test_nothing_is_ranked_where_a_pair_must_not_be_compared() -> None:
    page = four(other_machine=True)
    assert ({row.rank for row in page.ranked}, page.fastest) == ({""}, "")


def test_the_first_table_has_the_values_of_the_rounds_that_decide() -> None:
    profiles = {index: comparisons.in_turns("x", ms, 1 + index, turn=index) for index, ms in enumerate((14.0, 13.0))}
    comparison = comparisons.compared(
        [comparisons.subject(label, index) for index, label in enumerate("ab")], {"x": profiles}
    ).comparison
    (compared,) = comparison.profiles
    in_rounds = {compared.decided_by: (24.0, 21.0), "throughput": (41.0, 47.0)}
    verdicts = tuple(
        verdict.model_copy(update={"clock": "wall", "base_value": values[verdict.base], "candidate_value": values[1]})
        if verdict.base == 0 and (values := in_rounds.get(verdict.metric))
        else verdict
        for verdict in compared.verdicts
    )
    decided = comparison.model_copy(update={"profiles": (compared.model_copy(update={"verdicts": verdicts}),)})
    ranked = rank_subjects(
        with_values_of_verdicts(decided), collect_subjects(decided.subjects), [list(profiles.values())]
    )
    assert [(row.value, row.items_per_s) for row in ranked] == [("24.0 ms", "41.0"), ("21.0 ms", "47.0")]
    ranked = rank_subjects(comparison, collect_subjects(comparison.subjects), [list(profiles.values())])
    assert [row.value for row in ranked] == ["13.8 ms", "12.8 ms"]
    # Metrics of the rounds and of the profiles were measured at different times, so a percentile may be below a median.
    (view,) = collect_comparison(decided, [list(profiles.values())]).profiles
    assert {row.metric for row in view.metrics if row.in_rounds} == in_rounds.keys()
    assert "</code> in rounds |" in comparison_markdown(decided, [list(profiles.values())])


def test_the_page_rounds_once() -> None:
    profiles = [[comparisons.in_turns("x", ms, 1) for ms in (1.0, 0.5)]]
    made_up = comparisons.compared(
        [comparisons.subject(label, index) for index, label in enumerate("ab")], {"x": dict(enumerate(profiles[0]))}
    )
    (compared,) = made_up.comparison.profiles
    verdicts = tuple(verdict.model_copy(update={"ratio": 0.5435037800935438}) for verdict in compared.verdicts)
    comparison = made_up.comparison.model_copy(
        update={"profiles": (compared.model_copy(update={"verdicts": verdicts}),)}
    )
    (data,) = comparison_data(comparison, collect_subjects(comparison.subjects), profiles).profiles
    assert {f"{row.ratio:.3g}" for row in data.verdicts} == {"0.544"}


def test_settings_in_settings_differ_each_on_its_own() -> None:
    first, second = (comparisons.in_turns("x", 1.0, 1) for _ in range(2))
    options = {"build_options": {"precision": "fp16", "flags": {"tf32": True}}, "engine": {}}
    first = first.model_copy(update={"options": options})
    second = second.model_copy(update={"options": options | {"build_options": {"precision": "fp32", "flags": {}}}})
    group = next(group for group in collect_settings([first, second]) if group.title == "Options")
    assert {row.name: row.values for row in group.differing} == {
        "build_options.precision": ("fp16", "fp32"),
        "build_options.flags.tf32": ("true", ""),
        "build_options.flags": ("", "{}"),
    }
