"""Diagnose profiles and engines: apply all rules, find the bottleneck, summarize where the time goes.

The bottleneck is the first of these that applies:

1. lanes (trtexec's own tests): enqueueing takes at least 80 % of the compute time; copies take as long as computing
2. one layer takes half of the latency; reformats and casts take 30 %; copies take 30 %
3. dispatch: a third of the latency is outside layers, on a quiet machine and in gaps that launches may fill, or layers
   take little more than their launch
4. compute or memory bandwidth: layers that take half of the time reach at least half of that roof
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ndld_flow.base.quantities import count, counted, milliseconds, share, three_digits
from ndld_flow.profiles.diagnose import rules_engines, rules_layers, rules_measurement, rules_overheads, rules_settings
from ndld_flow.profiles.diagnose.lints import LINTS
from ndld_flow.profiles.diagnose.rules_overheads import is_dispatch, outside_layers
from ndld_flow.profiles.diagnose.subject import Bound, BoundWord, EngineSubject, Insight, Subject, rules_in
from ndld_flow.records.document import Record
from ndld_flow.records.profile import Layer, Profile

Rule = Callable[[Subject], Iterator[Insight]]
_OF_PROFILES = (rules_overheads, rules_layers, rules_settings, rules_measurement)
RULES: tuple[Rule, ...] = (*rules_in(*_OF_PROFILES), *LINTS)
"""Rules that may save time first; equal scores keep this order."""


def diagnose(profile: Profile) -> tuple[Insight, ...]:
    """Return the findings on a profile, those that may save most first."""
    return insights_of(Subject(profile))


def insights_of(subject: Subject) -> tuple[Insight, ...]:
    """Return the result of `diagnose` for a subject that already exists."""
    insights = [
        replace(insight, score=min(1.0, insight.score), name=rule.__name__)
        for rule in RULES
        for insight in rule(subject)
    ]
    return tuple(sorted(insights, key=lambda insight: -insight.score))


EngineRule = Callable[[EngineSubject], Iterator[Insight]]

ENGINE_RULES: tuple[EngineRule, ...] = (*rules_in(rules_engines), *LINTS)
"""Rules in order of severity, as they are defined: those that make an engine unusable or wrong first."""


def insights_of_engine(subject: EngineSubject) -> tuple[Insight, ...]:
    """Return the findings on an engine, in the order of the rules."""
    return tuple(replace(insight, name=rule.__name__) for rule in ENGINE_RULES for insight in rule(subject))


_OUTSIDE = 1 / 3
_HALF = 0.5
"""A roof bounds a layer that reaches this share of it, and the pass if such layers take this part of the time."""


def bound_of(subject: Subject) -> Bound:
    """Return what takes most of the latency, with the evidence; `unknown` if the numbers do not show it."""
    for word, rule, binds in _BOUNDS:
        insight = next(rule(subject), None)
        if insight is not None and binds(subject, insight):
            return Bound(word, f"{insight.title}: {insight.evidence.removesuffix('.')}")
    parts = _parts_at_roofs(subject)
    roof, part = max(parts.items(), key=lambda item: item[1])
    if part < _HALF:
        return Bound("unknown", _why_unknown(subject))
    return Bound("compute" if roof == "compute" else "memory bandwidth", _at_roofs(subject))


def _reformatting(subject: Subject) -> Iterator[Insight]:
    """Report all layers that only change layouts and types, for whatever reason."""
    positions = subject.where(lambda layer: layer.purpose in ("reformat", "cast", "quantize"))
    yield Insight(subject.call_types(positions), subject.took_part(positions), "", positions)


def _copies_take_longest(subject: Subject, _: Insight) -> bool:
    compute = subject.lane_ms(lambda run: run.compute_ms)
    return compute is not None and subject.copies_ms >= compute


def _takes(least: float) -> Callable[[Subject, Insight], bool]:
    return lambda subject, insight: subject.share(insight.layers) >= least


_BOUNDS: tuple[tuple[BoundWord, Rule, Callable[[Subject, Insight], bool]], ...] = (
    ("host enqueue", rules_overheads.bound_by_enqueue, _takes(0)),
    ("transfers", rules_overheads.transfers, _copies_take_longest),
    ("unknown", rules_measurement.layers_exceed_passes, _takes(0)),
    ("one layer", rules_layers.one_layer, _takes(0.5)),
    ("reformatting", _reformatting, _takes(0.3)),
    ("transfers", rules_overheads.copies, _takes(0.3)),
    (
        "dispatch overhead",
        rules_overheads.time_outside_layers,
        lambda subject, _: outside_layers(subject) >= _OUTSIDE and is_dispatch(subject),
    ),
    ("dispatch overhead", rules_overheads.many_tiny_layers, _takes(0)),
)
"""Bottleneck, the finding that shows it, and the condition under which it bounds the latency; the first counts."""


def _parts_at_roofs(subject: Subject) -> dict[str, float]:
    """Return `compute` and `memory` -> the part of the layers' time in layers that this roof bounds."""
    parts = {"compute": 0.0, "memory": 0.0}
    for position, median_ms in enumerate(subject.medians_ms):
        nearer = subject.peaks.shares(position).nearer
        if nearer is not None and nearer[1] >= _HALF:
            parts[nearer[0]] += median_ms / subject.layers_ms
    return parts


def _at_roofs(subject: Subject) -> str:
    parts, how, roofs = _parts_at_roofs(subject), subject.peaks.how, subject.profile.roofs
    if roofs is not None:
        peak = three_digits(2 * roofs.macs_per_s / 1e12)
        how = f"measured: {peak} TFLOP/s, {three_digits(roofs.bytes_per_s / 1e9)} GB/s"
    return (
        f"layers with {share(parts['compute'])} of the layers' time reach at least half of the compute roof, with "
        f"{share(parts['memory'])} half of the memory roof ({how})"
    )


def _why_unknown(subject: Subject) -> str:
    if not subject.layers:
        lanes = subject.lane_ms(lambda run: run.compute_ms)
        computed = "" if lanes is None else f", and computing takes {milliseconds(lanes)} of it"
        return f"layers were not profiled; the latency is {milliseconds(subject.latency_ms)}{computed}"
    if subject.times_are_of_the_host:
        return (
            f"ONNX Runtime's profiler measures the launch of the {count(len(subject.layers))} layers on the host, "
            f"{milliseconds(subject.pass_layers_ms)} of {milliseconds(subject.latency_ms)}, and not their time on "
            "the device"
        )
    cause = f"no other cause stands out in the {counted(len(subject.layers), 'layer')}"
    outside = next(rules_overheads.time_outside_layers(subject), None)
    if outside is not None and not is_dispatch(subject):
        cause = f"{outside.title}, which launches do not explain: {outside.evidence.removesuffix('.')}"
    return "; ".join(filter(None, (_at_roofs(subject) if subject.peaks.how else "", subject.peaks.doubt, cause)))


class TopLayer(Record):
    """One of the longest layers of a profile."""

    layer: int
    """Position in the profile's `layers`."""
    median_ms: float
    share: float
    """Share of the sum of all layers, 0 to 1."""


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share a type, a precision, a role or a tactic."""

    name: str
    """The shared value; empty for layers without one."""
    count: int
    sum_ms: float
    """Sum of their medians."""
    share: float
    """Share of the sum of all layers, 0 to 1."""
    moved_bytes: int
    """Bytes read and written."""


class Triage(Record):
    """The summary of a profile. Layers are positions in it, shares are of the sum of all layers."""

    layers_ms: float
    """Sum of all layers' medians."""
    top: tuple[TopLayer, ...]
    """The longest first."""
    by_type: tuple[LayerGroup, ...]
    """The longest first, as in the two that follow."""
    by_precision: tuple[LayerGroup, ...]
    by_role: tuple[LayerGroup, ...]
    bound: Bound
    insights: tuple[Insight, ...]


class ProfileOutput(Record):
    """A profile and its summary, from `ndld-flow profile`."""

    profile: Profile
    triage: Triage


def triage(profile: Profile, top: int = 10) -> Triage:
    """Return the summary of a profile with its `top` longest layers; an engine that was not run has none."""
    subject = Subject(profile)
    timed = bool(profile.runs) or any(layer.samples_ms for layer in profile.layers)
    longest = subject.listed[: top if timed else 0]
    medians, total = subject.medians_ms, subject.layers_ms or 1.0
    return Triage(
        layers_ms=subject.layers_ms,
        top=tuple(TopLayer(layer=at, median_ms=medians[at], share=medians[at] / total) for at in longest),
        by_type=group_layers(subject, lambda layer: layer.type),
        by_precision=group_layers(subject, lambda layer: layer.precision or "unknown"),
        by_role=group_layers(subject, lambda layer: layer.purpose),
        bound=bound_of(subject) if timed else Bound("unknown", "nothing was timed"),
        insights=insights_of(subject) if timed else insights_of_engine(EngineSubject(profile, None)),
    )


def group_layers(subject: Subject, name_of: Callable[[Layer], str]) -> tuple[LayerGroup, ...]:
    """Return groups of layers with equal names, the longest first."""
    members: dict[str, list[tuple[Layer, float]]] = defaultdict(list)
    for layer, median_ms in zip(subject.layers, subject.medians_ms, strict=True):
        members[name_of(layer)].append((layer, median_ms))
    groups = [
        LayerGroup(
            name=name,
            count=len(pairs),
            sum_ms=sum(median_ms for _, median_ms in pairs),
            share=sum(median_ms for _, median_ms in pairs) / (subject.layers_ms or 1.0),
            moved_bytes=sum(layer.read_bytes + layer.written_bytes for layer, _ in pairs),
        )
        for name, pairs in members.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-group.sum_ms, group.name)))
