"""Changes of tensors: outputs of nodes, and inputs and outputs of graphs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from ndld_flow.graph.diff.listing import (
    changed_text,
    counts_of,
    dims_of,
    dtype_of,
    first,
    most_important,
    tensor_item,
    text_changes,
)
from ndld_flow.graph.diff.matches import Pair, Pairs, Port, Side, Sides
from ndld_flow.graph.diff.node_changes import follows, value_texts
from ndld_flow.models.tensors import shape_text
from ndld_flow.records.model_diff import Change, TensorChanged, TensorItem, TensorsDiff

_Values = Callable[[ir.Graph], Sequence[ir.Value]]


def diff_tensors(sides: Sides) -> TensorsDiff:
    """Compare inner tensors. A type or shape that only one model declares is no change."""
    changed = list(_changed_tensors(sides))
    return TensorsDiff(counts=counts_of(0, 0, changed), changed=most_important(changed))


def diff_inputs(sides: Sides) -> TensorsDiff:
    """Compare the inputs of the graphs and functions that both models have."""
    pairs: Pairs[Port] = Pairs()
    for graph, partner in sides.matches.graphs:
        positions = {value: position for position, value in enumerate(partner.inputs)}
        for position, value in enumerate(graph.inputs):
            other = sides.matches.values.after(value)
            if other in positions:
                pairs.join((graph, position), (partner, positions[other]), sides.matches.values.matched_by(value))
    return _diff_ports(sides, pairs, lambda graph: graph.inputs)


def diff_outputs(sides: Sides) -> TensorsDiff:
    """Compare the outputs of the graphs and functions that both models have."""
    return _diff_ports(sides, sides.matches.outputs, lambda graph: graph.outputs)


def _diff_ports(sides: Sides, pairs: Pairs[Port], values_of: _Values) -> TensorsDiff:
    added = pairs.lone(_ports(sides.after, sides, values_of))
    removed = pairs.lone(_ports(sides.before, sides, values_of))
    moved = _moved(pairs)
    changed = []
    for before, after in pairs:
        one, other = values_of(before[0])[before[1]], values_of(after[0])[after[1]]
        changes_between = _interface_changes if before[0] is sides.before.model.graph else _tensor_changes
        changes = [*changes_between(one, other), *_source_changes(one, other, sides)]
        if before in moved:
            changes.append(Change(aspect="position", before=str(before[1]), after=str(after[1])))
        if changes:
            item = TensorChanged(
                before=_port_item(before, sides.before, values_of),
                after=_port_item(after, sides.after, values_of),
                changes=tuple(changes),
                matched_by=pairs.matched_by(before),
            )
            changed.append(item)
    new = [_port_item(port, sides.after, values_of) for port in added]
    old = [_port_item(port, sides.before, values_of) for port in removed]
    return TensorsDiff(
        counts=counts_of(len(new), len(old), changed),
        in_bodies=counts_of(
            sum(bool(item.scope) for item in new),
            sum(bool(item.scope) for item in old),
            [one for one in changed if one.after.scope],
        ),
        added=first(new),
        removed=first(old),
        changed=most_important(changed),
    )


def _ports(side: Side, sides: Sides, values_of: _Values) -> list[Port]:
    """Return the ports of graphs that both models have: a body is added or removed with its node."""
    graphs = [graph for graph in side.scopes if graph in sides.matches.graphs]
    return [(graph, position) for graph in graphs for position in range(len(values_of(graph)))]


def _port_item(port: Port, side: Side, values_of: _Values) -> TensorItem:
    graph, position = port
    return tensor_item(values_of(graph)[position], side.scopes[graph])


def _moved(pairs: Pairs[Port]) -> set[Port]:
    """Return the ports whose position among the common ones changed."""
    by_graph: dict[ir.Graph, list[Pair[Port]]] = defaultdict(list)
    for before, after in pairs:
        by_graph[before[0]].append((before, after))
    moved: set[Port] = set()
    for ports in by_graph.values():
        mine = sorted(ports, key=lambda pair: pair[0][1])
        theirs = sorted(ports, key=lambda pair: pair[1][1])
        moved.update(one[0] for one, other in zip(mine, theirs, strict=True) if one is not other)
    return moved


def _interface_changes(before: ir.Value, after: ir.Value) -> Iterator[Change]:
    """Yield every change of a declared input or output of the model."""
    candidates = [
        changed_text("name", before.name or "", after.name or ""),
        changed_text("dtype", dtype_of(before) or None, dtype_of(after) or None),
        changed_text("shape", _shape_text(before), _shape_text(after)),
        changed_text("doc string", before.doc_string or None, after.doc_string or None),
    ]
    yield from (change for change in candidates if change is not None)
    yield from text_changes("metadata", before.metadata_props, after.metadata_props)


def _source_changes(before: ir.Value, after: ir.Value, sides: Sides) -> Iterator[Change]:
    if not sides.matches.values.are_partners(before, after):
        aspect = "consequence" if follows(before, after, sides.matches) else "source"
        old, new = value_texts(before, after)
        yield Change(aspect=aspect, before=old, after=new)


def _changed_tensors(sides: Sides) -> Iterator[TensorChanged]:
    for before, after in sides.node_pairs:
        for one, other in zip(before.outputs, after.outputs, strict=False):
            if not one.name or not other.name or (one.is_graph_output() and other.is_graph_output()):
                continue
            changes = tuple(_tensor_changes(one, other))
            if changes:
                yield TensorChanged(
                    before=tensor_item(one, sides.before.scope_of(before)),
                    after=tensor_item(other, sides.after.scope_of(after)),
                    changes=changes,
                    matched_by=sides.matches.nodes.matched_by(before),
                )


def _tensor_changes(before: ir.Value, after: ir.Value) -> Iterator[Change]:
    """Yield changes of an inner tensor: its name, and types and shapes that contradict each other."""
    candidates = [changed_text("name", before.name or "", after.name or "")]
    if dtype_of(before) and dtype_of(after):
        candidates.append(changed_text("dtype", dtype_of(before), dtype_of(after)))
    if _contradict(dims_of(before), dims_of(after)):
        candidates.append(changed_text("shape", _shape_text(before), _shape_text(after)))
    yield from (change for change in candidates if change is not None)


def _contradict(before: tuple[int | str | None, ...] | None, after: tuple[int | str | None, ...] | None) -> bool:
    """Return whether shapes contradict each other; all free dimensions are equal, as inference invents their names."""
    if before is None or after is None:
        return False
    numbers = [tuple(dim if isinstance(dim, int) else None for dim in dims) for dims in (before, after)]
    return numbers[0] != numbers[1]


def _shape_text(value: ir.Value) -> str | None:
    dims = dims_of(value)
    return None if dims is None else shape_text(dims)
