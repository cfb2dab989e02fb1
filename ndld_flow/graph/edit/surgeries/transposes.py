"""Transposes are moved past what does not care about the order of axes, where that leaves fewer of them.

A region is what lies between Transposes of one order: all its tensors can be computed in the other order, when the
axes that its nodes name are renumbered and its constants are transposed. That is done when more Transposes lead into
the region or out of it than have to be put at its borders. A number stays the number it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ndld_flow.graph.edit.surgeries.axis_renumbering import Renumbered, renumber
from ndld_flow.graph.edit.surgeries.rewriting import Rewriting, known_shapes
from ndld_flow.graph.sanitize.edits import dims_of, ints_attribute, producer_of_type

Perm = tuple[int, ...]


def push_transposes(edits: Rewriting) -> int:
    """Move and cancel Transposes in every graph; returns how many fewer there are."""
    before = _count(edits)
    with known_shapes(edits.model):
        for graph in edits.graphs():
            _fold_pairs(edits, graph)
            for node in tuple(graph):
                if node.graph is graph and _perm(node) is not None:
                    _move(edits, node)
            _fold_pairs(edits, graph)
    return before - _count(edits)


@dataclass
class _Region:
    """Tensors that would be computed before the Transpose instead of after it."""

    perm: Perm
    entries: dict[ir.Node, None] = field(default_factory=dict)
    """Transposes that lead into the region."""
    nodes: dict[ir.Node, Renumbered] = field(default_factory=dict)
    """Nodes of the region -> their form for the other order."""
    values: dict[ir.Value, None] = field(default_factory=dict)
    """Tensors that both produce in this order."""

    def enter(self, transposes: Iterable[ir.Node]) -> None:
        for node in transposes:
            self.entries[node] = None
            self.values[node.outputs[0]] = None

    def add(self, node: ir.Node, new: Renumbered) -> None:
        self.nodes[node] = new
        if new.keeps_order:
            self.values.update(dict.fromkeys(node.outputs))


def _move(edits: Rewriting, start: ir.Node) -> None:
    region = _grown(edits, start)
    if not region.nodes:
        return
    inside = region.values
    kept_entries = [node for node in region.entries if _read_outside(node.outputs[0], region)]
    borders = [value for value in inside if _needs_transpose(value, region)]
    cancelled = [reader for value in inside for reader in _inverse_readers(value, region)]
    added = sum(value.producer() not in region.entries for value in borders)
    if len(region.entries) - len(kept_entries) + len(cancelled) > added:
        _carry_out(edits, region)


def _grown(edits: Rewriting, start: ir.Node) -> _Region:
    perm = _perm(start)
    assert perm is not None
    region = _Region(perm)
    region.enter([start])
    waiting = [start]
    while waiting:
        for reader in _readers(waiting.pop().outputs):
            if reader in region.nodes or reader.graph is not start.graph:
                continue
            entries = _entries(region, reader)
            new = renumber(edits, reader, perm) if entries is not None else None
            if entries is None or new is None:
                continue
            region.add(reader, new)
            region.enter(entries)
            waiting += [*entries, *([reader] if new.keeps_order else [])]
    return region


def _entries(region: _Region, reader: ir.Node) -> list[ir.Node] | None:
    """Return further Transposes of the same order that the node reads; None when it reads a tensor without one."""
    entries = []
    for value in reader.inputs:
        if value is None or value in region.values or value.is_initializer() or producer_of_type(value, "Constant"):
            continue
        node = producer_of_type(value, "Transpose")
        if node is None or _perm(node) != region.perm or node.graph is not reader.graph:
            return None
        entries.append(node)
    return entries


def _readers(values: Sequence[ir.Value]) -> list[ir.Node]:
    return list(dict.fromkeys(use.node for value in values for use in value.uses()))


def _inverse_readers(value: ir.Value, region: _Region) -> Iterator[ir.Node]:
    """Transposes that only undo this order."""
    for reader in _readers([value]):
        perm = _perm(reader)
        if reader in region.nodes or perm is None or reader.graph is not value.graph:
            continue
        if perm == _inverse(region.perm):
            yield reader


def _needs_transpose(value: ir.Value, region: _Region) -> bool:
    """Return whether a node other than a Transpose reads it in the old order."""
    if value.is_graph_output():
        return True
    return any(
        reader not in region.nodes and not (_perm(reader) and reader.graph is value.graph)
        for reader in _readers([value])
    )


def _read_outside(value: ir.Value, region: _Region) -> bool:
    return value.is_graph_output() or any(reader not in region.nodes for reader in _readers([value]))


def _carry_out(edits: Rewriting, region: _Region) -> None:
    """Let the region's nodes compute in the other order, with a Transpose where the old order is still read."""
    for node, new in region.nodes.items():
        new.apply(edits, node)
    for entry in region.entries:
        for use in tuple(entry.outputs[0].uses()):
            if use.node in region.nodes:
                use.node.replace_input_with(use.idx, entry.inputs[0])
    for value in [value for node, new in region.nodes.items() if new.keeps_order for value in node.outputs]:
        _restore_order(edits, value, region)
    for node in region.entries:
        if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
            edits.remove(node)


def _restore_order(edits: Rewriting, value: ir.Value, region: _Region) -> None:
    """Connect outside readers to a Transpose of the value, which keeps the value's name."""
    outside = [use for use in value.uses() if use.node not in region.nodes]
    shape = dims_of(value)
    inverse = _inverse(region.perm)
    value.shape = None if shape is None else ir.Shape([shape[axis] for axis in inverse])
    if not outside and not value.is_graph_output():
        return
    node = value.producer()
    assert node is not None
    name = value.name
    value.name = edits.new_name(f"{name}_moved")
    made = edits.put_before(node, "Transpose", [value], {"perm": list(region.perm)}, f"{name}_transposed")
    transpose = made.producer()
    assert transpose is not None and isinstance(node.graph, ir.Graph)
    node.graph.remove(transpose)
    node.graph.insert_after(node, transpose)
    made.name, made.type = name, value.type
    made.shape = None if shape is None else ir.Shape(shape)
    for use in outside:
        use.node.replace_input_with(use.idx, made)
    if value.is_graph_output():
        node.graph.outputs[:] = [made if output is value else output for output in node.graph.outputs]


def _fold_pairs(edits: Rewriting, graph: ir.Graph) -> None:
    """Transpose(Transpose(x, p), q) -> Transpose(x, p[q]), or x"""
    for node in tuple(graph):
        inner = producer_of_type(node.inputs[0], "Transpose") if _perm(node) is not None else None
        first = _perm(inner) if inner is not None else None
        if inner is None or first is None or inner.inputs[0] is None:
            continue
        perm = _composed(first, _perm(node) or ())
        if perm == tuple(range(len(perm))) and edits.may_replace(node.outputs[0], inner.inputs[0]):
            edits.bypass(node, inner.inputs[0], "Transpose cancelled")
        else:
            node.attributes["perm"] = ir.AttrInt64s("perm", perm)
            node.replace_input_with(0, inner.inputs[0])
        if not inner.outputs[0].uses() and not inner.outputs[0].is_graph_output():
            edits.remove(inner)


def _perm(node: ir.Node) -> Perm | None:
    return ints_attribute(node, "perm") if node.op_type == "Transpose" and node.domain == "" else None


def _composed(first: Perm, second: Perm) -> Perm:
    return tuple(first[axis] for axis in second)


def _inverse(perm: Perm) -> Perm:
    return tuple(perm.index(axis) for axis in range(len(perm)))


def _count(edits: Rewriting) -> int:
    return sum(node.op_type == "Transpose" for graph in edits.graphs() for node in graph)
