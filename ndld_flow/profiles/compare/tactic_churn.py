"""Compare several builds of one model with the same settings, to see how much tactics depend on the build.

TensorRT times tactics during the build on a machine with other load, so two builds may choose different tactics.
Changes from build to build are noise that a comparison of two engines cannot distinguish from progress.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ndld_flow.profiles.compare.match_layers import match_layers
from ndld_flow.records.build import Build
from ndld_flow.records.comparison import Change, ChangedLayer, LayerRow, RebuiltEngine, Spread, TacticChurn
from ndld_flow.records.profile import Layer, LayerTimes, Profile

_Layers = tuple[Layer, ...]


@dataclass(frozen=True)
class Rebuild:
    """One of several builds, with the profile of its engine."""

    label: str
    build: Build
    profile: Profile | None = None


def request_of(build: Build) -> tuple[object, ...]:
    """Return a key that is equal for builds of one model with the same settings, apart from the attempt."""
    options = {name: value for name, value in build.options.items() if name != "attempt"}
    gpus = build.machine.gpus[build.device : build.device + 1]
    shapes = tuple(profile.model_dump_json() for profile in build.profiles)
    return build.model_digest, build.backend, build.version, gpus, shapes, repr(sorted(options.items()))


def find_churn(rebuilds: Sequence[Rebuild]) -> TacticChurn:
    """Compare builds layer by layer. Raises ValueError for fewer than two.

    If all engines were profiled with layers, those are compared: TensorRT-RTX chooses kernels when an engine is first
    run.
    """
    if len(rebuilds) < 2:
        raise ValueError("at least two builds are needed")
    measured = [each.profile for each in rebuilds if each.profile is not None and each.profile.layers]
    is_measured = len(measured) == len(rebuilds)
    subjects = measured if is_measured else [each.build.as_profile() for each in rebuilds]
    rows = match_layers(subjects)
    times = [profile.layer_times for profile in subjects] if is_measured else []
    changed = [row for row in rows if _change(_layers_of(row, subjects)) is not None]
    builds = tuple(_rebuilt(each, subject) for each, subject in zip(rebuilds, subjects, strict=True))
    shown = [_changed_layer(row, subjects, times) for row in changed]
    return TacticChurn(
        builds=builds,
        basis="engines as measured" if is_measured else "engines as built",
        tells_tactics=any(layer.tactic for subject in subjects for layer in subject.layers),
        row_count=len(rows),
        changed=tuple(sorted(shown, key=lambda each: -(each.time_share or 0.0))),
        layer_share=_count(changed) / (_count(rows) or 1),
        time_share=_time_share(changed, subjects, times),
        spreads=_spreads(builds),
    )


def _layers_of(row: LayerRow, subjects: Sequence[Profile]) -> list[_Layers]:
    return [
        tuple(subject.layers[index] for index in places) for subject, places in zip(subjects, row.layers, strict=True)
    ]


def _change(built: Sequence[_Layers]) -> Change | None:
    """Return the greatest change between any two builds; None if all are equal."""
    levels: tuple[tuple[Change, Callable[[_Layers], object]], ...] = (
        ("layers", _work),
        ("format", _formats),
        ("tactic", _tactics),
    )
    return next((change for change, what in levels if len({what(layers) for layers in built}) > 1), None)


def _work(layers: _Layers) -> object:
    """Return the nodes of each layer; a layer without nodes is identified by its role."""
    return tuple(frozenset(layer.onnx_nodes) or layer.role for layer in layers)


def _formats(layers: _Layers) -> object:
    return tuple(layer.formats for layer in layers)


def _tactics(layers: _Layers) -> object:
    return tuple((layer.type, layer.tactic) for layer in layers)


def _changed_layer(row: LayerRow, subjects: Sequence[Profile], times: Sequence[LayerTimes]) -> ChangedLayer:
    built = _layers_of(row, subjects)
    change = _change(built)
    assert change is not None
    first = next(layers for layers in built if layers)
    describe: dict[Change, Callable[[Layer], str]] = {
        "tactic": lambda layer: layer.tactic or layer.type,
        "format": lambda layer: layer.formats,
        "layers": lambda layer: layer.name,
    }
    return ChangedLayer(
        name=" + ".join(layer.name for layer in first),
        type=first[0].type,
        onnx_nodes=tuple(dict.fromkeys(node for layer in first for node in layer.onnx_nodes)),
        change=change,
        built=tuple(" + ".join(map(describe[change], layers)) for layers in built),
        variants=len({(_work(layers), _formats(layers), _tactics(layers)) for layers in built}),
        time_share=_time_share([row], subjects, times),
    )


def _count(rows: Sequence[LayerRow]) -> int:
    return sum(len(places) for row in rows for places in row.layers)


def _time_share(rows: Sequence[LayerRow], subjects: Sequence[Profile], times: Sequence[LayerTimes]) -> float | None:
    """Return the share of these rows in all layers' time, averaged over the builds."""
    shares = []
    for number, (subject, layer_times) in enumerate(zip(subjects, times, strict=False)):
        total = layer_times.sum_ms(range(len(subject.layers)))
        if not total:
            return None
        shares.append(math.fsum(layer_times.sum_ms(row.layers[number]) for row in rows) / total)
    return statistics.fmean(shares) if shares else None


def _rebuilt(rebuild: Rebuild, subject: Profile) -> RebuiltEngine:
    cache = rebuild.build.timing_cache
    return RebuiltEngine(
        label=rebuild.label,
        engine_digest=rebuild.build.engine_digest,
        engine_bytes=rebuild.build.engine_bytes,
        build_s=rebuild.build.build_s,
        layer_count=len(subject.layers),
        read_timings=cache is not None and cache.loaded_entries != 0 and cache.loaded_bytes > 0,
        latency_ms=rebuild.profile.latency.median_ms
        if rebuild.profile is not None and rebuild.profile.latency_ms
        else None,
    )


def _spreads(built: Sequence[RebuiltEngine]) -> tuple[Spread, ...]:
    latencies = [each.latency_ms for each in built if each.latency_ms is not None]
    spreads = [
        Spread(metric="engine_bytes", unit="bytes", values=tuple(each.engine_bytes for each in built)),
        Spread(metric="build_s", unit="s", values=tuple(each.build_s for each in built)),
        Spread(metric="layers", unit="", values=tuple(each.layer_count for each in built)),
    ]
    if len(latencies) == len(built):
        spreads.append(Spread(metric="latency.median", unit="ms", values=tuple(latencies)))
    return tuple(spreads)
