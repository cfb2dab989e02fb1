"""Packed page data: all that Python packs, Python's and the page's unpacker give back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page

from ndld_flow.records.activations import Histogram
from ndld_flow.report.encoding import Columns, packed
from ndld_flow.report.render import bundle
from tests.support.page_data import unpack

pytestmark = pytest.mark.browser


@dataclass(frozen=True)
class Inner:
    """A row with a nested list."""

    word: str | None
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Outer:
    """A row of rows."""

    value: float
    inner: tuple[Inner, ...]
    maybe: Inner | None


WORDS = st.sampled_from(["", "a", "items", "</script>", "\N{SNOWMAN}"])
NUMBERS = st.integers(-(2**31), 2**31) | st.floats()
INNER = st.builds(Inner, WORDS | st.none(), st.lists(st.integers(0, 9)).map(tuple))
OUTER = st.builds(Outer, st.floats(), st.lists(INNER).map(tuple), INNER | st.none())
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS | INNER | OUTER,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(WORDS | st.just("__proto__"), inner, max_size=3),
    max_leaves=20,
)


def plain(value: Any) -> Any:
    """Return a value as the page should see it, with words for numbers that JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"number {str(value).replace('nan', 'NaN').replace('inf', 'Infinity')}"
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return float(value) if type(value) is int else value


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """A page without anything but the unpacker of all pages."""
    opened = browser.new_page()
    opened.set_content('<script type="application/json+gzip" id="page-data"></script>')
    opened.add_script_tag(content=bundle("tests/javascript/unpack.js", Path(__file__).parents[2]))
    yield opened
    opened.close()


READ = """async (packed) => {
    document.getElementById("page-data").textContent = packed;
    const words = (_, value) => (typeof value === "number" && !Number.isFinite(value) ? `number ${value}` : value);
    return JSON.stringify(await readPageData(), words);
}"""


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([[1, 2], [], [3]])
@example([Inner("a", ()), None, Inner(None, (1,))])
@example([True, 1, 1.0, None])
@example(list(range(1000, 1100)))
@given(VALUES)
def test_a_page_reads_what_was_packed(page: Page, value: object) -> None:
    text = packed(value)
    assert json.loads(page.evaluate(READ, text), parse_int=float) == plain(value) == plain(unpack(text))


def test_equal_texts_and_counted_integers_cost_next_to_nothing() -> None:
    rows = [Inner("a text of a layer" * 10, (number, number + 1)) for number in range(10_000)]
    assert len(packed(rows)) < 1000


def test_numbers_of_records_have_six_digits_and_those_of_dataclasses_all() -> None:
    histogram = Histogram(low=1 / 3, high=math.inf, counts=(1, 2))
    shown = {"low": 0.333333, "high": math.inf, "counts": [1, 2]}
    columns = {"low": [0.333333] * 2, "high": [math.inf] * 2, "counts": [[1, 2]] * 2}
    data = [histogram, Columns(Histogram, [histogram] * 2), Outer(1 / 3, (), None)]
    assert unpack(packed(data)) == [shown, columns, {"value": 1 / 3, "inner": [], "maybe": None}]
    assert unpack(packed([histogram] * 2)) == [shown] * 2
    assert unpack(packed([Columns(Histogram, [histogram] * 2)] * 2)) == [columns] * 2
