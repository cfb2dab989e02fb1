"""The layer pass: the time of each node of the model, read from profiles that ONNX Runtime wrote.

`layer_recording` records one for each process run. Here they are joined with each other, with the model as ONNX Runtime
ran it, and with the original model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.base.quantities import milliseconds
from ndld_flow.models.files import load_model
from ndld_flow.profiles.read.onnxruntime_profile import MAX_EVENTS, MeasuredPasses, read_passes, read_timeline
from ndld_flow.records.measurement import LatencySummary
from ndld_flow.records.profile import LayerTimes, Span
from ndld_flow.runtimes.onnxruntime.execution_providers import CPU
from ndld_flow.runtimes.onnxruntime.layer_details import (
    LayerOrigins,
    RunNode,
    count_covered,
    describe_layer,
    match_nodes,
)
from ndld_flow.runtimes.onnxruntime.layer_recording import WARMUP_PASSES
from ndld_flow.runtimes.protocol import LayerPass, RecordingPlan

_REPEATS_BODIES = ("Loop", "Scan")


def count_events(path: Path) -> int | None:
    """Return the largest number of events of a pass of this model; None if loops or functions multiply them.

    Raises `ModelError` if the file cannot be read as ONNX.
    """
    source = load_model(path)
    nodes = list(source.graph.all_nodes())
    if source.functions or any(node.op_type in _REPEATS_BODIES for node in nodes):
        return None
    return len(nodes) + 2


def read_layers(
    source: Path, recordings: Sequence[Path], optimized: Path | None, plan: RecordingPlan, *, parallel: bool = False
) -> LayerPass:
    """Read the recordings of `record_layers`, one for each process run, and delete them.

    `optimized` is the model as ONNX Runtime ran it; a missing file counts as None. `parallel`: nodes ran at the same
    time. Raises `ModelError` if `source` cannot be read as ONNX.
    """
    runs = [read_passes(recording, skip=WARMUP_PASSES) for recording in recordings]
    joined = _join(runs)
    try:
        ran = load_model(optimized) if optimized is not None and optimized.is_file() else None
    except ModelError:  # the model only adds origins of layers; the measurement is valid without it
        ran = None
    nodes, traced = _trace(load_model(source), joined, ran)
    layers = tuple(describe_layer(index, node) for index, node in enumerate(nodes))
    timeline, basis = _timeline(recordings, runs, joined)
    for recording in recordings:
        recording.unlink()
    layer_runs = tuple(len(run.pass_ms) for run in runs)
    return LayerPass(
        layers=layers,
        pass_ms=tuple(joined.pass_ms),
        notes=(
            *_shortcomings(joined, plan, len(runs), parallel),
            *_waits(LayerTimes(layers, layer_runs), plan),
            traced,
        ),
        layer_runs=layer_runs,
        timeline=timeline,
        timeline_basis=basis,
        waits_for_device=bool(plan.environment),
    )


def _waits(times: LayerTimes, plan: RecordingPlan) -> Iterator[str]:
    shortest_ms = min(filter(None, times.ms), default=0.0)
    if plan.environment and shortest_ms:
        shown = " ".join(f"{name}={value}" for name, value in plan.environment.items())
        yield (
            f"times of layers are those of passes in which each launch waits for the device ({shown}): they "
            f"include launching and waiting, at most the {milliseconds(shortest_ms)} of the shortest layer"
        )


def _join(runs: Sequence[MeasuredPasses]) -> MeasuredPasses:
    """Concatenate all passes, run after run. A node that did not run in a pass took no time in it."""
    joined = MeasuredPasses()
    for run in runs:
        before, passes = len(joined.pass_ms), len(run.pass_ms)
        joined.pass_ms.extend(run.pass_ms)
        joined.unreadable_lines += run.unreadable_lines
        for key, node in run.nodes.items():
            if key not in joined.nodes:
                joined.nodes[key] = replace(node, self_us=[0] * before, calls=0)
            joined.nodes[key].self_us.extend(node.self_us)
            joined.nodes[key].calls += node.calls
        for node in joined.nodes.values():
            node.self_us.extend([0] * (before + passes - len(node.self_us)))
    return joined


def _trace(source: ir.Model, measured: MeasuredPasses, optimized: ir.Model | None) -> tuple[list[RunNode], str]:
    """Return the nodes with their origins, and a sentence on how many of them were traced back to the model."""
    passes = max(1, len(measured.pass_ms))
    if optimized is None:
        untraced = [RunNode(node, None, (), node.calls / passes) for node in measured.nodes.values()]
        return untraced, "layers were not traced back to the model: the provider does not expose the model that it runs"
    ran = match_nodes(measured.nodes, optimized)
    origins = LayerOrigins(source, optimized)
    nodes = [
        RunNode(node, ran.get(key), origins.find(ran[key]) if key in ran else (), node.calls / passes)
        for key, node in measured.nodes.items()
    ]
    traced = [node.origins for node in nodes if node.origins]
    return nodes, (
        f"{len(traced)} of {len(nodes)} layers come from {count_covered(traced)} of the model's {origins.node_count} "
        f"nodes (constants not counted); {len(nodes) - len(traced)} layers were inserted by ONNX Runtime"
    )


def _timeline(
    recordings: Sequence[Path], runs: Sequence[MeasuredPasses], joined: MeasuredPasses
) -> tuple[tuple[Span, ...], str]:
    """Return the timeline of the median pass of all runs, and its description."""
    if not joined.pass_ms:
        return (), ""
    number = LatencySummary.of(joined.pass_ms).median_pass
    positions = {key: position for position, key in enumerate(joined.nodes)}
    basis = f"pass {number + 1} of {len(joined.pass_ms)} of the layer pass, its median, with ONNX Runtime's profiler on"
    for recording, run in zip(recordings, runs, strict=True):
        if number < len(run.offsets):
            return read_timeline(recording, run.offsets[number], positions), basis
        number -= len(run.offsets)
    return (), ""


def _shortcomings(measured: MeasuredPasses, plan: RecordingPlan, runs: int, parallel: bool) -> Iterator[str]:
    passes, requested = len(measured.pass_ms), plan.passes * runs
    if passes < requested:
        yield (
            f"{passes} layer passes instead of {requested}: ONNX Runtime keeps no more than {MAX_EVENTS:,} events, and "
            "silently drops the rest"
        )
    if measured.unreadable_lines:
        yield f"{measured.unreadable_lines} lines of ONNX Runtime's profile could not be read"
    devices = sorted({node.provider for node in measured.nodes.values()} - {CPU, ""})
    if devices and not plan.environment:
        yield (
            f"times of layers on {', '.join(devices)} are those of the host: ONNX Runtime's profiler does not wait for "
            "the device"
        )
    if parallel:
        yield "nodes ran in parallel: their times overlap, and those of and in If and Loop are approximate"
