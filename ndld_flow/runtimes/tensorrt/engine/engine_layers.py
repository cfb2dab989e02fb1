"""The layer pass of an engine: times of TensorRT's profiler joined with details of the engine inspector."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ndld_flow.base.errors import ModelError
from ndld_flow.base.quantities import counted
from ndld_flow.models.node_weights import add_evidence
from ndld_flow.precision.constraints.constraints import requested_precisions, with_requested_precisions
from ndld_flow.profiles.read.engine_layers import EngineInfo, bare_layer, read_engine_info
from ndld_flow.profiles.read.tensorrt_profile import timeline
from ndld_flow.profiles.read.trtexec_files import Pass
from ndld_flow.records.measurement import LatencySummary
from ndld_flow.records.profile import Layer
from ndld_flow.runtimes.protocol import LayerPass, Timing
from ndld_flow.runtimes.tensorrt.engine.engine_session import INSPECTED, Recording

_Key = tuple[str, int]
"""A layer's name, and its index among layers of the same name."""


def read_engine_layers(recordings: Sequence[Path], model: Path, timings: Sequence[Timing]) -> LayerPass:
    """Read the recordings of `record_engine_layers`, one for each process run, and delete them.

    The output of the engine inspector is in the folder of the first. The precisions that `model` requests and the
    evidence of its nodes are added. `timings` are those of the timing pass, whose median pass is shown in the timeline
    with the layers.
    """
    runs = [Recording.read(path) for path in recordings]
    engine: EngineInfo | None = None
    notes: list[str] = []
    try:
        engine = read_engine_info(recordings[0].parent / INSPECTED)
    except ValueError as error:  # the inspector only adds types and tensors; the times are valid without it
        notes.append(f"the output of the engine inspector could not be read: {error}")
    known = engine.layers if engine is not None else ()
    times = _times(runs, Counter(layer.name for layer in known))
    described: Sequence[Layer] = tuple(_describe(known, times, sum(len(run.passes) for run in runs)))
    with contextlib.suppress(ModelError):  # unreadable metadata; the measurement is valid without it
        described = with_requested_precisions(described, requested_precisions(model))
    layers = add_evidence(described, model)
    spans, basis = timeline(_median_pass(timings), layers)
    for path in recordings:
        path.unlink()
    return LayerPass(
        layers=layers,
        pass_ms=tuple(ms for run in runs for ms in run.pass_ms),
        notes=(*notes, *_shortcomings(engine, len(layers) - len(times))),
        layer_runs=tuple(len(run.passes) for run in runs),
        timeline=spans,
        timeline_basis=basis,
    )


def _times(runs: Sequence[Recording], named_alike: Mapping[str, int]) -> dict[_Key, list[float]]:
    """Return the ms of every pass, run after run, in the order of the profiler's first reports.

    Names repeat: the first report of a name in a pass belongs to its first layer, and so on. A name reported more often
    than it occurs in the engine is run by a loop: its times add up.
    """
    passes = [(run.names, reports) for run in runs for reports in run.passes]
    times: dict[_Key, list[float]] = defaultdict(lambda: [0.0] * len(passes))
    for number, (names, reports) in enumerate(passes):
        seen: Counter[str] = Counter()
        for index, ms in reports:
            name = names[index]
            times[name, seen[name] % max(1, named_alike.get(name, 1))][number] += ms
            seen[name] += 1
    return dict(times)


def _describe(known: Sequence[Layer], times: Mapping[_Key, list[float]], passes: int) -> Iterator[Layer]:
    """Yield the layers in the order they ran, then the engine's layers that took no time."""
    seen: Counter[str] = Counter()
    waiting: dict[_Key, Layer] = {}
    for layer in known:
        waiting[layer.name, seen[layer.name]] = layer
        seen[layer.name] += 1
    index = 0
    for key, samples in times.items():
        layer = waiting.pop(key) if key in waiting else bare_layer(key[0])
        yield layer.model_copy(update={"index": index, "samples_ms": tuple(samples)})
        index += 1
    for layer in waiting.values():
        yield layer.model_copy(update={"index": index, "samples_ms": (0.0,) * passes})
        index += 1


def _shortcomings(engine: EngineInfo | None, untimed: int) -> Iterator[str]:
    if engine is None or not engine.is_detailed:
        yield (
            "only the names of layers are known: types, tensors and tactics are in an engine that was built with "
            "`verbosity: detailed`"
        )
    if untimed:
        yield f"{counted(untimed, 'layer')} of the engine without a time of their own, shown with 0 at the end"
    yield (
        "layers were timed by TensorRT's profiler in separate passes, without CUDA graph and copies: its events "
        "between layers slow them down"
    )


def _median_pass(timings: Sequence[Timing]) -> Pass | None:
    """Return the median pass for the timeline; copies outside the pass are placed before and after it."""
    samples = [(timing, number) for timing in timings for number in range(len(timing.compute_ms))]
    if not samples:
        return None
    summary = LatencySummary.of([timing.latency_ms[number] for timing, number in samples])
    timing, number = samples[summary.median_pass]
    h2d, d2h = (ms[number] if ms else 0.0 for ms in (timing.h2d_ms, timing.d2h_ms))
    compute, enqueue = timing.compute_ms[number], timing.enqueue_ms[number]
    return Pass(h2d, enqueue, 0.0, h2d, h2d, compute, h2d + compute, d2h, timing.latency_ms[number])
