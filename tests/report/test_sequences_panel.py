"""The panel of sequences: its table, and its chart in a real Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from ndld_flow.base.quantities import ABSENT
from ndld_flow.report.panels.sequences import charts_of, collect_sequences
from ndld_flow.report.run_page import draw_report
from tests.support.precision_samples import (
    RECIPE,
    deep_accuracy,
    failed_search,
    search_documents,
    search_steps,
    sequence_accuracy,
)
from tests.support.report_browser import Watch
from tests.support.run_fixtures import run_record, write_run
from tests.support.text_facts import numbers_in

HOSTILE = "</script><b>x"


def test_rows_name_the_steps() -> None:
    (view,) = collect_sequences({"agree": sequence_accuracy(), "single": deep_accuracy()})
    first, state = view.outputs.rows
    assert first[2:4] == ("b.wav, step 6", 25)
    assert numbers_in(str(first[-1])) == [2, 60, 0.5, 11] and "b.wav" in str(first[-1])
    assert str(first[5]).endswith(" at b.wav, step 30")
    assert (state[1:3], state[-1]) == (("state", ABSENT), ABSENT)


def test_many_steps_are_drawn_by_the_largest_of_several() -> None:
    (chart,) = charts_of(collect_sequences({"agree": sequence_accuracy(9000)}))
    assert chart.share == 3
    assert chart.ends == [30]
    (line,) = chart.lines  # an output without an error has no line
    assert len(line.errors) == 3000
    assert line.errors[6] == pytest.approx(1e-4 * 1.2**19, rel=1e-3)  # of steps 19, 20 and the one without a value


@pytest.mark.thorough
@pytest.mark.browser
def test_the_chart_names_a_step_under_the_pointer(browser: Browser, tmp_path: Path) -> None:
    documents = search_documents(failed_search()) | {"agree/accuracy.json": sequence_accuracy(name=HOSTILE)}
    run = run_record(search_steps(passed=False), recipe=RECIPE)
    watch = Watch()
    page = watch.open(browser, draw_report(write_run(tmp_path, run, documents)))
    chart = page.locator("#sequences svg")
    chart.scroll_into_view_if_needed()
    chart.focus()
    for _ in range(32):
        chart.press("ArrowRight")
    expect(page.locator(".tooltip")).to_contain_text("b.wav, step 3")
    expect(page.locator("#sequences")).to_contain_text(HOSTILE)
    page.context.close()
    watch.check()
