"""The tree of subgraphs and functions of a model on a terminal, cut at a depth that keeps it short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from ndld_flow.base.quantities import count
from ndld_flow.base.text import short_name

_MOST_ROWS = 16
_NAME = 60


def bodies_table(addresses: Sequence[str], nodes: Mapping[str, int]) -> Table:
    """Return a table of graphs, each below its parent. Graphs that are too deep are counted in their parent's row."""
    owners = _owners(addresses)
    shown = _outermost(addresses, owners)
    hidden_in = {
        address: next(owner for owner in _owners_of(address, owners) if owner in shown)
        for address in addresses
        if address not in shown
    }
    table = Table("graph", box=None, pad_edge=False, header_style="dim")
    table.add_column("nodes", justify="right")
    table.add_column("")
    for address in shown[:_MOST_ROWS]:
        above = _owners_of(address, owners)
        name = address.removeprefix(f"{above[0]}/") if above else address
        hidden = [other for other, owner in hidden_in.items() if owner == address]
        held = sum(nodes.get(graph, 0) for graph in (address, *hidden))
        inside = f"with {count(len(hidden))} inside" if hidden else ""
        table.add_row(Text(f"{'  ' * len(above)}{short_name(name, _NAME)}"), count(held), Text(inside))
    if len(shown) > _MOST_ROWS:
        table.add_row(Text(f"{count(len(shown) - _MOST_ROWS)} more; --group-by scope counts them all", style="dim"))
    return table


def _owners(addresses: Sequence[str]) -> dict[str, str]:
    """Map each address to that of its parent. Names of nodes may contain slashes too."""
    known, owners = set(addresses), {}
    for address in addresses:
        pieces = address.split("/")
        around = ("/".join(pieces[:end]) for end in range(len(pieces) - 1, 0, -1))
        owner = next((outer for outer in around if outer in known), None)
        if owner is not None:
            owners[address] = owner
    return owners


def _owners_of(address: str, owners: Mapping[str, str]) -> list[str]:
    """Return the ancestors of a graph, innermost first."""
    found: list[str] = []
    while address in owners:
        address = owners[address]
        found.append(address)
    return found


def _outermost(addresses: Sequence[str], owners: Mapping[str, str]) -> list[str]:
    """Return the graphs of the outermost levels that fit a short list; at least one level."""
    depths = {address: len(_owners_of(address, owners)) for address in addresses}
    shown = [address for address in addresses if not depths[address]]
    for depth in range(1, max(depths.values(), default=0) + 1):
        deeper = [address for address in addresses if depths[address] <= depth]
        if len(deeper) > _MOST_ROWS:
            break
        shown = deeper
    return shown
