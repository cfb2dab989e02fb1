"""The layer pass: what each node of the model takes, in a session of its own with ONNX Runtime's profiler on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from ndld_flow.backends.measuring.layer_origins import LayerOrigins, count_covered, match_nodes
from ndld_flow.backends.models.files import load_model
from ndld_flow.backends.models.tensors import Array
from ndld_flow.backends.running.onnxruntime_session import OpenModel, SessionSettings, open_model
from ndld_flow.errors import BackendError, ModelError
from ndld_flow.importing.onnxruntime_events import (
    MAX_EVENTS,
    MeasuredNode,
    MeasuredPasses,
    TypeAndShape,
    read_passes,
)
from ndld_flow.records.profile import Layer, TensorInfo

_EVENT_BUDGET = 250_000
"""A quarter of what ONNX Runtime keeps; about 200 MB of its JSON."""
_WARMUP = 2
_REPEATS_BODIES = ("Loop", "Scan")


@dataclass(frozen=True)
class LayerPass:
    """What the layer pass gave."""

    layers: tuple[Layer, ...]
    pass_ms: tuple[float, ...]
    notes: tuple[str, ...]


def measure_layers(
    path: Path,
    settings: SessionSettings,
    feeds: Mapping[str, Array],
    passes: int,
    scratch: Path,
    tell: Callable[[int, int], None],
) -> LayerPass:
    """Measure every layer in `passes` passes, or fewer where ONNX Runtime could not keep all their events.

    Raises `ModelError` or `BackendError` as `open_model` does.
    """
    source = load_model(path)
    profiled = replace(settings, profile_prefix=scratch / "passes", optimized_model=scratch / "optimized.onnx")
    possible = _possible_passes(source, path, profiled, feeds, passes)
    measured = _record(path, profiled, feeds, possible, _WARMUP, tell)
    optimised = _read_optimised(scratch / "optimized.onnx")
    layers, traced = _layers(source, measured, optimised)
    notes = [*_shortcomings(settings, measured, passes, possible), traced]
    return LayerPass(layers, tuple(measured.pass_ms), tuple(notes))


def _possible_passes(
    source: ir.Model, path: Path, settings: SessionSettings, feeds: Mapping[str, Array], passes: int
) -> int:
    """Nodes say how many events a pass has, unless loops or functions multiply them: then one pass is tried."""
    nodes = list(source.graph.all_nodes())
    events = len(nodes) + 2
    if any(node.op_type in _REPEATS_BODIES for node in nodes) or source.functions:
        trial = replace(settings, optimized_model=None)
        events = _record(path, trial, feeds, 1, 0, lambda done, total: None).event_count
    return max(1, min(passes, _EVENT_BUDGET // events - _WARMUP))


def _record(
    path: Path,
    settings: SessionSettings,
    feeds: Mapping[str, Array],
    passes: int,
    warmup: int,
    tell: Callable[[int, int], None],
) -> MeasuredPasses:
    model = _open(path, settings)
    try:
        bound = model.bind(feeds, on_device=True)
        for done in range(warmup + passes):
            bound.once()
            tell(done + 1, warmup + passes)
    finally:
        profile = Path(model.session.end_profiling())
    measured = read_passes(profile, skip=warmup)
    profile.unlink()
    return measured


def _open(path: Path, settings: SessionSettings) -> OpenModel:
    """A provider that compiles nodes (TensorRT) cannot write the optimised model: then names must do."""
    try:
        return open_model(path, settings)
    except (ModelError, BackendError):
        if settings.optimized_model is None:
            raise
        return open_model(path, replace(settings, optimized_model=None))


def _read_optimised(path: Path) -> ir.Model | None:
    try:
        return load_model(path) if path.is_file() else None
    except ModelError:  # it only adds where layers came from; the measurement stands without it
        return None


def _shortcomings(settings: SessionSettings, measured: MeasuredPasses, asked: int, possible: int) -> Iterator[str]:
    if possible < asked:
        yield (
            f"{possible} layer passes instead of {asked}: ONNX Runtime keeps no more than {MAX_EVENTS:,} events, and "
            "drops the rest without a word"
        )
    if measured.unreadable_lines:
        yield f"{measured.unreadable_lines} lines of ONNX Runtime's profile could not be read"
    if settings.execution == "parallel":
        yield "nodes ran in parallel: their times overlap, and those around and within If and Loop are approximate"


def _layers(source: ir.Model, measured: MeasuredPasses, optimised: ir.Model | None) -> tuple[tuple[Layer, ...], str]:
    """The layers, and a sentence on how many of them were traced back to the model."""
    if optimised is None:
        layers = [_layer(index, node, None, ()) for index, node in enumerate(measured.nodes.values())]
        return tuple(layers), "layers were not traced back: the provider does not show the model it runs"
    ran = match_nodes(measured.nodes, optimised)
    origins = LayerOrigins(source, optimised)
    layers = []
    for index, (key, node) in enumerate(measured.nodes.items()):
        layers.append(_layer(index, node, ran.get(key), origins.of(ran[key]) if key in ran else ()))
    traced = [layer.onnx_nodes for layer in layers if layer.onnx_nodes]
    return tuple(layers), (
        f"{len(traced)} of {len(layers)} layers come from {count_covered(traced)} of the model's {origins.node_count} "
        f"nodes (constants not counted); {len(layers) - len(traced)} layers were put in by ONNX Runtime"
    )


def _layer(index: int, node: MeasuredNode, ran: ir.Node | None, origins: tuple[str, ...]) -> Layer:
    return Layer(
        index=index,
        name=node.name,
        type=node.op_type,
        provider=node.provider,
        precision=node.outputs[0][0] if node.outputs else "",
        inputs=_tensors(node.inputs, [] if ran is None else ran.inputs),
        outputs=_tensors(node.outputs, [] if ran is None else ran.outputs),
        onnx_nodes=origins,
        depth=node.depth,
        samples_ms=node.self_ms,
    )


def _tensors(types: Sequence[TypeAndShape], values: Sequence[ir.Value | None]) -> tuple[TensorInfo, ...]:
    """Names are known where the profile lists as many tensors as the node has: it leaves optional ones out."""
    names = [value.name or "" for value in values if value is not None and value.name]
    if len(names) != len(types):
        names = [""] * len(types)
    return tuple(
        TensorInfo(name=name, dtype=dtype, shape=shape) for name, (dtype, shape) in zip(names, types, strict=True)
    )
