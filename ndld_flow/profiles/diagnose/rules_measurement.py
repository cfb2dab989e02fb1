"""Rules on a measurement itself: its conditions and the variation of its samples. Most qualify its accuracy."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from ndld_flow.base.quantities import MINUS, count, milliseconds, share, three_digits
from ndld_flow.profiles.diagnose.subject import Insight, Subject
from ndld_flow.records.measurement import LatencySummary, percentile

_SLOWER = 1.2
_VARIES = 0.1
_RUNS_VARY = 0.05
_OUTLIER = 1.5
"""Multiple of the median above which a pass is an outlier."""
_MANY_OUTLIERS = 0.02
_DRIFT = 0.05
_FEWEST = 20
_WARM = 1.2


def layers_exceed_passes(subject: Subject) -> Iterator[Insight]:
    """Report layers that add up to more than twice the pass in which they ran."""
    ratio = subject.layers_per_pass
    if not ratio:
        return
    yield Insight(
        title=f"The layers take {three_digits(ratio)} times as long as a pass",
        evidence=f"Those of one pass take {milliseconds(subject.pass_layers_ms)}; the latency is "
        f"{milliseconds(subject.latency_ms)}.",
        next_step=(
            "Check that both are of one measurement: the same model, batch and clocks. Layers that run concurrently in "
            "several streams add up to more, too. Their times do not show what bounds the latency."
        ),
    )


def times_of_the_host(subject: Subject) -> Iterator[Insight]:
    """Report layer times of ONNX Runtime on a device: kernels run asynchronously, so a node's time is its launch
    (https://github.com/microsoft/onnxruntime/issues/20398).
    """
    if not subject.times_are_of_the_host or not subject.layers:
        return
    yield Insight(
        title="Layer times are those of the host, not of the device",
        evidence=f"Launching the layers of one pass takes {milliseconds(subject.pass_layers_ms)}, a pass "
        f"{milliseconds(subject.latency_ms)}. A layer that waits for the device includes the time of earlier layers.",
        next_step=(
            "Rely on the latency; layer times are only a hint. For times on the device, build an engine and use "
            "TensorRT's own profile (trtexec `--exportProfile`), or Nsight Systems."
        ),
    )


def waits_for_the_device(subject: Subject) -> Iterator[Insight]:
    """Report layer times that include launching each layer and waiting for the device."""
    wait_ms = subject.longest_wait_ms
    if not wait_ms:
        return
    all_ms = wait_ms * sum(median_ms > 0 for median_ms in subject.medians_ms)
    yield Insight(
        title="Layer times include launching and waiting for the device",
        evidence=f"At most {milliseconds(wait_ms)} in each layer, the time of the shortest one: {milliseconds(all_ms)} "
        f"of the {milliseconds(subject.pass_layers_ms)} in the layers of one pass. The latency, "
        f"{milliseconds(subject.latency_ms)}, includes none of it.",
        next_step="Compare long layers by their times. The share of many short layers is smaller than shown.",
    )


def profiler_overhead(subject: Subject) -> Iterator[Insight]:
    """Report a layer pass that is at least 20 % slower than the timing pass: short layers appear too long."""
    if not subject.profile.latency_ms or not subject.profile.layer_pass_ms or not subject.latency_ms:
        return
    overhead = subject.profile.profiler_overhead
    if overhead < _SLOWER:
        return
    excess_ms = (overhead - 1) * subject.latency_ms
    yield Insight(
        title=f"With the profiler the model takes {overhead:.2g} times as long",
        evidence=f"{milliseconds(subject.latency_ms)} without it, {milliseconds(subject.latency_ms * overhead)} with "
        f"it: {milliseconds(excess_ms / max(1, len(subject.layers)))} for each layer.",
        next_step=(
            "The latency and the order of long layers are reliable; shares of short layers are not. Larger inputs or "
            "batches reduce the profiler's effect."
        ),
    )


def variation(subject: Subject) -> Iterator[Insight]:
    """Report passes that vary by at least 10 % (coefficient of variation). trtexec calls 1 % unstable, but machines
    without locked clocks are never that stable.
    """
    samples = subject.profile.latency_ms
    if len(samples) < _FEWEST:
        return
    latency = subject.profile.latency
    if latency.cov < _VARIES:
        return
    yield Insight(
        title=f"Passes vary by {share(latency.cov)}",
        evidence=f"Over {count(latency.sample_count)} passes the mean is {milliseconds(latency.mean_ms)}, the standard "
        f"deviation {milliseconds(latency.std_ms)}, the shortest {milliseconds(min(samples))}, the longest "
        f"{milliseconds(max(samples))}.",
        next_step=(
            "Stop other programs, lock the clocks, and use more process runs. Compare medians of runs or "
            "minima, not single passes."
        ),
    )


def runs_disagree(subject: Subject) -> Iterator[Insight]:
    """Report process runs whose medians vary by at least 5 % (coefficient of variation)."""
    medians = [run.median_ms for run in subject.profile.runs if run.latency_ms]
    if len(medians) < 3:
        return
    runs = LatencySummary.of(medians)
    if runs.cov < _RUNS_VARY:
        return
    yield Insight(
        title=f"Process runs vary by {share(runs.cov)}",
        evidence=f"Medians of {len(medians)} runs are between {milliseconds(runs.min_ms)} and "
        f"{milliseconds(runs.max_ms)}.",
        next_step=(
            "Smaller differences need more runs (raise `runs` or the budget), in turns with the profile they are "
            "compared with. `ndld-flow noise` measures which differences this machine can resolve."
        ),
    )


def drift(subject: Subject) -> Iterator[Insight]:
    """Report runs whose last third is at least 5 % slower or faster than the first third, in the same direction in
    every run: heat, clocks or another process.
    """
    changes = [
        statistics.median(run.latency_ms[-third:]) / statistics.median(run.latency_ms[:third]) - 1
        for run in subject.profile.runs
        if (third := len(run.latency_ms) // 3) >= _FEWEST // 3 and min(run.latency_ms) > 0
    ]
    if not changes or min(map(abs, changes)) < _DRIFT or len({change > 0 for change in changes}) > 1:
        return
    change = statistics.median(changes)
    slower = change > 0
    yield Insight(
        title=f"Passes get {'slower' if slower else 'faster'} within a run",
        evidence=f"The last third of the passes of a run relative to the first: {'+' if slower else MINUS}"
        f"{share(abs(change))} (median of {len(changes)} {'run' if len(changes) == 1 else 'runs'}).",
        next_step=(
            "Watch clocks and temperature: lock the clocks, or pause between passes (`sleep`)."
            if slower
            else "Use a longer warm-up (`warmup`)."
        ),
    )


def outliers(subject: Subject) -> Iterator[Insight]:
    """Report at least 2 % of passes that take more than 1.5 times the median."""
    samples = subject.profile.latency_ms
    if len(samples) < _FEWEST:
        return
    latency = subject.profile.latency
    over = sum(sample > _OUTLIER * latency.median_ms for sample in samples)
    if over < max(2, _MANY_OUTLIERS * len(samples)):
        return
    yield Insight(
        title=f"{count(over)} of {count(len(samples))} passes are outliers",
        evidence=f"They take more than {_OUTLIER} times the median of {milliseconds(latency.median_ms)}; p99 is "
        f"{milliseconds(latency.p99_ms)}.",
        next_step=(
            "Look at their times: evenly spaced ones come from a timer or another process, those at the beginning from "
            "a warm-up that was too short. Fewer threads than CPUs leave capacity for the rest of the system."
        ),
    )


def cold_start(subject: Subject) -> Iterator[Insight]:
    """Report runs whose first measured pass mostly takes 20 % more than the median, and as long as the slowest 5 %: the
    warm-up was too short. Where other processes slow many passes down, the first is one of them by chance.
    """
    runs = [run for run in subject.profile.runs if len(run.latency_ms) >= 5 and run.median_ms > 0]
    cold = [
        run
        for run in runs
        if run.latency_ms[0] > _WARM * run.median_ms and run.latency_ms[0] >= percentile(run.latency_ms, 95)
    ]
    if not cold or len(cold) * 2 <= len(runs):
        return
    excess = statistics.median(run.latency_ms[0] / run.median_ms for run in cold)
    yield Insight(
        title="The warm-up was too short",
        evidence=f"In {len(cold)} of {len(runs)} runs the first measured pass took {excess:.2g} times the median, "
        f"after {subject.profile.warmup_passes} warm-up passes.",
        next_step="Raise `warmup` or `warmup_passes`. Means and high percentiles are unreliable here.",
    )
