"""Judge counts of two profiles: they can show that nothing has changed, never that something became faster.

Across releases of a library, instructions change far more than the time does, and other kernels run on another
processor: such counts have nothing in common.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ndld_flow.base.quantities import apart, quantity, ratio_change
from ndld_flow.records.comparison import ComparedMetric, MetricVerdict
from ndld_flow.records.pass_counts import COUNT_METRICS, count_behind
from ndld_flow.records.profile import PassCount, Profile

COUNT_NOISE: Final = 0.001
"""Relative difference of two counts of the same work: where memory lies and when threads wake up changes a few."""
_RUNS_NO_MODEL: Final = ("onnx",)
"""Libraries whose versions do not change what a pass runs. Those of numpy, Python and this tool do: they call it."""


def judge_count(
    metric: ComparedMetric, pair: tuple[int, int], profiles: tuple[Profile, Profile], forbidden: str
) -> MetricVerdict | None:
    """Return the verdict on one metric of counts; None if one of the two has none."""
    counts = [count_behind(profile, metric.metric) for profile in profiles]
    base, candidate = counts
    if base is None or candidate is None:
        return None
    before, after = base.median, candidate.median
    ratio = after / before if before else 1.0 if after == before else float("inf")
    # First the reasons that no `allow` removes.
    reason = _find_obstacle(profiles, base, candidate) or forbidden
    same = 1 / (1 + COUNT_NOISE) <= ratio <= 1 + COUNT_NOISE
    return MetricVerdict(
        metric=metric.metric,
        base=pair[0],
        candidate=pair[1],
        verdict="incomparable" if reason else "unchanged" if same else "inconclusive",
        ratio=ratio,
        base_value=before,
        candidate_value=after,
        low=ratio / (1 + COUNT_NOISE),
        high=ratio * (1 + COUNT_NOISE),
        threshold=COUNT_NOISE,
        why=reason or _explain(metric, before, after, ratio, same=same),
    )


def _explain(metric: ComparedMetric, before: float, after: float, ratio: float, *, same: bool) -> str:
    if before == after:
        return f"{quantity(after, metric.unit)} in both"
    change = f"{' -> '.join(apart((before, after), metric.unit))}: {ratio_change(ratio)}"
    limit = f"±{COUNT_NOISE * 100:.3g} %"
    if same:
        return f"{change}, within {limit}"
    return f"{change}, more than {limit}: the passes do other work, which may take more or less time"


def _find_obstacle(profiles: tuple[Profile, Profile], base: PassCount, candidate: PassCount) -> str:
    """Return the reason why two counts have nothing in common; empty if they may be compared."""
    differing = list(_obstacles(profiles, base, candidate))
    if not differing:
        return ""
    return f"counts are not comparable: {'; '.join(differing)}. Count both again with the same libraries and machine"


def _obstacles(profiles: tuple[Profile, Profile], base: PassCount, candidate: PassCount) -> Iterator[str]:
    first, second = profiles
    facts = {
        "counter": (base.counter, candidate.counter),
        "threads": (str(base.threads), str(candidate.threads)),
        "C library": (base.libc, candidate.libc),
        "runtime": (first.backend, second.backend),
        "architecture": (first.machine.architecture, second.machine.architecture),
        "Python": (first.machine.python, second.machine.python),
    }
    names = sorted({*first.versions, *second.versions} - set(_RUNS_NO_MODEL))
    facts |= {name: (first.versions.get(name, "none"), second.versions.get(name, "none")) for name in names}
    for name, (one, other) in facts.items():
        if one != other:
            yield f"{name} {one or 'not recorded'} and {other or 'not recorded'}"
        elif not one:
            yield f"{name} not recorded"
    if not (base.cpu_features and candidate.cpu_features):
        yield "the processor's instruction sets are not recorded"
    elif set(base.cpu_features) != set(candidate.cpu_features):
        only = sorted({*base.cpu_features} ^ {*candidate.cpu_features})
        yield f"only one processor has {', '.join(only[:6])}"


def is_count(metric: ComparedMetric) -> bool:
    """Return whether a metric is a count of passes."""
    return metric.metric in COUNT_METRICS
