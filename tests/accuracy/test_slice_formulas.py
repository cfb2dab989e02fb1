"""The three metrics of slices, compared with their formulas written out value by value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndld_flow.accuracy import slices
from ndld_flow.accuracy.slices import SliceErrors, channel_magnitudes, measure_reference, slice_error
from ndld_flow.models import streaming_statistics
from ndld_flow.models.tensors import Array

Slices = list[list[float]]


def cut(samples: Sequence[Array], axis: int | None) -> Slices:
    """Return the values of each slice over all samples."""
    if axis is None:
        return [[float(value) for array in samples for value in array.flat]]
    count = samples[0].shape[axis]
    return [[float(value) for array in samples for value in array.take(at, axis).flat] for at in range(count)]


def kinds_of(cuts: Slices) -> list[int]:
    kinds = [0 if min(values) >= 0 and max(values) <= 1 else -1 for values in cuts]
    largest = {at: max(map(abs, values)) for at, values in enumerate(cuts) if kinds[at]}
    kind, above = 1, math.inf
    for at in sorted(largest, key=lambda at: -largest[at]):
        if above < math.inf and 0.1 <= largest[at] < above / 20:
            kind += 1
        kinds[at], above = kind, largest[at]
    return kinds


def scales(cuts: Slices) -> list[tuple[float, float, bool]]:
    """Return the spread and range of each of fewer than 16 slices, and whether the samples activate it."""
    kinds, scaled = kinds_of(cuts), []
    for values, kind in zip(cuts, kinds, strict=True):
        mine = [other for other, its in zip(cuts, kinds, strict=True) if its == kind]
        n = min(map(len, mine))
        means = [float(np.mean(other)) for other in mine]
        between = 0.02 * float(np.std(means))
        means = means if n < 4 else [0.0]
        least = max(1e-3, 0.05 / n) if kind == 0 else 1e-6
        common = max(0.02 * math.sqrt(np.mean(np.square(values))), between, least)
        share = max(0.05, 1 / n)
        floor = max(common, share * max(*(float(np.std(other)) for other in mine), float(np.std(means))))
        width = max(common, share * max(*(float(np.ptp(other)) for other in mine), float(np.ptp(means))))
        spread = max(float(np.std(values)), floor)
        stands_out = n < 4 and abs(np.mean(values) - np.median([np.mean(other) for other in mine])) >= 0.05 * max(
            float(np.ptp(means)), least
        )
        scaled.append((spread, max(float(np.ptp(values)), width), float(np.std(values)) >= floor or bool(stands_out)))
    return scaled


def weight(values: list[float]) -> float:
    """Return 1 + 1 / sqrt(m), m the effective number of values."""
    away = np.array(values) - np.mean(values)
    fourth = float((away**4).sum())
    effective = float((away**2).sum()) ** 2 / fourth if fourth > 0 else 1.0
    return 1 + 1 / math.sqrt(min(max(effective, 1.0), len(values)))


def expected(samples: Sequence[Array], errors: Sequence[Array], axis: int | None) -> dict[str, float]:
    rms, peak = [], []
    for at in dict.fromkeys([None, axis]):
        right, wrong = cut(samples, at), cut(errors, at)
        for (spread, width, _), values, misses in zip(scales(right), right, wrong, strict=True):
            rms.append(math.sqrt(np.mean(np.square(misses))) / (spread * weight(values)))
            peak.append(max(map(abs, misses)) / width)
    spreads = np.array([spread for spread, _, _ in scales(cut(samples, axis))])
    shape = [-1 if at == axis else 1 for at in range(samples[0].ndim)]
    scaled = np.stack([error / spreads.reshape(shape) for error in errors])
    positions = [float(np.sqrt(np.square(item).mean())) for item in scaled]
    for at in range(samples[0].ndim):
        if at != axis and samples[0].shape[at] > 1:
            others = tuple(other for other in range(scaled.ndim) if other != at + 1)
            result = np.sqrt(np.square(scaled).mean(axis=others))
            if axis is None:
                own = np.array([np.std(values) for values in cut(samples, at)])
                result = result * spreads[0] / np.maximum(spreads[0], own)
            positions.append(float(result.max()))
    return {"slice_rms": max(rms), "slice_max": max(peak), "position_rms": max(positions)}


def arrays(seed: int, shape: tuple[int, ...], units: Sequence[float]) -> list[Array]:
    """Two samples whose channels, along axis 1, have these magnitudes; 1 means a score, 0 a constant."""
    numbers = np.random.default_rng(seed)
    drawn = numbers.normal(size=(2, *shape))
    for at in range(shape[1] if len(shape) > 1 else 0):
        unit = units[at % len(units)]
        here = drawn[:, :, at]
        drawn[:, :, at] = numbers.random(here.shape) if unit == 1 else here * unit + (3.0 if unit == 0 else 0.0)
    return list(drawn)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([(1, 3, 5), (1, 4), (2, 3), (1, 6, 2, 3), (7,), (1, 2, 1)]),
    st.lists(st.sampled_from([0.0, 1.0, 2.0, 30.0, 0.004, 700.0]), min_size=1, max_size=4),
    st.sampled_from([1, 4, 1 << 22]),
)
def test_metrics_match_their_formulas(
    seed: int, shape: tuple[int, ...], units: list[float], values_at_once: int
) -> None:
    with (
        mock.patch.object(slices, "BLOCK", values_at_once),
        mock.patch.object(streaming_statistics, "BLOCK", values_at_once),
    ):
        check_formulas(seed, shape, units)


def check_formulas(seed: int, shape: tuple[int, ...], units: list[float]) -> None:
    samples = arrays(seed, shape, units)
    numbers = np.random.default_rng(seed + 1)
    errors = [numbers.normal(size=shape) * numbers.choice([0.0, 0.01, 1.0], size=shape) for _ in samples]
    reference = measure_reference(lambda: samples)
    assert reference is not None
    assert not reference.layout.smooth_map
    judged = SliceErrors(reference)
    for sample, error in zip(samples, errors, strict=True):
        judged.add(sample, sample + error)
    axis = reference.layout.axis
    exact = [(sample + error) - sample for sample, error in zip(samples, errors, strict=True)]
    assert judged.metrics() == pytest.approx(expected(samples, exact, axis), rel=1e-6, abs=1e-9)
    seen = [is_seen for _, _, is_seen in scales(cut(samples, axis))]
    assert reference.unseen == (tuple(at for at, is_seen in enumerate(seen) if not is_seen) if axis is not None else ())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([(1, 3, 5), (1, 6, 2, 3), (7,)]))
def test_the_error_of_one_tensor_matches_its_formula(seed: int, shape: tuple[int, ...]) -> None:
    sample = arrays(seed, shape, [2.0, 30.0, 1.0])[0]
    error = np.random.default_rng(seed + 1).normal(size=shape) * 0.1
    reference = measure_reference(lambda: [sample])
    assert reference is not None
    value = slice_error(sample, sample + error).value
    assert value == pytest.approx(expected([sample], [error], reference.layout.axis)["slice_rms"], rel=1e-6)


def test_errors_computed_in_two_parts_match_the_whole() -> None:
    samples = arrays(3, (1, 4, 6), [2.0, 30.0])
    errors = [sample * 0.01 * (1 + at) for at, sample in enumerate(samples)]
    reference = measure_reference(lambda: samples)
    assert reference is not None
    whole, first, second = (SliceErrors(reference) for _ in range(3))
    for judged, sample, error in zip((first, second), samples, errors, strict=True):
        judged.add(sample, sample + error)
        whole.add(sample, sample + error)
    first.take(second)
    assert first.metrics() == pytest.approx(whole.metrics())
    assert SliceErrors(reference).metrics() == {}


def test_the_feature_axis_begins_at_a_variogram_of_a_quarter() -> None:
    """Of a wave along the axis, the variogram at one step is 1 - cos(angle), about."""
    steps = np.arange(4000)
    for angle, is_rough in ((0.70, False), (0.75, True)):  # 1 - cos: 0.235 and 0.268
        wave = np.sin(angle * steps)[None]
        reference = measure_reference(lambda wave=wave: [wave])  # type: ignore[misc]
        assert reference is not None
        assert reference.layout.axis == (1 if is_rough else None)


def test_magnitudes_of_channels_need_channels_and_finite_values() -> None:
    array = np.tile([[1.0], [-70.0], [9.0], [0.5]], (1, 1, 5)) * [1.0, 0.9, 0.8, 0.9, 1.0]
    assert channel_magnitudes(array) == [1.0, 70.0, 9.0, 0.5]
    assert channel_magnitudes(np.linspace(0.0, 5.0, 100)) is None
    array[0, 0, 0] = np.nan
    assert channel_magnitudes(array) is None


def test_a_single_number_is_measured() -> None:
    reference = measure_reference(lambda: [np.array(4.0), np.array(8.0)])
    assert reference is not None
    judged = SliceErrors(reference)
    judged.add(np.array(4.0), np.array(4.5))
    judged.add(np.array(8.0), np.array(8.0))
    assert judged.metrics()["slice_max"] == pytest.approx(0.5 / 4)
