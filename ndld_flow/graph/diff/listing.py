"""Lists of changes within the limits of a record, and attributes as text and as keys that only equal ones share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar

import onnx_ir as ir

from ndld_flow.base.text import shortened
from ndld_flow.graph.sanitize.edits import dims_of
from ndld_flow.models.element_types import GRAPHS, dtype_name, held_tensor, value_dtype
from ndld_flow.models.nodes import element_type_text
from ndld_flow.models.tensor_statistics import digest_of, shape_of, values_text
from ndld_flow.models.tensors import shape_text
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
