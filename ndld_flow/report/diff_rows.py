"""Changes of a model: numbers, operators, and differences as rows for pages, terminals and pull requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeGuard

from ndld_flow.base.quantities import ABSENT, counted, size, three_digits
from ndld_flow.base.text import short_name
from ndld_flow.records.model_diff import (
    NOUNS,
    PARTS,
    WORDS,
    Aspect,
    Change,
    FunctionChanged,
    FunctionItem,
    GraphChange,
    ModelDiff,
    NodeChanged,
    NodeItem,
    Part,
    TensorChanged,
    TensorItem,
    TensorsDiff,
    WeightChanged,
    WeightItem,
    counted_words,
    own_counts,
)

Sign = Literal["+", "-", "~"]
_Item = NodeItem | TensorItem | WeightItem | FunctionItem
_Changed = NodeChanged | TensorChanged | WeightChanged | FunctionChanged

_TITLES: dict[Part, str] = {"opsets": "opset imports", "texts": "versions and metadata"}
_ASIDE: frozenset[Aspect] = frozenset({"name", "consequence"})
_LONGEST = 240


@dataclass(frozen=True)
class DiffLine:
    """One changed value."""

    label: str
    """`axis`, `input 0`, `shape`."""
    before: str | None
    """None if it did not exist."""
    after: str | None
    is_consequence: bool = False


@dataclass(frozen=True)
class DiffRow:
    """One added, removed or changed item, with shortened texts."""

    part: Part
    sign: Sign
    name: str
    was: str
    """Its previous name; empty if unchanged."""
    kind: str
    """Operator, or type and shape, after the change."""
    scope: str
    detail: str
    """Further description, such as the inputs and outputs of an added node."""
    lines: tuple[DiffLine, ...] = ()
    is_aside: bool = field(init=False)
    """True if it was only renamed, or reads an inserted node."""

    def __post_init__(self) -> None:
        """Set what follows from the other fields."""
        lines = all(line.is_consequence for line in self.lines)
        object.__setattr__(self, "is_aside", self.sign == "~" and lines and not self.detail)


@dataclass(frozen=True)
class DiffPart:
    """One part of a diff with its rows."""

    part: Part
    title: str
    words: str
    """`3 nodes added, 1 removed`."""
    rows: tuple[DiffRow, ...]
    left_out: int
    """Number of further rows."""


@dataclass(frozen=True)
class DiffView:
    """Two models' differences."""

    one_line: str
    parts: tuple[DiffPart, ...]
    """Parts with differences."""
    values_compared: bool

    @property
    def rows(self) -> tuple[DiffRow, ...]:
        """Rows of all parts, constants after other nodes, and renames last."""
        rows = (row for part in self.parts for row in part.rows)
        return tuple(sorted(rows, key=lambda row: (row.is_aside, row.kind == "Constant")))

    @property
    def left_out(self) -> int:
        return sum(part.left_out for part in self.parts)


def collect_diff(diff: ModelDiff) -> DiffView:
    """Return the rows of a record."""
    parts = [_part(part, diff) for part in PARTS]
    return DiffView(diff.one_line, tuple(part for part in parts if part.rows), diff.weights.values_compared)


def _part(part: Part, diff: ModelDiff) -> DiffPart:
    rows = tuple(_rows(part, diff))
    if part in _TITLES:
        return DiffPart(part, _TITLES[part], f"{len(rows)} changed", rows, 0)
    listing = getattr(diff, part)
    words = [counted_words(NOUNS[part], own_counts(listing), WORDS[part])]
    if isinstance(listing, TensorsDiff) and listing.in_bodies:
        words.append(f"of subgraphs and functions {counted_words(NOUNS[part], listing.in_bodies, WORDS[part])}")
    words_of_items: tuple[Literal["added", "removed", "changed"], ...] = ("added", "removed", "changed")
    left_out = sum(listing.counts.get(word, 0) - len(getattr(listing, word)) for word in words_of_items)
    return DiffPart(part, part, "; ".join(filter(None, words)), rows, left_out)


def _rows(part: Part, diff: ModelDiff) -> Iterator[DiffRow]:
    if part == "opsets":
        for opset in diff.opsets:
            before, after = (None if version is None else str(version) for version in (opset.before, opset.after))
            yield _value_row(part, opset.domain or "ai.onnx", before, after, opset.scope)
    elif part == "texts":
        for text in diff.texts:
            yield _value_row(part, text.key, text.before, text.after, "")
    else:
        listing = getattr(diff, part)
        stored = _constants_stored(diff)
        if part == "nodes" and stored:
            names = short_name(", ".join(sorted(stored)), _LONGEST)
            line = DiffLine("", "Constant", "initializer")
            yield DiffRow(part, "~", names, "", counted(len(stored), "constant"), "", "", (line,))
        if part in ("nodes", "weights"):
            listing = listing.model_copy(
                update={
                    "added": [item for item in listing.added if part == "nodes" or item.name not in stored],
                    "removed": [
                        item for item in listing.removed if not _is_constant(item) or stored.isdisjoint(item.outputs)
                    ],
                }
            )
        yield from (_item_row(part, "+", item) for item in listing.added)
        yield from (_item_row(part, "-", item) for item in listing.removed)
        yield from (_changed_row(part, changed) for changed in listing.changed)


def _constants_stored(diff: ModelDiff) -> frozenset[str]:
    """Return the tensors of Constant nodes that are initializers of the main graph after the change."""
    removed = {item.outputs[0] for item in diff.nodes.removed if _is_constant(item) and item.outputs}
    weights = [*diff.weights.added, *(changed.after for changed in diff.weights.changed)]
    return frozenset(removed & {weight.name for weight in weights if weight.storage != "constant" and not weight.scope})


def _is_constant(item: _Item) -> TypeGuard[NodeItem]:
    return isinstance(item, NodeItem) and item.op_type == "Constant" and not item.scope


def _value_row(part: Part, name: str, before: str | None, after: str | None, scope: str) -> DiffRow:
    line = DiffLine("", _shortened(before), _shortened(after))
    return DiffRow(part, "~", short_name(name), "", "", short_name(scope), "", (line,))


def _item_row(part: Part, sign: Sign, item: _Item) -> DiffRow:
    detail = size(item.size_bytes) if isinstance(item, WeightItem) else ""
    if isinstance(item, NodeItem):
        detail = f"({_names(item.inputs)}) -> ({_names(item.outputs)})"
    return DiffRow(part, sign, _name(item), "", _kind(item), _scope(item), detail)


def _changed_row(part: Part, changed: _Changed) -> DiffRow:
    before, after = _name(changed.before), _name(changed.after)
    lines = tuple(_line(change) for change in changed.changes if change.aspect not in ("name", "body"))
    detail = _distance(changed) if isinstance(changed, WeightChanged) else ""
    if any(change.aspect == "body" for change in changed.changes):
        detail = "its body, listed by node"
    # An unnamed node is identified by its output, and may receive that name.
    is_renamed = before != after or any(change.aspect == "name" for change in changed.changes)
    was = before if is_renamed else ""
    return DiffRow(part, "~", after, was, _kind(changed.after), _scope(changed.after), detail, lines)


def _line(change: Change) -> DiffLine:
    is_consequence = change.aspect == "consequence"
    labels = {"attribute": "", "input": "input", "consequence": "input" if change.detail else "", "output": "output"}
    words = [labels.get(change.aspect, change.aspect), short_name(change.detail, 80)]
    label = " ".join(word for word in words if word) or "source"
    return DiffLine(label, _shortened(change.before), _shortened(change.after), is_consequence)


def _shortened(text: str | None) -> str | None:
    return None if text is None else short_name(text, _LONGEST)


def _distance(changed: WeightChanged) -> str:
    """Return `12 of 400 values differ, by 0.5 at most`."""
    if changed.elements is None or changed.differing is None:
        return ""
    most = changed.max_abs_difference
    by = f", by {three_digits(most)} at most" if most is not None else ""
    return f"{changed.differing:,} of {changed.elements:,} values differ{by}"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(short_name(name, 60) or ABSENT for name in names)


def _name(item: _Item) -> str:
    return short_name(item.name)


def _kind(item: _Item) -> str:
    """Return `Conv`, `float32 1x3x224x224` or `12 nodes`."""
    if isinstance(item, NodeItem):
        return short_name(item.op_type, 80)
    if isinstance(item, FunctionItem):
        return f"{item.node_count:,} nodes"
    if item.shape is None:
        return short_name(item.dtype, 80)
    dims = "x".join("?" if dim is None else short_name(str(dim), 40) for dim in item.shape)
    return f"{short_name(item.dtype, 80)} {dims or 'scalar'}".strip()


def _scope(item: _Item) -> str:
    return "" if isinstance(item, FunctionItem) else short_name(item.scope)


@dataclass(frozen=True)
class TypeChange:
    """Numbers of nodes of one type before and after."""

    op_type: str
    before: int
    after: int

    @property
    def delta(self) -> int:
        return self.after - self.before


@dataclass(frozen=True)
class ChangeView:
    """The change of a model, by type."""

    totals: tuple[tuple[str, int, int, str], ...]
    """(name, before, after, unit) for nodes, parameters, bytes of weights, opset."""
    changed: tuple[TypeChange, ...]
    """Types by size of the change, the largest first."""
    unchanged: tuple[TypeChange, ...]
    casts_added: int
    notes: tuple[str, ...]
    diff: DiffView | None
    """Changes by node, if recorded."""

    @property
    def largest_delta(self) -> int:
        return max((abs(type_.delta) for type_ in self.changed), default=0)


def collect_change(change: GraphChange) -> ChangeView:
    """Return the numbers, types and differences of a record."""
    before, after = change.before, change.after
    op_types = dict.fromkeys([*before.nodes_by_type, *after.nodes_by_type])
    types = [
        TypeChange(short_name(op_type), before.nodes_by_type.get(op_type, 0), after.nodes_by_type.get(op_type, 0))
        for op_type in op_types
    ]
    by_change = sorted(types, key=lambda type_: (-abs(type_.delta), type_.op_type))
    return ChangeView(
        totals=(
            ("nodes", before.node_count, after.node_count, ""),
            ("parameters", before.parameter_count, after.parameter_count, ""),
            ("weights", before.initializer_bytes, after.initializer_bytes, "bytes"),
            ("opset", before.opset, after.opset, "version"),
        ),
        changed=tuple(type_ for type_ in by_change if type_.delta),
        unchanged=tuple(type_ for type_ in types if not type_.delta),
        casts_added=change.casts_added,
        notes=tuple(short_name(note, 1000) for note in change.notes),
        diff=collect_diff(change.diff) if change.diff is not None else None,
    )
