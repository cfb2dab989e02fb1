"""The page of a comparison in Chromium: changing the base updates everything without network requests."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from ndld_flow.base.quantities import MINUS
from ndld_flow.base.text import visible_name
from ndld_flow.report.comparison.page import draw_comparison
from tests.support import comparison_fixtures as comparisons
from tests.support.report_browser import SharedPages, click_rows
from tests.support.run_fixtures import HOSTILE_NAMES

pytestmark = pytest.mark.browser

Open = Callable[..., Page]
EN_DASH = "\N{EN DASH}"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of each kind, drawn once."""
    folder = tmp_path_factory.mktemp("comparisons")
    kinds = {
        "pair": comparisons.pair(),
        "three": comparisons.three(),
        "elsewhere": comparisons.elsewhere(),
        "hostile": comparisons.hostile(),
    }
    for name in kinds:
        (folder / name).mkdir()
    return {
        name: draw_comparison(item.comparison, item.profiles, folder / name / "report.html")
        for name, item in kinds.items()
    }


@pytest.fixture(scope="module")
def shared(browser: Browser) -> SharedPages:
    return SharedPages(browser)


@pytest.fixture
def show(shared: SharedPages, pages: dict[str, Path]) -> Iterator[Open]:
    """Open a page; at the end, nothing may have been asked for and nothing complained about."""

    def open_one(kind: str, fragment: str = "", **options: Any) -> Page:
        return shared.show(pages[kind], fragment, **options)

    yield open_one
    shared.close_others()


def make_base(page: Page, letter: str) -> None:
    page.locator(".bar").get_by_role("radiogroup", name="Base").get_by_role("radio", name=letter).check()


def decisions(page: Page) -> list[list[str]]:
    """Candidate, verdict, ratio and change of every row."""
    rows = page.locator('[data-live="decision"] tbody tr:not(.why)')
    cells = [row.locator("td:not(.plot)").all_inner_texts() for row in rows.all()]
    return [[" ".join(text.split()) for text in row] for row in cells]


def table(page: Page) -> Locator:
    return page.locator('[role="grid"][aria-label="layers"]')


def rows_of(page: Page) -> list[dict[str, str]]:
    """Return the exported CSV by column."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name=re.compile("^CSV")).click()
    data = Path(waiting.value.path()).read_bytes()
    assert data.endswith(b"\r\n")
    assert b"\n" not in data.replace(b"\r\n", b"")
    return list(csv.DictReader(io.StringIO(data.decode("utf-8"), newline="")))


# --- the base ---


def test_the_verdict_is_visible_at_first(show: Open) -> None:
    page = show("pair")
    expect(page.locator("h1")).to_have_text("half against main")
    expect(page.locator(".headline")).to_contain_text("Improved latency.min 13.8 ms → 9.85 ms")
    assert decisions(page) == [["B half", "improved", "0.712×", "−29 %"]]  # noqa: RUF001
    assert page.title().startswith("✓ half against main")


def test_another_base_does_not_change_what_was_decided(show: Open) -> None:
    """The fastest as the base: nothing regressed."""
    page = show("pair")
    make_base(page, "B")
    expect(page.locator("h1")).to_have_text("half against main")
    expect(page.locator(".headline")).to_contain_text("Improved latency.min 13.8 ms → 9.85 ms")
    expect(page.locator(".headline")).to_contain_text(
        "Decided against A main. Shown against B half, which is the best: A main +40 %."
    )
    expect(page.locator(".headline")).not_to_contain_text("Regressed")


def test_another_base_inverts_every_ratio_verdict_and_colour(show: Open) -> None:
    page = show("pair")
    improved = page.locator(".headline .outcome").evaluate("one => getComputedStyle(one).color")
    first = {row["Name"]: row for row in rows_of(page)}
    make_base(page, "B")
    assert decisions(page) == [["A main", "regressed", "1.40×", "+40 %"]]  # noqa: RUF001
    decided = page.locator('[data-live="decision"] .outcome')
    assert decided.evaluate("one => getComputedStyle(one).color") != improved
    assert page.locator('[data-live="decision"] .interval').get_attribute("class") == "interval regressed"
    metrics = page.locator('[data-live="metrics"] tr', has_text="layers.sum")
    expect(metrics).to_contain_text("+69 %")
    expect(page.locator("#where h3").first).to_contain_text("From B half to A main")
    second = {row["Name"]: row for row in rows_of(page)}
    conv = "p2o.Conv.50"
    assert float(second[conv]["delta ms"]) == -float(first[conv]["delta ms"]) > 0
    assert float(second[conv]["Speed-up"]) == pytest.approx(1 / float(first[conv]["Speed-up"]), rel=1e-3)
    assert (first[conv]["Precision"], second[conv]["Precision"]) == ("float32 → float16", "float16 → float32")
    assert (first[conv]["Verdict"], second[conv]["Verdict"]) == ("improved", "")
    expect(page.locator("#layers")).to_contain_text("make it the base to see them")
    assert table(page).locator(".heat.slower").count() > 0


@pytest.mark.thorough
def test_reports_keep_their_colours_whoever_is_the_base(show: Open) -> None:
    page = show("three")
    colours = "rows => rows.map(row => getComputedStyle(row.querySelector('.badge')).color)"
    before = page.eval_on_selector_all(".subjects tbody tr", colours)
    assert len(set(before)) == 3
    make_base(page, "C")
    assert page.eval_on_selector_all(".subjects tbody tr", colours) == before
    head = page.locator('[data-live="decision"] thead .badge')
    assert head.evaluate("one => getComputedStyle(one).color") == before[2]


@pytest.mark.thorough
def test_the_table_of_reports_chooses_the_base_too(show: Open) -> None:
    page = show("three")
    page.get_by_role("radio", name="C is the base").check()
    assert [row[:2] for row in decisions(page)] == [["A main", "inconclusive"], ["B half", "improved"]]
    bar = page.locator(".bar").get_by_role("radiogroup", name="Base")
    expect(bar.get_by_role("radio", name="C")).to_be_checked()


@pytest.mark.thorough
def test_the_base_is_changed_by_keyboard_and_kept_in_the_address(show: Open) -> None:
    page = show("three")
    page.keyboard.press("b")
    assert page.url.endswith("#base=B&against=A")
    shown = page.locator("#where h3").first
    expect(shown).to_contain_text("From B half to A main")
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    expect(shown).to_contain_text("From B half to A main")
    page.keyboard.press("Shift+B")
    expect(shown).to_contain_text("From A main to B half")
    page.locator(".bar").get_by_role("radiogroup", name="Base").get_by_role("radio", name="A").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(shown).to_contain_text("From C tuned")
    expect(page.locator("h1")).to_have_text("main against tuned")


@pytest.mark.thorough
def test_an_address_names_section_base_candidate_and_profile(show: Open) -> None:
    page = show("three", "#layers&base=B&against=C&profile=1")
    expect(page.locator("#where h3").first).to_contain_text("From B half to C tuned")
    expect(page.locator("#layers h2")).to_be_in_viewport()
    page.locator(".bar nav").get_by_role("link", name="Metrics").click()
    expect(page).to_have_url(re.compile("#metrics&base=B&against=C$"))
    page.evaluate("location.hash = 'base=C&against=A'")
    expect(page.locator("#where h3").first).to_contain_text("From C tuned to A main")
    nonsense = show("three", "#base=Z&against=%00&profile=99&x")
    expect(nonsense.locator("h1")).to_have_text("half and tuned against main")


@pytest.mark.thorough
def test_profiles_are_tabs_with_only_their_own_sections(show: Open) -> None:
    page = show("three")
    page.get_by_role("tab", name="rec").click()
    heads = page.locator('[data-live="metrics"] thead th').all_text_contents()
    assert heads[1:3] == ["A main base", "B half"]
    expect(page.locator('[data-live="metrics"] tbody tr').first).to_contain_text("29.5 ms")
    make_base(page, "C")  # has no such profile: its first report stays the base there
    expect(page.locator("#metrics h2")).to_contain_text("each against A main")
    page.get_by_role("tab", name="rec").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tab", name="det")).to_be_focused()
    expect(page.locator("#metrics h2")).to_contain_text("each against C tuned")


def test_a_candidate_is_chosen_among_three(show: Open) -> None:
    page = show("three")
    group = page.locator(".bar").get_by_role("radiogroup", name="Candidate")
    group.get_by_role("radio", name="C").check()
    expect(page.locator("#where h3").first).to_contain_text("From A main to C tuned")
    group.get_by_role("radio", name="A").check()  # takes the base's place: they change over
    expect(page.locator("#where h3").first).to_contain_text("From C tuned to A main")
    expect(show("pair").locator(".bar").get_by_role("radiogroup", name="Candidate")).to_be_hidden()


# --- layers ---


def test_the_largest_change_comes_first_and_columns_sort(show: Open) -> None:
    page = show("pair")
    deltas = [abs(float(row["delta ms"])) for row in rows_of(page)]
    assert deltas == sorted(deltas, reverse=True)
    table(page).get_by_role("columnheader", name="Delta").get_by_role("button").click()
    signed = [float(row["delta ms"]) for row in rows_of(page)]
    assert signed == sorted(signed, reverse=True)
    table(page).get_by_role("columnheader", name="#").get_by_role("button").click()
    assert [row["#"] for row in rows_of(page)] == [str(index + 1) for index in range(61)]


@pytest.mark.thorough
def test_rows_are_narrowed_by_what_changed(show: Open) -> None:
    page = show("pair")
    only = page.get_by_role("group", name="Show only")
    only.get_by_role("button", name="slower").click()
    slower = rows_of(page)
    assert {row["Type"] for row in slower} == {"Cast", "Resize"}
    only.get_by_role("button", name="faster").click()
    expect(only.get_by_role("button", name="slower")).to_have_attribute("aria-pressed", "false")
    assert all(float(row["delta ms"]) < 0 for row in rows_of(page))
    only.get_by_role("button", name="faster").click()
    only.get_by_role("button", name="unmatched").click()
    assert [(row["Type"], row["Matched by"], row["delta percent"]) for row in rows_of(page)] == [
        ("Cast", "unmatched", "new"),
        ("Cast", "unmatched", "new"),
    ]
    only.get_by_role("button", name="unmatched").click()
    only.get_by_role("button", name="precision changed").click()
    assert "Resize" not in {row["Type"] for row in rows_of(page)}
    only.get_by_label("Matched by").select_option("names")
    only.get_by_role("button", name="unmatched").click()
    expect(table(page)).to_contain_text("No row matches.")


def test_times_are_coloured_against_the_base_beyond_noise_only(show: Open) -> None:
    """By the verdicts of layers, also turned around; between other reports by the threshold."""
    page = show("three")
    shown = """() => [...document.querySelectorAll("#layers .grid-row")].map(row => Object.fromEntries(
        [...row.children].map((cell, place) => [place, [cell.className, cell.textContent]])))"""
    by_verdict = {"improved": "faster", "regressed": "slower"}
    for row in page.evaluate(shown):
        times, delta, verdict = [row[str(value)] for value in (3, 4, 5)], row["6"], row["11"][1]
        assert "than-base" not in times[0][0], "the base itself"
        if EN_DASH not in (times[0][1], times[1][1]):
            direction = next((item for name, item in by_verdict.items() if name in verdict), "")
            assert ("than-base" in times[1][0]) == bool(direction)
            assert direction in times[1][0]
            assert direction in delta[0]
    plain = [row for row in page.evaluate(shown) if "than-base" not in row["5"][0] and row["5"][1] != EN_DASH]
    assert plain, "C took about as long as A"
    make_base(page, "B")
    against = page.evaluate(shown)
    assert sum("slower than-base" in row["3"][0] for row in against) > 5, "A is slower than B"
    assert not any("than-base" in row["4"][0] for row in against)
    expect(page.locator("#layers p .than-base.slower")).to_have_text("slower")


@pytest.mark.thorough
def test_heat_has_several_scales(show: Open) -> None:
    page = show("pair")
    hot = "cells => cells.map(cell => Number(cell.style.getPropertyValue('--hot')))"
    linear = table(page).locator(".heat").evaluate_all(hot)
    assert linear[0] == 1
    heat = page.get_by_role("group", name="Heat")
    heat.get_by_role("button", name="log").click()
    logarithmic = table(page).locator(".heat").evaluate_all(hot)
    assert logarithmic[0] == 1
    assert all(log >= lin for log, lin in zip(logarithmic, linear, strict=True))
    heat.get_by_role("button", name="off").click()
    assert set(table(page).locator(".heat").evaluate_all(hot)) == {0}
    make_base(page, "B")
    assert set(table(page).locator(".heat").evaluate_all(hot)) == {0}


@pytest.mark.thorough
def test_a_filter_and_a_selection_outlive_a_change_of_base(show: Open) -> None:
    page = show("pair")
    field = page.get_by_label("Filter layers")
    field.fill("type:conv")
    table(page).locator(".grid-row").nth(0).click()
    table(page).locator(".grid-row").nth(2).click(modifiers=["Shift"])
    detail = page.locator("#layers .detail")
    expect(detail).to_contain_text("3 of 61 rows")
    chosen = rows_of(page)
    before, after = (sum(float(row[column]) for row in chosen) for column in ("A main ms", "B half ms"))
    expect(detail).to_contain_text(f"speed-up {before / after:.2f}×")  # noqa: RUF001
    make_base(page, "B")
    expect(field).to_have_value("type:conv")
    expect(detail).to_contain_text("3 of 61 rows")
    expect(detail).to_contain_text(f"speed-up {after / before:.3f}×")  # noqa: RUF001


@pytest.mark.thorough
def test_a_fused_row_lists_its_layers_and_how_they_were_matched(show: Open) -> None:
    page = show("pair")
    page.get_by_label("Filter layers").fill("p2o.Add.4")
    table(page).locator(".grid-row").first.click()
    detail = page.locator("#layers .detail")
    expect(detail).to_contain_text("p2o.Mul.3 + p2o.Add.4")
    expect(detail).to_contain_text("names, confidence")
    expect(detail).to_contain_text("advisory, gates do not use it")


@pytest.mark.thorough
def test_the_table_works_by_keyboard_alone(show: Open) -> None:
    page = show("pair")
    page.locator("#layers .grid-box").scroll_into_view_if_needed()
    page.keyboard.press("/")
    expect(page.get_by_label("Filter layers")).to_be_focused()
    page.keyboard.type("b")  # a letter, and not the next base
    expect(page.locator("h1")).to_have_text("half against main")
    page.get_by_label("Filter layers").fill("cast")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Shift+ArrowDown")
    expect(page.locator("#layers .detail")).to_contain_text("2 of 61 rows")


def test_the_file_holds_times_shares_and_verdicts(show: Open) -> None:
    page = show("pair")
    first = rows_of(page)[0]
    assert {"A main ms", "A main percent of layer sum", "B half ms", "Tactic", "Confidence", "q"} <= set(first)
    delta = float(first["B half ms"]) - float(first["A main ms"])
    assert float(first["delta ms"]) == pytest.approx(delta, rel=1e-4)
    rows = rows_of(page)
    assert sum(float(row["A main percent of layer sum"] or 0) for row in rows) == pytest.approx(100, abs=0.01)
    assert sum(float(row["delta ms"]) for row in rows) == pytest.approx(
        sum(float(row["B half ms"] or 0) - float(row["A main ms"] or 0) for row in rows), rel=1e-3
    )


# --- where the time went ---


@pytest.mark.thorough
def test_the_waterfall_adds_up(show: Open) -> None:
    page = show("pair")
    page.locator(".waterfall svg").wait_for()  # pictures follow when the page is ready and their width is known
    texts = page.locator(".waterfall text").all_text_contents()
    numbers = [re.sub(r"[+\s]", "", text.replace(MINUS, "-")) for text in texts if re.search(r"\d (µs|ms)$", text)]
    values = [float(text[:-2]) * (1e-3 if text.endswith("µs") else 1) for text in numbers]
    assert values[0] + sum(values[1:-1]) == pytest.approx(values[-1], abs=0.06)
    # Each bar begins where the one above it ended, and the last ends where the candidate's does.
    bars = page.locator(".waterfall rect").evaluate_all(
        "bars => bars.map(bar => [bar.getAttribute('class'), Number(bar.getAttribute('x')), "
        "Number(bar.getAttribute('x')) + Number(bar.getAttribute('width'))])"
    )
    at = bars[0][2]
    for tone, left, right in bars[1:-1]:
        assert at == pytest.approx(right if tone == "faster" else left, abs=2)
        at = left if tone == "faster" else right
    assert at == pytest.approx(bars[-1][2], abs=2)


def test_deltas_are_shown_in_ms_and_percent_and_link_to_their_layers(show: Open) -> None:
    page = show("pair")
    row = page.locator("#time .deltas tr", has_text="Conv").first
    expect(row).to_contain_text("−3.80 ms")  # noqa: RUF001
    page.get_by_role("group", name="Deltas in").get_by_role("button", name="%").click()
    expect(row).to_contain_text("−64 %")  # noqa: RUF001
    cast = page.locator("#time .deltas tr", has_text="Cast")
    expect(cast).to_contain_text("new")
    cast.get_by_role("button").click()
    assert {row["Type"] for row in rows_of(page)} == {"Cast"}


@pytest.mark.thorough
def test_coverage_agrees_with_the_comparison_and_links_to_unmatched_layers(show: Open) -> None:
    page = show("pair")
    coverage = comparisons.pair().comparison.profiles[0].coverage[1]
    assert coverage is not None
    row = page.locator(".coverage tr").nth(1)
    expect(row).to_contain_text(f"{coverage.matched_share * 100:.1f} %")
    row.get_by_role("button", name=re.compile("unmatched")).click()
    assert {row["Matched by"] for row in rows_of(page)} == {"unmatched"}


@pytest.mark.thorough
def test_process_runs_are_in_the_order_of_measurement(show: Open) -> None:
    page = show("three")
    page.locator('[data-live="runs"]').scroll_into_view_if_needed()
    expect(page.locator('[data-live="runs"] h3')).to_contain_text("measured in turns")
    expect(page.locator(".run text")).to_have_text(["A", "B", "C"] * 6)
    page.locator(".run").nth(1).hover()
    expect(page.locator(".tooltip")).to_contain_text("B half, run 1")


@pytest.mark.thorough
def test_an_interval_shows_its_numbers(show: Open) -> None:
    page = show("three")
    bars = page.locator('[data-live="decision"] .interval')
    bars.nth(1).hover()
    expect(page.locator(".tooltip")).to_contain_text("threshold ±3.00 %")
    band, mark = (bars.nth(1).locator(tag).bounding_box() for tag in ("u", "i"))
    assert band is not None and mark is not None
    # The picture of `inconclusive`: the interval lies across the edge of the band.
    assert mark["x"] < band["x"] + band["width"] < mark["x"] + mark["width"]


# --- timelines and graph ---


def near(page: Page, name: str) -> Locator:
    """A part of the page that is drawn when somebody comes near."""
    part = page.locator(f'[data-live="{name}"]')
    part.scroll_into_view_if_needed()
    expect(part.locator("canvas").first).to_be_visible()
    return part


@pytest.mark.thorough
def test_timelines_share_one_scale_and_zoom_together(show: Open) -> None:
    page = show("pair")
    lines = near(page, "timelines")
    expect(lines.locator("canvas")).to_have_count(2)
    element = lines.locator("output")
    assert len(set(element.all_inner_texts())) == 1
    whole = element.first.inner_text()
    lines.get_by_role("button", name="Zoom in").first.click()
    expect(element.first).not_to_have_text(whole)
    assert len(set(element.all_inner_texts())) == 1


@pytest.mark.thorough
def test_timelines_belong_to_the_current_profile(show: Open) -> None:
    page = show("three")
    page.get_by_role("tab", name="rec").click()
    lines = near(page, "timelines")
    expect(lines.locator("canvas")).to_have_count(2)
    page.get_by_role("tab", name="det").click()
    expect(lines.locator("canvas")).to_have_count(3)


@pytest.mark.thorough
def test_a_span_links_to_its_row(show: Open) -> None:
    page = show("pair")
    lines = near(page, "timelines")
    canvas = lines.locator("canvas").nth(1)
    canvas.focus()
    page.keyboard.press("ArrowRight")  # in the lane of the inputs
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#layers .detail dl")).to_contain_text("Change")
    assert table(page).locator('[aria-selected="true"]').count() == 1


@pytest.mark.thorough
def test_spans_are_found_by_their_names(show: Open) -> None:
    page = show("pair")
    lines = near(page, "timelines")
    lines.locator("canvas").first.focus()
    page.keyboard.press("/")
    page.keyboard.type("conv")
    said = lines.locator("output").first
    found = int(said.inner_text().split(" found")[0])
    assert found > 1
    page.keyboard.press("Shift+Enter")
    expect(said).to_contain_text(f"{found} of {found}: ")
    page.keyboard.press("Enter")
    expect(said).to_contain_text(f"1 of {found}: ")
    assert "conv" in said.inner_text().lower()
    page.keyboard.press("Escape")
    expect(said).to_contain_text(re.compile(" in all| to "))


def test_the_graph_is_coloured_by_what_changed_and_follows_the_base(show: Open) -> None:
    page = show("pair")
    graph = near(page, "graph")
    expect(graph.locator(".graph-legend")).to_contain_text("faster")
    expect(graph).to_contain_text("A main, coloured by B half against A main")
    element = graph.locator(".graph-tools output")
    graph.get_by_role("button", name="Nodes").click()
    graph.locator("canvas").first.focus()
    page.keyboard.press("Home")
    expect(element).to_have_text("Conv, −64 %")  # noqa: RUF001
    page.keyboard.press("Enter")
    expect(page.locator("#layers .detail dl")).to_contain_text("Change")
    make_base(page, "B")
    expect(graph).to_contain_text("B half, coloured by A main against B half")
    graph.get_by_role("button", name="candidate").click()
    expect(graph).to_contain_text("A main, coloured by A main against B half")
    # The graph that was drawn before is coloured again: what was faster is slower.
    graph.locator("canvas").first.focus()
    page.keyboard.press("Home")
    expect(element).to_have_text("Conv, +177 %")


@pytest.mark.thorough
def test_time_by_type_has_a_bar_for_each_report(show: Open) -> None:
    page = show("three")
    row = page.locator(".type-chart tbody tr", has_text="Conv").first
    expect(row.locator(".track i")).to_have_count(3)
    colours = row.locator(".track i").evaluate_all("bars => bars.map(bar => getComputedStyle(bar).backgroundColor)")
    assert len(set(colours)) == 3
    row.get_by_role("button").click()
    assert {row["Type"] for row in rows_of(page)} == {"Conv"}


# --- the page ---


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.thorough)])
def test_text_has_enough_contrast(show: Open, scheme: str) -> None:
    page = show("three", color_scheme=scheme)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    contrast = page.evaluate(
        """() => {
            const light = (color) => {
                const parts = color.match(/[\\d.]+/g).slice(0, 3).map(Number).map(v => v / 255)
                    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
            };
            const paper = light(getComputedStyle(document.body).backgroundColor);
            return [...document.querySelectorAll('.verdict')].map(one => light(getComputedStyle(one).color))
                .map(ink => (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05));
        }"""
    )
    assert min(contrast) >= 4.5


def test_without_scripts_verdict_metrics_and_largest_changes_are_shown(show: Open) -> None:
    page = show("three", java_script_enabled=False)
    expect(page.locator(".headline")).to_contain_text("Regressed")
    expect(page.locator("#decision")).to_contain_text("which may or may not be more than ±3 %")
    expect(page.locator("#gates")).to_contain_text("failed")
    expect(page.locator("#metrics .static").first).to_contain_text("latency.median")
    expect(page.locator("#where .static").first).to_contain_text("p2o.Conv.50")
    expect(page.locator("#where .static tbody tr")).to_have_count(40)


@pytest.mark.thorough
def test_print_shows_the_charts_and_the_largest_changes(show: Open) -> None:
    page = show("pair")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    expect(page.locator("#where .static")).to_be_visible()
    expect(page.locator(".waterfall svg")).to_be_visible()
    expect(page.get_by_label("Filter layers")).to_be_hidden()
    expect(page.locator("#settings details table")).to_be_visible()


@pytest.mark.parametrize(
    "kind",
    [pytest.param("pair", marks=pytest.mark.thorough), "three", pytest.param("hostile", marks=pytest.mark.thorough)],
)
def test_a_phone_does_not_scroll_sideways(show: Open, kind: str) -> None:
    page = show(kind, viewport={"width": 390, "height": 780})
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize(
    "kind",
    [pytest.param("pair", marks=pytest.mark.thorough), "three", pytest.param("elsewhere", marks=pytest.mark.thorough)],
)
def test_the_layout_does_not_shift_after_painting(show: Open, kind: str) -> None:
    page = show(kind, viewport={"width": 1360, "height": 900})
    moved = page.evaluate(
        """() => new Promise(done => {
            let sum = 0;
            new PerformanceObserver(list => {
                for (const entry of list.getEntries()) sum += entry.value;
            }).observe({type: "layout-shift", buffered: true});
            setTimeout(() => done(sum), 300);
        })"""
    )
    assert moved < 0.01


@pytest.mark.thorough
def test_hostile_names_stay_text_in_every_section(show: Open) -> None:
    page = show("hostile")
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    for letter in "ABC":
        make_base(page, letter)
        for tab in page.get_by_role("tab").all():
            tab.click()
        click_rows(page, "layers", 8 if letter == "A" else 2)
        page.locator(".deltas button").first.click()
        page.get_by_label("Filter layers").fill("")
    assert page.locator("img, iframe, object, embed").count() == 0
    assert page.evaluate("document.scripts.length") == 3
    make_base(page, "A")
    page.get_by_role("tab").first.click()
    names = {row["Name"].removeprefix("'") for row in rows_of(page)}
    assert {visible_name(name) for name in HOSTILE_NAMES} <= names
