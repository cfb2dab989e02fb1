"""Latencies in numbers."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndld_flow.records.measurement import LatencySummary, percentile
from ndld_flow.records.profile import Profile
from tests.support.compare_samples import steady
from tests.support.message_files import CheckMessage

SAMPLES = st.lists(st.floats(1e-4, 1e5), min_size=1, max_size=300)


def test_percentiles_are_trtexecs() -> None:
    hundred = list(range(100, 0, -1))
    assert [percentile(hundred, p) for p in (50, 90, 95, 99, 100)] == [50, 90, 95, 99, 100]
    assert percentile(hundred, 0) == 1
    assert percentile([3.0, 1.0, 2.0], 99) == 3.0  # of few samples the largest
    assert percentile(list(range(10)), 90) == 8  # and not 9: (1 - 0.9) * 10 is a little less than 1


@given(SAMPLES)
def test_a_summary_agrees_with_the_statistics_module(samples: list[float]) -> None:
    summary = LatencySummary.of(samples)
    assert summary.median_ms == statistics.median(samples)
    assert summary.mean_ms == pytest.approx(statistics.fmean(samples))
    assert summary.min_ms <= summary.median_ms <= summary.p90_ms <= summary.p95_ms <= summary.p99_ms <= summary.max_ms
    assert summary.std_ms == pytest.approx(statistics.stdev(samples) if len(samples) > 1 else 0.0, abs=1e-6)
    assert sum(sample < samples[summary.median_pass] for sample in samples) <= (len(samples) - 1) // 2
    assert samples[summary.median_pass] <= summary.median_ms
    assert summary.throughput_per_s == pytest.approx(1e3 / summary.median_ms)


def test_the_median_pass_is_one_that_was_measured(check_message: CheckMessage) -> None:
    assert LatencySummary.of([5.0, 1.0, 3.0]).median_pass == 2
    assert LatencySummary.of([4.0, 1.0, 3.0, 2.0]).median_pass == 3
    assert LatencySummary.of([1.0]).cov == 0.0
    with pytest.raises(ValueError) as caught:
        LatencySummary.of([])
    check_message(caught.value)


def test_a_changed_copy_has_a_latency_of_its_own() -> None:
    """A profile computes its latency once."""
    profile = steady(2.0, 4.0)
    assert (profile.latency.median_ms, profile.latency_ms) == (3.0, (2.0,) * 3 + (4.0,) * 3)
    assert profile.latency is profile.latency
    halved = profile.model_copy(update={"runs": profile.runs[:1]})
    assert (halved.latency.median_ms, halved.latency_ms) == (2.0, (2.0,) * 3)
    assert profile == Profile.model_validate_json(profile.to_json())
