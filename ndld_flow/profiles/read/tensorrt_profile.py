"""Convert trtexec's measurements to a Profile, from its exports, its log, or TREx's folder of both."""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Literal, TypeVar

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.profiles.read.engine_layers import EngineInfo, bare_layer, read_engine_info, split_bindings
from ndld_flow.profiles.read.sources import Source
from ndld_flow.profiles.read.trtexec_files import (
    DEFAULT_WARMUP_MS,
    MAX_PASSES,
    DeviceMetadata,
    ExportedTimes,
    LayerTime,
    Pass,
    Passes,
    TrtexecLog,
    read_device,
    read_layer_times,
    read_log,
    read_times,
    statistics_of,
    take_metadata,
)
from ndld_flow.records.measurement import Machine
from ndld_flow.records.profile import Layer, LayerTimes, Profile, ProfileRun, RuntimeTraits, Span, TensorInfo


def _join_layers(engine: EngineInfo | None, times: ExportedTimes | None) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """Return the layers of both exports, or of the only one, with notes about them.

    Names repeat: the n-th row of a name belongs to its n-th layer.
    """
    known = engine.layers if engine is not None else ()
    if times is None:
        return known, ("layers have no times: there is no --exportProfile",) if known else ()
    pairs, leftover = _pairs(known, times.rows)
    joined = [layer.model_copy(update={"index": index, "samples_ms": (ms,)}) for index, (layer, ms) in enumerate(pairs)]
    return tuple(joined), tuple(_layer_notes(engine, times, leftover))


def _pairs(known: Sequence[Layer], rows: Sequence[LayerTime]) -> tuple[list[tuple[Layer, float]], int]:
    """Return the engine's layers with their times in row order, then the layers without a row, and the number of
    those."""
    waiting: dict[str, deque[Layer]] = defaultdict(deque)
    for layer in known:
        waiting[layer.name].append(layer)
    pairs = [(waiting[row.name].popleft() if waiting[row.name] else bare_layer(row.name), row.ms) for row in rows]
    left = [layer for layers in waiting.values() for layer in layers]
    return [*pairs, *((layer, 0.0) for layer in left)], len(left)


def _layer_notes(engine: EngineInfo | None, times: ExportedTimes, leftover: int) -> Iterator[str]:
    if times.pass_count == 1:
        yield "layers were measured in a single pass, profiler on: small differences between them are not significant"
    else:
        what = "medians" if times.are_medians else "means"
        of = f" of {counted(times.pass_count, 'pass')}" if times.pass_count else ""
        yield f"layer times are {what}{of} with TensorRT's profiler on, not single samples: trtexec exports no others"
    if engine is None:
        yield "types, tensors and tactics of layers are unknown: there is no --exportLayerInfo"
    elif not engine.is_detailed:
        yield "layers are known by name only: trtexec reports more with --profilingVerbosity=detailed"
    if leftover:
        yield f"{leftover} layers of the engine have no time in the profile and are shown with 0 at the end"


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
    warmup = _WARMUP.search(log.text("inference_options", "Duration"))
    warmup_ms = float(warmup[1]) if warmup else DEFAULT_WARMUP_MS
    kept = times.after_warmup(warmup_ms)
    first = kept[0].h2d_at
    run = ProfileRun(
        latency_ms=tuple(each.latency for each in kept),
        starts_ms=tuple(each.h2d_at - first for each in kept),
        enqueue_ms=() if _is_coarse(kept) else tuple(each.enqueue for each in kept),
        h2d_ms=tuple(each.h2d for each in kept),
        compute_ms=tuple(each.compute for each in kept),
        d2h_ms=tuple(each.d2h for each in kept),
    )
    dropped = len(times.passes) - len(kept)
    by_latency = sorted(kept, key=lambda each: each.latency)
    notes = [*_pass_notes(times, kept), *_differs_from_log(run, log)]
    if dropped:
        why = "as trtexec's own summary does" if warmup else "trtexec's default; no log records another value"
        notes.insert(0, f"{dropped} passes of the first {warmup_ms:g} ms are left out as warm-up ({why})")
    return MeasuredPasses((run,), dropped, warmup_ms, by_latency[(len(kept) - 1) // 2], tuple(notes))


def _from_summary(log: TrtexecLog) -> MeasuredPasses:
    """Return a run with one sample per quantity: the medians of trtexec's summary."""
    summary = log.section("performance_summary")
    keys = ("Latency", "Enqueue Time", "H2D Latency", "GPU Compute Time", "D2H Latency")
    medians = {key: statistics_of(summary.get(key)).get("median") for key in keys}
    latency, enqueue, h2d, compute, d2h = (() if medians[key] is None else (medians[key] or 0.0,) for key in keys)
    if not latency or latency[0] <= 0:
        return MeasuredPasses()
    figures = ", ".join(f"{name} {value:g} ms" for name, value in log.latency.items())
    return MeasuredPasses(
        runs=(ProfileRun(latency_ms=latency, enqueue_ms=enqueue, h2d_ms=h2d, compute_ms=compute, d2h_ms=d2h),),
        notes=(f"there is no --exportTimes: the one sample is the median of trtexec's summary ({figures})",),
    )


def _pass_notes(times: Passes, kept: Sequence[Pass]) -> Iterator[str]:
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
    return _enqueue_step(kept) > fmean(each.enqueue for each in kept) / 2


def _enqueue_step(kept: Sequence[Pass]) -> float:
    """Return the resolution of the largest time, in ms: the value of its sixth digit."""
    largest = max(abs(each.enqueue_at) + each.enqueue for each in kept)
    return float(10 ** (math.floor(math.log10(largest)) - 5)) if largest else 0.0


def _differs_from_log(run: ProfileRun, log: TrtexecLog) -> Iterator[str]:
    """Yield figures of trtexec's own summary that differ from or add to these."""
    enqueue = statistics_of(log.section("performance_summary").get("Enqueue Time")).get("median")
    if enqueue is not None and not run.enqueue_ms:
        yield f"an enqueue took {enqueue:g} ms (median), by trtexec's own summary"
    reported = log.latency.get("median")
    if reported and abs(run.median_ms / reported - 1) > 1e-3:
        yield (
            f"the log's median of {reported:g} ms is not the median of these passes ({run.median_ms:g} ms): do they "
            "belong to one measurement?"
        )
    throughput = re.match(r"[\d.e+]{1,20}", log.text("performance_summary", "Throughput"))
    if throughput:
        yield (
            f"trtexec counted {throughput[0]} passes a second over its whole measurement, waits between passes "
            "included; throughput here is that of the median pass"
        )


def timeline(pass_: Pass | None, layers: Sequence[Layer]) -> tuple[tuple[Span, ...], str]:
    """Return spans of the median pass and of its layers end to end, and a description of them."""
    spans = list(_pass_spans(pass_)) if pass_ is not None else []
    begin = min((span.start_ms for span in spans), default=0.0)
    spans = [span.model_copy(update={"start_ms": span.start_ms - begin}) for span in spans]
    at = next((span.start_ms for span in spans if span.lane == "compute"), 0.0)
    times = LayerTimes(layers).ms
    timed = [(index, layer, times[index]) for index, layer in enumerate(layers) if times[index] > 0]
    for place, layer, time_ms in timed:
        lane = "GPU" if layer.stream is None else f"stream {layer.stream}"
        spans.append(Span(lane=lane, name=layer.name, start_ms=at, duration_ms=time_ms, layer=place))
        at += time_ms
    words = ["enqueue, copies and compute of the median pass"] if pass_ is not None else []
    if timed:
        words.append("layers end to end, by their own times: gaps and overlaps are unknown")
    return tuple(sorted(spans, key=lambda span: (span.start_ms, span.lane))), "; ".join(words)


def _pass_spans(pass_: Pass) -> Iterator[Span]:
    pieces: tuple[tuple[str, float, float, str], ...] = (
        ("enqueue", pass_.enqueue_at, pass_.enqueue, "overhead"),
        ("H2D", pass_.h2d_at, pass_.h2d, "transfer"),
        ("compute", pass_.compute_at, pass_.compute, "pass"),
        ("D2H", pass_.d2h_at, pass_.d2h, "transfer"),
    )
    for lane, start, duration, kind in pieces:
        if duration > 0:
            yield Span.model_validate(
                {"lane": lane, "name": lane, "start_ms": start, "duration_ms": duration, "kind": kind}
            )


_OPTIONS = ("model_options", "build_options", "system_options", "inference_options")
_Read = TypeVar("_Read")


@dataclass
class _Exports:
    """The contents of the files of one measurement."""

    times: Passes | None = None
    layer_times: ExportedTimes | None = None
    engine: EngineInfo | None = None
    log: TrtexecLog = field(default_factory=TrtexecLog)
    device: DeviceMetadata | None = None
    notes: list[str] = field(default_factory=list)


def profile_of_tensorrt(source: Source) -> Profile:
    """Read the files of one measurement. Raises RequestError if they cannot be read or hold no measurement."""
    exports, names = _read(source), ", ".join(path.name for _, path in source.files)
    passes = measured_passes(exports.times, exports.log)
    layers, layer_notes = _join_layers(exports.engine, exports.layer_times)
    if not passes.runs and not layers:
        why = f" ({'; '.join(exports.notes)})" if exports.notes else ""
        raise RequestError(
            f"{names}: it holds no pass and no layer{why}; trtexec writes them with --exportTimes, "
            "--exportProfile and --exportLayerInfo"
        )
    spans, basis = timeline(passes.median_pass, layers)
    inputs, outputs = split_bindings(exports.engine) if exports.engine is not None else ((), ())
    # trtexec reports only the GPU.
    logged = exports.log.text("device_information", "Selected Device")
    gpu = logged or (exports.device.name if exports.device is not None else "")
    library = "tensorrt-rtx" if exports.log.is_rtx else "tensorrt"
    versions = {library: exports.log.version, "cuda": exports.device.cuda if exports.device is not None else ""}
    conditions: dict[str, JsonValue] = {
        "device_properties": exports.device.properties if exports.device is not None else {},
        "device_information": dict(exports.log.section("device_information")),
        "command": exports.log.command,
        "started_local_time": exports.log.started,
    }
    return Profile(
        label=source.label,
        model_digest="",
        backend="tensorrt_rtx" if exports.log.is_rtx else "tensorrt",
        runtime=RuntimeTraits(library=library, runs_engine=True, on_gpu=True),
        machine=Machine(gpus=(gpu,) if gpu else ()),
        versions={name: version for name, version in versions.items() if version},
        options={name: dict(exports.log.section(name)) for name in _OPTIONS if exports.log.section(name)},
        conditions={name: value for name, value in conditions.items() if value},
        # The log has only dimensions.
        inputs=inputs or _from_log(exports.log.inputs),
        outputs=outputs or _from_log(exports.log.outputs),
        profiler=_profiler(exports),
        warmup_passes=passes.warmup_passes,
        warmup_ms=passes.warmup_ms,
        runs=passes.runs,
        layers=layers,
        layer_runs=(1,) if exports.layer_times is not None and layers else (),
        timeline=spans,
        timeline_basis=basis,
        notes=(f"read from {names}", *passes.notes, *layer_notes, *exports.notes),
    )


def _read(source: Source) -> _Exports:
    exports = _Exports()
    for path in source.of("log"):
        exports.log = _merged(exports.log, read_log(path))
    for path in source.of("metadata"):
        _try(exports, path, lambda file: take_metadata(exports.log, file))
    for path in source.of("device"):
        exports.device = _try(exports, path, read_device)
    for path in source.of("times"):
        exports.times = read_times(path)
    for path in source.of("layer times"):
        exports.layer_times = _try(exports, path, read_layer_times)
    for path in source.of("engine"):
        exports.engine = _try(exports, path, read_engine_info)
    exports.notes += [
        f"{export.unreadable} layers of {name} could not be read"
        for name, export in (("--exportProfile", exports.layer_times), ("--exportLayerInfo", exports.engine))
        if export is not None and export.unreadable
    ]
    return exports


def _try(exports: _Exports, path: Path, read: Callable[[Path], _Read]) -> _Read | None:
    """Read one file; if it is damaged, add a note and return None, so that the others are still used."""
    try:
        return read(path)
    except ValueError as error:
        exports.notes.append(f"{path.name} could not be read: {error}")
        return None


def _merged(first: TrtexecLog, second: TrtexecLog) -> TrtexecLog:
    """Return two logs (of the build and of the measurement) as one; the second takes precedence."""
    return TrtexecLog(
        sections={
            name: {**first.section(name), **second.section(name)} for name in {**first.sections, **second.sections}
        },
        version=second.version or first.version,
        is_rtx=first.is_rtx or second.is_rtx,
        command=second.command or first.command,
        started=second.started or first.started,
        inputs=first.inputs | second.inputs,
        outputs=first.outputs | second.outputs,
    )


def _profiler(exports: _Exports) -> Literal["on", "off", ""]:
    """Return whether latencies were measured with trtexec's profiler of layers attached.

    It is if trtexec reports layers, unless `--separateProfileRun` is given.
    TREx does not keep reporting options, so that missing layers do not prove that no profiler was attached.
    """
    separate = exports.log.text("inference_options", "Separate profiling").lower()
    reporting = exports.log.section("reporting_options")
    sees_layers = reporting.get("Profile") == "Enabled" or "Export profile to JSON file" in reporting
    if separate == "enabled" or (reporting and not sees_layers):
        return "off"
    return "on" if separate == "disabled" and (sees_layers or exports.layer_times is not None) else ""


def _from_log(shapes: dict[str, tuple[int, ...]]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(name=name, dtype="", shape=shape) for name, shape in shapes.items())
