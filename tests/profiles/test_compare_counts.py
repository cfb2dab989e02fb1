"""Verdicts on counts: they confirm that nothing has changed, and claim nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from ndld_flow.base.metric_directions import which_is_better
from ndld_flow.profiles.compare.comparison import compare
from ndld_flow.profiles.compare.measured import Measured, Rules
from ndld_flow.records.comparison import Comparison, MetricVerdict, Subject
from ndld_flow.records.profile import PassCount, Profile, without_impossible_values
from ndld_flow.report.comparison.page import collect_comparison
from ndld_flow.report.exports.profile_markdown import profile_markdown
from tests.support.comparison_fixtures import in_turns

INSTRUCTIONS = PassCount(
    quantity="instructions", counter="Valgrind 3.19.0", threads=1, cpu_features=("AVX2", "FMA3"), libc="glibc 2.36",
    samples=(1_000_300, 1_000_000, 999_900),
)  # fmt: skip


def with_count(*samples: int, versions: dict[str, str] | None = None, **changes: Any) -> Profile:
    count = INSTRUCTIONS.model_copy(update={**({"samples": samples} if samples else {}), **changes})
    plain = in_turns("model", 2.0, 3)
    return plain.model_copy(update={"counts": (count,), "versions": plain.versions | (versions or {})})


def compared(base: Profile, candidate: Profile, *gates: str, **rules: Any) -> Comparison:
    subjects = [Subject(label=name, location=name, kind="profile") for name in ("base", "candidate")]
    measured = [Measured(0, "", base), Measured(1, "", candidate)]
    return compare(subjects, {"model": measured}, Rules(**rules), gates)


def verdict_on(base: Profile, candidate: Profile, **rules: Any) -> MetricVerdict:
    (profile,) = compared(base, candidate, **rules).profiles
    return next(each for each in profile.verdicts if each.metric == "instructions.median" and each.base == 0)


def test_counts_within_their_noise_are_unchanged() -> None:
    assert verdict_on(with_count(), with_count(1_000_900)).verdict == "unchanged"
    assert verdict_on(with_count(1_000_900), with_count()).verdict == "unchanged"


@pytest.mark.parametrize("after", [990_000, 1_010_000])
def test_more_or_less_work_is_neither_faster_nor_slower(after: int) -> None:
    verdict = verdict_on(with_count(), with_count(after))
    assert verdict.verdict == "inconclusive"
    assert "may take more or less time" in verdict.why
    assert not {"faster", "slower", "improved", "regressed"} & set(verdict.why.split())
    assert which_is_better("instructions.median", "") == which_is_better("allocations.bytes", "bytes") == "neither"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"counter": "perf events"}, "counter Valgrind 3.19.0 and perf events"),
        ({"counter": "Valgrind 3.22.0"}, "counter Valgrind 3.19.0 and Valgrind 3.22.0"),
        ({"threads": 2}, "threads 1 and 2"),
        ({"libc": "glibc 2.39"}, "C library glibc 2.36 and glibc 2.39"),
        ({"cpu_features": ("AVX2", "AVX512F", "FMA3")}, "only one processor has AVX512F"),
        ({"cpu_features": ()}, "instruction sets are not recorded"),
        ({"versions": {"numpy": "2.5.0"}}, "numpy 2.4.6 and 2.5.0"),
        ({"versions": {"onnxruntime-gpu": "1.32.0"}}, "onnxruntime-gpu"),
    ],
)
def test_counts_of_other_circumstances_are_incomparable(changes: dict[str, Any], reason: str) -> None:
    verdict = verdict_on(with_count(), with_count(**changes))
    assert verdict.verdict == "incomparable"
    assert reason in verdict.why


def test_allowing_other_versions_does_not_make_counts_comparable() -> None:
    other = with_count(versions={"onnxruntime-gpu": "1.32.0"})
    verdict = verdict_on(with_count(), other, allow=frozenset({"versions"}))
    assert verdict.verdict == "incomparable"
    assert "counts are not comparable: onnxruntime-gpu 1.31.1 and 1.32.0" in verdict.why


def test_the_file_format_library_does_not_matter() -> None:
    both = with_count(versions={"onnx": "1.22.0"}), with_count(versions={"onnx": "1.23.2"})
    assert verdict_on(*both).verdict == "unchanged"


def test_gates_on_counts_decide_and_leave_the_noise_undecided() -> None:
    def outcome(after: int, gate: str) -> str:
        (decided,) = compared(with_count(), with_count(after), gate).gates
        return decided.outcome

    assert outcome(1_000_500, "instructions.median <= +0.2 %") == "passed"
    assert outcome(1_010_000, "instructions.median <= +0.2 %") == "failed"
    assert outcome(1_000_500, "instructions.median <= +0 %") == "inconclusive"


def test_a_profile_without_counts_has_no_verdict_on_them() -> None:
    (profile,) = compared(with_count(), in_turns("model", 2.0, 3)).profiles
    (metric,) = (each for each in profile.metrics if each.metric == "instructions.median")
    assert metric.values == (1_000_000, None)
    assert not [each for each in profile.verdicts if each.metric == "instructions.median"]


def test_impossible_counts_are_removed() -> None:
    for samples in ((-1, 5), (10**19,), ()):
        hostile = with_count().model_copy(update={"counts": (INSTRUCTIONS.model_copy(update={"samples": samples}),)})
        assert without_impossible_values(hostile).counts == ()
    sound = with_count()
    assert without_impossible_values(sound) is sound


def test_pages_and_summaries_show_counts_and_their_meaning() -> None:
    base, candidate = with_count(), with_count(1_010_000)
    comparison = compared(base, candidate)
    assert collect_comparison(comparison, [(base, candidate)]).has_counts
    plain = [in_turns(name, 2.0, 3) for name in ("a", "b")]
    assert not collect_comparison(compared(plain[0], plain[1]), [plain]).has_counts
    summary = profile_markdown("model", base)
    assert "no measure of time" in summary
    assert "1,000,000 instructions by Valgrind 3.19.0 on one thread, ±0.02 % over 3 passes" in summary
    assert "Counts" not in profile_markdown("model", plain[0])
