"""The summary of a profile on a terminal: the slowest layers, time by type, its bound, and what to try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ndld_flow.base.quantities import count, milliseconds, share, size
from ndld_flow.base.text import short_name
from ndld_flow.cli.guarded_output import ReaderGoneError
from ndld_flow.profiles.diagnose.diagnose import LayerGroup, TopLayer, Triage
from ndld_flow.records.profile import Profile

_BAR = 10
_TYPES = 8
_INSIGHTS = 5


def print_triage(title: str, profile: Profile, triage: Triage) -> None:
    """Print the summary of a profile under a title."""
    wide_console().print(Group(*_parts(title, profile, triage)))


def wide_console() -> Console:
    """Return a console of the terminal's width, or of 120 columns for a pipe or a log, which have none."""
    console = _Console(highlight=False)
    return console if console.is_terminal else _Console(highlight=False, width=120)


class _Console(Console):
    """A console that raises ReaderGoneError if the reader goes away (`| head`); rich would exit with code 1."""

    def on_broken_pipe(self) -> None:
        raise ReaderGoneError


def _parts(title: str, profile: Profile, triage: Triage) -> Iterator[RenderableType]:
    yield Text(f"{short_name(title, 60)}: {_headline(profile)}", style="bold")
    for line in _about(profile, triage.layers_ms):
        yield Text(line, style="dim")
    if triage.top:
        yield _section("slowest layers", _top_table(triage.top))
        yield _section("by type", _group_table(triage.by_type))
    elif triage.by_type:
        yield _section("made of", Text("\n".join(map(_counts, (triage.by_precision, triage.by_type)))))
    yield _section("bound by", Text.assemble((triage.bound.word, "bold"), f": {triage.bound.evidence}"))
    for insight in triage.insights[:_INSIGHTS]:
        saves = f" (up to {share(insight.score)})" if insight.score else ""
        heading = Text.assemble(("\n• ", "cyan"), (insight.title, "bold"), (saves, "dim"))
        body = Group(Text(insight.evidence), Text.assemble(("try: ", "green"), insight.next_step))
        yield Padding(Group(heading, Padding(body, (0, 0, 0, 2))), (0, 0, 0, 2))


def _section(title: str, content: RenderableType) -> Group:
    return Group(Text(f"\n{title}", style="bold cyan"), Padding(content, (0, 0, 0, 2)))


def _headline(profile: Profile) -> str:
    if not profile.runs:
        return f"{count(len(profile.layers))} layers; latency was not measured"
    latency = profile.latency
    return (
        f"median {milliseconds(latency.median_ms)}, min {milliseconds(latency.min_ms)}, "
        f"p99 {milliseconds(latency.p99_ms)}, {latency.throughput_per_s:.1f} passes/s"
    )


def _about(profile: Profile, layers_ms: float) -> Iterator[str]:
    if profile.runs:
        yield _measured(profile)
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
    yield from profile.notes


def _measured(profile: Profile) -> str:
    runs, passes = len(profile.runs), len(profile.latency_ms)
    provider = f" on {profile.providers[0].removesuffix('ExecutionProvider')}" if profile.providers else ""
    stopped = f"; {profile.stopped_because}" if profile.stopped_because else ""
    return f"{count(passes)} passes in {runs} process {'run' if runs == 1 else 'runs'}{provider}{stopped}"


def _top_table(layers: Sequence[TopLayer]) -> Table:
    table = _table("layer", "type", "output", "precision")
    for top in layers:
        layer = top.layer
        shape = "x".join(map(str, layer.outputs[0].shape)) if layer.outputs else ""
        table.add_row(
            milliseconds(top.median_ms), share(top.share), _bar(top.share, layers[0].share),
            short_name(layer.name, 44), short_name(layer.type, 18), shape, layer.precision or "unknown",
        )  # fmt: skip
    return table


def _group_table(groups: Sequence[LayerGroup]) -> Table:
    table = _table("type", "layers")
    for group in groups[:_TYPES]:
        bar = _bar(group.share, groups[0].share)
        table.add_row(
            milliseconds(group.sum_ms), share(group.share), bar, short_name(group.name, 44), count(group.count)
        )
    rest = groups[_TYPES:]
    if rest:
        total, part = sum(group.sum_ms for group in rest), sum(group.share for group in rest)
        layers = count(sum(group.count for group in rest))
        table.add_row(milliseconds(total), share(part), "", f"{len(rest)} more types", layers, style="dim")
    return table


def _counts(groups: Sequence[LayerGroup]) -> str:
    """Format counts of layers without times: `69 float16, 3 float32`."""
    ordered = sorted(groups, key=lambda group: -group.count)
    counts = ", ".join(f"{count(group.count)} {short_name(group.name, 44)}" for group in ordered[:_TYPES])
    return counts + (f" and {len(ordered) - _TYPES} more types" if len(ordered) > _TYPES else "")


def _table(*texts: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("time", justify="right", no_wrap=True, min_width=7)
    table.add_column("of layers", justify="right", no_wrap=True, min_width=6)
    table.add_column("", no_wrap=True, style="cyan", width=_BAR)
    for text in texts:
        table.add_column(text, no_wrap=True, overflow="ellipsis")
    return table


def _bar(value: float, largest: float) -> str:
    return "█" * max(1, round(_BAR * value / largest)) if largest > 0 and value > 0 else ""
