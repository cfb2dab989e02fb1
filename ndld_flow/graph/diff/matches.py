"""Partners among the parts of two models, and the two models themselves.

Every pairing keeps pairs that are certain from both sides and drops others, so that the result is the same with the
sides exchanged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import onnx_ir as ir

from ndld_flow.models.nodes import graph_of, scopes_of
from ndld_flow.records.model_diff import MatchedBy

Thing = TypeVar("Thing", bound=Hashable)
Pair = tuple[Thing, Thing]


class Pairs(Generic[Thing]):
    """Pairs of one kind, such as nodes; each thing has at most one partner."""

    def __init__(self) -> None:
        self._after: dict[Thing, Thing] = {}
        self._numbers: dict[Thing, int] = {}
        self._matched_by: dict[Thing, MatchedBy] = {}

    def __contains__(self, thing: Thing) -> bool:
        return thing in self._numbers

    def __iter__(self) -> Iterator[Pair[Thing]]:
        return iter(self._after.items())

    def join(self, before: Thing, after: Thing, matched_by: MatchedBy) -> bool:
        """Match two things with each other; return False if one of them already has a match."""
        if before in self._numbers or after in self._numbers:
            return False
        self._numbers[before] = self._numbers[after] = len(self._after)
        self._after[before] = after
        self._matched_by[before] = matched_by
        return True

    def are_partners(self, before: Thing | None, after: Thing | None) -> bool:
        """Return whether two things are partners; two absent ones are."""
        if before is None or after is None:
            return before is after
        return self._after.get(before) is after

    def number(self, thing: Thing) -> int | None:
        """Return a number that only this thing and its partner have; None without a partner."""
        return self._numbers.get(thing)

    def after(self, before: Thing) -> Thing | None:
        return self._after.get(before)

    def matched_by(self, before: Thing) -> MatchedBy:
        return self._matched_by[before]

    def lone(self, things: Iterable[Thing]) -> list[Thing]:
        """Return the things without a partner."""
        return [thing for thing in things if thing not in self._numbers]


_EXCHANGED = 4

Key = Callable[[Thing], Hashable]


def unique(things: Iterable[Thing], key: Key[Thing]) -> dict[Hashable, Thing]:
    """Return key -> the only thing that has it; things with key None or a shared key are dropped."""
    groups = _groups(things, key)
    return {key: group[0] for key, group in groups.items() if len(group) == 1}


def unique_pairs(before: Iterable[Thing], after: Iterable[Thing], key: Key[Thing]) -> list[Pair[Thing]]:
    """Return pairs of things whose key is unique on each side."""
    left, right = unique(before, key), unique(after, key)
    return [(thing, right[key]) for key, thing in left.items() if key in right]


def ordered_pairs(before: Iterable[Thing], after: Iterable[Thing], key: Key[Thing]) -> list[Pair[Thing]]:
    """Return pairs in order for each key that equally many things have on both sides."""
    left, right = _groups(before, key), _groups(after, key)
    same = [(group, right[key]) for key, group in left.items() if len(right.get(key, ())) == len(group)]
    return [pair for some, others in same for pair in zip(some, others, strict=True)]


def best_pairs(scores: Mapping[Pair[Thing], int]) -> list[Pair[Thing]]:
    """Return the pairs in which each thing is the other's only best-scored partner."""
    rivals: dict[tuple[int, Thing], list[tuple[int, Thing]]] = defaultdict(list)
    for (before, after), score in scores.items():
        rivals[0, before].append((score, after))
        rivals[1, after].append((score, before))
    best = {}
    for place, scored in rivals.items():
        highest = max(score for score, _ in scored)
        things = [thing for score, thing in scored if score == highest]
        best[place] = things[0] if len(things) == 1 else None
    return [pair for pair in scores if best[0, pair[0]] is pair[1] and best[1, pair[1]] is pair[0]]


def names_agree(before: Sequence[Thing], after: Sequence[Thing], name: Key[Thing], look: Key[Thing]) -> bool:
    """Return whether things of the same name look alike, rather than like things of other names.

    Exporters number nodes: one node more, and every later name belongs to another node. A few nodes may have been
    exchanged on purpose.
    """
    names = unique_pairs(before, after, name)
    looks = dict(unique_pairs(before, after, look))
    back = {theirs: mine for mine, theirs in looks.items()}
    agree = sum(looks.get(mine) is theirs for mine, theirs in names)
    disagree = sum(
        (mine in looks and looks[mine] is not theirs) + (theirs in back and back[theirs] is not mine)
        for mine, theirs in names
    )
    return 2 * agree + 2 * _EXCHANGED >= disagree


def _groups(things: Iterable[Thing], key: Key[Thing]) -> dict[Hashable, list[Thing]]:
    groups: dict[Hashable, list[Thing]] = defaultdict(list)
    for thing in things:
        shared = key(thing)
        if shared is not None:
            groups[shared].append(thing)
    return groups


Port = tuple[ir.Graph, int]
"""An output of a graph by position: several may be the same value."""


@dataclass(frozen=True)
class Matches:
    """The partners of every kind."""

    functions: Pairs[ir.Function] = field(default_factory=Pairs)
    graphs: Pairs[ir.Graph] = field(default_factory=Pairs)
    nodes: Pairs[ir.Node] = field(default_factory=Pairs)
    values: Pairs[ir.Value] = field(default_factory=Pairs)
    """Graph inputs, initializers, and outputs of matched nodes."""
    outputs: Pairs[Port] = field(default_factory=Pairs)


@dataclass(frozen=True)
class Side:
    """One of the two models."""

    model: ir.Model
    scopes: dict[ir.Graph, str]
    """Graph -> its address."""

    @property
    def nodes(self) -> Iterator[ir.Node]:
        """The nodes of all graphs, in the model's order."""
        return (node for graph in self.scopes for node in graph)

    def scope_of(self, node: ir.Node) -> str:
        graph = graph_of(node)
        return self.scopes[graph]


@dataclass(frozen=True)
class Sides:
    """Both models and their matches."""

    before: Side
    after: Side
    matches: Matches

    @property
    def node_pairs(self) -> Iterator[Pair[ir.Node]]:
        """The matched nodes, in the order of the model before."""
        for node in self.before.nodes:
            partner = self.matches.nodes.after(node)
            if partner is not None:
                yield node, partner


def side_of(model: ir.Model) -> Side:
    return Side(model, {graph: address for address, graph in scopes_of(model).items()})
