"""Formulas over tensors: their values, and attacks."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from ndld_flow.rendering.formula import MOST_WORK, evaluate, names_in, parse_formula
from tests.support.message_files import CheckMessage

A = np.arange(12.0).reshape(3, 2, 2) - 4
B = np.full((3, 2, 2), 2.0)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("4 * abs(a - b)", 4 * np.abs(A - B)),
        ("clip(a / b, -1, 1) ** 2 - +b % 3", np.clip(A / B, -1, 1) ** 2 - B % 3),
        ("where(a > 0, sqrt(abs(a)), -1)", np.where(A > 0, np.sqrt(np.abs(A)), -1)),
        ("mean(a) + 0 * b", A.mean(axis=0, keepdims=True) + 0 * B),
        ("minimum(maximum(a, -b), b) * sigmoid(0) + tanh(0) + log(exp(1))", np.clip(A, -B, B) * 0.5 + 1),
        ("(a == 2) + (a != 2) + (a <= b) + (a >= b) + (a < b)", 1.0 + np.where(A > 2, 1, 2)),
    ],
)
def test_a_formula_has_the_value_that_numpy_computes(formula: str, expected: object) -> None:
    np.testing.assert_allclose(evaluate(parse_formula(formula), {"a": A, "b": B}), np.asarray(expected))


def test_names_are_those_of_tensors() -> None:
    assert names_in(parse_formula("abs(a) + where(b, exp, 1)")) == {"a", "b", "exp"}


def test_division_by_zero_shows_as_infinity() -> None:
    value = evaluate(parse_formula("a / 0"), {"a": A})
    assert np.isinf(value[0, 0, 0])
    assert np.isnan(value[1, 0, 0])


@pytest.mark.parametrize(
    "formula",
    [
        "__import__('os').system('id')",
        "a.__class__",
        "a.shape",
        "abs.__globals__",
        "(lambda: 1)()",
        "[x for x in a]",
        "a[0]",
        "f'{a}'",
        "'text'",
        "b'text'",
        "abs(*a)",
        "abs(x=a)",
        "eval(a)",
        "print(a)",
        "a if b else a",
        "a and b",
        "not a",
        "~a",
        "a @ b",
        "a << 99999999999",
        "a // b",
        "a < b < a",
        "a in b",
        "(a := b)",
        "True",
        "None",
        "...",
        "1j",
        "a; b",
        "a = b",
        "",
        "abs()",
        "clip(a)",
        "abs(a)(b)",
        "1(2)",
        "a\0b",
        "await a",
        "yield",
        "(" * 150 + "a" + ")" * 150,
        "-" * 290 + "a",
        "+".join("a" * 149),
        "a" * 301,
        "1_" * 200,
        "0x" + "f" * 298,
        "a + 1e999",
    ],
)
def test_everything_else_is_refused(formula: str) -> None:
    with pytest.raises(ValueError, match=r"formula|takes|number") as error:
        parse_formula(formula)
    assert len(str(error.value)) < 500


def test_towers_of_powers_overflow_at_once() -> None:
    assert np.isinf(evaluate(parse_formula("9 ** 9 ** 9 ** 9 ** 9"), {}))
    assert np.isfinite(evaluate(parse_formula("9" * 300), {}))


@pytest.mark.parametrize("formula", ["a + b", "+".join(["(a + b)"] * 15), "a * b - where(a > b, a, b) ** 2"])
def test_broadcasting_cannot_exhaust_memory(formula: str, check_message: CheckMessage) -> None:
    tensors = {"a": np.zeros((1, 60_000, 1)), "b": np.zeros((1, 1, 60_000))}
    tracemalloc.start()
    try:
        with pytest.raises(ValueError) as caught:
            evaluate(parse_formula(formula), tensors)
        check_message(caught.value)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_long_formula_holds_less_than_its_budget() -> None:
    side = int((MOST_WORK / 99) ** 0.5) // 2
    tensors = {"a": np.ones((1, side, side))}
    formula = "-".join(["((a+a)"] * 16) + ")" * 16
    tracemalloc.start()
    try:
        value = evaluate(parse_formula(formula), tensors)
        assert tracemalloc.get_traced_memory()[1] < MOST_WORK * 8
    finally:
        tracemalloc.stop()
    assert value.shape == (1, side, side)


def test_shapes_that_do_not_fit_are_named(check_message: CheckMessage) -> None:
    with pytest.raises(ValueError) as caught:
        evaluate(parse_formula("1 + (a - b)"), {"a": A, "b": np.zeros((3, 4, 4))})
    check_message(caught.value)
