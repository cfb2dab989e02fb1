"""Changes of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import onnx_ir as ir
from blake3 import blake3

from ndld_flow.base.text import shortened
from ndld_flow.graph.diff.listing import (
    attribute_key,
    attribute_text,
    changed_text,
    counts_of,
    first,
    metadata_changes,
    most_important,
)
from ndld_flow.graph.diff.matches import Matches, Pair, Side, Sides
from ndld_flow.models.nodes import constant_tensor, is_constant, node_label, op_name, precision_of
from ndld_flow.records.layer_arithmetic import PRECISION_KEY
from ndld_flow.records.model_diff import Change, NodeChanged, NodeItem, NodesDiff

_FARTHEST = 256
"""Limit of visited values: a longer path has left the region of one edit."""


def follows(before: ir.Value | None, after: ir.Value | None, matches: Matches) -> bool:
    """Return whether added or removed nodes explain that `after` is read instead of `before`.

    Then one of them has no partner, and upstream of it both have the same values, or none.
    """
    values = matches.values
    if all(value is None or value in values for value in (before, after)):
        return False
    mine, theirs = _sources(before, matches), _sources(after, matches)
    return mine is None or theirs is None or not mine or not theirs or bool(mine & theirs)


def _sources(value: ir.Value | None, matches: Matches) -> set[int] | None:
    """Return the numbers of the nearest upstream values with partners; None if they are too far."""
    sources: set[int] = set()
    pending, seen = [value], {value}
    while pending:
        upstream = pending.pop()
        if upstream is None:
            continue
        number = matches.values.number(upstream)
        if number is not None:
            sources.add(number)
            continue
        producer = upstream.producer()
        new = [source for source in (producer.inputs if producer is not None else ()) if source not in seen]
        seen.update(new)
        pending += new
        if len(seen) > _FARTHEST:
            return None
    return sources


_MOST_PORTS = 8


def diff_nodes(sides: Sides) -> NodesDiff:
    """Compare the nodes of all graphs."""
    nodes = sides.matches.nodes
    added, removed = nodes.lone(sides.after.nodes), nodes.lone(sides.before.nodes)
    changed = list(_changed(sides))
    return NodesDiff(
        counts=counts_of(len(added), len(removed), changed),
        added=first(_whole_item(node, sides.after) for node in added),
        removed=first(_whole_item(node, sides.before) for node in removed),
        changed=most_important(changed),
    )


def full_op_name(node: ir.Node) -> str:
    """Return `domain::Name:overload`."""
    return f"{op_name(node)}:{node.overload}" if node.overload else op_name(node)


def _changed(sides: Sides) -> Iterator[NodeChanged]:
    for before, after in sides.node_pairs:
        changes = tuple(node_changes(before, after, sides))
        if changes:
            yield NodeChanged(
                before=_item(before, sides.before),
                after=_item(after, sides.after),
                changes=changes,
                matched_by=sides.matches.nodes.matched_by(before),
            )


def _item(node: ir.Node, side: Side) -> NodeItem:
    return NodeItem(scope=side.scope_of(node), name=node_label(node), op_type=full_op_name(node))


def _whole_item(node: ir.Node, side: Side) -> NodeItem:
    return NodeItem(
        scope=side.scope_of(node),
        name=node_label(node),
        op_type=full_op_name(node),
        inputs=tuple("" if value is None else value.name or "" for value in node.inputs[:_MOST_PORTS]),
        outputs=tuple(value.name or "" for value in node.outputs[:_MOST_PORTS]),
    )


def node_changes(before: ir.Node, after: ir.Node, sides: Sides) -> Iterator[Change]:
    """Yield the changes of one node."""
    candidates = [
        changed_text("name", before.name or None, after.name or None),
        _scope_change(before, after, sides),
        changed_text("operator", full_op_name(before), full_op_name(after)),
        changed_text("precision", precision_of(before) or None, precision_of(after) or None),
        changed_text("doc string", before.doc_string or None, after.doc_string or None),
    ]
    yield from (change for change in candidates if change is not None)
    yield from _attribute_changes(before, after)
    yield from _input_changes(before, after, sides)
    yield from _output_changes(before, after)
    excluded = frozenset({PRECISION_KEY})
    yield from metadata_changes(before.metadata_props, after.metadata_props, excluded)


def _scope_change(before: ir.Node, after: ir.Node, sides: Sides) -> Change | None:
    """Return a change of graph; a graph whose node or function was renamed is the same graph."""
    assert isinstance(before.graph, ir.Graph)
    if sides.matches.graphs.after(before.graph) is after.graph:
        return None
    return Change(aspect="scope", before=sides.before.scope_of(before), after=sides.after.scope_of(after))


def _attribute_changes(before: ir.Node, after: ir.Node) -> Iterator[Change]:
    errors_of_weights = {"value"} if hold_tensors(before, after) else set()
    for name in sorted({*before.attributes, *after.attributes} - errors_of_weights):
        mine, theirs = before.attributes.get(name), after.attributes.get(name)
        if mine is not None and theirs is not None and (mine is theirs or attribute_key(mine) == attribute_key(theirs)):
            continue
        texts = attribute_text(mine), attribute_text(theirs)
        if texts[0] == texts[1]:
            texts = _with_digest(mine), _with_digest(theirs)
        yield Change(aspect="attribute", detail=shortened(name, 80), before=texts[0], after=texts[1])


def hold_tensors(before: ir.Node, after: ir.Node) -> bool:
    """Return whether both are Constants with tensors, which are compared as weights."""
    return all(is_constant(node) and constant_tensor(node.outputs[0]) is not None for node in (before, after))


def _with_digest(attribute: ir.Attr | None) -> str:
    """Return the text of an attribute with a digest, for values that differ beyond the text."""
    digest = blake3(repr(attribute and attribute_key(attribute)).encode()).hexdigest(4)
    return f"{attribute_text(attribute)} (digest {digest})"


def _input_changes(before: ir.Node, after: ir.Node, sides: Sides) -> Iterator[Change]:
    for position, (mine, theirs) in enumerate(zip_longest(_inputs(before), _inputs(after))):
        if not sides.matches.values.are_partners(mine, theirs):
            aspect = "consequence" if follows(mine, theirs, sides.matches) else "input"
            old, new = value_texts(mine, theirs)
            yield Change(aspect=aspect, detail=str(position), before=old, after=new)


def _output_changes(before: ir.Node, after: ir.Node) -> Iterator[Change]:
    """Yield outputs that only one of the nodes has. Renames are listed with tensors."""
    for position, pair in enumerate(zip_longest(before.outputs, after.outputs)):
        old, new = (_name(value) or None for value in pair)
        if (old is None) != (new is None):
            yield Change(aspect="output", detail=str(position), before=old, after=new)


def _inputs(node: ir.Node) -> list[ir.Value | None]:
    """Return a node's inputs without absent ones at the end."""
    inputs = list(node.inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    return inputs


def value_texts(before: ir.Value | None, after: ir.Value | None) -> Pair[str | None]:
    """Return two values' names; for equal names also their producers."""
    if before is not None and after is not None and before.name == after.name:
        return f"{before.name} of {_producer_text(before)}", f"{after.name} of {_producer_text(after)}"
    return _name(before), _name(after)


def _name(value: ir.Value | None) -> str | None:
    return None if value is None else value.name or ""


def _producer_text(value: ir.Value) -> str:
    producer = value.producer()
    if producer is not None:
        return f"{op_name(producer)} {node_label(producer)}"
    return "the initializers" if value.is_initializer() else "the inputs"
