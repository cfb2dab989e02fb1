"""Regular expressions that take for ever: patterns come from recipes, names from models, both from strangers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndld_flow import bounded_regex
from ndld_flow.bounded_regex import BoundedRegex
from ndld_flow.errors import RequestError
from ndld_flow.name_patterns import groups_found, name_matcher
from tests.tally import Tally

_ATOMS = (
    "a",
    "b",
    ".",
    "[ab]",
    "[^a]",
    r"\d",
    r"\w",
    "^",
    "$",
    r"\b",
    r"\B",
    "(?=a)",
    "(?!b)",
    "(?<=a)",
    "(?<!ab)",
    "A",
)
_TIMES = ("*", "+", "?", "*?", "+?", "{2}", "{1,3}", "{0,2}?", "{3,}")


def _larger(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(parts, parts).map("".join),
        st.tuples(parts, parts).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(parts, st.sampled_from(_TIMES)).map(lambda two: f"(?:{two[0]}){two[1]}"),
        st.tuples(st.sampled_from(("(", "(?i:", "(?=", "(?!")), parts).map(lambda two: f"{two[0]}{two[1]})"),
    )


_patterns = st.builds(
    lambda flags, pattern: f"{flags}{pattern}",
    st.sampled_from(("", "(?i)", "(?m)", "(?s)")),
    st.recursive(st.sampled_from(_ATOMS), _larger, max_leaves=7),
)


@settings(max_examples=200, database=None)
@given(_patterns, st.text("abA1_ \n", max_size=9))
def test_all_ways_at_once_find_what_python_finds(pattern: str, name: str) -> None:
    with mock.patch.object(bounded_regex, "FEW_WAYS", -1):
        assert BoundedRegex(pattern).fits(name) == (re.search(pattern, name) is not None)


_BOMBS = (
    "(a+)+$", "(a|aa)+$", "(a|a)*b", "(.*)*(.*)*(.*)*x", "(a?){40}a{40}b", "((a{1000}){1000}){1000}",
    "((a{0,1000}){1000}){1000}b", "(((((a*)*)*)*)*)*b", "(?=(a+)+b)", "(a|aa){3,}$", ".*.*.*.*.*x",
    "((a|b)*){5,1000}c", "(?:(?=a*$)a)*b", "(?:a|(?:b|a)+)+$", "a{99999999999999999999}", "(" * 400 + ")" * 400,
    "(a+)+\\1", "(?>a+)+(a|aa)+$", "x" * 100_000,
)  # fmt: skip


@pytest.mark.parametrize("name", ["a" * 40 + "!", "a" * 500 + "!"], ids=["short", "long"])
def test_no_pattern_takes_for_ever(name: str, tally: Callable[[str], Tally]) -> None:
    count = tally("patterns that take for ever")
    for pattern in _BOMBS:
        begin = time.process_time()
        try:
            name_matcher(f"/{pattern}/")(name)
            count.survived += 1
        except RequestError as error:
            assert len(str(error)) < 400
            count.refused += 1
        assert time.process_time() - begin < 30, f"{pattern!r} hangs"


def test_groups_are_told_where_there_are_few_ways() -> None:
    assert groups_found(r"/layers\.(\d+)(x)?/", "model/layers.3") == ("layers.3", "3", "")
    assert groups_found(r"/layers\.(\d+)/", "other") is None
    with pytest.raises(RequestError, match="too many ways"):
        groups_found("/(a|aa)+$/", "a" * 40 + "!")
