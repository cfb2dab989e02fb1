"""Convert trtexec's passes to the run of a profile and to spans of its timeline."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from ndld_flow.profiles.read.trtexec_log import TrtexecLog, statistics_of
from ndld_flow.profiles.read.trtexec_times import DEFAULT_WARMUP_MS, MAX_PASSES, Pass, Passes
from ndld_flow.records.profile import Layer, ProfileRun, Span

_WARMUP = re.compile(r"\+ (\d{1,9}(?:\.\d{1,6})?)\s?ms warm up")


@dataclass(frozen=True)
class MeasuredPasses:
    """The timing pass of a profile."""

    runs: tuple[ProfileRun, ...] = ()
    warmup_passes: int = 0
    warmup_ms: float = 0.0
    median_pass: Pass | None = None
    notes: tuple[str, ...] = ()


def measured_passes(times: Passes | None, log: TrtexecLog) -> MeasuredPasses:
    """Return the passes after the warm-up, or the log's median if there are no passes."""
    if times is None or not times.passes:
        return _from_summary(log)
    told = _WARMUP.search(log.text("inference_options", "Duration"))
    warmup_ms = float(told[1]) if told else DEFAULT_WARMUP_MS
    kept = times.after_warmup(warmup_ms)
    first = kept[0].h2d_at
    run = ProfileRun(
        latency_ms=tuple(one.latency for one in kept),
        starts_ms=tuple(one.h2d_at - first for one in kept),
        enqueue_ms=() if _is_coarse(kept) else tuple(one.enqueue for one in kept),
        h2d_ms=tuple(one.h2d for one in kept),
        compute_ms=tuple(one.compute for one in kept),
        d2h_ms=tuple(one.d2h for one in kept),
    )
    dropped = len(times.passes) - len(kept)
    by_latency = sorted(kept, key=lambda one: one.latency)
    notes = [*_warmup_notes(dropped, warmup_ms, told is None), *_notes(times, kept), *_told_otherwise(run, log)]
    return MeasuredPasses((run,), dropped, warmup_ms, by_latency[(len(kept) - 1) // 2], tuple(notes))


def _from_summary(log: TrtexecLog) -> MeasuredPasses:
    """Return a run with one sample per quantity: the medians of trtexec's summary."""
    summary = log.section("performance_summary")
    keys = ("Latency", "Enqueue Time", "H2D Latency", "GPU Compute Time", "D2H Latency")
    medians = {key: statistics_of(summary.get(key)).get("median") for key in keys}
    latency, enqueue, h2d, compute, d2h = (() if medians[key] is None else (medians[key] or 0.0,) for key in keys)
    if not latency or latency[0] <= 0:
        return MeasuredPasses()
    told = ", ".join(f"{name} {value:g} ms" for name, value in log.latency.items())
    return MeasuredPasses(
        runs=(ProfileRun(latency_ms=latency, enqueue_ms=enqueue, h2d_ms=h2d, compute_ms=compute, d2h_ms=d2h),),
        notes=(f"there is no --exportTimes: the one sample is the median of trtexec's summary ({told})",),
    )


def _warmup_notes(dropped: int, warmup_ms: float, is_assumed: bool) -> Iterator[str]:
    if dropped:
        why = "trtexec's default; no log records another value" if is_assumed else "as trtexec's own summary does"
        yield f"{dropped} passes of the first {warmup_ms:g} ms are left out as warm-up ({why})"


def _notes(times: Passes, kept: Sequence[Pass]) -> Iterator[str]:
    if times.unreadable:
        yield f"{times.unreadable} passes of --exportTimes could not be read"
    if not times.is_all:
        yield f"only the first {MAX_PASSES:,} passes were read"
    if _is_coarse(kept):
        yield (
            "enqueue times of single passes are left out: trtexec exports their starts and ends with six digits, "
            f"which is exact only to {_enqueue_step(kept):g} ms"
        )


def _is_coarse(kept: Sequence[Pass]) -> bool:
    """Return True if times are rounded to more than half the duration of an enqueue, so that their median would
    mislead.
    """
    return _enqueue_step(kept) > fmean(one.enqueue for one in kept) / 2


def _enqueue_step(kept: Sequence[Pass]) -> float:
    """Return the resolution of the largest time, in ms: the value of its sixth digit."""
    largest = max(abs(one.enqueue_at) + one.enqueue for one in kept)
    return float(10 ** (math.floor(math.log10(largest)) - 5)) if largest else 0.0


def _told_otherwise(run: ProfileRun, log: TrtexecLog) -> Iterator[str]:
    """Yield figures of trtexec's own summary that differ from or add to these."""
    enqueue = statistics_of(log.section("performance_summary").get("Enqueue Time")).get("median")
    if enqueue is not None and not run.enqueue_ms:
        yield f"an enqueue took {enqueue:g} ms (median), by trtexec's own summary"
    told = log.latency.get("median")
    if told and abs(run.median_ms / told - 1) > 1e-3:
        yield (
            f"the log's median of {told:g} ms is not the median of these passes ({run.median_ms:g} ms): do they belong "
            "to one measurement?"
        )
    throughput = re.match(r"[\d.e+]{1,20}", log.text("performance_summary", "Throughput"))
    if throughput:
        yield (
            f"trtexec counted {throughput[0]} passes a second over its whole measurement, waits between passes "
            "included; throughput here is that of the median pass"
        )


def timeline(one: Pass | None, layers: Sequence[Layer]) -> tuple[tuple[Span, ...], str]:
    """Return spans of the median pass and of its layers end to end, and a description of them."""
    spans = list(_pass_spans(one)) if one is not None else []
    begin = min((span.start_ms for span in spans), default=0.0)
    spans = [span.model_copy(update={"start_ms": span.start_ms - begin}) for span in spans]
    compute = next((span.start_ms for span in spans if span.lane == "compute"), 0.0)
    timed = [(place, layer) for place, layer in enumerate(layers) if layer.median_ms > 0]
    spans.extend(_layer_spans(timed, compute))
    words = ["enqueue, copies and compute of the median pass"] if one is not None else []
    if timed:
        words.append("layers laid end to end by their own times: gaps and overlaps are unknown")
    return tuple(sorted(spans, key=lambda span: (span.start_ms, span.lane))), "; ".join(words)


def _pass_spans(one: Pass) -> Iterator[Span]:
    pieces: tuple[tuple[str, float, float, str], ...] = (
        ("enqueue", one.enqueue_at, one.enqueue, "overhead"),
        ("H2D", one.h2d_at, one.h2d, "transfer"),
        ("compute", one.compute_at, one.compute, "pass"),
        ("D2H", one.d2h_at, one.d2h, "transfer"),
    )
    for lane, start, duration, kind in pieces:
        if duration > 0:
            yield Span.model_validate(
                {"lane": lane, "name": lane, "start_ms": start, "duration_ms": duration, "kind": kind}
            )


def _layer_spans(timed: Iterable[tuple[int, Layer]], begin: float) -> Iterator[Span]:
    at = begin
    for place, layer in timed:
        lane = "GPU" if layer.stream is None else f"stream {layer.stream}"
        yield Span(lane=lane, name=layer.name, start_ms=at, duration_ms=layer.median_ms, layer=place)
        at += layer.median_ms
