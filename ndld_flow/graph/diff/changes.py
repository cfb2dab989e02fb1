"""Changes of matched nodes and tensors: operators, attributes, weights, and the inputs and outputs of graphs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

import onnx_ir as ir
from blake3 import blake3

from ndld_flow.base.text import shortened
from ndld_flow.graph.diff.match_models import weights_of
from ndld_flow.graph.diff.matches import (
    Matches,
    Pair,
    Pairs,
    Port,
    Side,
    Sides,
    attribute_key,
    attribute_text,
    changed_text,
    counts_of,
    first,
    metadata_changes,
    most_important,
    tensor_item,
)
from ndld_flow.graph.sanitize.edits import dims_of
from ndld_flow.models.element_types import dtype_name, value_dtype
from ndld_flow.models.external_data import MissingTensor, stored_as
from ndld_flow.models.lazy_tensors import SparseInitializer
from ndld_flow.models.nodes import constant_tensor, inputs_given, is_constant, node_label, op_name, precision_of
from ndld_flow.models.tensor_statistics import Distance, distance_of, same_contents, shape_of, tensor_bytes, values_text
from ndld_flow.models.tensors import shape_text
from ndld_flow.records.layer_arithmetic import PRECISION_KEY
from ndld_flow.records.model_diff import (
    Aspect,
    Change,
    NodeChanged,
    NodeItem,
    NodesDiff,
    Storage,
    TensorChanged,
    TensorItem,
    TensorsDiff,
    WeightChanged,
    WeightItem,
    WeightsDiff,
)

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
    changed: list[NodeChanged] = []
    for before, after in sides.node_pairs:
        changes = tuple(node_changes(before, after, sides))
        if changes:
            items = _item(before, sides.before), _item(after, sides.after)
            matched_by = nodes.matched_by(before)
            changed.append(NodeChanged(before=items[0], after=items[1], changes=changes, matched_by=matched_by))
    return NodesDiff(
        counts=counts_of(len(added), len(removed), changed),
        added=first(_whole_item(node, sides.after) for node in added),
        removed=first(_whole_item(node, sides.before) for node in removed),
        changed=most_important(changed),
    )


def full_op_name(node: ir.Node) -> str:
    """Return `domain::Name:overload`."""
    return f"{op_name(node)}:{node.overload}" if node.overload else op_name(node)


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
    errors_of_weights = {"value"} if hold_tensors(before, after) else set()
    for name in sorted({*before.attributes, *after.attributes} - errors_of_weights):
        mine, theirs = before.attributes.get(name), after.attributes.get(name)
        if mine is not None and theirs is not None and (mine is theirs or attribute_key(mine) == attribute_key(theirs)):
            continue
        texts = attribute_text(mine), attribute_text(theirs)
        if texts[0] == texts[1]:
            texts = _with_digest(mine), _with_digest(theirs)
        yield Change(aspect="attribute", detail=shortened(name, 80), before=texts[0], after=texts[1])
    for position, given in enumerate(zip_longest(inputs_given(before), inputs_given(after))):
        yield from _source_changes(*given, sides, "input", str(position))
    for position, pair in enumerate(zip_longest(before.outputs, after.outputs)):
        old, new = (_name(value) or None for value in pair)
        if (old is None) != (new is None):
            yield Change(aspect="output", detail=str(position), before=old, after=new)
    excluded = frozenset({PRECISION_KEY})
    yield from metadata_changes(before.metadata_props, after.metadata_props, excluded)


def _scope_change(before: ir.Node, after: ir.Node, sides: Sides) -> Change | None:
    """Return a change of graph; a graph whose node or function was renamed is the same graph."""
    assert isinstance(before.graph, ir.Graph)
    if sides.matches.graphs.after(before.graph) is after.graph:
        return None
    return Change(aspect="scope", before=sides.before.scope_of(before), after=sides.after.scope_of(after))


def hold_tensors(before: ir.Node, after: ir.Node) -> bool:
    """Return whether both are Constants with tensors, which are compared as weights."""
    return all(is_constant(node) and constant_tensor(node.outputs[0]) is not None for node in (before, after))


def _with_digest(attribute: ir.Attr | None) -> str:
    """Return the text of an attribute with a digest, for values that differ beyond the text."""
    digest = blake3(repr(attribute and attribute_key(attribute)).encode()).hexdigest(4)
    return f"{attribute_text(attribute)} (digest {digest})"


def _name(value: ir.Value | None) -> str | None:
    return None if value is None else value.name or ""


def _producer_text(value: ir.Value) -> str:
    producer = value.producer()
    if producer is not None:
        return f"{op_name(producer)} {node_label(producer)}"
    return "the initializers" if value.is_initializer() else "the inputs"


_Values = Callable[[ir.Graph], Sequence[ir.Value]]


def diff_tensors(sides: Sides) -> TensorsDiff:
    """Compare inner tensors. A type or shape that only one model declares is not a change."""
    changed: list[TensorChanged] = []
    for before, after in sides.node_pairs:
        for mine, theirs in zip(before.outputs, after.outputs, strict=False):
            if not mine.name or not theirs.name or (mine.is_graph_output() and theirs.is_graph_output()):
                continue
            changes = tuple(_tensor_changes(mine, theirs))
            if changes:
                item = TensorChanged(
                    before=tensor_item(mine, sides.before.scope_of(before)),
                    after=tensor_item(theirs, sides.after.scope_of(after)),
                    changes=changes,
                    matched_by=sides.matches.nodes.matched_by(before),
                )
                changed.append(item)
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
        mine, theirs = values_of(before[0])[before[1]], values_of(after[0])[after[1]]
        changes_between = _interface_changes if before[0] is sides.before.model.graph else _tensor_changes
        changes = [*changes_between(mine, theirs), *_source_changes(mine, theirs, sides, "source")]
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
            [tensor for tensor in changed if tensor.after.scope],
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
        moved.update(port[0] for port, counterpart in zip(mine, theirs, strict=True) if port is not counterpart)
    return moved


def _interface_changes(before: ir.Value, after: ir.Value) -> Iterator[Change]:
    """Yield every change of a declared input or output of the model."""
    candidates = [
        changed_text("name", before.name or "", after.name or ""),
        changed_text("dtype", value_dtype(before) or None, value_dtype(after) or None),
        changed_text("shape", _shape_text(before), _shape_text(after)),
        changed_text("doc string", before.doc_string or None, after.doc_string or None),
    ]
    yield from (change for change in candidates if change is not None)
    yield from metadata_changes(before.metadata_props, after.metadata_props)


def _source_changes(
    before: ir.Value | None, after: ir.Value | None, sides: Sides, aspect: Aspect, detail: str = ""
) -> Iterator[Change]:
    """Yield a change if one place has two values that are no partners; for equal names, it also has their producers."""
    if sides.matches.values.are_partners(before, after):
        return
    old, new = _name(before), _name(after)
    if before is not None and after is not None and old == new:
        old, new = (f"{value.name} of {_producer_text(value)}" for value in (before, after))
    aspect = "consequence" if follows(before, after, sides.matches) else aspect
    yield Change(aspect=aspect, detail=detail, before=old, after=new)


def _tensor_changes(before: ir.Value, after: ir.Value) -> Iterator[Change]:
    """Yield changes of an inner tensor: its name, and types and shapes that contradict each other."""
    candidates = [changed_text("name", before.name or "", after.name or "")]
    if value_dtype(before) and value_dtype(after):
        candidates.append(changed_text("dtype", value_dtype(before), value_dtype(after)))
    if _contradict(dims_of(before), dims_of(after)):
        candidates.append(changed_text("shape", _shape_text(before), _shape_text(after)))
    yield from (change for change in candidates if change is not None)


def _contradict(before: tuple[int | str | None, ...] | None, after: tuple[int | str | None, ...] | None) -> bool:
    """Return whether shapes contradict each other; all dynamic dimensions count as equal, as inference invents their
    names."""
    if before is None or after is None:
        return False
    numbers = [tuple(dim if isinstance(dim, int) else None for dim in dims) for dims in (before, after)]
    return numbers[0] != numbers[1]


def _shape_text(value: ir.Value) -> str | None:
    dims = dims_of(value)
    return None if dims is None else shape_text(dims)


def diff_weights(sides: Sides, compare_values: bool) -> WeightsDiff:
    """Compare the weights of all graphs. Values are read in pieces, and not at all if both have the same location."""
    values = sides.matches.values
    mine, theirs = _weights(sides.before), _weights(sides.after)
    pairs = [(old, new) for old in mine if (new := values.after(old)) in theirs and new is not None]
    kept = {value for pair in pairs for value in pair}
    added = [_weight_item(value, scope) for value, scope in theirs.items() if value not in kept]
    removed = [_weight_item(value, scope) for value, scope in mine.items() if value not in kept]
    candidates = [(pair, (mine[pair[0]], theirs[pair[1]])) for pair in pairs]
    for before, after in sides.node_pairs:
        if before.outputs[0] in values and hold_tensors(before, after):
            scopes = (sides.before.scope_of(before), sides.after.scope_of(after))
            candidates.append(((before.outputs[0], after.outputs[0]), scopes))
    changed = [
        weight for pair, scopes in candidates if (weight := _weight_changed(pair, scopes, sides, compare_values))
    ]
    unknown = sum(_is_unknown(_tensor(before), _tensor(after)) for (before, after), _ in candidates)
    counts = counts_of(len(added), len(removed), changed)
    return WeightsDiff(
        counts=counts | ({"unknown": unknown} if compare_values and unknown else {}),
        added=first(added),
        removed=first(removed),
        changed=most_important(changed),
        values_compared=compare_values,
    )


def _is_unknown(before: ir.TensorProtocol, after: ir.TensorProtocol) -> bool:
    """Return whether the values of two tensors cannot be compared."""
    return isinstance(before, MissingTensor) or isinstance(after, MissingTensor)


def _weight_changed(
    pair: Pair[ir.Value], scopes: Pair[str], sides: Sides, compare_values: bool
) -> WeightChanged | None:
    before, after = pair
    change, distance = _compare(_tensor(before), _tensor(after)) if compare_values else (None, None)
    changes = (*_declared_changes(pair, scopes, sides), *([change] if change else []))
    if not changes:
        return None
    return WeightChanged(
        before=_weight_item(before, scopes[0]),
        after=_weight_item(after, scopes[1]),
        changes=changes,
        matched_by=sides.matches.values.matched_by(before),
        elements=distance.elements if distance else None,
        differing=distance.differing if distance else None,
        max_abs_difference=distance.max_abs_difference if distance else None,
    )


def _declared_changes(pair: Pair[ir.Value], scopes: Pair[str], sides: Sides) -> Iterator[Change]:
    """Yield the changes that need no values."""
    before, after = pair
    mine, theirs = _tensor(before), _tensor(after)
    candidates = [
        changed_text("dtype", dtype_name(mine.dtype), dtype_name(theirs.dtype)),
        changed_text("shape", shape_text(shape_of(mine)), shape_text(shape_of(theirs))),
    ]
    if before.producer() is None:  # for a Constant, these changes are listed with the node and tensor
        candidates += [
            changed_text("name", before.name or "", after.name or ""),
            changed_text("storage", _storage(before, mine), _storage(after, theirs)),
            changed_text("doc string", before.doc_string or None, after.doc_string or None),
        ]
        if isinstance(before.graph, ir.Graph) and sides.matches.graphs.after(before.graph) is not after.graph:
            candidates.append(changed_text("scope", *scopes))
        candidates += metadata_changes(before.metadata_props, after.metadata_props)
    yield from (change for change in candidates if change is not None)


def _compare(before: ir.TensorProtocol, after: ir.TensorProtocol) -> tuple[Change | None, Distance | None]:
    """Compare values, element by element if some differ; after a change of type, only by rounding."""
    if _is_unknown(before, after) or same_contents(before, after):
        return None, None
    distance = distance_of(before, after)
    is_same_type = before.dtype == after.dtype and shape_of(before) == shape_of(after)
    if not is_same_type and not (distance and distance.differing):
        return None, None
    return Change(aspect="values", before=values_text(before), after=values_text(after)), distance


def _weights(side: Side) -> dict[ir.Value, str]:
    """Return initializer -> its graph's address."""
    return {value: scope for graph, scope in side.scopes.items() for value in weights_of(graph)}


def _weight_item(value: ir.Value, scope: str) -> WeightItem:
    tensor = _tensor(value)
    return WeightItem(
        scope=scope,
        name=value.name or "",
        dtype=dtype_name(tensor.dtype),
        shape=shape_of(tensor),
        size_bytes=tensor.stored_bytes if isinstance(tensor, SparseInitializer) else tensor_bytes(tensor),
        storage=_storage(value, tensor),
    )


def _storage(value: ir.Value, tensor: ir.TensorProtocol) -> Storage:
    return "constant" if value.producer() is not None else stored_as(tensor)


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    tensor = constant_tensor(value)
    assert tensor is not None
    return tensor
