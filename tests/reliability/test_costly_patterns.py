"""Regular expressions with exponential time: both patterns and names are untrusted."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import MAX_PATTERN, groups_found, name_matcher
from tests.support.tally import Tally

_HANGS_S = 30.0

_ATOMS = st.sampled_from(("a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", "^", r"\b", "é", r"\.", "(?i:A)"))
_TIMES = st.sampled_from(("*", "+", "?", "*?", "+?", "{2}", "{1,3}", "{0,2}?", "{3,}"))
_patterns = st.recursive(
    _ATOMS,
    lambda parts: st.one_of(
        st.tuples(parts, parts).map("".join),
        st.tuples(parts, parts).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(parts, _TIMES).map(lambda two: f"({two[0]}){two[1]}"),
    ),
    max_leaves=7,
)


@settings(max_examples=20, database=None)
@given(_patterns, st.text("abA1_/.é", max_size=9))
def test_patterns_match_like_regular_expressions(pattern: str, name: str) -> None:
    """In names, whose letters are mostly ASCII, they are Python's."""
    assert name_matcher(f"/{pattern}/")(name) == (re.search(pattern, name, re.ASCII) is not None)


_BOMBS = (
    "(a+)+$", "(a|aa)+$", "(a|a)*b", "(.*)*(.*)*(.*)*x", "(a?){40}a{40}b", "((a{1000}){1000}){1000}",
    "((a{0,1000}){1000}){1000}b", "(((((a*)*)*)*)*)*b", "(a|aa){3,}$", ".*.*.*.*.*x", "((a|b)*){5,1000}c",
    "(?:a|(?:b|a)+)+$", "a{99999999999999999999}", "(" * 400 + ")" * 400, ".{0,1000}" * 111, ".*a.{900}$",
    "(.?.?.?.?){0,150}b", r"(?i)\pL{1000}b", "x" * 100_000, "\ud800",
)  # fmt: skip


@pytest.mark.parametrize("name", ["a" * 40 + "!", "a" * 1500 + "!"], ids=["short", "long"])
def test_every_pattern_ends_in_bounded_time(name: str, tally: Callable[[str], Tally]) -> None:
    count = tally("patterns that take for ever")
    for pattern in _BOMBS:
        begin = time.process_time()
        try:
            name_matcher(f"/{pattern}/")(name)
            count.survived += 1
        except RequestError as error:
            assert len(str(error)) < 400
            count.refused += 1
        assert time.process_time() - begin < _HANGS_S, f"{pattern!r} hangs"


@pytest.mark.parametrize("pattern", ["(?=a)b", "(?<!a)b", r"(a)\1", "(?>a)", "(", "[b-a]", "a**"])
def test_unsupported_syntax_is_refused_on_one_line_and_nothing_else_is_printed(
    pattern: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RequestError, match=r"no look-around, such as `\(\?!a\)`") as raised:
        name_matcher(f"/{pattern}/")
    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


def test_the_length_of_a_pattern_is_limited() -> None:
    assert name_matcher(f"/{'a' * MAX_PATTERN}/")("a" * MAX_PATTERN)
    with pytest.raises(RequestError, match="1,001 characters; at most 1,000"):
        name_matcher(f"/{'a' * (MAX_PATTERN + 1)}/")


def test_groups_are_reported() -> None:
    assert groups_found(r"/lay\wrs\.(\d+)(é+)?(x)?/", "modèl/layers.3é") == ("layers.3é", "3", "é", "")
    assert groups_found(r"/layers\.(\d+)/", "other") is None


def test_names_that_are_not_strings_are_searched_too() -> None:
    assert name_matcher("/a/")("\ud800a")
    assert groups_found("/a(.*)/", "\ud800ab") == ("ab", "b")
