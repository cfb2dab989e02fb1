"""The differences between two models.

::

    found = diff_models(load_structure(before), load_structure(after))
    found.one_line          # 1 node added, 3 renamed; 2 weights changed
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from ndld_flow.base.quantities import count
from ndld_flow.base.text import short_name
from ndld_flow.drawing.graph import DrawnEdge, DrawnGraph, DrawnNode
from ndld_flow.graph.diff.changes import diff_inputs, diff_nodes, diff_outputs, diff_tensors, diff_weights, node_changes
from ndld_flow.graph.diff.match_models import match_models
from ndld_flow.graph.diff.matches import (
    Sides,
    attribute_key,
    attribute_text,
    changed_text,
    counts_of,
    first,
    metadata_changes,
    most_important,
    side_of,
)
from ndld_flow.models.files import all_graphs, load_structure, summarize_model
from ndld_flow.models.nodes import function_address, is_constant, node_label, op_name, values_of
from ndld_flow.records.model_diff import (
    Change,
    FunctionChanged,
    FunctionItem,
    FunctionsDiff,
    GraphChange,
    ModelDiff,
    OpsetChange,
    Part,
    TextChange,
)


def diff_functions(sides: Sides) -> FunctionsDiff:
    """Compare local functions. Changes in their bodies are listed with nodes, inputs and outputs."""
    pairs = sides.matches.functions
    mine, theirs = list(sides.before.model.functions.values()), list(sides.after.model.functions.values())
    added, removed = pairs.lone(theirs), pairs.lone(mine)
    changed = []
    for before, after in pairs:
        changes = tuple(_function_changes(before, after, sides))
        if changes:
            matched_by = pairs.matched_by(before)
            item = FunctionChanged(before=_item(before), after=_item(after), changes=changes, matched_by=matched_by)
            changed.append(item)
    return FunctionsDiff(
        counts=counts_of(len(added), len(removed), changed),
        added=first(map(_item, added)),
        removed=first(map(_item, removed)),
        changed=most_important(changed),
    )


def diff_opsets(sides: Sides) -> tuple[OpsetChange, ...]:
    """Compare the opsets of the models, and of the functions that both have."""
    before, after = sides.before.model, sides.after.model
    changes = list(_opset_changes("", before.opset_imports, after.opset_imports))
    for mine, theirs in sides.matches.functions:
        changes += _opset_changes(function_address(mine), mine.opset_imports, theirs.opset_imports)
    return first(changes)


def diff_texts(before: ir.Model, after: ir.Model) -> tuple[TextChange, ...]:
    """Compare versions, producers, doc strings and metadata."""
    keys = ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string")
    texts = {key: (_text(getattr(before, key)), _text(getattr(after, key))) for key in keys}
    texts["graph name"] = (_text(before.graph.name), _text(after.graph.name))
    texts["graph doc_string"] = (_text(before.graph.doc_string), _text(after.graph.doc_string))
    candidates = [changed_text("metadata", *pair, detail=key) for key, pair in texts.items()]
    candidates += metadata_changes(_metadata(before), _metadata(after))
    return first(
        TextChange(key=change.detail, before=change.before, after=change.after)
        for change in candidates
        if change is not None
    )


def _text(value: object) -> str | None:
    """Return a value as text; None for an absent or empty value, which are the same in protobuf."""
    return str(value) if value not in (None, "", 0) else None


def _metadata(model: ir.Model) -> dict[str, str]:
    of_model = {f"metadata: {key}": value for key, value in model.metadata_props.items()}
    return of_model | {f"graph metadata: {key}": value for key, value in model.graph.metadata_props.items()}


def _opset_changes(scope: str, before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[OpsetChange]:
    for domain in sorted({*before, *after}):
        if before.get(domain) != after.get(domain):
            yield OpsetChange(scope=scope, domain=domain, before=before.get(domain), after=after.get(domain))


def _function_changes(before: ir.Function, after: ir.Function, sides: Sides) -> Iterator[Change]:
    candidates = [
        changed_text("name", function_address(before), function_address(after)),
        changed_text("doc string", before.doc_string or None, after.doc_string or None),
    ]
    yield from (change for change in candidates if change is not None)
    for name in sorted({*before.attributes, *after.attributes}):
        mine, theirs = before.attributes.get(name), after.attributes.get(name)
        if (mine and attribute_key(mine)) != (theirs and attribute_key(theirs)):
            yield Change(aspect="attribute", detail=name, before=_default(mine), after=_default(theirs))
    yield from metadata_changes(before.metadata_props, after.metadata_props)
    nodes, own = sides.matches.nodes, list(before.all_nodes())
    differs = _ports(before) != _ports(after) or nodes.lone(own) or nodes.lone(after.all_nodes())
    pairs = ((node, nodes.after(node)) for node in own)
    if differs or any(other is not None and any(node_changes(node, other, sides)) for node, other in pairs):
        yield Change(aspect="body", before=None, after=None)


def _ports(function: ir.Function) -> tuple[list[str | None], list[str | None]]:
    return [value.name for value in function.inputs], [value.name for value in function.outputs]


def _default(attribute: ir.Attr | None) -> str | None:
    """Return the default of a function's parameter as text, or `required`."""
    if attribute is not None and attribute.value is None:
        return "required"
    return attribute_text(attribute)


def _item(function: ir.Function) -> FunctionItem:
    return FunctionItem(name=function_address(function), node_count=len(list(function.all_nodes())))


def diff_models(before: ir.Model, after: ir.Model, *, compare_values: bool = True) -> ModelDiff:
    """Return the changes from `before` to `after`.

    A model with the same contents under other names appears as renamed, a node inserted into an edge as one node.
    Weights on disk are compared in pieces, and not read if both models have the same location of one file. Without
    `compare_values` values of weights are not compared, though some bytes of each are read to recognize it.
    """
    return diff_sides(match_sides(before, after), compare_values=compare_values)


def match_sides(before: ir.Model, after: ir.Model) -> Sides:
    return Sides(side_of(before), side_of(after), match_models(before, after))


def diff_sides(sides: Sides, *, compare_values: bool = True) -> ModelDiff:
    """Return the changes between two models whose parts were matched."""
    return ModelDiff(
        nodes=diff_nodes(sides),
        weights=diff_weights(sides, compare_values),
        inputs=diff_inputs(sides),
        outputs=diff_outputs(sides),
        tensors=diff_tensors(sides),
        functions=diff_functions(sides),
        opsets=diff_opsets(sides),
        texts=diff_texts(sides.before.model, sides.after.model),
    )


_PARTS: tuple[Part, ...] = ("nodes", "opsets")


def compare_executed_graphs(sources: Collection[Path], before: Path, after: Path) -> GraphChange:
    """Return operators and differences of two optimized graphs; `sources` are the models that were optimized.

    The graphs need no weights. Raises ModelError if one of the files cannot be read.
    """
    graphs = [graph for source in sources for graph in all_graphs(load_structure(source))]
    known = frozenset(holder.name for graph in graphs for holder in (*graph, *values_of(graph)) if holder.name)
    older, newer = load_structure(before), load_structure(after)
    summaries = summarize_model(older), summarize_model(newer)
    for model, mark in ((older, ""), (newer, "\N{PRIME}")):
        _remove_inventions(model, known, mark)
    diff = diff_models(older, newer, compare_values=False).only(_PARTS)
    # A runtime imports every domain that it knows: only those whose operators run are a difference.
    used = {node.domain for model in (older, newer) for graph in all_graphs(model) for node in graph}
    diff = diff.model_copy(update={"opsets": tuple(opset for opset in diff.opsets if opset.domain in used)})
    return GraphChange(before=summaries[0], after=summaries[1], diff=diff)


def _remove_inventions(model: ir.Model, known: Collection[str], mark: str) -> None:
    """Remove names of nodes that are not known, and descriptions, and mark names of tensors, in place."""
    for graph in all_graphs(model):
        for value in list(graph.initializers.values()):
            if value.name not in known:
                value.name = f"{value.name}{mark}"
        for node in graph:
            node.doc_string = None  # of a fused node, the release's description of the fusion
            node.metadata_props.clear()
            if node.name not in known:
                node.name = None
            for value in node.outputs:
                if value.name and value.name not in known:
                    value.name = f"{value.name}{mark}"


_MOST = 40
_SIGNS = {"added": "+ ", "removed": "\N{MINUS SIGN} ", "changed": "~ ", "same": ""}


def changed_region(sides: Sides, diff: ModelDiff) -> DrawnGraph | None:
    """Return the connected nodes of the main graph among which most changed, with their neighbours.

    Constants are left out: where thousands of them become initializers, they would hide everything else. The family of
    a drawn node is its change: `added`, `removed`, `changed` or `same`. None if no node changed.
    """
    union = _Union(sides, diff)
    changed = [key for key in union.nodes if union.change_of(key) != "same"]
    regions = list(_regions(changed, union.around))
    if not regions:
        return None
    kept = max(regions, key=lambda region: sum(union.change_of(key) != "same" for key in region))[:_MOST]
    indices = {key: index for index, key in enumerate(key for key in union.nodes if key in set(kept))}
    drawn = sum(union.change_of(key) != "same" for key in kept)
    return DrawnGraph(
        tuple(union.drawn(key) for key in indices),
        tuple(
            DrawnEdge(indices[source], indices[target], "", name)
            for source, target, name in union.edges
            if source in indices and target in indices
        ),
        subtitle=f"{count(drawn)} of {count(len(changed))} changed nodes" if drawn < len(changed) else "",
    )


class _Union:
    """The nodes of both main graphs: matched ones once, by their number, and others by themselves."""

    def __init__(self, sides: Sides, diff: ModelDiff) -> None:
        self._matches = sides.matches.nodes
        self._edited = {
            (changed.after.scope, changed.after.name)
            for changed in diff.nodes.changed
            if any(change.aspect not in ("name", "consequence") for change in changed.changes)
        }
        graphs = [sides.after.model.graph, sides.before.model.graph]
        self.nodes: dict[Hashable, ir.Node] = {}
        self._changes: dict[Hashable, str] = {}
        self.edges: dict[tuple[Hashable, Hashable, str], None] = {}
        for graph, lone in zip(graphs, ("added", "removed"), strict=True):
            for node in graph:
                if not is_constant(node):
                    self._add(node, lone)
        self.around: dict[Hashable, list[Hashable]] = defaultdict(list)
        for source, target, _ in self.edges:
            self.around[source].append(target)
            self.around[target].append(source)

    def _add(self, node: ir.Node, lone: str) -> None:
        key = self._key(node)
        if key not in self.nodes:
            self.nodes[key] = node
            edited = ("", node_label(node)) in self._edited
            self._changes[key] = lone if node not in self._matches else "changed" if edited else "same"
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if value is None or producer is None or is_constant(producer) or producer.graph is not node.graph:
                continue
            source = self._key(producer)
            # An edge of the model before between two nodes that both models have may be gone: only the later is drawn.
            if lone == "added" or node not in self._matches or producer not in self._matches:
                self.edges[source, key, value.name or ""] = None

    def _key(self, node: ir.Node) -> Hashable:
        number = self._matches.number(node)
        return node if number is None else number

    def change_of(self, key: Hashable) -> str:
        return self._changes[key]

    def drawn(self, key: Hashable) -> DrawnNode:
        node, change = self.nodes[key], self._changes[key]
        name = short_name(node_label(node), 200)
        return DrawnNode(
            f"{change}: {name}", _SIGNS[change] + short_name(op_name(node), 40), change, details=(short_name(name, 28),)
        )


def _regions(changed: Sequence[Hashable], around: Mapping[Hashable, Sequence[Hashable]]) -> Iterator[list[Hashable]]:
    """Yield changed nodes with their neighbours; those that share a neighbour are one region."""
    pending = dict.fromkeys(changed)
    known = frozenset(changed)
    while pending:
        region: dict[Hashable, None] = {}
        queue = deque([next(iter(pending))])
        while queue:
            node = queue.popleft()
            if node not in region:
                region[node] = None
                pending.pop(node, None)
                queue.extend(other for other in around.get(node, ()) if node in known or other in known)
        yield list(region)
