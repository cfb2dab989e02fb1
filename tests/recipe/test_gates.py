"""Gates: parsed strictly, decided exactly."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndld_flow.recipe.gates import GateError, parse_expression, parse_gate
from ndld_flow.records.measurement import Metric
from tests.support.message_files import CheckMessage

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
def test_text_that_is_no_gate_is_refused(text: str) -> None:
    with pytest.raises(GateError):
        parse_gate(text)


def test_division_by_zero_is_reported(check_message: CheckMessage) -> None:
    with pytest.raises(GateError) as caught:
        parse_gate("agree.cosine / (1 - 1) > 2").decide(METRICS)
    check_message(caught.value)


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
def test_an_expression_has_a_value_and_a_unit(text: str, value: float, unit: str) -> None:
    result = parse_expression(text).evaluate(METRICS)
    assert result.value == pytest.approx(value)
    assert result.unit == unit


@pytest.mark.parametrize(
    "text", ["", "2", "speed", "a.b <= 1", "a.b if c.d else 1", "len(a.b)", "a.b ** 2", "a.b" * 200]
)
def test_text_that_is_no_expression_is_refused(text: str) -> None:
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
def test_a_violation_is_the_distance_to_passing(text: str, violation: float) -> None:
    assert parse_gate(text).violation(METRICS) == pytest.approx(violation)


def test_a_gate_missed_narrowly_is_violated() -> None:
    assert parse_gate("half.initializer_bytes < 2 KiB").violation(METRICS) > 0
    assert parse_gate("speed.latency.median <= 1").violation({"speed.latency.median": Metric(value=float("nan"))}) > 1e9


@given(st.text(max_size=100))
def test_the_parser_raises_only_its_own_error_on_any_text(text: str) -> None:
    try:
        gate = parse_gate(text)
    except GateError:
        return
    assert gate.names


@pytest.mark.parametrize("sign", ["<=", ">=", "<", ">", "=="])
@pytest.mark.parametrize(("bound", "order"), [("11.9 ms", 1), ("12 ms", 0), ("12.1 ms", -1)])
def test_each_comparison_decides_below_at_and_above_its_bound(sign: str, bound: str, order: int) -> None:
    allowed = {"<=": (-1, 0), ">=": (0, 1), "<": (-1,), ">": (1,), "==": (0,)}[sign]
    gate = parse_gate(f"speed.latency.median {sign} {bound}")
    assert gate.decide(METRICS).passed is (order in allowed)
    assert (gate.violation(METRICS) == 0) is (order in allowed)


SECONDS = {"build.time": Metric(value=2.0, unit="s"), "speed.latency": Metric(value=500.0, unit="ms")}


@pytest.mark.parametrize(
    ("text", "left", "right", "unit"),
    [
        ("build.time == 2000 ms", 2000.0, 2000.0, "ms"),
        ("2 s == build.time", 2000.0, 2000.0, "ms"),
        ("build.time + speed.latency == 2.5 s", 2500.0, 2500.0, "ms"),
        ("speed.latency + build.time == 2.5 s", 2500.0, 2500.0, "ms"),
        ("build.time - speed.latency == 1500 ms", 1500.0, 1500.0, "ms"),
        ("build.time / speed.latency == 4", 4.0, 4.0, ""),
        ("speed.latency / build.time == 25 %", 0.25, 0.25, ""),
        ("2 * build.time == build.time * 2", 4.0, 4.0, "s"),
        ("-build.time == -2000 ms", -2000.0, -2000.0, "ms"),
        ("speed.latency * speed.latency == 250000", 250000.0, 250000.0, ""),
        ("1 / speed.latency == 0.002", 0.002, 0.002, ""),
        ("speed.latency == 0.5 s", 500.0, 500.0, "ms"),
        ("build.time + 1 == 3", 3.0, 3.0, "s"),
        ("(1 + 2) * build.time == 6", 6.0, 6.0, "s"),
    ],
)
def test_seconds_and_milliseconds_can_be_mixed(text: str, left: float, right: float, unit: str) -> None:
    result = parse_gate(text).decide(SECONDS)
    assert (result.left, result.right, result.unit) == (left, right, unit)
    assert result.passed


UNITS = {"a.ms": "ms", "a.s": "s", "a.bytes": "bytes", "a.share": ""}


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("a.ms <= 64 MiB", ["ms", "compared", "bytes"]),
        ("a.bytes <= 2 s", ["bytes", "compared", "ms"]),
        ("a.share <= 2 ms", ["plain", "compared", "ms"]),
        ("a.ms <= 5 %", ["ms", "compared", "plain"]),
        ("a.ms + a.bytes <= 2 * a.ms", ["ms", "added", "bytes"]),
        ("-a.ms - a.bytes <= 2", ["ms", "taken", "bytes"]),
        ("a.ms / a.s <= 2 ms", ["plain", "compared", "ms"]),
        ("a.share * a.ms <= 5 %", ["ms", "compared", "plain"]),
        ("a.ms / a.share <= 5 %", ["ms", "compared", "plain"]),
    ],
)
def test_sides_of_other_units_are_refused(text: str, facts: list[str]) -> None:
    with pytest.raises(GateError) as error:
        parse_gate(text).check_units(UNITS.__getitem__)
    assert re.findall("ms|bytes|plain|compared|added|taken", str(error.value)) == facts


@pytest.mark.parametrize(
    "text",
    [
        "a.ms <= 2 s",
        "a.ms + a.s <= 5",
        "a.ms / a.s <= 5 %",
        "a.share <= 5 %",
        "a.bytes * 2 <= 64 MiB",
        "a.ms * a.ms <= 2",
    ],
)
def test_sides_of_like_units_may_be_compared(text: str) -> None:
    parse_gate(text).check_units(UNITS.__getitem__)


def test_units_are_checked_in_expressions_too(check_message: CheckMessage) -> None:
    with pytest.raises(GateError) as caught:
        parse_expression("a.ms + a.bytes").check_units(UNITS.__getitem__)
    check_message(caught.value)


def test_a_gate_has_at_most_500_characters(check_message: CheckMessage) -> None:
    text = "a.b <= 1"
    assert parse_gate(text.ljust(500)).names == ["a.b"]
    with pytest.raises(GateError) as caught:
        parse_gate(text.ljust(501))
    check_message(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "1 < 2",
        "speed < 2",
        "a.b < True",
        "a.b + +a.c < 1",
        "a.b ** 2 < 1",
        "a.b != 1",
        "a.b < 1 < 2",
        "(1).a < a.b",
    ],
)
def test_errors_name_the_mistake_in_a_gate(text: str, check_message: CheckMessage) -> None:
    with pytest.raises(GateError) as error:
        parse_gate(text)
    check_message(error.value)


def test_messages_show_quantities_as_in_recipes(check_message: CheckMessage) -> None:
    with pytest.raises(GateError) as error:
        parse_gate("speed.latency.median / (20 ms - 20 ms) < 5 %").decide(METRICS)
    check_message(error.value)


def test_a_bound_of_zero_uses_the_absolute_distance() -> None:
    metrics = {"a.b": Metric(value=3.0), "a.c": Metric(value=0.0), "a.d": Metric(value=float("inf"))}
    assert parse_gate("a.b <= a.c").violation(metrics) == 3.0
    assert parse_gate("0 >= a.b").violation(metrics) == 3.0
    assert parse_gate("a.b <= -2").violation(metrics) == 2.5
    assert parse_gate("a.d <= 2").violation(metrics) == float("inf")
