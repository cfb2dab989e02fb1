"""Parsing and formatting of quantities."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, ValidationError

from ndld_flow.base.quantities import (
    Bytes,
    Fraction,
    Milliseconds,
    format_setting,
    number,
    parse_bytes,
    parse_duration_ms,
    parse_percent,
)
from tests.support.message_files import CheckMessage


class Settings(BaseModel):
    """Strict and frozen settings, like those of steps."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    size: Bytes = 0
    wait: Milliseconds = 0.0
    part: Fraction = 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64 MiB", 64 * 2**20),
        ("64MiB", 64 * 2**20),
        ("64 mib", 64 * 2**20),
        ("1.5 GB", 1_500_000_000),
        ("1 kB", 1000),
        ("1 KiB", 1024),
        ("2 TiB", 2**41),
        ("0", 0),
        ("12", 12),
        ("12 B", 12),
        ("1e3 kB", 1_000_000),
        (" 3 bytes ", 3),
    ],
)
def test_byte_sizes_are_parsed(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("200 ms", 200),
        ("2 s", 2000),
        ("60s", 60_000),
        ("2 min", 120_000),
        ("1 h", 3_600_000),
        ("5 us", 0.005),
        ("7", 7),
    ],
)
def test_durations_are_parsed(text: str, expected: float) -> None:
    assert parse_duration_ms(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("5 %", 0.05), ("7%", 0.07), ("0.05", 0.05), ("100 %", 1), ("0.5%", 0.005)]
)
def test_percents_are_parsed(text: str, expected: float) -> None:
    assert parse_percent(text) == expected


@pytest.mark.parametrize(
    "text", ["", "MiB", "64 MiBs", "6 4 MiB", "-1 MiB", "64 ms", "nan", "inf", "1e999", "0x10", "1,5 MB"]
)
def test_an_invalid_size_is_reported_with_an_example(text: str, check_message: CheckMessage) -> None:
    with pytest.raises(ValueError) as caught:
        parse_bytes(text)
    check_message(caught.value)


@given(
    st.integers(0, 2**50), st.sampled_from(["B", "KiB", "MiB", "kB", "MB", "GB", ""]), st.sampled_from(["", " ", "  "])
)
def test_whole_sizes_are_exact(count: int, unit: str, space: str) -> None:
    scale = {"B": 1, "": 1, "KiB": 2**10, "MiB": 2**20, "kB": 10**3, "MB": 10**6, "GB": 10**9}[unit]
    assert parse_bytes(f"{count % 2**20}{space}{unit}") == count % 2**20 * scale


@given(st.integers(0, 10_000))
def test_percents_are_the_nearest_float(hundredths: int) -> None:
    assert math.isclose(parse_percent(f"{hundredths / 100} %"), hundredths / 10_000, rel_tol=1e-15)


@given(st.text(max_size=20))
def test_any_text_is_a_finite_quantity_or_a_value_error(text: str) -> None:
    for parse in (parse_bytes, parse_duration_ms, parse_percent):
        with contextlib.suppress(ValueError):
            assert 0 <= parse(text) < math.inf


def test_settings_accept_text_and_numbers() -> None:
    written = Settings.model_validate_json('{"size": "64 MiB", "wait": "2 s", "part": "5 %"}')
    numbers = Settings.model_validate_json('{"size": 67108864, "wait": 2000, "part": 0.05}')
    assert written == numbers
    assert json.loads(written.model_dump_json()) == {"size": 67108864, "wait": 2000.0, "part": 0.05}


@pytest.mark.parametrize(
    "bad", ['{"size": "5 %"}', '{"size": -1}', '{"size": true}', '{"wait": "soon"}', '{"part": [1]}']
)
def test_settings_refuse_invalid_quantities(bad: str) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate_json(bad)


def test_the_schema_describes_both_forms() -> None:
    size = Settings.model_json_schema()["properties"]["size"]
    assert [way["type"] for way in size["anyOf"]] == ["integer", "string"]
    assert "64 MiB" in size["examples"]


@pytest.mark.parametrize(
    ("value", "quantity", "message"),
    [
        (3_600_000.0, "duration", "1 h"),
        (2500.0, "duration", "2.5 s"),
        (200.0, "duration", "200 ms"),
        (0.0, "duration", "0 ms"),
        (64 * 2**20, "size", "64 MiB"),
        (10**9, "size", "1 GB"),
        (2**63 - 1, "size", "9223372036854775807"),
        (0.05, "share", "5 %"),
    ],
)
def test_settings_are_formatted_as_in_recipes(value: float, quantity: str, message: str) -> None:
    assert format_setting(value, quantity) == message


@given(st.sampled_from([("size", parse_bytes), ("duration", parse_duration_ms), ("share", parse_percent)]), st.data())
def test_a_formatted_setting_parses_to_its_value(one: tuple[str, Callable[[str], float]], data: st.DataObject) -> None:
    quantity, parse = one
    value = data.draw(st.integers(0, 2**50) if quantity == "size" else st.floats(0, 1e12))
    assert parse(format_setting(value, quantity)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.3456, "12.35"),
        (999.94, "999.9"),
        (1234.56, "1,234.6"),
        (999_999.0, "999,999"),
        (1.5e6 + 0.5, "1.5e+06"),
        (0.00099, "0.00099"),
        (0.0012345, "0.001234"),
        (math.nan, "NaN"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_have_the_digits_that_matter(value: float, text: str) -> None:
    assert number(value) == text
