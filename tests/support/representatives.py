"""Families of parameters of which the quick tests hold a few representatives."""

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
