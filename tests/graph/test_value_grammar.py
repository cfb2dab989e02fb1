"""The grammar of values in recipes: accepted text, errors with their column, and ranges of dtypes."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.value_grammar import MAX_ELEMENTS, Value, parse_dtype, parse_value, to_array
from ndld_flow.models.element_types import dtype_name
from tests.support.message_files import CheckMessage

_LEAVES = st.one_of(st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=8))
_VALUES = st.recursive(_LEAVES, lambda inner: st.lists(inner, max_size=4), max_leaves=12)


def write(value: Value) -> str:
    """A value in the grammar."""
    if isinstance(value, list):
        return f"[{' , '.join(map(write, value))} ]"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(value).lower() if isinstance(value, bool) else repr(value)


@given(_VALUES)
def test_written_values_are_read_back(value: Any) -> None:
    result = parse_value(write(value))
    assert result == value
    assert repr(result) == repr(value), "true is not 1, and 1.0 is not 1"


@given(st.text(alphabet="[]'\",\\ 0123456789abcxe.+-ntrufi\n", max_size=20))
def test_any_text_is_a_value_or_refused_with_a_column(text: str) -> None:
    try:
        parse_value(text)
    except RequestError as error:
        assert ", column " in str(error)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[[1,2],[3,4]]", [[1, 2], [3, 4]]),
        (r"'It\'s alive!'", "It's alive!"),
        (r'"say \"no\"\n"', 'say "no"\n'),
        (r"'\x41\u00e9\\'", "Aé\\"),
        ("0x1F", 31),
        ("-0xff", -255),
        ("+3", 3),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("-inf", -math.inf),
        ("true", True),
        ("False", False),
        (" [ ] ", []),
        ("[[], []]", [[], []]),
    ],
)
def test_literals_are_read(text: str, value: Value) -> None:
    result = parse_value(text)
    assert result == value
    assert type(result) is type(value)


def test_nan_is_read() -> None:
    value = parse_value("nan")
    assert isinstance(value, float)
    assert math.isnan(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2",
        "[1,,2]",
        "[1 2]",
        "1 2",
        "[1, two]",
        "['a\\q']",
        "['abc]",
        "1e999",
        "[" * 40,
        "9" * 401,
    ],
)
def test_mistakes_are_reported_with_their_column(text: str, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as refused:
        parse_value(text)
    check_message(refused.value)


def test_too_many_elements_belong_in_a_file(check_message: CheckMessage) -> None:
    numbers = [0] * (MAX_ELEMENTS + 1)
    for refuse in (lambda: parse_value(str(numbers)), lambda: to_array(list(numbers), ir.DataType.INT8)):
        with pytest.raises(RequestError) as caught:
            refuse()
        check_message(caught.value)
    assert to_array(list(numbers[1:]), ir.DataType.INT8).shape == (MAX_ELEMENTS,)


_INTEGERS = [dtype for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED and dtype.is_integer()]
_FLOATS = [dtype for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED and dtype.is_floating_point()]


@given(st.sampled_from(_INTEGERS), st.integers(-(2**66), 2**66))
def test_integers_out_of_range_are_refused(dtype: ir.DataType, number: int) -> None:
    try:
        held = int(to_array([number], dtype)[0])
    except RequestError as error:
        assert "which goes from" in str(error)
        bits = dtype.bitwidth
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype.is_signed() else (0, 2**bits - 1)
        assert not low <= number <= high
    else:
        assert held == number


@given(st.sampled_from(_FLOATS), st.floats(allow_nan=False))
def test_floats_are_rounded_and_never_clipped(dtype: ir.DataType, number: float) -> None:
    try:
        held = float(to_array(number, dtype))
    except RequestError:
        return
    assert math.isfinite(held) == math.isfinite(number)
    if dtype.bitwidth >= 16 and abs(number) > 1e-4:
        assert held == pytest.approx(number, rel=1e-2)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([[1, 2], [3]], "int8"),
        ([1, [2]], "int8"),
        ([[1, 300]], "uint8"),
        (1.5, "int64"),
        (True, "int64"),
        (2, "bool"),
        ("a", "float32"),
        (1, "string"),
        (70000, "float16"),
        (8, "float4_e2m1fn"),
        (10**400, "float64"),
        (math.inf, "float8_e4m3fn"),
        (1, "complex64"),
    ],
)
def test_values_that_a_dtype_cannot_hold_are_refused(value: Value, dtype: str, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as refused:
        to_array(value, parse_dtype(dtype))
    check_message(refused.value)


def test_arrays_have_the_shape_of_the_lists() -> None:
    result = to_array([[1, 2.0, 3], [4, 5, 6]], ir.DataType.INT32)
    assert (result.dtype.name, result.tolist()) == ("int32", [[1, 2, 3], [4, 5, 6]])
    assert to_array([[], []], ir.DataType.FLOAT).shape == (2, 0)
    assert to_array(7, ir.DataType.BFLOAT16).shape == ()
    assert to_array(["a", "b"], ir.DataType.STRING).tolist() == ["a", "b"]


def test_names_of_element_types_are_read(check_message: CheckMessage) -> None:
    assert {parse_dtype(word) for word in ("float32", "float", "FLOAT", "fp32")} == {ir.DataType.FLOAT}
    for dtype in ir.DataType:
        if dtype != ir.DataType.UNDEFINED:
            assert parse_dtype(dtype_name(dtype)) == dtype
    with pytest.raises(RequestError) as caught:
        parse_dtype("floot16")
    check_message(caught.value)
