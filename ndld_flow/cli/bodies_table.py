"""Subgraphs and functions of a model on a terminal: as a tree, as deep as it stays short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from ndld_flow.base.quantities import count
from ndld_flow.base.text import short_name

_MOST_ROWS = 16
_NAME = 60


def bodies_table(addresses: Sequence[str], nodes: Mapping[str, int]) -> Table:
    """Graphs by address, each below the one that it stands in; what is too deep to show is counted where it stands."""
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
        hidden = [other for other, one in hidden_in.items() if one == address]
        held = sum(nodes.get(graph, 0) for graph in (address, *hidden))
        inside = f"with {count(len(hidden))} inside" if hidden else ""
        table.add_row(Text(f"{'  ' * len(above)}{short_name(name, _NAME)}"), count(held), Text(inside))
    if len(shown) > _MOST_ROWS:
        table.add_row(Text(f"{count(len(shown) - _MOST_ROWS)} more; --group-by scope counts them all", style="dim"))
    return table


def _owners(addresses: Sequence[str]) -> dict[str, str]:
    """Address -> that of the subgraph or function around it. Names of nodes hold slashes too."""
    known, owners = set(addresses), {}
    for address in addresses:
        pieces = address.split("/")
        around = ("/".join(pieces[:end]) for end in range(len(pieces) - 1, 0, -1))
        owner = next((one for one in around if one in known), None)
        if owner is not None:
            owners[address] = owner
    return owners


def _owners_of(address: str, owners: Mapping[str, str]) -> list[str]:
    """From the innermost outwards."""
    found: list[str] = []
    while address in owners:
        address = owners[address]
        found.append(address)
    return found


def _outermost(addresses: Sequence[str], owners: Mapping[str, str]) -> list[str]:
    """As many levels of nesting as make a short list; one at least."""
    depths = {address: len(_owners_of(address, owners)) for address in addresses}
    shown = [address for address in addresses if not depths[address]]
    for depth in range(1, max(depths.values(), default=0) + 1):
        deeper = [address for address in addresses if depths[address] <= depth]
        if len(deeper) > _MOST_ROWS:
            break
        shown = deeper
    return shown
