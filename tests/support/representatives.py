"""Families of parameters of which the quick tests hold a few representatives."""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

_SMALLEST_FAMILY = 5
_QUICK_SHARE = 1 / 4


def thorough_except(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Mark all values as thorough except the representatives of the family."""
    listed = list(values)
    missing = [value for value in quick if value not in listed]
    assert not missing, f"no such values: {missing}"
    return [value if value in quick else pytest.param(value, marks=pytest.mark.thorough) for value in listed]


def sample_families(items: Iterable[pytest.Item]) -> None:
    """Mark most of each large family of parameters as thorough.

    The quick ones have the lowest checksums: a new member changes little, and each value of several parameters occurs.
    """
    families: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if "[" in item.nodeid and not any(map(item.get_closest_marker, ("thorough", "slow"))):
            families[item.nodeid.partition("[")[0]].append(item)
    for members in families.values():
        if len(members) >= _SMALLEST_FAMILY:
            members.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
            for item in members[math.ceil(len(members) * _QUICK_SHARE) :]:
                item.add_marker(pytest.mark.thorough)
