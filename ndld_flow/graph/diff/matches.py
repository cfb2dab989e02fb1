"""Partners among the parts of two models, the two models themselves, and lists of their changes within limits.

Every pairing keeps pairs that are certain from both sides and drops others, so that the result is the same with the
sides exchanged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

import onnx_ir as ir

from ndld_flow.base.text import shortened
from ndld_flow.graph.sanitize.edits import dims_of
from ndld_flow.models.element_types import GRAPHS, dtype_name, held_tensor, value_dtype
from ndld_flow.models.nodes import element_type_text, graph_of, scopes_of
from ndld_flow.models.tensor_statistics import digest_of, shape_of, values_text
from ndld_flow.models.tensors import shape_text
from ndld_flow.records.model_diff import Aspect, Change, Counted, MatchedBy, TensorItem

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


MOST_ITEMS = 500
"""Limit of each list; counts include all items."""
_LONGEST = 200
_MINOR: frozenset[Aspect] = frozenset({"name", "consequence", "metadata", "doc string", "storage"})
"""Less important aspects, which are dropped first if a list is truncated."""


class _Changed(Protocol):
    @property
    def changes(self) -> tuple[Change, ...]: ...


_AnyItem = TypeVar("_AnyItem")
_AnyChanged = TypeVar("_AnyChanged", bound=_Changed)


def counts_of(added: int, removed: int, changed: Sequence[_Changed]) -> dict[Counted, int]:
    """Return the counts that are not 0."""
    counts: Counter[Counted] = Counter({"added": added, "removed": removed, "changed": len(changed)})
    for item in changed:
        aspects = {change.aspect for change in item.changes}
        counts.update(aspects)
        counts["followed"] += aspects == {"consequence"}
    return {word: counts[word] for word in sorted(counts) if counts[word]}


def first(items: Iterable[_AnyItem]) -> tuple[_AnyItem, ...]:
    """Return the items within the limit."""
    return tuple(islice(items, MOST_ITEMS))


def most_important(changed: Iterable[_AnyChanged]) -> tuple[_AnyChanged, ...]:
    """Return the items within the limit, in order, with minor changes such as renames last."""
    return first(sorted(changed, key=lambda item: all(change.aspect in _MINOR for change in item.changes)))


def metadata_changes(
    before: Mapping[str, str], after: Mapping[str, str], excluded: frozenset[str] = frozenset()
) -> list[Change]:
    """Return the changes of metadata whose texts differ."""
    keys = [key for key in dict.fromkeys([*before, *after]) if key not in excluded]
    changes = [changed_text("metadata", before.get(key), after.get(key), key) for key in sorted(keys)]
    return [change for change in changes if change is not None]


def changed_text(aspect: Aspect, before: str | None, after: str | None, detail: str = "") -> Change | None:
    """Return a change, or None if the texts are equal. A long text is shortened, with its original length."""
    if before == after:
        return None
    return Change(aspect=aspect, detail=shortened(detail, _LONGEST), before=_shortened(before), after=_shortened(after))


def tensor_item(value: ir.Value, scope: str) -> TensorItem:
    """Return a value as its model declares it."""
    return TensorItem(scope=scope, name=value.name or "", dtype=value_dtype(value), shape=dims_of(value))


def _shortened(text: str | None) -> str | None:
    if text is None or len(text) <= _LONGEST:
        return text
    return f"{shortened(text, _LONGEST)} ({len(text):,} characters)"


_LONGEST_VALUE = 160
_SHOWN = 12
_ELEMENT_TYPES = ("to", "dtype", "output_dtype", "output_datatype", "stash_type")
"""Attributes whose integer is an element type."""


def attribute_key(attribute: ir.Attr) -> Hashable:
    """Return a key that only equal attributes share; for graphs, only their number."""
    if attribute.is_ref():
        return ("reference", attribute.ref_attr_name)
    kind, value = attribute.type, attribute.value
    if kind == ir.AttributeType.TENSOR:
        return (kind.name, digest_of(held_tensor(attribute)))
    if kind == ir.AttributeType.TENSORS:
        return (kind.name, tuple(digest_of(tensor) for tensor in value))
    if kind in GRAPHS:
        return (kind.name, len(value) if kind == ir.AttributeType.GRAPHS else 1)
    # As text, NaN equals itself, and 0.0 differs from -0.0.
    return (kind.name, repr(tuple(value)) if isinstance(value, list | tuple) else repr(value))


def attribute_text(attribute: ir.Attr | None) -> str | None:
    """Return `[1, 1]`, `float16`, `@alpha` for a function's parameter; None for None."""
    if attribute is None:
        return None
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    value: Any = attribute.value
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = held_tensor(attribute)
        return f"{dtype_name(tensor.dtype)} {shape_text(shape_of(tensor))} {values_text(tensor)}"
    if attribute.type == ir.AttributeType.INT and attribute.name in _ELEMENT_TYPES:
        return element_type_text(value)
    if not attribute.is_ref() and attribute.type in GRAPHS:  # they are compared node by node
        return "a graph" if attribute.type == ir.AttributeType.GRAPH else f"{len(value)} graphs"
    if isinstance(value, list | tuple):
        elements = [_scalar(element) for element in value[:_SHOWN]]
        return f"[{', '.join([*elements, f'… {len(value)}'] if len(value) > _SHOWN else elements)}]"
    return _scalar(value)


def _scalar(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else shortened(str(value), _LONGEST_VALUE)
