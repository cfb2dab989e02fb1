"""The variants that `optimize` has tried so far, as a table in a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from ndld_flow.base.text import visible_text
from ndld_flow.cli.plain import describe_place
from ndld_flow.report.variant_text import describe_accuracy, describe_times, is_possible
from ndld_flow.runner.events import VariantTried

_RANKS = {
    "not proved": 1,
    "delivered": 1,
    "on the front": 1,
    "slower": 2,
    "the same": 2,
    "not faster": 2,
    "near the bound": 3,
    "not right on held-out data": 4,
    "not right": 4,
}
"""Outcome -> rank; others, such as `failed`, come last."""
_COLOURS = {1: "green", 3: "yellow", 4: "red"}
_LEADS, _LAST = 0, 5


def _rank(event: VariantTried) -> tuple[int, float]:
    """Return the key of the order: the leader, then those that are right, each the fastest first."""
    speed = event.variant.speed
    rank = _LEADS if event.leads else _RANKS.get(event.variant.outcome, _LAST)
    return rank, speed.ratio if speed is not None and is_possible(speed) else float("inf")


def draw_variants(events: Iterable[VariantTried], width: int, height: int) -> Table:
    """Return the table for a terminal of this size, with at least two lines; the best variants stay."""
    ordered = sorted(events, key=_rank)
    room = max(height - 1, 1)
    shown = ordered if len(ordered) <= room else ordered[: max(room - 1, 0)]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=False)
    table.add_column("  variant", no_wrap=True, overflow="ellipsis", max_width=44 if width >= 90 else 18)
    table.add_column("as fast", no_wrap=True, justify="right", min_width=len("as fast"))
    table.add_column("accuracy", no_wrap=True, overflow="ellipsis", min_width=14, max_width=24)
    table.add_column("", no_wrap=True, overflow="ellipsis", min_width=len("may be the best"))
    for event in shown:
        rank, _ = _rank(event)
        tried, style = event.variant, "bold" if event.leads else "dim" if rank == _LAST else ""
        times = describe_times(tried.speed)[0] if tried.speed is not None and is_possible(tried.speed) else ""
        name = Text(f"{'▸' if event.leads else ' '} {' '.join(visible_text(tried.name).split())}", style=style)
        place = Text(describe_place(event), style=_COLOURS.get(max(rank, 1), style))
        accuracy = describe_accuracy(tried).partition(", ")[0]
        table.add_row(name, Text(times, style=style), Text(accuracy, style=style), place)
    if len(shown) < len(ordered):
        table.add_row(Text(f"  and {len(ordered) - len(shown)} more", style="dim"))
    return table
