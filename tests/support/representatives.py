"""Parametrized tests: a few cases of each are quick, others thorough or slow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

UNKNOWN_CASES = pytest.StashKey[list[str]]()
"""The cases that marks name and that do not exist; only in a run of all tests."""


def thorough_except(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Mark all values as thorough except the representatives of the family."""
    return _mark_others(values, quick, pytest.mark.thorough)


def slow_except(values: Iterable[Any], *others: Any) -> list[Any]:
    """Mark all values as slow except those that have something of their own to find."""
    return _mark_others(values, others, pytest.mark.slow)


def _mark_others(values: Iterable[Any], unmarked: tuple[Any, ...], mark: pytest.MarkDecorator) -> list[Any]:
    listed = list(values)
    missing = [value for value in unmarked if value not in listed]
    assert not missing, f"no such values: {missing}"
    return [value if value in unmarked else pytest.param(value, marks=mark) for value in listed]


def mark_cases(items: Iterable[pytest.Item]) -> list[str]:
    """Mark the cases of each test as thorough that its mark `representatives` does not name, and that are not slow.

    Return the named cases that were not collected.
    """
    unused: dict[str, set[str]] = {}
    for item in items:
        mark = item.get_closest_marker("representatives")
        if mark is None:
            continue
        test, _, case = item.nodeid.removesuffix("]").partition("[")
        unused.setdefault(test, set(mark.args)).discard(case)
        if case not in mark.args and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.thorough)
    return [f"{test}[{case}]" for test, cases in unused.items() for case in sorted(cases)]
