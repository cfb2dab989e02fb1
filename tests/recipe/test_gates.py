"""Gates: parsed strictly, decided exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndld_flow.recipe.gates import GateError, parse_expression, parse_gate
from ndld_flow.records.metric import Metric

METRICS = {
    "speed.latency.median": Metric(value=12.0, unit="ms"),
    "base.latency.median": Metric(value=10.0, unit="ms"),
    "half.initializer_bytes": Metric(value=2048, unit="bytes"),
    "agree.cosine": Metric(value=0.9995),
}


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("speed.latency.median <= 1.2 * base.latency.median", True),
        ("speed.latency.median < 1.2 * base.latency.median", False),
        ("speed.latency.median <= 12 ms", True),
        ("speed.latency.median <= 0.011 s", False),
        ("speed.latency.median / base.latency.median - 1 <= 25 %", True),
        ("half.initializer_bytes <= 2 KiB", True),
        ("half.initializer_bytes < 2KiB", False),
        ("agree.cosine > 0.9", True),
        ("-agree.cosine > -(0.5 + 0.4)", False),
        ("half.initializer_bytes == 2048", True),
    ],
)
def test_a_gate_decides(text: str, passed: bool) -> None:
    assert parse_gate(text).decide(METRICS).passed is passed


def test_a_decision_shows_both_sides_with_their_unit() -> None:
    result = parse_gate("speed.latency.median <= 1.05 * base.latency.median").decide(METRICS)
    assert (result.left, result.right, result.unit) == (12.0, 10.5, "ms")


@pytest.mark.parametrize(
    "text", ["a.b", "a.b < 1 < 2", "a.b in [1]", "a.b < x", "f(a.b) < 1", "a.b < 1;", "a.b < 5 px"]
)
def test_what_is_no_gate_is_refused(text: str) -> None:
    with pytest.raises(GateError):
        parse_gate(text)


def test_division_by_zero_is_told() -> None:
    with pytest.raises(GateError, match="divides by zero"):
        parse_gate("agree.cosine / (1 - 1) > 2").decide(METRICS)


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("speed.latency.median", 12.0, "ms"),
        ("speed.latency.median + 2 * base.latency.median - 1 ms", 31.0, "ms"),
        ("speed.latency.median / base.latency.median", 1.2, ""),
        ("1 / base.latency.median", 0.1, ""),
        ("-base.latency.median / 2", -5.0, "ms"),
        ("speed.latency.median * agree.cosine", 11.994, "ms"),
        ("speed.latency.median + half.initializer_bytes", 2060.0, ""),
    ],
)
def test_an_expression_has_a_value_and_the_unit_its_arithmetic_keeps(text: str, value: float, unit: str) -> None:
    found = parse_expression(text).evaluate(METRICS)
    assert found.value == pytest.approx(value)
    assert found.unit == unit


@pytest.mark.parametrize(
    "text", ["", "2", "speed", "a.b <= 1", "a.b if c.d else 1", "len(a.b)", "a.b ** 2", "a.b" * 200]
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(GateError):
        parse_expression(text)


@pytest.mark.parametrize(
    ("text", "violation"),
    [
        ("speed.latency.median <= 12 ms", 0.0),
        ("speed.latency.median <= 10 ms", 0.2),
        ("10 ms >= speed.latency.median", 0.2),
        ("speed.latency.median <= base.latency.median", 0.2),
        ("agree.cosine >= 1.9995", 1 / 1.9995),
        ("speed.latency.median <= 0", 12.0),
        ("half.initializer_bytes == 1024", 1.0),
    ],
)
def test_a_violation_is_how_far_a_gate_is_from_holding(text: str, violation: float) -> None:
    assert parse_gate(text).violation(METRICS) == pytest.approx(violation)


def test_a_gate_that_just_does_not_hold_is_violated() -> None:
    assert parse_gate("half.initializer_bytes < 2 KiB").violation(METRICS) > 0
    assert parse_gate("speed.latency.median <= 1").violation({"speed.latency.median": Metric(value=float("nan"))}) > 1e9


@given(st.text(max_size=100))
def test_no_text_makes_the_parser_raise_anything_else(text: str) -> None:
    try:
        gate = parse_gate(text)
    except GateError:
        return
    assert gate.names
