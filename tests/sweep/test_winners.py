"""Comparisons of winners that were measured again with the best of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndld_flow.profiles.compare.measured import Rules
from ndld_flow.profiles.read.onnxruntime_profile import onnxruntime_traits
from ndld_flow.recipe.gates import parse_expression
from ndld_flow.records.measurement import Metric
from ndld_flow.records.noise import Noise, NoiseSample
from ndld_flow.records.profile import Profile, ProfileRun
from ndld_flow.sweep.winners import AgainstBest, Aim, WinnerValues, compare_winners
from ndld_flow.sweep_search.search import Direction
from tests.support.run_fixtures import MACHINE, STARTED

STEADY = (10.0, 10.1, 9.9, 10.05, 9.95, 10.02, 9.98)


def profile_of(runs: tuple[float, ...], session: str = "together") -> Profile:
    return Profile(
        label="speed",
        model_digest="",
        backend="onnxruntime",
        runtime=onnxruntime_traits(("CPUExecutionProvider",)),
        providers=("CPUExecutionProvider",),
        machine=MACHINE,
        versions={},
        options={},
        inputs=(),
        outputs=(),
        warmup_passes=1,
        warmup_ms=1.0,
        runs=tuple(ProfileRun(latency_ms=(run, run * 1.5), load_ms=run * 10) for run in runs),
        session=session,
    )


def finalist_of(step: str = "speed", **more: float) -> WinnerValues:
    return WinnerValues({f"{step}.{name}": Metric(value=value) for name, value in more.items()})


def measured(*runs: float, scale: float = 1.0, session: str = "together") -> WinnerValues:
    profile = profile_of(tuple(run * scale for run in runs), session)
    summary = profile.latency
    metrics = {
        "speed.latency.min": Metric(value=summary.min_ms, unit="ms"),
        "speed.latency.median": Metric(value=summary.median_ms, unit="ms"),
        "speed.throughput.median": Metric(value=summary.throughput_per_s, unit="1/s"),
        "speed.load_ms": Metric(value=summary.median_ms * 10, unit="ms"),
    }
    return WinnerValues(metrics, {"speed": profile})


def stand(
    best: WinnerValues,
    other: WinnerValues,
    text: str = "speed.latency.min",
    direction: Direction = "minimize",
    noise: Noise | None = None,
) -> AgainstBest:
    aim = Aim(parse_expression(text), direction, Rules(noise=noise))
    stands = compare_winners({7: best, 3: other}, 7, aim)
    assert stands[7] == AgainstBest("best", 1.0)
    return stands[3]


def test_differences_within_the_threshold_are_ties() -> None:
    found = stand(measured(*STEADY), measured(*STEADY, scale=1.01))
    assert found.verdict == "tie"
    assert found.ratio == pytest.approx(1.01) and found.low == pytest.approx(1.01)


def test_an_interval_wholly_outside_the_threshold_is_worse() -> None:
    other = measured(*(run * 1.2 * drift for run, drift in zip(STEADY, (1.0, 1.02, 0.99, 1.01, 1, 1, 1), strict=True)))
    found = stand(measured(*STEADY), other)
    assert found.verdict == "worse"
    assert found.low is not None and found.high is not None and found.ratio is not None
    assert 1.18 <= found.low < found.ratio <= found.high <= 1.23


def test_interleaved_runs_are_compared_in_pairs() -> None:
    drifting = tuple(10.0 * 1.3**index for index in range(7))
    assert stand(measured(*drifting), measured(*drifting, scale=1.1)).verdict == "worse"
    apart = measured(*drifting, scale=1.1, session="another day")
    assert stand(measured(*drifting), apart).verdict == "inconclusive"


def test_the_ratio_is_that_of_the_printed_values() -> None:
    """Pairs of runs of a machine that drifts may contradict the medians by which points are ranked."""
    best = measured(8.0, 9.0, 9.38, 20.0, 30.0)
    other = measured(7.6, 8.5, 18.0, 18.6, 27.0)
    found = stand(best, other, "speed.latency.median")
    ours, theirs = (winner.metrics["speed.latency.median"].value for winner in (other, best))
    assert found.ratio == pytest.approx(ours / theirs)
    assert found.ratio is not None and found.ratio > 1
    assert found.low is not None and found.low < 1
    assert found.verdict == "inconclusive"


def test_few_or_noisy_runs_are_inconclusive() -> None:
    assert stand(measured(10.0, 10.1), measured(10.6, 10.7)).verdict == "inconclusive"
    scattered = measured(9.0, 14.0, 9.5, 13.0, 10.0, 12.0, 9.7)
    assert stand(measured(*STEADY), scattered).verdict == "inconclusive"


@pytest.mark.parametrize(("others", "verdict"), [(0.0, "worse"), (2.0, "inconclusive")])
def test_a_time_measured_once_decides_nothing_on_a_busy_machine(others: float, verdict: str) -> None:
    load = {"cpus_used_by_others": others}
    best, other = (
        WinnerValues(
            {"speed.once_ms": Metric(value=ms, unit="ms")},
            {"speed": measured(*STEADY).profiles["speed"].model_copy(update={"conditions": {"during": load}})},
        )
        for ms in (10.0, 15.0)
    )
    assert stand(best, other, "speed.once_ms").verdict == verdict


def test_differences_within_learned_noise_are_ties() -> None:
    noise = Noise(
        machine=MACHINE,
        backend="onnxruntime",
        provider="CPUExecutionProvider",
        model="m",
        measured_at=STARTED,
        samples=(NoiseSample(a_runs_ms=(1.0,), b_runs_ms=(1.0,), ratio=1.0),),
        threshold=0.12,
        run_cov=0.1,
        single_run_threshold=0.5,
    )
    other = measured(*STEADY, scale=1.1)
    assert stand(measured(*STEADY), other).verdict == "worse"
    assert stand(measured(*STEADY), other, noise=noise).verdict == "tie"


@pytest.mark.parametrize("text", ["speed.throughput.median", "1000 / speed.latency.median"])
def test_less_throughput_is_worse(text: str) -> None:
    found = stand(measured(*STEADY), measured(*STEADY, scale=1.25), text, "maximize")
    assert found.verdict == "worse"
    assert found.ratio == pytest.approx(0.8)


@pytest.mark.parametrize("name", ["speed.throughput.median", "speed.throughput.items"])
def test_concurrent_streams_count_in_the_throughput(name: str) -> None:
    """Streams, and the items of a batch."""
    base, other = measured(*STEADY), measured(*STEADY, scale=1.25)
    of_one, of_other = (item.metrics["speed.throughput.median"] for item in (base, other))
    doubled = WinnerValues({name: Metric(value=2 * of_other.value, unit="1/s")}, other.profiles)
    found = stand(doubled, WinnerValues({name: of_one}, base.profiles), name, "maximize")
    assert found.verdict == "worse"
    assert found.ratio == pytest.approx(1 / 1.6)


def test_expressions_over_metrics_are_evaluated_for_each_run() -> None:
    def relative(own: float) -> WinnerValues:
        drifting = tuple(10.0 * 1.3**index for index in range(7))
        speed, base = measured(*drifting, scale=own), measured(*drifting)
        of_base = {name.replace("speed", "base"): metric for name, metric in base.metrics.items()}
        return WinnerValues({**speed.metrics, **of_base}, {**speed.profiles, "base": base.profiles["speed"]})

    found = stand(relative(0.5), relative(0.6), "speed.latency.min / base.latency.min")
    assert found.verdict == "worse"
    assert found.ratio == pytest.approx(1.2) and found.low == pytest.approx(1.2)


def test_two_points_with_one_shared_measurement_are_tied() -> None:
    best = measured(10.0, 11.0)
    assert stand(best, best) == AgainstBest("tie", 1.0, 1.0, 1.0)


def test_exact_metrics_tie_only_when_equal() -> None:
    assert stand(finalist_of(bytes=100), finalist_of(bytes=100), "speed.bytes") == AgainstBest("tie", 1.0)
    assert stand(finalist_of(bytes=100), finalist_of(bytes=101), "speed.bytes") == AgainstBest("worse", 1.01)
    assert stand(finalist_of(cosine=0.5), finalist_of(cosine=0.25), "speed.cosine", "maximize") == AgainstBest(
        "worse", 0.5
    )
    assert stand(finalist_of(errors=0), finalist_of(errors=2), "speed.errors") == AgainstBest("worse")
    assert stand(finalist_of(errors=0), finalist_of(errors=0), "speed.errors") == AgainstBest("tie", 1.0)


def test_a_time_measured_once_proves_only_large_differences() -> None:
    def built(seconds: float) -> WinnerValues:
        return WinnerValues({"speed.build_s": Metric(value=seconds, unit="s")})

    assert stand(built(10.0), built(12.0), "speed.build_s") == AgainstBest("inconclusive", 1.2)
    assert stand(built(10.0), built(13.0), "speed.build_s") == AgainstBest("worse", 1.3)


def test_a_winner_that_lacks_the_metric_is_inconclusive() -> None:
    assert stand(finalist_of(bytes=1), WinnerValues({}), "speed.bytes") == AgainstBest("inconclusive")


def test_a_winner_significantly_better_than_the_best_is_inconclusive() -> None:
    assert stand(measured(*STEADY, scale=1.2), measured(*STEADY)).verdict == "inconclusive"
    assert stand(finalist_of(bytes=5), finalist_of(bytes=4), "speed.bytes") == AgainstBest("inconclusive", 0.8)


RUNS = st.lists(st.floats(0.01, 1e3), min_size=1, max_size=9)


@given(RUNS, RUNS, st.sampled_from(["a", "b"]))
def test_every_ratio_is_within_its_interval(ours: list[float], theirs: list[float], s: str) -> None:
    found = stand(measured(*theirs, session="a"), measured(*ours, session=s))
    assert found.ratio is not None
    if found.low is None or found.high is None:
        assert min(len(ours), len(theirs)) == 1, "single runs have no interval"
        return
    assert found.low <= found.ratio * (1 + 1e-9) and found.ratio <= found.high * (1 + 1e-9)
    if found.verdict == "tie" and found.ratio != 1:
        assert found.high < 1.03 + 0.002 / min(*ours, *theirs) + 1e-9
    if found.verdict == "worse":
        assert found.low > 1.03
