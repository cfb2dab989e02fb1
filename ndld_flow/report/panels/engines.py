"""Engines: their builds, and layers without times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import JsonValue

from ndld_flow.base.quantities import count, size
from ndld_flow.base.text import short_name, shortened, visible_name
from ndld_flow.profiles.diagnose.diagnose import insights_of_engine
from ndld_flow.profiles.diagnose.subject import EngineSubject, is_product, missed_precisions
from ndld_flow.records.build import Build, Constraint, TimingCacheUse
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.report.collect_footprint import FootprintView, collect_footprint
from ndld_flow.report.collect_layers import (
    ROWS_WITHOUT_SCRIPT,
    InsightView,
    ReformatsView,
    collect_reformats,
    has_timed_layers,
    insight_view,
    knows_units,
    layer_table,
)
from ndld_flow.report.measured import UNKNOWN, Fact, settings_of
from ndld_flow.report.panel import Panel
from ndld_flow.report.tables import Table

USUAL: dict[str, JsonValue] = {
    "typing": "default",
    "tf32": True,
    "hardware_compatibility": "none",
    "weights": "fixed",
    "timing_cache": True,
    "attempt": 1,
    "verbosity": "detailed",
    "compilation_cache": True,
}
"""Defaults other than `false`, 0 or empty. Settings with these values are listed last."""

_CONSTRAINTS_SHOWN = 200


@dataclass(frozen=True)
class BuiltView:
    """The build of one engine, and what follows from its record."""

    build: Build
    built_for: tuple[str, ...]
    """Compute capabilities, `8.6`, or the GPU of the machine that built it."""
    built_for_kind: str
    """Description of `built_for`."""
    memory: tuple[tuple[str, int], ...]
    """(name, bytes), as recorded by the builder."""
    constraints: tuple[Constraint, ...]
    """The first constraints, with ignored ones before the others."""
    constraint_outcomes: tuple[tuple[str, int], ...]
    """(outcome, number), the most frequent first."""
    cache: str
    """Description of the use of a timing cache; empty without one."""
    chosen: tuple[Fact, ...]
    """Settings that are not at their defaults."""
    usual: tuple[Fact, ...]


def collect_build(build: Build) -> BuiltView:
    """Return everything about a build except its layers."""
    # Members of `advanced` count separately.
    advanced = build.options.get("advanced")
    flat = {name: value for name, value in build.options.items() if name != "advanced"}
    if isinstance(advanced, dict):
        flat |= {f"advanced.{name}": value for name, value in advanced.items()}
    chosen = {name: value for name, value in flat.items() if not is_usual(name.removeprefix("advanced."), value)}
    outcomes = Counter(short_name(constraint.outcome, 120) for constraint in build.constraints)
    gpus = build.machine.gpus
    own = gpus[build.device] if build.device < len(gpus) else ""
    sizes = {
        "activations": build.memory.activation_bytes,
        "weights": build.memory.weights_bytes,
        "largest scratch space of a layer": build.memory.scratch_bytes,
        "builder's peak on the host": build.memory.build_peak_bytes,
    }
    return BuiltView(
        build=build,
        built_for=build.compute_capabilities or (own or "this machine's GPU",),
        built_for_kind="compute capability" if build.compute_capabilities else f"device {build.device} of the builder",
        memory=tuple(((what, bytes_) for what, bytes_ in sizes.items() if bytes_)),
        constraints=tuple(sorted(build.constraints, key=lambda each: not each.is_ignored)[:_CONSTRAINTS_SHOWN]),
        constraint_outcomes=tuple(outcomes.most_common(8)),
        cache=_cache(build.timing_cache) if build.timing_cache else "",
        chosen=settings_of(chosen),
        usual=settings_of({name: value for name, value in flat.items() if name not in chosen}),
    )


def _cache(cache: TimingCacheUse) -> str:
    """Return `rtx.cache: 12 entries (3.4 KiB) loaded, 14 (3.9 KiB) saved`."""
    sides = ((cache.loaded_entries, cache.loaded_bytes, "loaded"), (cache.saved_entries, cache.saved_bytes, "saved"))
    counts = ", ".join(
        f"{size(bytes_)} {word}" if entries is None else f"{count(entries)} entries ({size(bytes_)}) {word}"
        for entries, bytes_, word in sides
    )
    note = short_name(cache.note, 300)
    if not cache.file:
        return note
    return f"{short_name(cache.file, 80)}: {counts}" + (f"; {note}" if note else "")


def is_usual(name: str, value: JsonValue) -> bool:
    """Return whether a setting has its default value, `false`, 0, or is empty."""
    return value == USUAL[name] if name in USUAL else value in (None, False, 0, "", [], {})


_TACTICS = 12
_FEW_TACTICS = 4

BASES = {
    "file": "as in the file",
    "engine inspector": "from TensorRT's engine inspector",
    "build log": "compiled layers from the builder's log",
    "network as parsed": "of the network before optimization; the compiled layers are unknown",
}
"""Source of layers -> description."""


@dataclass(frozen=True)
class LayerCount:
    """Layers that share a precision, a type or a tactic."""

    name: str
    """Empty for layers without a recorded value."""
    count: int
    share: float
    """Share of all layers, 0 to 1."""

    @property
    def shown(self) -> str:
        """The name; a long one with its middle left out, because tactics differ at their ends."""
        return shortened(self.name, 40)


@dataclass(frozen=True)
class EngineView:
    """One engine: its build, if known, and its layers."""

    step: str
    """The step that built it, or the file it was read from."""
    label: str
    """Its source model; empty if unknown."""
    built: BuiltView | None
    basis: str
    """Source of the layers."""
    node_count: int
    """Number of distinct ONNX nodes of the layers."""
    precisions: tuple[LayerCount, ...]
    """By number of layers, like the following two fields."""
    types: tuple[LayerCount, ...]
    tactics: tuple[LayerCount, ...]
    """Tactics of several layers; if there are none, the first few."""
    tactic_count: int
    multiplying: tuple[LayerCount, ...]
    """Layers that multiply, by the unit that does it; empty if no unit is known."""
    missed: tuple[int, ...]
    """Positions of layers without the requested precision."""
    reformats: ReformatsView | None
    footprint: FootprintView | None
    insights: tuple[InsightView, ...]
    first: Table
    """The first layers, for paper and for pages without a script."""
    profile: Profile


def collect_engines(builds: dict[str, Build]) -> tuple[EngineView, ...]:
    """Return the engines of a run."""
    return tuple(_view(step, build.as_profile(), build) for step, build in builds.items())


def collect_untimed(profiles: dict[str, Profile]) -> tuple[EngineView, ...]:
    """Return profiles whose layers have no times, such as output of TensorRT's engine inspector."""
    return tuple(
        _view(step, profile, None)
        for step, profile in profiles.items()
        if profile.layers and not has_timed_layers(profile)
    )


def _view(step: str, profile: Profile, build: Build | None) -> EngineView:
    layers = profile.layers
    tactics = [group for group in count_layers(layer.tactic for layer in layers) if group.name]
    nodes = {node for layer in layers for node in layer.onnx_nodes}
    missed = missed_precisions(profile, build)
    return EngineView(
        step=visible_name(step),
        label=short_name(profile.label) if build is not None else "",
        built=collect_build(build) if build is not None else None,
        basis=BASES[build.layers_basis if build is not None else "file"],
        node_count=len(nodes),
        precisions=count_layers(layer.precision or UNKNOWN for layer in layers),
        types=count_layers(layer.type for layer in layers),
        tactics=tuple([tactic for tactic in tactics if tactic.count > 1][:_TACTICS] or tactics[:_FEW_TACTICS]),
        tactic_count=len(tactics),
        multiplying=count_layers(
            layer.unit or UNKNOWN for layer in layers if layer.unit != "none" and is_product(layer)
        )
        if knows_units(layers)
        else (),
        missed=missed,
        reformats=collect_reformats(layers, profile.inputs, profile.outputs),
        footprint=collect_footprint(profile) if layers else None,
        insights=tuple(map(insight_view, insights_of_engine(EngineSubject(profile, build)))),
        first=layer_table(profile, range(min(len(layers), ROWS_WITHOUT_SCRIPT)), missed),
        profile=profile,
    )


def count_layers(keys: Iterable[str]) -> tuple[LayerCount, ...]:
    """Return groups of layers with equal keys, the most frequent first."""
    counts = Counter(keys)
    total = counts.total() or 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(LayerCount(visible_name(name), number, number / total) for name, number in ordered)


def collect(documents: RunDocuments) -> tuple[EngineView, ...]:
    """Return the engines that a run built, then profiles whose layers have no times."""
    return (*collect_engines(documents.of(Build)), *collect_untimed(documents.of(Profile)))


PANEL = Panel("Engines", collect, after="comparisons")
