"""The error that new samples may have, on distributions whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from ndld_flow.accuracy.new_samples import FEWEST, largest_expected

Draw = Callable[[np.random.Generator, int], np.ndarray[tuple[int], np.dtype[np.float64]]]
_ERRORS: dict[str, Draw] = {
    "rounding": lambda rng, count: np.exp(rng.normal(-5, 0.6, count)),
    "over orders of magnitude": lambda rng, count: np.exp(rng.normal(-9, 2.0, count)),
    "a few are far worse": lambda rng, count: np.exp(rng.standard_t(4, count) - 7),
    "halves of normal values": lambda rng, count: np.abs(rng.normal(0, 1e-3, count)),
    "some samples without an error": lambda rng, count: rng.choice([0.0, 1.0], count) * rng.uniform(0, 1, count),
}


@pytest.mark.representatives(
    "36-over orders of magnitude", "36-some samples without an error", "12-some samples without an error"
)
@pytest.mark.parametrize("kind", _ERRORS)
@pytest.mark.parametrize("count", [12, 36])
def test_as_many_new_samples_rarely_exceed_it(kind: str, count: int) -> None:
    rng, exceeded, larger = np.random.default_rng(3), 0, 0
    for _ in range(300):
        seen, new = _ERRORS[kind](rng, count), _ERRORS[kind](rng, count)
        expected = largest_expected(list(seen))
        assert expected is not None and expected >= seen.max()
        exceeded += new.max() > expected
        larger += new.max() > seen.max()
    allowed = 0.25 if kind == "a few are far worse" else 0.1
    assert exceeded <= allowed * 300, "5 % are meant; few samples estimate a spread badly"
    assert larger >= 0.4 * 300, "the largest that was seen is no bound"


def test_without_errors_or_with_too_few_samples() -> None:
    assert largest_expected([0.0] * FEWEST) == 0.0
    assert largest_expected([0.1] * (FEWEST - 1)) is None
    assert largest_expected([0.1] * FEWEST + [math.nan]) is None
    assert largest_expected([0.1] * FEWEST) == pytest.approx(0.1), "all alike"
