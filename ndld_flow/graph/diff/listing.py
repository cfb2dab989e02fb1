"""Lists of what is different, as a record keeps them."""

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
"""Of each list; counts tell of all."""
_LONGEST = 200
_ASIDE: frozenset[Aspect] = frozenset({"name", "consequence", "metadata", "doc string", "storage"})
"""What matters less than the rest, and goes first where a list is cut."""


class _Changed(Protocol):
    @property
    def changes(self) -> tuple[Change, ...]: ...


_AnyItem = TypeVar("_AnyItem")
_AnyChanged = TypeVar("_AnyChanged", bound=_Changed)


def counts_of(added: int, removed: int, changed: Sequence[_Changed]) -> dict[Counted, int]:
    """How many; what there is none of is missing."""
    counts: Counter[Counted] = Counter({"added": added, "removed": removed, "changed": len(changed)})
    for one in changed:
        aspects = {change.aspect for change in one.changes}
        counts.update(aspects)
        counts["followed"] += aspects == {"consequence"}
    return {word: counts[word] for word in sorted(counts) if counts[word]}


def first(items: Iterable[_AnyItem]) -> tuple[_AnyItem, ...]:
    """As many as are kept."""
    return tuple(islice(items, MOST_ITEMS))


def weightiest(changed: Iterable[_AnyChanged]) -> tuple[_AnyChanged, ...]:
    """As many as are kept, in their order but for those that only got another name, which come last."""
    return first(sorted(changed, key=lambda one: all(change.aspect in _ASIDE for change in one.changes)))


def text_changes(
    aspect: Aspect, before: Mapping[str, str], after: Mapping[str, str], but: frozenset[str] = frozenset()
) -> list[Change]:
    """Keys whose texts differ."""
    keys = [key for key in dict.fromkeys([*before, *after]) if key not in but]
    changes = [changed_text(aspect, before.get(key), after.get(key), key) for key in sorted(keys)]
    return [change for change in changes if change is not None]


def changed_text(aspect: Aspect, before: str | None, after: str | None, detail: str = "") -> Change | None:
    """None when the two are equal. Long texts are shortened, and then tell how long they were."""
    if before == after:
        return None
    return Change(aspect=aspect, detail=shortened(detail, _LONGEST), before=_told(before), after=_told(after))


def tensor_item(value: ir.Value, scope: str) -> TensorItem:
    """A value as its model declares it."""
    return TensorItem(scope=scope, name=value.name or "", dtype=dtype_of(value), shape=dims_of(value))


def dtype_of(value: ir.Value) -> str:
    """`float32`; what is no dense tensor as ONNX writes it; empty where not said."""
    if value.type is None or isinstance(value.type, ir.TensorType):
        return "" if value.dtype is None else dtype_text(value.dtype)
    return type_name(value.type) or ""


def dims_of(value: ir.Value) -> tuple[int | str | None, ...] | None:
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def _told(text: str | None) -> str | None:
    if text is None or len(text) <= _LONGEST:
        return text
    return f"{shortened(text, _LONGEST)} ({len(text):,} characters)"
