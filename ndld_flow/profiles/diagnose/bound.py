"""Find the bottleneck of a profile: the first of these that applies.

1. lanes (trtexec's own tests): enqueueing takes at least 80 % of the compute time; copies take as long as computing
2. one layer takes half of the latency; reformats and casts take 30 %; copies take 30 %
3. dispatch: a third of the latency is outside layers, or layers take little more than their launch
4. the roof that is nearer for layers with half of the time: compute or memory bandwidth
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ndld_flow.base.quantities import count, milliseconds, share, three_digits
from ndld_flow.profiles.diagnose.insight import Bound
from ndld_flow.profiles.diagnose.roofline import Roofline, best_of_layers
from ndld_flow.profiles.diagnose.rules_launches import (
    ENQUEUE_BOUND,
    are_tiny,
    executed_layers,
    outside_layers,
    start_ms,
)
from ndld_flow.profiles.diagnose.subject import Subject
from ndld_flow.records.profile import Profile

_ONE_LAYER = 0.5
_REFORMATTING = 0.3
_COPYING = 0.3
_OUTSIDE = 1 / 3
_FEWEST_LAYERS = 4
_HALF = 0.5
_NEAR = 0.25
"""A layer below this share of both roofs is bound by neither."""


def bound_by(profile: Profile) -> Bound:
    """Return what takes most of the latency, with the evidence; `unknown` if the numbers do not show it."""
    return bound_of(Subject(profile))


def bound_of(subject: Subject) -> Bound:
    """Return the result of `bound_by` for a subject that already exists."""
    for decide in _DECISIONS:
        bound = decide(subject)
        if bound is not None:
            return bound
    return Bound("unknown", _why_unknown(subject))


def _enqueue(subject: Subject) -> Bound | None:
    enqueue = subject.lane_ms(lambda run: run.enqueue_ms)
    compute = subject.lane_ms(lambda run: run.compute_ms)
    if enqueue is None or compute is None or compute <= 0 or enqueue <= ENQUEUE_BOUND * compute:
        return None
    return Bound(
        "host enqueue",
        f"enqueueing a pass takes {milliseconds(enqueue)}, computing it {milliseconds(compute)} (medians)",
    )


def _transfers(subject: Subject) -> Bound | None:
    compute, moved = subject.lane_ms(lambda run: run.compute_ms), subject.copies_ms
    if compute is None or moved <= 0 or moved < compute:
        return None
    return Bound(
        "transfers",
        f"copies take {milliseconds(moved)} of {milliseconds(subject.latency_with_copies_ms)}, computing "
        f"{milliseconds(compute)}",
    )


def _one_layer(subject: Subject) -> Bound | None:
    longest = subject.longest_first(range(len(subject.layers)))[:1]
    part = subject.share(longest)
    if len(subject.layers) < _FEWEST_LAYERS or part < _ONE_LAYER:
        return None
    return Bound(
        "one layer", f"{subject.call(longest[0])} takes {share(part)} of {subject.whole}: {subject.took(longest)}"
    )


def _reformatting(subject: Subject) -> Bound | None:
    positions = subject.where(lambda layer: layer.role in ("reformat", "cast", "quantize"))
    part = subject.share(positions)
    if part < _REFORMATTING:
        return None
    return Bound(
        "reformatting",
        f"{subject.call_types(positions)} take {share(part)} of {subject.whole}: {subject.took(positions)}",
    )


def _copying(subject: Subject) -> Bound | None:
    positions = subject.where(lambda layer: layer.role == "copy")
    part = subject.share(positions)
    if part < _COPYING:
        return None
    return Bound(
        "transfers", f"copies within the model take {share(part)} of {subject.whole}: {subject.took(positions)}"
    )


def _dispatch(subject: Subject) -> Bound | None:
    outside = outside_layers(subject)
    if outside >= _OUTSIDE:
        return Bound(
            "dispatch overhead",
            f"{share(outside)} of the latency is outside layers: they take {milliseconds(subject.layers_sum_ms)} of "
            f"{milliseconds(subject.latency_ms)}",
        )
    if not are_tiny(subject):
        return None
    executed = executed_layers(subject)
    each = subject.latency_ms / executed
    return Bound(
        "dispatch overhead",
        f"{count(executed)} executed layers take {milliseconds(each)} each on average; launching one takes about "
        f"{milliseconds(start_ms(subject))}",
    )


@dataclass(frozen=True)
class _Measure:
    """The layers relative to the device's roofs, or to the best values that they reach themselves."""

    rooflines: Sequence[Roofline | None]
    basis: str


def _roofs(subject: Subject) -> Bound | None:
    measure = _measure(subject)
    if measure is None or not subject.layers_ms:
        return None

    def part(says: Callable[[Roofline], bool]) -> float:
        met = (position for position, one in enumerate(measure.rooflines) if one is not None and says(one))
        return subject.sum_ms(met) / subject.layers_ms

    compute = part(lambda one: one.reached >= _NEAR and one.limit == "compute")
    memory = part(lambda one: one.reached >= _NEAR and one.limit == "memory")
    if compute + memory < _HALF:
        return None
    return Bound(
        "compute" if compute > memory else "memory bandwidth",
        f"layers with {share(compute)} of the layers' time are nearer to the compute roof, with {share(memory)} to "
        f"the memory roof, and {share(max(0.0, 1 - compute - memory))} reach a quarter of neither ({measure.basis})",
    )


def _measure(subject: Subject) -> _Measure | None:
    if subject.times_are_the_hosts:
        return None
    roofs = subject.profile.roofs
    if roofs is not None:
        gmacs, gigabytes = three_digits(roofs.macs_per_s / 1e9), three_digits(roofs.bytes_per_s / 1e9)
        return _Measure(subject.rooflines, f"measured: {gmacs} GMAC/s, {gigabytes} GB/s")
    best = best_of_layers(subject.layers)
    if best is None:
        return None
    return _Measure(subject.under(best), "against the best that layers of this profile reach")


def _why_unknown(subject: Subject) -> str:
    if not subject.layers:
        lanes = subject.lane_ms(lambda run: run.compute_ms)
        computed = "" if lanes is None else f", and computing takes {milliseconds(lanes)} of it"
        return f"layers were not profiled; the latency is {milliseconds(subject.latency_ms)}{computed}"
    if subject.times_are_the_hosts:
        return (
            f"ONNX Runtime's profiler measures the launch of the {count(len(subject.layers))} layers on the host, "
            f"{milliseconds(subject.layers_sum_ms)} of {milliseconds(subject.latency_ms)}, and not their time on "
            "the device"
        )
    if _measure(subject) is None:
        return f"no roofs were measured, and the work of too many of the {count(len(subject.layers))} layers is unknown"
    return (
        f"most of the {count(len(subject.layers))} layers reach less than a quarter of the device's peak compute rate "
        "or bandwidth, and no other cause stands out"
    )


_DECISIONS: tuple[Callable[[Subject], Bound | None], ...] = (
    _enqueue,
    _transfers,
    _one_layer,
    _reformatting,
    _copying,
    _dispatch,
    _roofs,
)
