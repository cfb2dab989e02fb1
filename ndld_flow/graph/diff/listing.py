"""Lists of changes within the limits of a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Protocol, TypeVar

import onnx_ir as ir

from ndld_flow.base.text import shortened
from ndld_flow.models.element_types import type_name
from ndld_flow.models.node_details import dtype_text
from ndld_flow.records.model_diff import Aspect, Change, Counted, TensorItem

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


def text_changes(
    aspect: Aspect, before: Mapping[str, str], after: Mapping[str, str], excluded: frozenset[str] = frozenset()
) -> list[Change]:
    """Return the changes of keys whose texts differ."""
    keys = [key for key in dict.fromkeys([*before, *after]) if key not in excluded]
    changes = [changed_text(aspect, before.get(key), after.get(key), key) for key in sorted(keys)]
    return [change for change in changes if change is not None]


def changed_text(aspect: Aspect, before: str | None, after: str | None, detail: str = "") -> Change | None:
    """Return a change, or None if the texts are equal. A long text is shortened, with its original length."""
    if before == after:
        return None
    return Change(aspect=aspect, detail=shortened(detail, _LONGEST), before=_shortened(before), after=_shortened(after))


def tensor_item(value: ir.Value, scope: str) -> TensorItem:
    """Return a value as its model declares it."""
    return TensorItem(scope=scope, name=value.name or "", dtype=dtype_of(value), shape=dims_of(value))


def dtype_of(value: ir.Value) -> str:
    """Return `float32`; for other types than dense tensors, ONNX's name; empty if undeclared."""
    if value.type is None or isinstance(value.type, ir.TensorType):
        return "" if value.dtype is None else dtype_text(value.dtype)
    return type_name(value.type) or ""


def dims_of(value: ir.Value) -> tuple[int | str | None, ...] | None:
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def _shortened(text: str | None) -> str | None:
    if text is None or len(text) <= _LONGEST:
        return text
    return f"{shortened(text, _LONGEST)} ({len(text):,} characters)"
