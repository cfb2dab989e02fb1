"""Fixtures of the attacks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.reliability.attacked import FaultServer, serving_faults


@pytest.fixture(scope="session")
def server() -> Iterator[FaultServer]:
    """Starts `ndld-flow` with planned faults; skips where there is no compiler."""
    with serving_faults() as serving:
        yield serving
