"""Join the inspector's layers with the profiler's times by name and order."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ndld_flow.profiles.read.engine_layers import EngineInfo, EngineLayer, bare_layer
from ndld_flow.profiles.read.trtexec_layer_times import LayerTime, LayerTimes
from ndld_flow.records.profile import Layer


@dataclass(frozen=True)
class MeasuredLayers:
    """The layers of a profile, with notes about them."""

    layers: tuple[Layer, ...] = ()
    notes: tuple[str, ...] = ()


def join_layers(engine: EngineInfo | None, times: LayerTimes | None) -> MeasuredLayers:
    """Join both exports; either may be missing.

    Names repeat: the n-th row of a name belongs to its n-th layer.
    """
    known = engine.layers if engine is not None else ()
    if times is None:
        layers = [describe_engine_layer(index, layer) for index, layer in enumerate(known)]
        return MeasuredLayers(tuple(layers), ("layers have no times: there is no --exportProfile",) if known else ())
    pairs, leftover = _pairs(known, times.rows)
    joined = [describe_engine_layer(index, layer, (ms,)) for index, (layer, ms) in enumerate(pairs)]
    return MeasuredLayers(tuple(joined), tuple(_notes(engine, times, leftover)))


def _pairs(known: Sequence[EngineLayer], rows: Sequence[LayerTime]) -> tuple[list[tuple[EngineLayer, float]], int]:
    """Return the engine's layers with their times in row order, then the layers without a row, and the number of
    those."""
    waiting: dict[str, deque[EngineLayer]] = defaultdict(deque)
    for layer in known:
        waiting[layer.name].append(layer)
    pairs = [(waiting[row.name].popleft() if waiting[row.name] else bare_layer(row.name), row.ms) for row in rows]
    left = [layer for layers in waiting.values() for layer in layers]
    return [*pairs, *((layer, 0.0) for layer in left)], len(left)


def describe_engine_layer(index: int, known: EngineLayer, samples_ms: tuple[float, ...] = ()) -> Layer:
    """Return a layer as described by the engine, with its samples."""
    return Layer(
        index=index,
        name=known.name,
        type=known.type or ("Reformat" if known.role == "reformat" else "unknown"),
        weights_dtype=known.weights_dtype,
        groups=known.groups,
        inputs=known.inputs,
        outputs=known.outputs,
        onnx_nodes=known.onnx_nodes,
        samples_ms=samples_ms,
        role=known.role,
        tactic=known.tactic,
        stream=known.stream,
        macs=known.work.macs,
        read_bytes=known.work.read_bytes,
        written_bytes=known.work.written_bytes,
        weight_bytes=known.work.weight_bytes,
        weights=known.weights,
        attributes=known.window,
    ).with_arithmetic()


def _notes(engine: EngineInfo | None, times: LayerTimes, leftover: int) -> Iterator[str]:
    if times.pass_count == 1:
        yield "layers were measured in a single pass, profiler on: small differences between them are not significant"
    else:
        what = "medians" if times.are_medians else "means"
        of = f" of {times.pass_count} passes" if times.pass_count else ""
        yield f"layer times are {what}{of} with TensorRT's profiler on, not single samples: trtexec exports no others"
    if engine is None:
        yield "types, tensors and tactics of layers are unknown: there is no --exportLayerInfo"
    elif not engine.is_detailed:
        yield "layers are known by name only: trtexec reports more with --profilingVerbosity=detailed"
    if leftover:
        yield f"{leftover} layers of the engine have no time in the profile and are shown with 0 at the end"
