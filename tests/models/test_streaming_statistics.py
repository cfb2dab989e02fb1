"""Statistics that are updated piece by piece are those of the whole tensor."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ndld_flow.models.streaming_statistics import SMALLEST, Extremes, Moments, PairSums, SliceMoments
from ndld_flow.models.tensors import Array
from ndld_flow.records.accuracy import SAME_DB

RANDOM = np.random.default_rng(5)


def extremes_of(*pieces: Array) -> Extremes:
    extremes = Extremes()
    for piece in pieces:
        extremes.add(piece)
    return extremes


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    first, second = np.array([3.0, -1.0]), np.array([np.nan, -np.inf, 7.0, np.inf, np.nan])
    extremes = extremes_of(first, second, np.array([np.nan]), np.array([]))
    assert (extremes.count, extremes.nans, extremes.infinities) == (3, 3, 2)
    assert (extremes.minimum, extremes.maximum, extremes.largest_abs) == (-1.0, 7.0, 7.0)
    np.testing.assert_array_equal(Extremes().add(second), [7.0])


def test_tensors_without_finite_values_have_no_range() -> None:
    extremes = extremes_of(np.array([np.inf]), np.array([np.nan]))
    assert (extremes.count, extremes.minimum, extremes.maximum, extremes.largest_abs) == (0, math.inf, -math.inf, 0.0)


def test_integers_stay_exact_and_small_floats_are_read() -> None:
    whole = extremes_of(np.array([2**63 - 1, -(2**63)]))
    assert (whole.minimum, whole.maximum, whole.largest_abs) == (-(2**63), 2**63 - 1, 2**63)
    small = extremes_of(np.array([[0.5, -2.0]], ml_dtypes.bfloat16))
    assert (small.minimum, small.maximum) == (-2.0, 0.5)
    assert extremes_of(np.array([True, False])).maximum == 1


@pytest.mark.parametrize("cuts", [[], [1], [500], [1, 2, 999]])
def test_moments_of_pieces_match_those_of_the_whole(cuts: list[int]) -> None:
    values = RANDOM.standard_normal(1000) + 1e6
    values[[3, 700]] = 0
    moments = Moments()
    for piece in np.split(values, cuts):
        moments.add(piece)
    assert (moments.count, moments.zeros) == (1000, 2)
    assert moments.mean == pytest.approx(values.mean(), rel=1e-12)
    assert moments.squares / moments.count == pytest.approx(values.var(), rel=1e-9)


def test_complex_numbers_have_no_order_and_no_moments() -> None:
    moments = Moments()
    moments.add(np.array([1 + 1j, 0, complex(np.nan, 0)]))
    assert (moments.count, moments.nans, moments.zeros) == (2, 1, 1)
    assert math.isnan(moments.mean) and moments.minimum > moments.maximum


def test_each_slice_is_measured_separately() -> None:
    samples = [RANDOM.standard_normal((2, 3, 4)) * np.array([1.0, 10.0, 0.0])[:, None] for _ in range(3)]
    samples[1][0, 1, 2] = np.nan  # counts as the mean of the first sample
    moments = SliceMoments(1)
    for sample in samples:
        moments.add(sample)
    whole = np.concatenate(samples)
    np.testing.assert_array_equal(moments.count, [24, 24, 24])
    np.testing.assert_allclose(moments.mean[[0, 2]], whole.mean(axis=(0, 2))[[0, 2]], atol=1e-12)
    np.testing.assert_allclose(moments.variance[0], whole[:, 0].var(), rtol=1e-9)
    np.testing.assert_allclose((moments.low[0], moments.high[0]), (whole[:, 0].min(), whole[:, 0].max()))
    assert moments.effective[2] == 1.0 and 1.0 < moments.effective[0] < 24.0


def pair(r: Any, c: Any) -> PairSums:
    sums = PairSums()
    sums.add(np.asarray(r, np.float64), np.asarray(c, np.float64))
    return sums


def test_ratios_of_a_pair_match_numpy() -> None:
    ratios = pair([3.0, 4.0], [3.0, 4.5]).ratios()
    assert ratios["cosine"] == pytest.approx((9 + 18) / (5 * math.hypot(3, 4.5)))
    assert ratios["snr_db"] == pytest.approx(20.0)
    assert ratios["relative_rms"] == pytest.approx(0.1)
    assert pair([1.0, 2.0], [1.0, 2.0]).ratios() == {"cosine": 1.0, "snr_db": SAME_DB, "relative_rms": 0.0}


def test_a_reference_of_zeros_has_a_bounded_ratio() -> None:
    ratios = pair([0.0, 0.0], [SMALLEST, 0.0]).ratios()
    assert (ratios["cosine"], ratios["snr_db"]) == (0.0, -SAME_DB)
    assert ratios["relative_rms"] == pytest.approx(1 / math.sqrt(2))


def test_non_finite_pairs_are_ignored() -> None:
    sums = pair([1.0], [2.0])
    for r, c in (([np.inf], [1.0]), ([np.nan], [1.0]), ([1e200], [-1e200])):
        with np.errstate(over="ignore"):
            assert sums.add(np.array(r), np.array(c)) is None
    assert (sums.count, sums.noise, sums.signal, sums.energy, sums.dot) == (1, 1.0, 1.0, 4.0, 2.0)
