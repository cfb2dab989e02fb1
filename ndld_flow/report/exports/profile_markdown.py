"""Write a profile as Markdown: the conditions, its latency, its slowest layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ndld_flow.base.quantities import count, milliseconds, share, size, three_digits
from ndld_flow.records.profile import Layer, Profile
from ndld_flow.report.collect_layers import knows_units, types_text
from ndld_flow.report.exports.github_markdown import code, details, prose, table
from ndld_flow.report.exports.layer_changes import median_ms
from ndld_flow.report.value_text import shape_text

_LAYERS = 20
_NONE = "\N{EN DASH}"


class _Known(NamedTuple):
    """The optional columns that a profile has."""

    asked: bool
    units: bool
    types: bool


def profile_markdown(profile_label: str, profile: Profile) -> str:
    """Return the summary and the slowest layers of one profile."""
    parts = [
        f"### {code(profile_label, 100)}\n",
        *_about(profile),
        _latency(profile),
        _layers(profile),
        _notes(profile),
    ]
    return "\n".join(part for part in parts if part)


def _about(profile: Profile) -> Iterator[str]:
    device = ", ".join(profile.machine.gpus) or profile.machine.cpu or "unknown device"
    versions = ", ".join(f"{name} {version}" for name, version in sorted(profile.versions.items()))
    providers = f" ({', '.join(profile.providers)})" if profile.providers else ""
    yield f"{prose(profile.backend + providers)} on {prose(device)}{f'; {prose(versions)}' if versions else ''}.\n"
    if profile.inputs:
        inputs = ", ".join(f"{one.name} {one.dtype} {shape_text(one.shape)}" for one in profile.inputs)
        yield f"Inputs: {prose(inputs)}.\n"


def _latency(profile: Profile) -> str:
    if not profile.latency_ms:
        return "Latency was not measured.\n"
    summary = profile.latency
    names = ("min", "median", "mean", "p90", "p95", "p99", "max")
    values = [milliseconds(getattr(summary, f"{name}_ms")) for name in names]
    head = [*names, "spread", "throughput", "passes"]
    runs = f" in {len(profile.runs)} process runs" if len(profile.runs) > 1 else ""
    cells = [*values, share(summary.cov), f"{three_digits(summary.throughput_per_s)} /s"]
    note = {"on": "Measured with the profiler attached.\n\n", "off": ""}.get(
        profile.profiler, "It is not recorded whether a profiler was attached.\n\n"
    )
    return note + table(head, [[*cells, f"{count(summary.sample_count)}{runs}"]], numbers=tuple(range(len(head))))


def _layers(profile: Profile) -> str:
    timed = [(layer, median_ms(layer)) for layer in profile.layers]
    total = math.fsum(ms for _, ms in timed)
    if not total:
        return ""
    slowest = sorted(timed, key=lambda pair: -pair[1])[:_LAYERS]
    known = _Known(
        asked=any(layer.asked_precision for layer, _ in slowest),
        units=knows_units(profile.layers),
        types=any(types_text(layer) for layer, _ in slowest),
    )
    more = {"Reads → writes": known.types, "Multiply unit": known.units, "Asked": known.asked}
    shown = [title for title, is_known in more.items() if is_known]
    head = ["#", "Layer", "Type", "Precision", *shown, "Output", "Median", "Of layers"]
    rows = [_row(layer, ms, total, known) for layer, ms in slowest]
    title = f"Slowest {len(rows)} of {count(len(timed))} layers, which take {milliseconds(total)} together"
    title += tensor_cores_text(profile)
    return details(title, table(head, rows, numbers=(0, len(head) - 2, len(head) - 1)))


def _row(layer: Layer, ms: float, total: float, known: _Known) -> list[str]:
    dims = shape_text(layer.outputs[0].shape) if layer.outputs else _NONE
    weights = f", {size(layer.weight_bytes)} of weights" if layer.weight_bytes else ""
    return [
        str(layer.index),
        code(layer.name),
        code(layer.type, 40),
        code(layer.precision or "unknown", 30),
        *([code(types_text(layer), 60) or _NONE] if known.types else []),
        *([layer.unit or "unknown"] if known.units else []),
        *([code(layer.asked_precision, 20) or _NONE] if known.asked else []),
        f"{prose(dims)}{weights}",
        milliseconds(ms),
        share(ms / total),
    ]


def tensor_cores_text(profile: Profile) -> str:
    """Return `; 46.4 % of it on tensor cores, 0.0 % unknown`; empty if no unit is known."""
    shares = profile.tensor_cores
    return f"; {share(shares.on)} of it on tensor cores, {share(shares.unknown)} unknown" if shares else ""


def _notes(profile: Profile) -> str:
    if not profile.notes:
        return ""
    return details("Notes", "".join(f"- {prose(note)}\n" for note in profile.notes[:50]))
