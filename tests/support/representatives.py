"""Parametrized tests of which the quick tests hold a few representatives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thorough_except(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Mark all values as thorough except the representatives of the family."""
    listed = list(values)
    missing = [value for value in quick if value not in listed]
    assert not missing, f"no such values: {missing}"
    return [value if value in quick else pytest.param(value, marks=pytest.mark.thorough) for value in listed]


def mark_cases(items: Iterable[pytest.Item], complete: bool) -> None:
    """Mark the cases of each test as thorough that its mark `representatives` does not name.

    Raises UsageError for a name of no case, if all cases were collected.
    """
    unused: dict[str, set[str]] = {}
    for item in items:
        mark = item.get_closest_marker("representatives")
        if mark is None:
            continue
        test, _, case = item.nodeid.removesuffix("]").partition("[")
        unused.setdefault(test, set(mark.args)).discard(case)
        if case not in mark.args:
            item.add_marker(pytest.mark.thorough)
    if complete and any(unused.values()):
        wrong = "; ".join(f"{test}: {sorted(cases)}" for test, cases in unused.items() if cases)
        raise pytest.UsageError(f"`representatives` names cases that do not exist: {wrong}")
