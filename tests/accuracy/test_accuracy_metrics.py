"""The metrics of agreement, against their formulas in plain numpy."""

from __future__ import annotations

import math
import sys

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ndld_flow.accuracy.agreement import Agreement, Measuring
from ndld_flow.accuracy.tolerance import Tolerance, outside
from ndld_flow.base.declared_metrics import higher_is_better, metric_texts, which_is_better
from ndld_flow.records.accuracy import SAME_DB

Values = npt.NDArray[np.float64]
SMALLEST = 2.0**-126


def measure(reference: npt.ArrayLike, candidate: npt.ArrayLike, measuring: Measuring | None = None) -> dict[str, float]:
    agreement = Agreement(measuring)
    return agreement.add(np.asarray(reference), np.asarray(candidate))


@st.composite
def pairs(draw: st.DrawFn, elements: st.SearchStrategy[float], dtype: type = np.float32) -> tuple[Values, Values]:
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=6))
    drawn = hnp.arrays(dtype, shape, elements=elements)
    return draw(drawn), draw(drawn)


@settings(deadline=None, max_examples=20)
@given(pairs(st.floats(-1e3, 1e3, width=32)))
def test_metrics_match_numpy(pair: tuple[Values, Values]) -> None:
    r, c = (array.astype(np.float64) for array in pair)
    result = measure(*pair, Measuring(rtol=0.1, atol=0.5))
    noise, signal = np.sum((c - r) ** 2), np.sum(r**2)
    assert result["max_abs"] == np.abs(c - r).max()
    assert result["mean_abs"] == pytest.approx(np.abs(c - r).mean())
    assert result["mismatched"] == np.mean(~np.isclose(c, r, rtol=0.1, atol=0.5))
    assert result["max_rel"] == pytest.approx((np.abs(c - r) / np.maximum(np.abs(r), SMALLEST)).max())
    assert result["rmse"] == pytest.approx(math.sqrt(np.mean((c - r) ** 2)))
    rms = math.sqrt(np.mean(r**2))
    assert result["relative_rms"] == pytest.approx(math.sqrt(np.mean((c - r) ** 2)) / max(rms, SMALLEST))
    if np.linalg.norm(r) > 1e-9 and np.linalg.norm(c) > 1e-9:
        cosine = np.vdot(r, c) / np.linalg.norm(r) / np.linalg.norm(c)
        assert result["cosine"] == pytest.approx(cosine, abs=1e-9)
    if noise > 1e-9 and signal > 1e-9:
        assert result["snr_db"] == pytest.approx(10 * math.log10(signal / noise))
        assert result["relative_rms"] == pytest.approx(10 ** (-result["snr_db"] / 20))
    if noise > 1e-9 and np.ptp(r) > 1e-6:
        assert result["psnr_db"] == pytest.approx(10 * math.log10(np.ptp(r) ** 2 / np.mean((c - r) ** 2)))


@settings(deadline=None, max_examples=20)
@given(pairs(st.floats(-5, 5, width=16).map(round)), st.integers(2, 5))
def test_ranks_match_sorted_order(pair: tuple[Values, Values], k: int) -> None:
    r, c = pair  # whole numbers: equal ones are common
    result = measure(r, c, Measuring(topk=k))
    assert ("top1" in result) is (r.ndim > 0 and r.shape[-1] > 1)
    assert (f"top{k}" in result) is (r.ndim > 0 and r.shape[-1] > k)
    if "top1" in result:
        assert result["top1"] == pytest.approx(np.mean(r.argmax(-1) == c.argmax(-1)))
    if f"top{k}" in result:
        rows = zip(r.reshape(-1, r.shape[-1]), c.reshape(-1, c.shape[-1]), strict=True)
        among = [sorted(theirs, reverse=True)[k - 1] <= theirs[mine.argmax()] for mine, theirs in rows]
        assert result[f"top{k}"] == pytest.approx(np.mean(among))
        assert result[f"top{k}"] >= result["top1"]


def test_nan_ranks_first() -> None:
    # As for numpy.argmax. Here three elements are before the one that is the reference's largest.
    result = measure([[9.0, 1.0, 1.0, 1.0]], [[5.0, math.nan, 6.0, 7.0]], Measuring(topk=3))
    assert (result["top1"], result["top3"]) == (0, 0)


def kl_of(p: Values, q: Values) -> float:
    rows = [
        sum(a * (math.log(a) - math.log(max(b, SMALLEST))) for a, b in zip(mine, theirs, strict=True) if a > SMALLEST)
        for mine, theirs in zip(p.reshape(-1, p.shape[-1]), q.reshape(-1, q.shape[-1]), strict=True)
    ]
    return float(np.mean(np.maximum(rows, 0.0)))


@settings(deadline=None, max_examples=20)
@given(st.data(), st.integers(1, 4), st.integers(2, 6), st.sampled_from([-1, 0, 1]))
def test_kl_divergence_matches_its_definition(data: st.DataObject, rows: int, classes: int, axis: int) -> None:
    drawn = hnp.arrays(np.float64, (rows, classes), elements=st.floats(-30, 30))
    r, c = data.draw(drawn), data.draw(drawn)

    def laid(array: Values) -> Values:
        return array.T if axis == 0 else array

    p, q = (np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True) for logits in (r, c))
    expected = pytest.approx(kl_of(p, q), abs=1e-6)
    assert measure(laid(p), laid(q), Measuring(axis=axis))["kl"] == expected
    assert measure(laid(r), laid(c), Measuring(axis=axis, softmax=True))["kl"] == expected
    assert measure(laid(p), laid(p), Measuring(axis=axis))["kl"] == pytest.approx(0, abs=1e-12)


def test_kl_divergence_needs_probabilities() -> None:
    sure = np.array([[1.0, 0.0], [0.5, 0.5]])
    assert measure(sure, sure)["kl"] == 0
    # A candidate of 0 where the reference is sure is far off, and still a number.
    assert measure([[1.0, 0.0]], [[0.0, 1.0]])["kl"] == pytest.approx(126 * math.log(2))
    assert measure([[1.0, 0.0]], [[0.0, 0.0]])["kl"] == pytest.approx(126 * math.log(2))
    assert measure([[0.5, 0.5]], [[-1.0, 2.0]])["kl"] > 10
    # As fp16 gives it, whose sum is not quite 1.
    halves = np.full((2, 1000), 0.001, np.float16)
    assert abs(halves[0].astype(float).sum() - 1) > 1e-5
    assert measure(halves, halves.astype(np.float32))["kl"] == pytest.approx(0, abs=1e-9)
    for no_distribution in ([[2.0, 1.0]], [[1.5, -0.5]], [1.0], 1.0, [[1, 0]], np.zeros((0, 4))):
        assert "kl" not in measure(no_distribution, no_distribution)
    assert "kl" not in measure(sure, sure, Measuring(axis=2))
    masked = np.array([[0.0, 1.0, -np.inf]])
    assert measure(masked, masked, Measuring(softmax=True))["kl"] == 0
    texts = outside(measure([[2.0, 1.0]], [[2.0, 1.0]]), Tolerance(kl=0.1).bounds())
    (text,) = texts
    assert text.startswith("kl ") and "`softmax`" in text


ANY_FLOAT = st.one_of(
    st.floats(width=32), st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, 3e38, 65504.0])
)


@settings(deadline=None, max_examples=20)
@given(pairs(ANY_FLOAT), st.booleans())
def test_metrics_of_any_values_are_finite(pair: tuple[Values, Values], softmax: bool) -> None:
    r, c = pair
    result = measure(r, c, Measuring(atol=1.0, softmax=softmax))
    assert all(math.isfinite(value) for value in result.values())
    both = np.isfinite(r) & np.isfinite(c)
    assert ("max_abs" in result) is bool(both.any())
    if both.any():
        assert result["max_abs"] == np.abs(r[both].astype(np.float64) - c[both]).max()
        assert -1 <= result["cosine"] <= 1
    agreement = Agreement(Measuring(atol=1.0))
    agreement.add(r, c)
    same = (r == c) | (np.isnan(r) & np.isnan(c))
    assert agreement.only_candidate_nonfinite == np.count_nonzero(np.isfinite(r) & ~np.isfinite(c))
    assert agreement.only_reference_nonfinite == np.count_nonzero(~np.isfinite(r) & ~same)


@settings(deadline=None, max_examples=20)
@given(pairs(st.floats(-100, 100, width=32)), st.sampled_from([-900, -520, 520, 900]))
def test_scaling_both_outputs_keeps_ratios(pair: tuple[Values, Values], power: int) -> None:
    # Squares of such float64 overflow or vanish.
    r, c = (np.where(np.abs(array) < 1e-3, 0, array).astype(np.float64) for array in pair)
    plain, scaled = measure(r, c), measure(r * 2.0**power, c * 2.0**power)
    assert scaled["cosine"] == pytest.approx(plain["cosine"])
    assert scaled["snr_db"] == pytest.approx(plain["snr_db"])
    assert scaled.get("psnr_db") == (pytest.approx(plain["psnr_db"]) if "psnr_db" in plain else None)


@settings(deadline=None, max_examples=20)
@given(st.lists(pairs(st.floats(-1e3, 1e3, width=32)), min_size=1, max_size=4))
def test_metrics_of_samples_are_combined(samples: list[tuple[Values, Values]]) -> None:
    agreement = Agreement(Measuring(atol=1.0))
    each = [agreement.add(r, c, f"sample {i}") for i, (r, c) in enumerate(samples)]
    result, worst = agreement.metrics(), agreement.worst_samples()
    r, c = (np.concatenate([pair[side].ravel() for pair in samples]).astype(np.float64) for side in (0, 1))
    assert result["mean_abs"] == pytest.approx(np.abs(c - r).mean())
    assert result["rmse"] == pytest.approx(math.sqrt(np.mean((c - r) ** 2)))
    assert result["mismatched"] == np.mean(np.abs(c - r) > 1)
    for metric in ("cosine", "snr_db", "psnr_db", "relative_rms", "max_abs", "max_rel"):
        pick = min if higher_is_better(metric) else max
        values = [item[metric] for item in each if metric in item]
        assert result.get(metric) == (pick(values) if len(values) == len(each) else None)
    for metric, sample in worst.items():
        pick = min if higher_is_better(metric) else max
        values = [item.get(metric, math.nan) for item in each]
        assert values[int(sample.split()[1])] == pick(value for value in values if not math.isnan(value))


def test_metrics_of_zeros_are_defined() -> None:
    zeros, ones = np.zeros(4), np.ones(4)
    for reference, candidate, cosine, snr in (
        (zeros, zeros, 1, SAME_DB),
        (zeros, ones, 0, -SAME_DB),
        (ones, zeros, 0, 0),
    ):
        result = measure(reference, candidate)
        assert (result["cosine"], result["snr_db"]) == (cosine, snr)
    assert measure(zeros, zeros)["relative_rms"] == 0
    assert measure(zeros, ones)["relative_rms"] == 2.0**126
    assert "psnr_db" not in measure(ones, zeros)  # its range is nothing to compare noise with
    assert measure(ones, ones)["psnr_db"] == SAME_DB


def test_extremes_stay_finite_and_empty_outputs_agree() -> None:
    huge = measure([0.0, 1e308], [1e308, -1e308])
    assert all(math.isfinite(value) for value in huge.values())
    assert huge["cosine"] == pytest.approx(-math.sqrt(0.5))
    assert huge["max_abs"] == sys.float_info.max
    assert measure(np.zeros((0, 4)), np.zeros((0, 4))) == {}


def test_fp16_overflows_are_counted() -> None:
    r = np.array([1.0, 7e4, -1e5], np.float32)
    with np.errstate(over="ignore"):
        c = r.astype(np.float16)
    agreement = Agreement()
    assert agreement.add(r, c)["max_abs"] == 0
    assert agreement.only_candidate_nonfinite == 2


@settings(deadline=None, max_examples=20)
@given(st.data(), st.sampled_from([np.int8, np.uint8, np.int64, np.bool_]))
def test_integers_and_bools_are_compared_for_equality(data: st.DataObject, dtype: type) -> None:
    drawn = hnp.arrays(dtype, data.draw(hnp.array_shapes(max_dims=2, max_side=5)))
    r = data.draw(drawn)
    c = data.draw(hnp.arrays(dtype, r.shape))
    result = measure(r, c)
    assert result["mismatched"] == np.mean(r != c)
    assert result["max_abs"] == pytest.approx(np.abs(c.astype(np.float64) - r.astype(np.float64)).max())
    assert "kl" not in result


def test_large_integers_are_compared_exactly() -> None:
    assert measure(np.array([2**53], np.int64), np.array([2**53 + 1], np.int64))["mismatched"] == 1.0


def test_strings_are_compared_for_equality() -> None:
    assert measure(np.array(["a", "b"]), np.array(["a", "longer"])) == {"mismatched": 0.5}


def test_chunks_of_an_output_are_combined() -> None:
    r = np.random.default_rng(0).random(2_500_000, dtype=np.float32)
    result = measure(r, r.astype(ml_dtypes.bfloat16).astype(np.float32))
    rounded = np.abs(r.astype(ml_dtypes.bfloat16).astype(np.float64) - r)
    assert result["max_abs"] == rounded.max()
    assert result["mean_abs"] == pytest.approx(rounded.mean())
    assert result["rmse"] == pytest.approx(math.sqrt(np.mean(rounded**2)))
    shares = np.full((300, 1000), 0.001)
    assert measure(shares, shares)["kl"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("tolerance", "holds"),
    [
        ({"rmse": 1.0}, True),
        ({"rmse": 0.9}, False),
        ({"relative_rms": 0.5}, True),
        ({"relative_rms": 0.4}, False),
        ({"psnr_db": 11}, True),
        ({"psnr_db": 13}, False),
        ({"snr_db": 6.0}, True),
        ({"snr_db": 6.1}, False),
        ({"topk": 1.0}, True),
        ({"top1": 0.5}, False),
    ],
)
def test_each_bound_is_checked(tolerance: dict[str, float], holds: bool) -> None:
    # The noise is 1 everywhere, the signal's rms 2, its range 4, and what is largest comes second.
    r = np.array([[-2.0, -2.0, 2.0, 2.0, -2.0, 2.0, -2.0, 2.0]])
    c = r + np.array([[1.0, 1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0]])
    assert (not outside(measure(r, c), Tolerance.model_validate({"slices": "off", **tolerance}).bounds())) is holds


@pytest.mark.parametrize(
    ("metric", "better"),
    [
        ("psnr_db", "higher"),
        ("top7", "higher"),
        ("kl", "lower"),
        ("y.rmse", "lower"),
        ("relative_rms", "lower"),
        ("reference.accuracy", "higher"),
        ("drop.accuracy", "neither"),
    ],
)
def test_comparisons_know_which_way_is_better(metric: str, better: str) -> None:
    assert which_is_better(f"agree.{metric}", "") == better


def test_topk_is_named_with_its_k() -> None:
    tolerance = Tolerance(slices="off", topk=0.9, rtol=0.1)
    assert tolerance.given() == {"top5": 0.9, "rtol": 0.1}
    assert tolerance.bounds(topk=3) == {"top3": 0.9, "mismatched": 0.0}
    assert higher_is_better("top3")
    assert not higher_is_better("topple")
    (text,) = outside({"cosine": 1.0}, {"top5": 0.9})
    assert text.startswith("top5 ")


@pytest.mark.parametrize(
    ("metric", "values", "texts"),
    [
        ("slice_rms", (0.0049, 0.05), ("0.49 %", "5 %")),
        ("agree.slice_rms", (0.05004, 0.05), ("5.004 %", "5 %")),
        ("relative_rms", (math.nan,), ("NaN",)),
        ("top1", (0.9987, 0.99), ("0.9987", "0.99")),
        ("cosine", (0.9998, 0.999), ("0.99980", "0.999")),
    ],
)
def test_errors_that_are_fractions_are_printed_in_percent(
    metric: str, values: tuple[float, ...], texts: tuple[str, ...]
) -> None:
    assert metric_texts(metric, *values) == texts
