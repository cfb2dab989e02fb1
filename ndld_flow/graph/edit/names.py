"""Names of nodes and tensors: those in use, those that a node can read, and new ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import onnx_ir as ir

from ndld_flow.base.errors import RequestError, check_known
from ndld_flow.models.files import all_graphs
from ndld_flow.models.input_shapes import suggest_tensor
from ndld_flow.models.nodes import free_name, identifier, inner_graphs, node_label, own_subgraphs, scopes_of, values_of

Named = TypeVar("Named", ir.Node, ir.Value)
_QUANTIZATION = "quant_parameter_tensor_names"
"""Where onnx_ir keeps the names of scales and zero points that a model records for a tensor."""


class NamesInUse:
    """Names in use, for finding unused ones without searching the model each time.

    A name whose holders were renamed or removed is free again. Code that assigns a name without `fresh` must add it to
    `taken`.
    """

    def __init__(self, model: ir.Model) -> None:
        self._holders: dict[str, list[ir.Node | ir.Value]] = {}
        for graph in all_graphs(model):
            for holder in (*graph, *values_of(graph)):
                if holder.name:
                    self._holders.setdefault(holder.name, []).append(holder)
        self.taken = set(self._holders)
        """Names in use; code that assigns names adds them."""
        self._numbers: dict[str, int] = {}

    def fresh(self, wish: str) -> str:
        """Return an unused C90 identifier, and reserve it: the wish, or `wish_2`, `wish_3`, ..."""
        wish = name = identifier(wish)
        number = self._numbers.get(wish, 1)
        while self._is_taken(name):
            number += 1
            name = f"{wish}_{number}"
        self._numbers[wish] = number
        self.taken.add(name)
        self._holders.pop(name, None)
        return name

    def _is_taken(self, name: str) -> bool:
        if name not in self.taken:
            return False
        holders = self._holders.get(name)
        return holders is None or any(holder.name == name and holder.graph is not None for holder in holders)


class Nesting:
    """The nested graphs of a model in its current state."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self.owner_of = {body: node for graph in all_graphs(model) for node in graph for _, body in own_subgraphs(node)}
        """Subgraph -> the node that owns it."""
        self._named: dict[ir.Graph, dict[str, ir.Value]] = {}

    def owners(self, graph: object) -> Iterator[ir.Node]:
        """Return the nodes that own a graph, from the innermost outwards."""
        while isinstance(graph, ir.Graph) and graph in self.owner_of:
            owner = self.owner_of[graph]
            yield owner
            graph = owner.graph

    def seen_from(self, graph: ir.Graph) -> list[ir.Graph]:
        """Return the graph and the graphs around it, from the innermost outwards."""
        around = (owner.graph for owner in self.owners(graph))
        return [graph, *(outer for outer in around if isinstance(outer, ir.Graph))]

    def sees(self, graph: object, value: ir.Value) -> bool:
        """Return whether a node of the graph can read a tensor."""
        return isinstance(graph, ir.Graph) and value.graph in self.seen_from(graph)

    def find(self, name: str, graph: ir.Graph) -> ir.Value | None:
        """Return the tensor that a node of the graph reads by a name, or None."""
        return next(
            (self._values(around)[name] for around in self.seen_from(graph) if name in self._values(around)), None
        )

    def value(self, name: str, graph: ir.Graph) -> ir.Value:
        """Return the tensor that a node of the graph reads by a name. Raises `RequestError` with the nearest name."""
        value = self.find(name, graph)
        if value is not None:
            return value
        addresses = {inner: address for address, inner in scopes_of(self._model).items()}
        here = addresses[graph] or "the main graph"
        for elsewhere, address in addresses.items():
            if name in self._values(elsewhere):
                where = address or "the main graph"
                raise RequestError(f"the tensor {name!r} is in {where}, which is not visible from {here}")
        known = [each for around in self.seen_from(graph) for each in self._values(around).values()]
        raise RequestError(f"there is no tensor {name!r} that is visible from {here}; {suggest_tensor(name, known)}")

    def _values(self, graph: ir.Graph) -> dict[str, ir.Value]:
        if graph not in self._named:
            self._named[graph] = {value.name: value for value in values_of(graph) if value.name}
        return self._named[graph]


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
        for value in names:
            if annotation := value.meta.get(_QUANTIZATION):
                value.meta[_QUANTIZATION] = {key: new_names.get(name, name) for key, name in annotation.items()}
    return renamed


def nodes_to_rename(model: ir.Model, names: Mapping[str, str]) -> dict[ir.Node, str]:
    """Return node -> new name, from old name -> new name.

    Raises `RequestError` for an unknown or ambiguous name, and for a new name that is already used.
    """
    return _by_name("node", _nodes(model), names)


def values_to_rename(model: ir.Model, names: Mapping[str, str]) -> dict[ir.Value, str]:
    """Return tensor -> new name, like `nodes_to_rename`. Of equal names, that in the main graph is meant."""
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


def names_of(graphs: Collection[ir.Graph]) -> tuple[set[str], set[str]]:
    """Return the names of nodes, and of tensors, of graphs without their subgraphs."""
    nodes = {node.name for graph in graphs for node in graph if node.name}
    return nodes, {value.name for graph in graphs for value in values_of(graph) if value.name}


def names_around(model: ir.Model, graph: ir.Graph) -> tuple[set[str], set[str]]:
    """Return the names of nodes, and of tensors, that are used where those of this graph must be unique."""
    return names_of(next(graphs for graphs in _families(model) if graph in graphs))


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
        taken = {holder.name or "" for holder in family if holder not in wishes}
        names = {holder: free_name(wishes[holder], taken) for holder in family if holder in wishes}
        yield {holder: name for holder, name in names.items() if holder.name != name}


def _rename(names: Mapping[Named, str]) -> int:
    for holder, name in names.items():
        holder.name = name
    return len(names)


def _by_name(
    what: str, families: Sequence[Sequence[Named]], names: Mapping[str, str], preferred: ir.Graph | None = None
) -> dict[Named, str]:
    holders: dict[str, list[Named]] = {}
    for holder in (holder for family in families for holder in family):
        holders.setdefault(holder.name or "", []).append(holder)
    check_known(names, holders, f"there is no {what}")
    for old in names:
        in_main = [holder for holder in holders[old] if preferred is not None and holder.graph is preferred]
        if len(holders[old]) > 1 and len(in_main) != 1:
            raise RequestError(f"{len(holders[old])} {what}s are named {old!r}; choose one with `select` and `scope`")
        holders[old] = in_main or holders[old]
    wishes = {holders[old][0]: new for old, new in names.items()}
    for family in families:
        taken = {holder.name for holder in family if holder not in wishes}
        for holder in family:
            name = wishes.get(holder)
            if name in taken and name is not None:
                raise RequestError(f"the name {name!r} is already used; choose another, or rename that {what} too")
            taken.add(name)
    return wishes
