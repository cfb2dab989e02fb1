"""Changes of weights: initializers and tensors of Constant nodes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ndld_flow.graph.diff.listing import changed_text, counts_of, first, most_important, text_changes
from ndld_flow.graph.diff.match_models import weights_of
from ndld_flow.graph.diff.matches import Pair, Side, Sides
from ndld_flow.graph.diff.node_changes import hold_tensors
from ndld_flow.models.derived_tensors import DerivedTensor
from ndld_flow.models.node_details import constant_tensor, dtype_text
from ndld_flow.models.sparse_tensors import SparseInitializer
from ndld_flow.models.tensor_contents import Distance, distance_of, same_contents, shape_of, values_text
from ndld_flow.models.tensor_statistics import tensor_bytes
from ndld_flow.models.tensors import shape_text
from ndld_flow.records.model_diff import Change, Storage, WeightChanged, WeightItem, WeightsDiff


def diff_weights(sides: Sides, compare_values: bool) -> WeightsDiff:
    """Compare the weights of all graphs. Values are read in pieces, and not at all if both have the same location."""
    values = sides.matches.values
    mine, theirs = _weights(sides.before), _weights(sides.after)
    pairs = [(one, other) for one in mine if (other := values.after(one)) in theirs and other is not None]
    kept = {value for pair in pairs for value in pair}
    added = [_item(value, scope) for value, scope in theirs.items() if value not in kept]
    removed = [_item(value, scope) for value, scope in mine.items() if value not in kept]
    candidates = [*((pair, (mine[pair[0]], theirs[pair[1]])) for pair in pairs), *_constants(sides)]
    changed = [found for pair, scopes in candidates if (found := _changed(pair, scopes, sides, compare_values))]
    return WeightsDiff(
        counts=counts_of(len(added), len(removed), changed),
        added=first(added),
        removed=first(removed),
        changed=most_important(changed),
        values_compared=compare_values,
    )


def _changed(pair: Pair[ir.Value], scopes: Pair[str], sides: Sides, compare_values: bool) -> WeightChanged | None:
    before, after = pair
    change, distance = _compare(_tensor(before), _tensor(after)) if compare_values else (None, None)
    changes = (*_declared_changes(pair, scopes, sides), *([change] if change else []))
    if not changes:
        return None
    return WeightChanged(
        before=_item(before, scopes[0]),
        after=_item(after, scopes[1]),
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
        changed_text("dtype", dtype_text(mine.dtype), dtype_text(theirs.dtype)),
        changed_text("shape", shape_text(shape_of(mine)), shape_text(shape_of(theirs))),
    ]
    if before.producer() is None:
        candidates += _initializer_changes(pair, scopes, sides)
    yield from (change for change in candidates if change is not None)


def _initializer_changes(pair: Pair[ir.Value], scopes: Pair[str], sides: Sides) -> Iterator[Change | None]:
    """Yield changes of an initializer that are listed with the node and tensor for a Constant."""
    before, after = pair
    mine, theirs = _tensor(before), _tensor(after)
    yield from (
        changed_text("name", before.name or "", after.name or ""),
        changed_text("storage", _storage(before, mine), _storage(after, theirs)),
        changed_text("doc string", before.doc_string or None, after.doc_string or None),
    )
    graphs = before.graph, after.graph
    if isinstance(graphs[0], ir.Graph) and sides.matches.graphs.after(graphs[0]) is not graphs[1]:
        yield changed_text("scope", *scopes)
    yield from text_changes("metadata", before.metadata_props, after.metadata_props)


def _compare(before: ir.TensorProtocol, after: ir.TensorProtocol) -> tuple[Change | None, Distance | None]:
    """Compare values, element by element if some differ; after a change of type, only by rounding."""
    if same_contents(before, after):
        return None, None
    distance = distance_of(before, after)
    is_same_type = before.dtype == after.dtype and shape_of(before) == shape_of(after)
    if not is_same_type and not (distance and distance.differing):
        return None, None
    return Change(aspect="values", before=values_text(before), after=values_text(after)), distance


def _constants(sides: Sides) -> Iterator[tuple[Pair[ir.Value], Pair[str]]]:
    """Yield the outputs of matched Constant nodes, with the addresses of their graphs."""
    for before, after in sides.node_pairs:
        if before.outputs[0] in sides.matches.values and hold_tensors(before, after):
            yield (before.outputs[0], after.outputs[0]), (sides.before.scope_of(before), sides.after.scope_of(after))


def _weights(side: Side) -> dict[ir.Value, str]:
    """Return initializer -> its graph's address."""
    return {value: scope for graph, scope in side.scopes.items() for value in weights_of(graph)}


def _item(value: ir.Value, scope: str) -> WeightItem:
    tensor = _tensor(value)
    return WeightItem(
        scope=scope,
        name=value.name or "",
        dtype=dtype_text(tensor.dtype),
        shape=shape_of(tensor),
        size_bytes=tensor.stored_bytes if isinstance(tensor, SparseInitializer) else tensor_bytes(tensor),
        storage=_storage(value, tensor),
    )


def _storage(value: ir.Value, tensor: ir.TensorProtocol) -> Storage:
    if value.producer() is not None:
        return "constant"
    if isinstance(tensor, SparseInitializer):
        return "sparse"
    on_disk = tensor.on_disk if isinstance(tensor, DerivedTensor) else isinstance(tensor, ir.ExternalTensor)
    return "external" if on_disk else "inline"


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    tensor = constant_tensor(value)
    assert tensor is not None
    return tensor
