"""The summary of a profile on a terminal: the slowest layers, time by type, its bound, and what to try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ndld_flow.base.quantities import count, milliseconds, share, size
from ndld_flow.base.text import short_name
from ndld_flow.cli.tables import TerminalTable, wide_console
from ndld_flow.profiles.diagnose.diagnose import LayerGroup, TopLayer, Triage
from ndld_flow.records.measurement import is_warning
from ndld_flow.records.profile import Profile
from ndld_flow.report.tables import Column, Table, Value

_BAR = 10
_TYPES = 8
_INSIGHTS = 5
_TIMES = (Column("time", "number", milliseconds), Column("of layers", "number", share), Column("", "label"))


def print_triage(title: str, profile: Profile, triage: Triage, run: str = "") -> None:
    """Print the summary of a profile under a title; `run` is the one that measured it, whose recipe can be changed."""
    wide_console().print(Group(*_parts(title, profile, triage, run)))


def print_headline(title: str, profile: Profile) -> None:
    """Print the title and the latency of a profile, and its warnings."""
    wide_console().print(
        Group(Text(f"{short_name(title, 60)}: {_headline(profile)}", style="bold"), *_warnings(profile))
    )


def _warnings(profile: Profile) -> Iterator[Text]:
    for note in profile.notes:
        if is_warning(note):
            yield Text(f"warning: {short_name(note, 300)}", style="yellow")


def _parts(title: str, profile: Profile, triage: Triage, run: str) -> Iterator[RenderableType]:
    yield Text(f"{short_name(title, 60)}: {_headline(profile)}", style="bold")
    yield from _warnings(profile)
    for line in _about(profile, triage.layers_ms):
        yield Text(line, style="dim")
    if triage.top:
        yield _section("slowest layers", _top_table(profile, triage.top))
        yield _section("by type", _group_table(triage.by_type))
    elif triage.by_type:
        yield _section("made of", Text("\n".join(map(_counts, (triage.by_precision, triage.by_type)))))
    yield _section("bound by", Text.assemble((triage.bound.word, "bold"), f": {triage.bound.evidence}"))
    for insight in triage.insights[:_INSIGHTS]:
        saves = f" (up to {share(insight.score)})" if insight.score else ""
        heading = Text.assemble(("\n• ", "cyan"), (insight.title, "bold"), (saves, "dim"))
        command = f"ndld-flow apply {run} {insight.name}" if run and insight.change is not None else ""
        lines = [Text(insight.evidence), Text.assemble(("try: ", "green"), insight.next_step)]
        body = Group(*lines, *([Text(command, style="dim")] if command else []))
        yield Padding(Group(heading, Padding(body, (0, 0, 0, 2))), (0, 0, 0, 2))


def _section(title: str, content: RenderableType) -> Group:
    return Group(Text(f"\n{title}", style="bold cyan"), Padding(content, (0, 0, 0, 2)))


def _headline(profile: Profile) -> str:
    if not profile.runs:
        return f"{count(len(profile.layers))} layers; latency was not measured"
    latency = profile.latency
    return (
        f"median {milliseconds(latency.median_ms)}, min {milliseconds(latency.min_ms)}, "
        f"p99 {milliseconds(latency.p99_ms)}, {profile.throughput_per_s:.1f} inferences/s"
    )


def _about(profile: Profile, layers_ms: float) -> Iterator[str]:
    if profile.runs:
        runs, passes = len(profile.runs), len(profile.latency_ms)
        provider = f" on {profile.providers[0].removesuffix('ExecutionProvider')}" if profile.providers else ""
        stopped = f"; {profile.stopped_because}" if profile.stopped_because else ""
        yield f"{count(passes)} passes in {runs} process {'run' if runs == 1 else 'runs'}{provider}{stopped}"
    if layers_ms and profile.runs:
        part = layers_ms / profile.latency.median_ms if profile.latency.median_ms else 0.0
        relation = (
            f"{share(part)} of the latency" if part <= 1 else "more than the latency: the profiler slows them down"
        )
        yield f"layers {milliseconds(layers_ms)} in total, {relation}"
    shares = profile.tensor_cores
    if shares is not None:
        yield (
            f"on tensor cores {share(shares.on)} of the layers' time, not on tensor cores {share(shares.off)}, unknown "
            f"{share(shares.unknown)}"
        )
    if profile.peak_memory_bytes:
        yield f"peak memory {size(profile.peak_memory_bytes)}"
    yield from (note for note in profile.notes if not is_warning(note))


def _top_table(profile: Profile, longest: Sequence[TopLayer]) -> TerminalTable:
    columns = (
        *_TIMES,
        Column("layer", "name"),
        Column("type"),
        Column("output", "label"),
        Column("precision", "label"),
    )
    rows = []
    for top in longest:
        layer = profile.layers[top.layer]
        shape = "x".join(map(str, layer.outputs[0].shape)) if layer.outputs else ""
        named = short_name(layer.name, 44), short_name(layer.type, 18), short_name(shape, 24)
        times = top.median_ms, top.share, _bar(top.share, longest[0].share)
        rows.append((*times, *named, short_name(layer.precision or "unknown", 12)))
    return TerminalTable(Table(columns, tuple(rows)), optional=("", "output", "precision"))


def _group_table(groups: Sequence[LayerGroup]) -> TerminalTable:
    columns = (*_TIMES, Column("type", "name"), Column("layers", "number", count))
    rows: list[tuple[Value, ...]] = []
    for group in groups[:_TYPES]:
        bar = _bar(group.share, groups[0].share)
        rows.append((group.sum_ms, group.share, bar, short_name(group.name, 44), group.count))
    rest = groups[_TYPES:]
    if rest:
        total, part = sum(group.sum_ms for group in rest), sum(group.share for group in rest)
        rows.append((total, part, "", f"{len(rest)} more types", sum(group.count for group in rest)))
    return TerminalTable(Table(columns, tuple(rows)), optional=("",))


def _counts(groups: Sequence[LayerGroup]) -> str:
    """Format counts of layers without times: `69 float16, 3 float32`."""
    ordered = sorted(groups, key=lambda group: -group.count)
    counts = ", ".join(f"{count(group.count)} {short_name(group.name, 44)}" for group in ordered[:_TYPES])
    return counts + (f" and {len(ordered) - _TYPES} more types" if len(ordered) > _TYPES else "")


def _bar(value: float, largest: float) -> str:
    return "█" * max(1, round(_BAR * value / largest)) if largest > 0 and value > 0 else ""
