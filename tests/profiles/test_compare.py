"""Decisions of a comparison: intervals, verdicts, circumstances, gates, noise."""

from __future__ import annotations

import math
import random
import re
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndld_flow.base.errors import RequestError
from ndld_flow.profiles.compare.comparison import compare
from ndld_flow.profiles.compare.differences import circumstances_of
from ndld_flow.profiles.compare.intervals import (
    applies,
    learn_thresholds,
    median_interval,
    noise_samples,
    paired_ratio,
    unpaired_ratio,
)
from ndld_flow.profiles.compare.measured import Measured, Rules
from ndld_flow.profiles.compare.written_gates import parse_comparison_gate, parse_comparison_gates
from ndld_flow.profiles.read.read_profile import read_profile
from ndld_flow.records.comparison import Comparison, Subject, Verdict
from ndld_flow.records.measurement import Circumstance, Machine, Metric
from ndld_flow.records.noise import Noise, NoiseSample
from ndld_flow.records.profile import Profile, ProfileRun
from tests.support.a100_exports import a100_exports
from tests.support.compare_samples import MACHINE, comparison_of, layer, profile_of, steady, tensor, verdict_on
from tests.support.message_files import CheckMessage

TIMES = st.floats(1e-3, 1e4)
RUNS = st.lists(TIMES, min_size=1, max_size=20)
OPPOSITE: dict[Verdict, Verdict] = {"improved": "regressed", "regressed": "improved"}


def compared(*profiles: Profile, gates: Sequence[str] = (), **rule: Any) -> Comparison:
    measured = [Measured(index, "", profile) for index, profile in enumerate(profiles)]
    subjects = [Subject(label=str(index), location="", kind="profile") for index in range(len(profiles))]
    return compare(subjects, {"speed": measured}, Rules(**rule), gates)


# Intervals


@pytest.mark.representatives("7", "6")
@pytest.mark.parametrize("runs", [5, 6, 7, 9, 12])
def test_the_interval_of_a_median_has_its_nominal_coverage(runs: int) -> None:
    rng = random.Random(runs)
    held = 0
    for _ in range(4000):
        low, high = median_interval([rng.lognormvariate(0, 0.3) for _ in range(runs)])
        held += low <= 1 <= high
    assert held / 4000 == pytest.approx(0.94 if runs == 5 else 0.95, abs=0.012)


def test_the_interval_of_few_values_is_their_range(check_message: CheckMessage) -> None:
    assert median_interval([3.0]) == (3.0, 3.0)
    assert median_interval([5.0, 1.0, 2.0, 4.0, 3.0]) == (1.0, 5.0)
    with pytest.raises(ValueError) as caught:
        median_interval([])
    check_message(caught.value)


@settings(deadline=None)
@given(RUNS)
def test_an_interval_holds_the_median_and_stays_within_the_values(values: list[float]) -> None:
    low, high = median_interval(values)
    assert min(values) <= low <= statistics.median(values) * (1 + 1e-12)
    assert statistics.median(values) * (1 - 1e-12) <= high <= max(values)


def test_the_unpaired_interval_matches_resampling() -> None:
    rng = random.Random(1)
    base, candidate = ([rng.lognormvariate(m, 0.1) for _ in range(9)] for m in (0, 0.2))
    exact = unpaired_ratio(base, candidate)
    drawn = sorted(
        statistics.median(rng.choices(candidate, k=9)) / statistics.median(rng.choices(base, k=9))
        for _ in range(20_000)
    )
    assert exact.low == pytest.approx(drawn[500], rel=0.01)
    assert exact.high == pytest.approx(drawn[-500], rel=0.01)


def test_pairs_cancel_what_slows_both_runs() -> None:
    base = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    candidate = [value * 1.1 for value in base]
    interval = paired_ratio(base, candidate)
    assert (interval.low, interval.ratio, interval.high) == pytest.approx((1.1, 1.1, 1.1))
    apart = unpaired_ratio(base, candidate)
    assert apart.low < 0.5
    assert apart.high > 2


@settings(deadline=None)
@given(RUNS, RUNS)
def test_swapping_inverts_the_interval(base: list[float], candidate: list[float]) -> None:
    there, back = unpaired_ratio(base, candidate), unpaired_ratio(candidate, base).inverted()
    assert (there.ratio, there.low, there.high) == pytest.approx((back.ratio, back.low, back.high))
    assert there.low <= there.ratio * (1 + 1e-9)
    assert there.ratio <= there.high * (1 + 1e-9)


# Verdicts


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        ((1.1, 1.12, 1.09, 1.1, 1.11), "regressed"),
        ((0.9, 0.91, 0.89, 0.9, 0.92), "improved"),
        ((1.0, 1.01, 0.99, 1.02, 1.0), "unchanged"),
        ((1.1, 1.12, 1.09, 1.02, 1.11), "inconclusive"),  # one pair is not beyond 3 %
        ((1.0, 1.01, 0.9, 1.02, 1.0), "inconclusive"),
    ],
)
def test_a_verdict_needs_the_whole_interval(factors: tuple[float, ...], verdict: str) -> None:
    base = [10.0, 11.0, 10.5, 12.0, 10.2]
    candidate = [ms * factor for ms, factor in zip(base, factors, strict=True)]
    comparison = comparison_of(steady(*base), steady(*candidate))
    assert {verdict_on(comparison, f"latency.{word}").verdict for word in ("min", "median", "mean", "p99")} == {verdict}


def test_runs_of_different_sessions_are_not_paired() -> None:
    base, candidate = (1.0, 2.0, 4.0, 8.0, 16.0), (1.1, 2.2, 4.4, 8.8, 17.6)
    assert verdict_on(comparison_of(steady(*base), steady(*candidate))).verdict == "regressed"
    for sessions in ("one", "two"), ("", ""):
        apart = [steady(*ms, session=s) for ms, s in zip((base, candidate), sessions, strict=True)]
        assert verdict_on(comparison_of(*apart)).verdict == "inconclusive"


def test_throughput_is_better_when_higher() -> None:
    comparison = comparison_of(steady(*[10.0] * 5), steady(*[8.0] * 5))
    assert verdict_on(comparison, "throughput").verdict == "improved"
    assert verdict_on(comparison, "throughput").ratio == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(0.5, "improved"), (0.95, "inconclusive"), (1.001, "inconclusive"), (1.05, "inconclusive"), (2.0, "regressed")],
)
def test_single_runs_decide_little(ratio: float, verdict: str) -> None:
    metric_verdict = verdict_on(comparison_of(steady(10.0), steady(10.0 * ratio, session="")))
    assert metric_verdict.verdict == verdict
    assert "run each: no interval" in metric_verdict.why
    assert "confidence" not in metric_verdict.why
    assert not metric_verdict.interval_is_known


@pytest.mark.parametrize(("others", "outcome"), [(0.3, "passed"), (1.0, "inconclusive")])
def test_few_runs_on_a_busy_machine_decide_no_difference(others: float, outcome: str) -> None:
    """Single runs of a pitch tracker on a busy machine differed by up to 108 %; five show how much they differ."""
    load = {"cpus_used_by_others": others, "cpus_taken_by_host": 0.0}
    during = {"before": {"affinity": [0, 1]}, "during": load}
    for runs, expected in ((1, outcome), (4, outcome), (5, "passed")):
        slow, fast = steady(*[20.0] * runs), steady(*[10.0] * runs, conditions=during)
        gates = ("latency.median <= -10 %", "latency.median <= -1 ms", "latency.median > 7 ms", "throughput < 140")
        comparison = compared(slow, fast, gates=gates)
        assert [gate.outcome for gate in comparison.gates] == [expected] * 4
        assert verdict_on(comparison.profiles[0]).verdict == ("improved" if expected == "passed" else "inconclusive")
    of_idle = compared(steady(10.0, conditions=during), steady(20.0), gates=("latency.median > 15 ms",))
    assert [gate.outcome for gate in of_idle.gates] == ["passed"]
    single = steady(20.0), steady(10.0, conditions=during)
    known = compared(*single, gates=gates, noise=learned(single_run_threshold=0.3))
    assert verdict_on(known.profiles[0]).verdict == "improved"
    assert [gate.outcome for gate in known.gates] == ["passed"] * 4


@pytest.mark.parametrize(
    ("gate", "outcome"),
    [
        ("latency.median <= 13 ms", "passed"),
        ("throughput > 70", "passed"),
        ("latency.median <= 11 ms", "inconclusive"),  # a single run may differ by a quarter, whatever else runs
        ("latency.median <= 7 ms", "inconclusive"),  # alone on the machine, it may take no longer
        ("throughput > 140", "inconclusive"),
        ("latency.median > 20 ms", "failed"),
        ("latency.p95 <= 100 ms", "inconclusive"),
    ],
)
def test_a_limit_that_is_met_beside_other_load_is_met(gate: str, outcome: str) -> None:
    busy = steady(10.0, conditions={"before": {"affinity": [0, 1]}, "during": {"cpus_used_by_others": 1.0}})
    assert [item.outcome for item in compared(steady(10.0), busy, gates=(gate,)).gates] == [outcome]


@pytest.mark.parametrize("others", [10**400, math.inf, math.nan, "many", None, [9]])
def test_an_impossible_load_is_unknown(others: Any) -> None:
    assert steady(10.0, conditions={"during": {"cpus_used_by_others": others}}).share_used_by_others == 0


@pytest.mark.parametrize(
    ("runs", "verdict", "outcome"), [(4, "inconclusive", "inconclusive"), (5, "improved", "passed")]
)
@pytest.mark.parametrize("metric", ["latency.mean", "latency.p95"])
def test_few_runs_decide_no_tail(metric: str, runs: int, verdict: str, outcome: str) -> None:
    """The 95th percentiles of single runs of one model differed 21-fold on a busy machine."""
    slow, fast = steady(*[30.0] * runs), steady(*[1.0] * runs)
    for noise in (None, learned(single_run_threshold=0.3)):  # which is of the median
        comparison = compared(slow, fast, gates=(f"{metric} <= -10 %", f"{metric} <= 5 ms"), noise=noise)
        assert verdict_on(comparison.profiles[0], metric).verdict == verdict
        assert verdict_on(comparison.profiles[0]).verdict == "improved"
        assert [gate.outcome for gate in comparison.gates] == [outcome] * 2


def test_learned_noise_gives_single_runs_an_interval() -> None:
    compared_runs = compared(steady(10.0), steady(20.0, session=""), noise=learned(single_run_threshold=0.3))
    verdict = verdict_on(compared_runs.profiles[0])
    assert verdict.interval_is_known
    assert verdict.low == pytest.approx(2 / 1.3)


def test_confidence_of_few_runs_is_limited_by_their_agreement() -> None:
    base, candidate = steady(10.0, 20.0, 40.0), steady(7.0, 14.0, 28.0)
    assert verdict_on(comparison_of(base, candidate)).verdict == "inconclusive"
    agreeing = comparison_of(steady(10.0, 10.1, 10.2), steady(7.0, 7.1, 7.2))
    assert verdict_on(agreeing).verdict == "improved"


def test_differences_below_the_floor_do_not_count() -> None:
    tiny = comparison_of(steady(*[0.005] * 5), steady(*[0.006] * 5))
    assert {verdict_on(tiny, metric).verdict for metric in ("latency.min", "throughput")} == {"unchanged"}
    assert verdict_on(tiny).threshold == pytest.approx(0.4)
    assert verdict_on(comparison_of(steady(*[0.005] * 5), steady(*[0.009] * 5))).verdict == "regressed"


def test_a_profile_against_itself_is_unchanged_whatever_its_spread() -> None:
    wild = steady(1.0, 30.0, layers=(layer("a", ms=(1.0, 9.0)),), layer_runs=(1, 1))
    comparison = comparison_of(wild, wild)
    assert {verdict.verdict for verdict in comparison.verdicts} == {"unchanged"}
    assert [verdict.verdict for verdict in comparison.layer_verdicts] == ["unchanged"]
    assert comparison.coverage[1] is not None
    assert comparison.coverage[1].matched_share == 1


def test_exact_metrics_have_no_interval() -> None:
    metrics = [
        {
            "model.bytes": Metric(value=size, unit="bytes"),
            "agree.cosine": Metric(value=cosine),
            "odd": Metric(value=size),
        }
        for size, cosine in ((1000.0, 0.9999), (999.0, 0.9998))
    ]
    profiles = [steady(*[10.0] * 5), steady(*[10.0] * 5, session="two")]
    measured = [Measured(value, "", profiles[value], metrics[value]) for value in (0, 1)]
    result = compare(
        [], {"speed": measured}, Rules(), ["agree.cosine >= 0.9999", "model.bytes <= -1 B", "model.bytes <= -0.05 %"]
    )
    verdicts = {name: verdict_on(result.profiles[0], name) for name in metrics[0]}
    assert {name: verdict.verdict for name, verdict in verdicts.items()} == {
        "model.bytes": "improved",
        "agree.cosine": "regressed",
        "odd": "inconclusive",
    }
    assert verdicts["model.bytes"].low == verdicts["model.bytes"].high == pytest.approx(0.999)
    assert [gate.outcome for gate in result.gates] == ["failed", "passed", "passed"]
    assert " to " not in result.gates[-1].why


def test_all_metrics_of_profiles_are_compared() -> None:
    run = ProfileRun(
        latency_ms=(2.0, 3.0), load_ms=80.0, peak_memory_bytes=1 << 26, enqueue_ms=(0.1,), h2d_ms=(0.2,),
        compute_ms=(1.5,), d2h_ms=(0.3,),
    )  # fmt: skip
    profile = profile_of([], [layer("a", ms=(1.0, 2.0)), layer("b", ms=(0.5, 0.5))]).model_copy(update={"runs": (run,)})
    result = {metric.metric: (metric.values[0], metric.unit) for metric in comparison_of(profile, steady(3.0)).metrics}
    assert result["latency.median"] == (2.5, "ms")
    assert result["latency.min"] == (2.0, "ms")
    assert result["throughput"] == (400.0, "1/s")
    assert result["load"] == (80.0, "ms")
    assert result["memory.peak"] == (1 << 26, "bytes")
    assert result["layers.sum"] == (2.0, "ms")
    assert [result[f"{phase}.median"][0] for phase in ("enqueue", "h2d", "compute", "d2h")] == [0.1, 0.2, 1.5, 0.3]


def test_the_worst_verdict_is_explained_with_the_median() -> None:
    usual, worse = steady(*[10.0] * 5), steady(*[11.0] * 5)
    better = steady(*[9.0] * 5)
    assert compared(usual, better, usual.model_copy(update={"session": "two"})).verdict == "improved"
    assert compared(usual, better, worse).verdict == "regressed"
    slow_passes = profile_of([[10.0, 15.0, 15.0]] * 5)
    result = compared(usual, slow_passes)
    assert result.verdict == "unchanged"
    assert "but latency.median regressed" in result.why


def test_the_headline_names_every_candidate() -> None:
    """One that cannot be compared hides no other that regressed."""
    elsewhere = steady(*[5.0] * 5, **other_machine(cpu="CPU B"))
    result = compared(steady(*[10.0] * 5), elsewhere, steady(*[12.0] * 5))
    assert result.verdict == "incomparable"
    assert "1 against 0: measured under different" in result.why
    assert result.why.endswith("; 2 against 0: regressed, +20 %")
    assert compared(steady(*[10.0] * 5), steady(*[9.0] * 5), steady(*[8.0] * 5)).why.startswith("2 against 0: latency")


def test_several_profiles_are_summarized_by_a_geometric_mean() -> None:
    base, half, double = (steady(*[ms] * 5) for ms in (10.0, 5.0, 20.0))
    sections = {
        name: [Measured(0, "", base), Measured(1, "", candidate)] for name, candidate in (("a", half), ("b", double))
    }
    subjects = [Subject(label=label, location="", kind="run") for label in "ab"]
    assert compare(subjects, sections, Rules()).geometric_mean_ratio == pytest.approx(1.0)
    assert compare(subjects, {"a": sections["a"]}, Rules()).geometric_mean_ratio is None


# Circumstances


def other_machine(**fields: Any) -> dict[str, Any]:
    return {"machine": MACHINE.model_copy(update=fields)}


BEFORE: dict[str, Any] = {"affinity": [0, 1], "turbo": True}
GPU_BEFORE: dict[str, Any] = {"affinity": [0, 1], "gpus": [{"clocks.max.sm": "1980", "power.limit": "300 W"}]}


def on_gpu(**gpu: str) -> dict[str, Any]:
    """A profile of ONNX Runtime on a GPU of which all is recorded."""
    before = GPU_BEFORE | {"gpus": [GPU_BEFORE["gpus"][0] | gpu]}
    return {
        "providers": ("CUDAExecutionProvider",),
        "conditions": {"before": before},
        "options": {"threads": 0, "lock_clocks": False},
        **other_machine(gpus=("T4",), driver="550"),
    }


FORBIDDING: list[tuple[Circumstance, dict[str, Any], dict[str, Any]]] = [
    ("hardware", {}, other_machine(cpu="CPU B")),
    ("hardware", {}, other_machine(cpu_count=4)),
    ("hardware", {}, {"conditions": {"before": {"affinity": [0, 1], "cgroup_cpu_limit": 1.5}}}),
    ("cpus", {}, {"conditions": {"before": {"affinity": [2, 3]}}}),
    ("driver", on_gpu(), on_gpu() | other_machine(gpus=("T4",), driver="560")),
    ("versions", {}, {"versions": {"onnxruntime-gpu": "1.30.0"}}),
    ("clocks", {"conditions": {"before": BEFORE}}, {"conditions": {"before": BEFORE | {"turbo": False}}}),
    ("clocks", on_gpu(), on_gpu(**{"clocks.max.sm": "1410"})),
    ("clocks", on_gpu(), on_gpu() | {"options": {"threads": 0, "lock_clocks": True}}),
    ("power", on_gpu(), on_gpu(**{"power.limit": "150 W"})),
    ("batch", {}, {"inputs": (tensor("x", 8, 3, 8, 8),)}),
    ("profiler", {}, {"profiler": "on"}),
    ("inputs", {}, {"inputs": (tensor("x", 1, 3, 8, 8).model_copy(update={"data": "zeros"}),)}),
    ("inputs", {"input_digests": {"x": "aa"}}, {"input_digests": {"x": "bb"}}),
]


@pytest.mark.parametrize(("circumstance", "one", "other"), FORBIDDING)
def test_measurements_under_other_conditions_are_not_compared(
    circumstance: Circumstance, one: dict[str, Any], other: dict[str, Any]
) -> None:
    pair = steady(*[10.0] * 5, **one), steady(*[20.0] * 5, **other)
    refused = compared(*pair, gates=["latency.min <= +5 %"])
    assert refused.verdict == "incomparable"
    assert f"--allow {circumstance}" in refused.why
    assert [gate.outcome for gate in refused.gates] == ["incomparable"]
    assert compared(*pair, allow=frozenset([circumstance])).verdict == "regressed"
    assert {difference.circumstance for difference in refused.profiles[0].differences if difference.forbids} == {
        circumstance
    }


@pytest.mark.parametrize(
    "other",
    [
        other_machine(gpus=("T4",)),
        other_machine(memory_bytes=8 << 30),
        {"versions": {"onnxruntime": "1.31.1", "numpy": "1.0"}},
        {"options": {"threads": 4}},
        {"providers": ("CUDAExecutionProvider",)},
        {"model_digest": "blake3:ff"},
        {"inputs": (tensor("renamed", 1, 3, 8, 8),)},
        {"inputs": (tensor("x", 1, 3, 8, 8), tensor("another", 1))},
        {"input_digests": {"x": "aa"}, "model_digest": "blake3:ee"},
    ],
)
def test_other_differences_are_listed_without_preventing_a_verdict(other: dict[str, Any]) -> None:
    base: dict[str, Any] = {"input_digests": {"x": "aa"}} if "input_digests" in other else {}
    if "providers" in other:  # of a GPU, its clocks are recorded too
        base, other = (
            {**on_gpu(), "providers": providers} for providers in (("CPUExecutionProvider",), other["providers"])
        )
    result = compared(steady(*[10.0] * 5, **base), steady(*[20.0] * 5, **other))
    assert result.verdict == "regressed"
    assert not any(difference.forbids for difference in result.profiles[0].differences)
    assert result.profiles[0].differences or "renamed" in str(other) or "another" in str(other)


def test_other_providers_are_a_cause_once() -> None:
    """The settings that chose them differ too."""
    base, other = (
        {**on_gpu(), "providers": (name,), "options": {"provider": name, "provider_library": name}}
        for name in ("CPUExecutionProvider", "CUDAExecutionProvider")
    )
    assert circumstances_of(steady(10.0, **base), steady(10.0, **other), frozenset()).causes == ("providers",)


UNKNOWN: list[dict[str, Any]] = [
    other_machine(cpu=""),
    other_machine(cpu_count=None),
    {"versions": {}},
    {"conditions": {}},
    {"profiler": ""},
    {"inputs": ()},
    {"inputs": (tensor("x", 1, 3, 8, 8).model_copy(update={"data": ""}),)},
]


@pytest.mark.parametrize("unknown", UNKNOWN)
@pytest.mark.parametrize("both", [False, True])
def test_unknown_conditions_are_not_equal(unknown: dict[str, Any], both: bool) -> None:
    """Neither to what is known nor to another unknown; a person may take it as equal, and the verdict names it."""
    pair = steady(*[10.0] * 5, **(unknown if both else {})), steady(*[20.0] * 5, **unknown)
    refused = compared(*pair, gates=["latency.min <= +5 %"])
    assert refused.verdict == "incomparable"
    assert "--allow unknown" in refused.why
    missing = [difference for difference in refused.profiles[0].differences if difference.forbids]
    assert missing
    assert all(item.detail in refused.why for item in missing)
    assert [gate.outcome for gate in refused.gates] == ["incomparable"]
    allowed = compared(*pair, allow=frozenset(["unknown"]))
    assert allowed.verdict == "regressed"
    assert f"not recorded for {'both' if both else 'the candidate'}" in allowed.why
    assert all(difference.allowed for difference in allowed.profiles[0].differences if difference.forbids)


def export_of(*run_ms: float, **fields: Any) -> Profile:
    """An export of trtexec: it records the GPU, its clocks and the shapes, and nothing of the rest of the machine."""
    machine = Machine(gpus=("A100",))
    clocks = {"device_information": {"Compute Clock Rate": "1.41"}}
    return steady(
        *run_ms,
        **{"machine": machine, "versions": {}, "conditions": clocks, "backend": "tensorrt", "providers": ()} | fields,
    )


def test_exports_that_both_lack_a_condition_get_a_conditional_verdict() -> None:
    result = compared(export_of(*[10.0] * 5), export_of(*[5.0] * 5), gates=["latency.min <= -10 %"])
    assert result.verdict == "improved"
    assert "if both were measured" in result.why
    assert [gate.outcome for gate in result.gates] == ["passed"]
    unrecorded = [difference for difference in result.profiles[0].differences if not any(difference.values)]
    assert "CPU" in {item.detail for item in unrecorded}
    assert not any(item.forbids for item in unrecorded)


@pytest.mark.parametrize(
    ("other", "option"),
    [
        ({"conditions": {"device_information": {"Compute Clock Rate": "1.0"}}}, "clocks"),  # unequal
        ({"conditions": {}}, "unknown"),  # only one has it
        ({"versions": {"tensorrt": "8.6.1"}}, "unknown"),
        ({"inputs": ()}, "unknown"),
        ({"inputs": (tensor("x", 8, 3, 8, 8),)}, "batch"),
        ({"profiler": "on"}, "profiler"),
        ({"machine": MACHINE}, "unknown"),  # measured by ndld-flow
    ],
)
def test_exports_are_incomparable_where_one_records_more_or_another_value(other: dict[str, Any], option: str) -> None:
    pair = export_of(*[10.0] * 5), export_of(*[5.0] * 5, **other)
    for profiles in pair, pair[::-1]:
        refused = compared(*profiles)
        assert refused.verdict == "incomparable"
        assert f"--allow {option}" in refused.why


def test_a_measurement_among_exports_is_compared_with_none_of_them() -> None:
    comparison = comparison_of(export_of(10.0), export_of(5.0), export_of(5.0, machine=MACHINE))
    assert verdict_on(comparison, candidate=1).verdict == "improved"
    assert verdict_on(comparison, candidate=2).verdict == "incomparable"
    (cpu,) = (difference for difference in comparison.differences if difference.detail == "CPU")
    assert cpu.forbids


def test_allowing_the_unknown_allows_no_known_difference() -> None:
    pair = steady(*[10.0] * 5), steady(*[20.0] * 5, profiler="", **other_machine(cpu="CPU B"))
    refused = compared(*pair, allow=frozenset(["unknown"]))
    assert refused.verdict == "incomparable"
    assert refused.why.endswith("to compare anyway: --allow hardware")
    assert compared(*pair, allow=frozenset(["unknown", "hardware"])).verdict == "regressed"


def test_unknown_settings_are_listed_and_not_hidden() -> None:
    result = compared(steady(*[10.0] * 5, options={}), steady(*[20.0] * 5))
    (threads,) = (difference for difference in result.profiles[0].differences if difference.circumstance == "threads")
    assert threads.values == ("", "0")


def test_a_difference_prevents_only_affected_pairs() -> None:
    here, there = steady(*[10.0] * 5), steady(*[10.5] * 5, **other_machine(cpu="CPU B"))
    comparison = comparison_of(here, there, steady(*[12.0] * 5))
    assert verdict_on(comparison, candidate=1).verdict == "incomparable"
    assert verdict_on(comparison, candidate=2).verdict == "regressed"
    assert verdict_on(comparison, base=1, candidate=2).verdict == "incomparable"


def test_allowing_the_unknown_applies_only_to_pairs_that_lack_it() -> None:
    """Two machines differ, and the third profile does not record its own."""
    profiles = [steady(*[10.0 + at] * 5, **other_machine(cpu=cpu)) for at, cpu in enumerate(("", "CPU A", "CPU B"))]
    comparison = comparison_of(*profiles, allow=frozenset(["unknown"]))
    assert verdict_on(comparison, base=0, candidate=1).verdict == "regressed"
    assert verdict_on(comparison, base=1, candidate=2).verdict == "incomparable"


@pytest.mark.parametrize("ms", [5.0, 20.0])
def test_a_difference_between_identical_artifacts_is_noise(ms: float) -> None:
    pair = [steady(*[took] * 5, model_digest="blake3:aa") for took in (10.0, ms)]
    result = compared(*pair, gates=["latency.min <= +5 %", "latency.min <= -5 %", "latency.min <= 12 ms"])
    assert result.verdict == "unchanged"
    assert "same model" in result.why
    assert "noise" in result.why
    absolute = "passed" if ms < 12 else "failed"
    assert [gate.outcome for gate in result.gates] == ["passed", "failed", absolute]
    assert {verdict.verdict for verdict in result.profiles[0].verdicts if verdict.metric != "load"} == {"unchanged"}


def test_identical_models_with_other_settings_are_judged() -> None:
    pair = [steady(*[ms] * 5, model_digest="blake3:aa", options={"threads": n}) for n, ms in ((1, 10.0), (2, 5.0))]
    result = compared(*pair)
    assert result.verdict == "improved"
    assert "model, with different threads" in result.why
    engines = [
        steady(*[ms] * 5, backend="tensorrt", engine_digest=engine, model_digest="blake3:aa", **on_engine())
        for engine, ms in (("int8", 10.0), ("fp16", 5.0))
    ]
    assert compared(*engines).verdict == "improved"
    same = [
        engine.model_copy(update={"engine_digest": "same", "model_digest": f"m{at}"})
        for at, engine in enumerate(engines)
    ]
    assert compared(*same).verdict == "unchanged"
    assert "same engine" in compared(*same).why


def test_an_empty_setting_is_recorded() -> None:
    def with_affinity(cores: str, ms: float) -> Profile:
        return steady(*[ms] * 5, model_digest="blake3:aa", options={"threads": 2, "affinity": cores})

    pinned = compared(with_affinity("", 10.0), with_affinity("0", 20.0))
    assert (pinned.verdict, "different affinity" in pinned.why) == ("regressed", True)
    assert not compared(with_affinity("", 10.0), with_affinity("", 10.0)).profiles[0].differences


def on_engine() -> dict[str, Any]:
    options = {"transfers": False, "streams": 1, "lock_clocks": False}
    return on_gpu() | {"providers": (), "versions": {"tensorrt": "10.16"}, "options": options}


def test_an_unknown_digest_is_not_identical() -> None:
    pair = [steady(*[ms] * 5, model_digest="") for ms in (10.0, 5.0)]
    assert compared(*pair).verdict == "improved"


def test_latencies_must_time_the_same_work() -> None:
    with_copies = steady(
        *[10.0] * 5,
        backend="tensorrt",
        **on_engine() | {"options": {"transfers": True, "streams": 1, "lock_clocks": False}},
    )
    refused = compared(with_copies, steady(*[20.0] * 5, backend="tensorrt", **on_engine()))
    assert refused.verdict == "incomparable"
    assert "--allow timing" in refused.why


def test_figures_next_to_a_ratio_agree_with_it() -> None:
    """The machine slowed down: the medians of each side are from different times."""
    base = [8.0, 9.0, 9.38, 20.0, 30.0]
    candidate = [9.0, 10.2, 18.0, 22.6, 33.0]
    verdict = verdict_on(comparison_of(steady(*base), steady(*candidate)), "latency.median")
    assert verdict.base_value is not None
    assert verdict.candidate_value is not None
    assert verdict.candidate_value / verdict.base_value == pytest.approx(verdict.ratio)
    assert (verdict.base_value, verdict.candidate_value) == pytest.approx((20.0, 22.6))
    assert "20.0 ms -> 22.6 ms" in verdict.why


@settings(deadline=None)
@given(RUNS, RUNS, st.booleans())
def test_figures_always_have_the_ratio_next_to_them(base: list[float], candidate: list[float], paired: bool) -> None:
    pair = [profile_of([[ms] for ms in runs], session="one" if paired else "") for runs in (base, candidate)]
    verdict = verdict_on(comparison_of(*pair))
    assert verdict.candidate_value is not None
    assert verdict.candidate_value / (verdict.base_value or 0) == pytest.approx(verdict.ratio)


def test_gpu_and_driver_matter_where_one_was_used() -> None:
    here, there = (other_machine(driver=driver, gpus=(gpu,)) for driver, gpu in (("550", "T4"), ("560", "L4")))
    on_cpu = steady(*[10.0] * 5, **here), steady(*[20.0] * 5, **there)
    assert compared(*on_cpu).verdict == "regressed"
    with_gpu = [steady(*[10.0 + at] * 5, **on_gpu() | machine) for at, machine in enumerate((here, there))]
    assert compared(*with_gpu).verdict == "incomparable"
    assert "driver: 550 and 560" in compared(*with_gpu).why


def other_runtime(**fields: Any) -> dict[str, Any]:
    """A profile of a runtime that was added as one module: only what it records is known of it."""
    return {"backend": "reference", "providers": ("Reference",), "versions": {"reference": "1.0"}} | fields


def test_a_runtime_that_was_added_is_compared_by_what_it_records() -> None:
    on_cpu = [steady(*[ms] * 5, **other_runtime()) for ms in (10.0, 20.0)]
    assert compared(*on_cpu).verdict == "regressed"
    same = [steady(*[ms] * 5, model_digest="blake3:1", **other_runtime()) for ms in (10.0, 10.2)]
    assert "same model" in compared(*same).why
    newer = steady(*[20.0] * 5, **other_runtime(versions={"reference": "2.0"}))
    assert compared(on_cpu[0], newer).verdict == "incomparable"


def test_a_gpu_of_a_runtime_that_was_added_counts() -> None:
    unlocked = on_gpu() | {"options": {"lock_clocks": False}}
    before, after = (steady(*[ms] * 5, **unlocked | other_runtime()) for ms in (10.0, 20.0))
    assert compared(before, after).verdict == "regressed"
    capped = steady(
        *[20.0] * 5, **on_gpu(**{"power.limit": "70 W"}) | {"options": {"lock_clocks": False}} | other_runtime()
    )
    assert compared(before, capped).verdict == "incomparable"
    by_onnxruntime = steady(*[10.0] * 5, **on_gpu())
    assert compared(before, by_onnxruntime).verdict == "incomparable", "its latency may include copies"


def test_the_same_model_is_not_the_same_engine() -> None:
    unknown = [steady(*[ms] * 5, backend="tensorrt", model_digest="blake3:1", **on_engine()) for ms in (10.0, 10.2)]
    assert "same" not in compared(*unknown).why


# Gates


@pytest.mark.parametrize(
    ("gate", "outcome"),
    [
        ("latency.min <= +5 %", "failed"),
        ("latency.min <= +15%", "passed"),
        ("latency.min<=+10.5%", "inconclusive"),
        ("latency.median >= +5 %", "passed"),
        ("latency.min < +0.5 ms", "failed"),
        ("latency.min <= +2 ms", "passed"),
        ("latency.min ≤ +1.1ms", "inconclusive"),
        ("latency.min <= 20 ms", "passed"),
        ("latency.min <= 10500 us", "failed"),
        ("latency.min <= 12", "passed"),
        ("latency.min <= \N{MINUS SIGN}5 %", "failed"),
        ("throughput >= -20 %", "passed"),
        ("throughput > 50", "passed"),
    ],
)
def test_gates_are_decided(gate: str, outcome: str) -> None:
    pair = steady(*[10.0] * 5), steady(10.9, 11.0, 11.0, 11.1, 11.2)
    (result,) = compared(*pair, gates=[gate]).gates
    assert (result.outcome, result.gate) == (outcome, gate)
    assert result.why


@pytest.mark.parametrize("gate", ["latency.min <= 20 ms", "latency.min <= +5 %", "latency.min <= +1 ms"])
def test_a_limit_missed_narrowly_is_not_displayed_as_met(gate: str) -> None:
    limit = {"%": 1.05, "20 ms": 20 / 19, "+1": 20 / 19}
    pair = steady(*[19.0] * 5), steady(*[19.0 * next(v for k, v in limit.items() if k in gate) * 1.00001] * 5)
    (result,) = compared(*pair, gates=[gate]).gates
    assert result.outcome == "failed"
    shown = result.why.split(" (")[0]
    assert shown.lstrip("+") not in (gate.rpartition("<=")[2].strip(" +"), "20.0 ms", "5.0 %", "1.00 ms")


@pytest.mark.parametrize(
    "gate",
    [
        "latency.mni <= +5 %",
        "latency.min <= 5 %",
        "latency.min <= fast",
        "latency.min <= +5 MiB",
        "latency.min == 5 ms",
        "",
        "latency.min <= +5 % ms",
        "x" * 10_000,
        "latency.min <= 1e999",
    ],
)
def test_wrong_gates_are_explained(gate: str, check_message: CheckMessage) -> None:
    pair = steady(*[10.0] * 5), steady(*[11.0] * 5)
    with pytest.raises(RequestError) as error:
        compared(*pair, gates=[gate])
    check_message(error.value)
    assert len(str(error.value)) < 1000


def test_all_invalid_gates_are_reported_together() -> None:
    with pytest.raises(RequestError) as error:
        parse_comparison_gates(["a", "latency.min <= +5 %", "b"])
    assert str(error.value).count("is not valid") == 2
    pair = steady(*[10.0] * 5), steady(*[11.0] * 5)
    with pytest.raises(RequestError) as error:
        compared(*pair, gates=["latensy.min <= +5 %", "memory.peak <= +5 %"], metric="latency.medan")
    assert re.findall("`(latens[^`]*|latency.medan|memory.peak)`;", str(error.value)) == [
        "latency.medan",
        "latensy.min",
        "memory.peak",
    ]


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_parsed_or_reported(text: str) -> None:
    try:
        gate = parse_comparison_gate(text)
    except RequestError:
        return
    assert math.isfinite(gate.limit)


# Noise


def learned(**fields: Any) -> Noise:
    sample = NoiseSample(a_runs_ms=(10.0, 11.0), b_runs_ms=(10.5, 10.0), ratio=1.0)
    given: dict[str, Any] = {
        "machine": MACHINE,
        "backend": "onnxruntime",
        "provider": "CPUExecutionProvider",
        "model": "cnn",
        "measured_at": datetime(2026, 11, 21, tzinfo=UTC),
        "samples": (sample,),
        "threshold": 0.15,
        "run_cov": 0.05,
        "single_run_threshold": 0.02,
    }
    return Noise(**given | fields)


def test_learned_noise_raises_the_threshold_where_it_was_learned() -> None:
    pair = steady(*[10.0] * 5), steady(*[11.0] * 5)
    here = compared(*pair, noise=learned())
    assert here.verdict == "unchanged"
    assert "cnn" in here.noise
    elsewhere = compared(*pair, noise=learned(machine=MACHINE.model_copy(update={"cpu": "CPU B"})))
    assert elsewhere.verdict == "regressed"
    assert "used for 0 of 2 profiles" in elsewhere.noise
    assert not applies(learned(provider="CUDAExecutionProvider"), pair[0])


def test_learned_noise_decides_on_single_runs() -> None:
    pair = steady(10.0), steady(11.0)
    assert compared(*pair, noise=learned(threshold=0.0)).verdict == "regressed"
    assert compared(*pair, noise=learned(threshold=0.0, single_run_threshold=0.3)).verdict == "inconclusive"


def test_noise_is_the_spread_not_covered_by_intervals(check_message: CheckMessage) -> None:
    scattered = NoiseSample(
        a_runs_ms=(10.0, 12.0, 9.0, 10.0, 11.0), b_runs_ms=(11.0, 9.0, 10.0, 12.0, 10.0), ratio=1.01
    )
    shifted = NoiseSample(a_runs_ms=(10.0,) * 5, b_runs_ms=(10.6, 10.5, 10.7, 10.6, 10.8), ratio=1.06)
    assert learn_thresholds([scattered]).threshold == pytest.approx(0.01)
    assert learn_thresholds([scattered, scattered, shifted]).threshold == pytest.approx(0.05)
    assert learn_thresholds([scattered]).single_run_threshold > 0.2
    with pytest.raises(ValueError) as caught:
        learn_thresholds([])
    check_message(caught.value)


def test_a_session_is_divided_into_comparisons() -> None:
    a, b = (steady(*(base + index for index in range(11))) for base in (10.0, 11.0))
    samples = noise_samples(a, b, runs=5)
    assert [sample.a_runs_ms[0] for sample in samples] == [10.0, 15.0]
    assert samples[0].ratio == pytest.approx(13 / 12)


@pytest.mark.thorough
def test_learned_thresholds_keep_a_a_comparisons_quiet() -> None:
    """On a machine where two sides differ by up to 5 % for no reason that their runs show."""
    rng = random.Random(3)

    def session() -> NoiseSample:
        shift = rng.uniform(-0.05, 0.05)
        a = [10 * rng.lognormvariate(0, 0.005) for _ in range(5)]
        b = [10 * rng.lognormvariate(shift, 0.005) for _ in range(5)]
        return NoiseSample(a_runs_ms=tuple(a), b_runs_ms=tuple(b), ratio=statistics.median(b) / statistics.median(a))

    alarms = 0
    for _ in range(20):
        noise = learned(threshold=learn_thresholds([session() for _ in range(20)]).threshold)
        for item in (session() for _ in range(20)):
            comparison = comparison_of(steady(*item.a_runs_ms), steady(*item.b_runs_ms), noise=noise)
            alarms += verdict_on(comparison).verdict in ("improved", "regressed")
    assert alarms / 400 == pytest.approx(1 / 21, abs=0.03)


# All profiles


@settings(deadline=None, max_examples=20)
@given(RUNS, RUNS, st.booleans())
def test_swapping_base_and_candidate_inverts_verdicts(
    base: list[float], candidate: list[float], together: bool
) -> None:
    comparison = comparison_of(steady(*base), steady(*candidate, session="one" if together else ""))
    for verdict in comparison.verdicts:
        back = verdict_on(comparison, verdict.metric, verdict.candidate, verdict.base)
        assert back.ratio == pytest.approx(1 / verdict.ratio)
        assert back.interval_is_known == verdict.interval_is_known
        if verdict.interval_is_known:
            assert (back.low, back.high) == pytest.approx((1 / verdict.high, 1 / verdict.low))
        assert back.verdict == OPPOSITE.get(verdict.verdict, verdict.verdict)


@settings(deadline=None)
@given(st.lists(st.floats(1.0, 100.0), min_size=5, max_size=8), st.floats(1.0, 50.0))
def test_only_ratios_count_above_the_floor(runs: list[float], factor: float) -> None:
    candidate = [ms * 1.1 for ms in runs]
    verdicts = [
        [(verdict.verdict, pytest.approx(verdict.ratio)) for verdict in comparison_of(*pair).verdicts]
        for pair in (
            (steady(*runs), steady(*candidate)),
            (steady(*(ms * factor for ms in runs)), steady(*(ms * factor for ms in candidate))),
        )
    ]
    assert verdicts[0] == verdicts[1]


ANY = st.floats(allow_nan=True, allow_infinity=True)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.lists(ANY, max_size=3), max_size=6), st.lists(st.lists(ANY, min_size=2, max_size=2), max_size=4))
def test_broken_numbers_never_raise(runs: list[list[float]], layers: list[list[float]]) -> None:
    broken = profile_of(runs, [layer("n" * 10_000, ms=samples) for samples in layers], layer_runs=(1, 1))
    usual = steady(*[1.0] * 5, layers=(layer("n" * 10_000, ms=(1.0, 1.0)),), layer_runs=(1, 1))
    comparison = comparison_of(broken, usual, usual)
    compare([], {"speed": [Measured(0, "", broken), Measured(1, "", usual)]}, Rules())
    assert type(comparison).model_validate_json(comparison.to_json()) == comparison


@pytest.mark.parametrize("time", [1e-311, 1e-300, 1e300, math.inf, math.nan, -1.0, 0.0])
def test_absurd_times_are_left_out(time: float) -> None:
    broken = profile_of(
        [[time, 2.0]] * 5, [layer("a", nodes="a", ms=(time, 2.0)), layer("b", nodes="a", ms=(time, 2.0))]
    )
    usual = steady(*[1.0] * 5, layers=(layer("a", nodes="a", ms=(1.0, 1.0)),))
    comparison = comparison_of(broken, usual)
    assert verdict_on(comparison).ratio == 0.5
    assert all(0 < verdict.ratio < 10 for verdict in comparison.layer_verdicts)


def test_profiles_without_metrics_are_inconclusive() -> None:
    result = compared(profile_of([]), profile_of([]))
    assert (result.verdict, result.profiles[0].verdicts) == ("inconclusive", ())
    assert compare([], {}, Rules()).verdict == "inconclusive"


def test_real_exports_of_an_a100_are_compared() -> None:
    fp32, fp16 = (read_profile(a100_exports() / name) for name in ("fp32", "fp16"))
    unknown = frozenset(["unknown"])
    faster = compared(fp32, fp16, gates=["latency.median <= -50 %"], allow=unknown)
    slower = compared(fp16, fp32, allow=unknown)
    assert (faster.verdict, slower.verdict) == ("improved", "regressed")
    assert [gate.outcome for gate in faster.gates] == ["inconclusive"]  # 57 % less, of one run each
    shares = [item.profiles[0].coverage[1] for item in (slower, faster)]
    assert [share.matched_share for share in shares if share] == pytest.approx([0.979, 0.913], abs=0.001)
    verdicts = [verdict.verdict for verdict in faster.profiles[0].layer_verdicts]
    assert verdicts.count("improved") >= 15
    assert "regressed" not in verdicts
