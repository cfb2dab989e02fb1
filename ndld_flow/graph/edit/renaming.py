"""New names for nodes and tensors, unique among those of a graph and all its subgraphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.names_in_use import values_of
from ndld_flow.models.scopes import inner_graphs, node_label
from ndld_flow.models.unique_names import identifier

Named = TypeVar("Named", ir.Node, ir.Value)

_QUANTIZATION = "quant_parameter_tensor_names"
"""Where onnx_ir keeps the names of scales and zero points that a model records for a tensor."""


def rename_nodes(model: ir.Model, wishes: Mapping[ir.Node, str]) -> int:
    """Rename nodes; of equal names all but the first get a number. Returns the number of changed names."""
    return sum(_rename(names) for names in _free_names(_nodes(model), wishes))


def rename_values(model: ir.Model, wishes: Mapping[ir.Value, str]) -> int:
    """Rename tensors; of equal names all but the first get a number. Returns the number of changed names."""
    renamed = 0
    for names in _free_names(_values(model), wishes):
        new_names = {value.name or "": name for value, name in names.items()}
        graphs = dict.fromkeys(value.graph for value in names if value.is_initializer() and value.graph is not None)
        # A graph keeps initializers by name: names may be swapped, and the order must stay.
        kept = [(graph, list(graph.initializers.values())) for graph in graphs]
        for graph, _ in kept:
            graph.initializers.clear()
        renamed += _rename(names)
        for graph, initializers in kept:
            for value in initializers:
                graph.initializers.add(value)
        _rename_in_annotations(names, new_names)
    return renamed


def nodes_to_rename(model: ir.Model, names: Mapping[str, str]) -> dict[ir.Node, str]:
    """Return node -> new name, from old name -> new name.

    Raises `RequestError` for an unknown or ambiguous name, and for a new name that is already used.
    """
    return _by_name("node", _nodes(model), names)


def values_to_rename(model: ir.Model, names: Mapping[str, str]) -> dict[ir.Value, str]:
    """Return tensor -> new name, like `nodes_to_rename`. Of several tensors of a name, the main graph's is meant."""
    return _by_name("tensor", _values(model), names, preferred=model.graph)


def names_for_all(model: ir.Model, c_identifiers: bool) -> tuple[dict[ir.Node, str], dict[ir.Value, str]]:
    """Return new names for unnamed nodes and duplicates.

    With `c_identifiers`, all nodes and tensors that need one get a C90 identifier. An output without a name is an
    omitted optional output and stays unnamed.
    """
    nodes: dict[ir.Node, str] = {}
    for family in _nodes(model):
        seen: set[str] = set()
        for node in family:
            if not node.name:
                nodes[node] = identifier(f"{node.op_type}_{node_label(node)}")
            elif c_identifiers or node.name in seen:
                nodes[node] = identifier(node.name) if c_identifiers else node.name
            seen.add(node.name or "")
    values = [value for family in _values(model) for value in family if value.name] if c_identifiers else []
    return nodes, {value: identifier(value.name or "") for value in values}


def names_around(model: ir.Model, graph: ir.Graph) -> tuple[set[str], set[str]]:
    """Return the names of nodes, and of tensors, that are used where those of this graph must be unique."""
    family = next(graphs for graphs in _families(model) if graph in graphs)
    nodes = {node.name for member in family for node in member if node.name}
    return nodes, {value.name for member in family for value in values_of(member) if value.name}


def _nodes(model: ir.Model) -> list[list[ir.Node]]:
    """Return groups of nodes whose names must differ: the main graph with its subgraphs, and each function."""
    return [[node for graph in graphs for node in graph] for graphs in _families(model)]


def _values(model: ir.Model) -> list[list[ir.Value]]:
    """Return groups of tensors whose names must differ: a subgraph reads those of enclosing graphs by name."""
    return [[value for graph in graphs for value in values_of(graph)] for graphs in _families(model)]


def _families(model: ir.Model) -> Iterator[list[ir.Graph]]:
    yield [model.graph, *inner_graphs(model.graph)]
    for function in model.functions.values():
        yield [function.graph, *inner_graphs(function.graph)]


def _free_names(families: Iterable[Sequence[Named]], wishes: Mapping[Named, str]) -> Iterator[dict[Named, str]]:
    """Yield holder -> new name for each group. Raises `RequestError` for an empty name."""
    for holder, wish in wishes.items():
        if not wish:
            raise RequestError(f"the new name of {holder.name!r} is empty")
    for family in families:
        taken = {holder.name for holder in family if holder not in wishes}
        numbers: dict[str, int] = {}
        names = {holder: _free_name(wishes[holder], taken, numbers) for holder in family if holder in wishes}
        yield {holder: name for holder, name in names.items() if holder.name != name}


def _free_name(wish: str, taken: set[str | None], numbers: dict[str, int]) -> str:
    name, number = wish, numbers.get(wish, 1)
    while name in taken:
        number += 1
        name = f"{wish}_{number}"
    numbers[wish] = number
    taken.add(name)
    return name


def _rename(names: Mapping[Named, str]) -> int:
    for holder, name in names.items():
        holder.name = name
    return len(names)


def _by_name(
    what: str,
    families: Sequence[Sequence[Named]],
    names: Mapping[str, str],
    preferred: ir.Graph | None = None,
) -> dict[Named, str]:
    found: dict[str, list[Named]] = {}
    for holder in (holder for family in families for holder in family):
        found.setdefault(holder.name or "", []).append(holder)
    for old in names:
        if old not in found:
            raise RequestError(f"there is no {what} {old!r}; {suggest(old, filter(None, found))}")
        in_main = [holder for holder in found[old] if preferred is not None and holder.graph is preferred]
        if len(found[old]) > 1 and len(in_main) != 1:
            raise RequestError(f"{len(found[old])} {what}s are named {old!r}; choose one by `select` and `scope`")
        found[old] = in_main or found[old]
    wishes = {found[old][0]: new for old, new in names.items()}
    _check_unused(what, families, wishes)
    return wishes


def _check_unused(what: str, families: Sequence[Sequence[Named]], wishes: Mapping[Named, str]) -> None:
    for family in families:
        taken = {holder.name for holder in family if holder not in wishes}
        for holder in family:
            name = wishes.get(holder)
            if name in taken and name is not None:
                raise RequestError(f"the name {name!r} is already used; choose another, or rename that {what} too")
            taken.add(name)


def _rename_in_annotations(values: Iterable[ir.Value], new_names: Mapping[str, str]) -> None:
    for value in values:
        noted = value.meta.get(_QUANTIZATION)
        if noted:
            value.meta[_QUANTIZATION] = {key: new_names.get(name, name) for key, name in noted.items()}
