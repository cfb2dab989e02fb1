"""Write a profile as Markdown: the conditions, its latency, its slowest layers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ndld_flow.base.quantities import count, milliseconds, share, three_digits
from ndld_flow.profiles.diagnose.subject import missed_precisions
from ndld_flow.records.profile import Profile
from ndld_flow.report.collect_layers import layer_table
from ndld_flow.report.exports.github_markdown import code, details, prose, table, table_markdown
from ndld_flow.report.value_text import shape_text

_LAYERS = 20
_NONE = "\N{EN DASH}"


def profile_markdown(profile_label: str, profile: Profile) -> str:
    """Return the summary and the slowest layers of one profile."""
    parts = [
        f"### {code(profile_label, 100)}\n",
        *_about(profile),
        _latency(profile),
        _layers(profile),
        details("Notes", "".join(f"- {prose(note)}\n" for note in profile.notes[:50])) if profile.notes else "",
    ]
    return "\n".join(part for part in parts if part)


def _about(profile: Profile) -> Iterator[str]:
    device = ", ".join(profile.machine.gpus) or profile.machine.cpu or "unknown device"
    versions = ", ".join(f"{name} {version}" for name, version in sorted(profile.versions.items()))
    providers = f" ({', '.join(profile.providers)})" if profile.providers else ""
    yield f"{prose(profile.backend + providers)} on {prose(device)}{f'; {prose(versions)}' if versions else ''}.\n"
    if profile.inputs:
        inputs = ", ".join(f"{tensor.name} {tensor.dtype} {shape_text(tensor.shape)}" for tensor in profile.inputs)
        yield f"Inputs: {prose(inputs)}.\n"


def _latency(profile: Profile) -> str:
    if not profile.latency_ms:
        return "Latency was not measured.\n"
    summary = profile.latency
    names = ("min", "median", "mean", "p90", "p95", "p99", "max")
    values = [milliseconds(getattr(summary, f"{name}_ms")) for name in names]
    head = [*names, "spread", "throughput", "passes"]
    runs = f" in {len(profile.runs)} process runs" if len(profile.runs) > 1 else ""
    cells = [*values, share(summary.cov), f"{three_digits(profile.throughput_per_s)} /s"]
    note = {"on": "Measured with the profiler attached.\n\n", "off": ""}.get(
        profile.profiler, "It is not recorded whether a profiler was attached.\n\n"
    )
    return note + table(head, [[*cells, f"{count(summary.sample_count)}{runs}"]], numbers=tuple(range(len(head))))


def _layers(profile: Profile) -> str:
    medians = profile.layer_times.ms
    total = math.fsum(medians)
    if not total:
        return ""
    slowest = sorted(range(len(medians)), key=lambda place: -medians[place])[:_LAYERS]
    title = f"Slowest {len(slowest)} of {count(len(medians))} layers, which take {milliseconds(total)} together"
    layers = layer_table(profile, slowest, missed_precisions(profile), medians)
    return details(title + tensor_cores_text(profile), table_markdown(layers))


def tensor_cores_text(profile: Profile) -> str:
    """Return `; 46.4 % of it on tensor cores, 0.0 % unknown`; empty if no unit is known."""
    shares = profile.tensor_cores
    return f"; {share(shares.on)} of it on tensor cores, {share(shares.unknown)} unknown" if shares else ""
