"""The nodes of the original model that a node of ONNX Runtime's optimised model came from.

Both models are joined on the tensors that survive optimisation, and the original graph is walked back from an optimised
node's outputs to its inputs: the nodes in between were fused into it. ONNX Runtime renames some tensors; `_aliases`
maps them to their old names.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from ndld_flow.models.element_types import subgraphs_of
from ndld_flow.profiles.read.onnxruntime_profile import Key, MeasuredNode

_CAST = "InsertedPrecisionFreeCast_"
"""Prefix of a tensor that was cast to a type the provider has a kernel for."""
_NCHWC = "_nchwc"
"""Suffix of the output's old name, in the name of a node that works on blocks of channels."""
_FUNCTION = "_inlfunc_"
"""Part of the name of a tensor from inside a local function, or from an operator that ONNX Runtime expanded."""
_READS_SHAPE_ONLY = ("Shape", "Size")
_MAX_FORWARD = 64
"""Most inlined nodes to follow to a tensor of the original model."""


def match_nodes(measured: Mapping[Key, MeasuredNode], optimised: ir.Model) -> dict[Key, ir.Node]:
    """Return measured node -> the node of the optimised model that ran.

    Nodes are matched within a graph by op type and name; nodes without a unique name by order, which is that of
    execution.
    """
    scopes: dict[Key | None, list[Key]] = defaultdict(list)
    for key, node in measured.items():
        scopes[node.parent].append(key)
    found: dict[Key, ir.Node] = {}
    for parent, keys in scopes.items():  # an enclosing node comes before the nodes of its bodies
        graphs = [optimised.graph] if parent is None else list(_bodies(found, parent))
        bodies = [dict(_match_graph(keys, measured, graph)) for graph in graphs]
        # Of the branches of an If, the one that ran matches best.
        for body in sorted(bodies, key=len):
            found |= body
    return found


def _bodies(found: Mapping[Key, ir.Node], parent: Key) -> Iterator[ir.Graph]:
    if parent in found:
        yield from subgraphs_of(found[parent])


def _match_graph(
    keys: Iterable[Key], measured: Mapping[Key, MeasuredNode], graph: ir.Graph
) -> Iterator[tuple[Key, ir.Node]]:
    waiting: dict[tuple[str, str], deque[ir.Node]] = defaultdict(deque)
    for node in graph:
        waiting[node.op_type, node.name or ""].append(node)
    for key in keys:
        wanted = measured[key]
        named = waiting.get((wanted.op_type, wanted.name))
        queue = named or waiting.get((wanted.op_type, ""))
        if queue:
            yield key, queue.popleft()


class LayerOrigins:
    """The original nodes of optimised ones."""

    def __init__(self, original: ir.Model, optimised: ir.Model) -> None:
        self._nodes = [node for node in original.graph.all_nodes() if node.op_type != "Constant"]
        self._position = {node: position for position, node in enumerate(self._nodes)}
        self._by_name = {(node.op_type, node.name): node for node in self._nodes if node.name}
        self._producers: dict[str, list[ir.Node]] = defaultdict(list)
        for node in self._nodes:
            for output in node.outputs:
                self._producers[output.name or ""].append(node)
        self._aliases = _aliases(optimised.graph.all_nodes())
        self._known = {self._alias(value) for node in optimised.graph.all_nodes() for value in node.outputs}

    @property
    def node_count(self) -> int:
        """Return the number of nodes of the original model that compute something, subgraphs included."""
        return len(self._nodes)

    def of(self, node: ir.Node) -> tuple[ir.Node, ...]:
        """Return the original nodes, in the model's order; empty for nodes inserted by ONNX Runtime: reorders, casts,
        copies.
        """
        found = self._region(node) or self._named_alike(node)
        return tuple(sorted(found, key=self._position.__getitem__))

    def _region(self, node: ir.Node) -> set[ir.Node]:
        read = {self._alias(value) for value in node.inputs if value is not None}
        starts = [name for name in self._starts(node) if name not in read]
        region: set[ir.Node] = set()
        open_nodes = [self._producer(name, node) for name in starts if name in self._producers]
        while open_nodes:
            origin = open_nodes.pop()
            if origin in region:
                continue
            region.add(origin)
            if origin.op_type in _READS_SHAPE_ONLY:
                continue  # its value was known while optimising: the producer of its input is not part of this layer
            open_nodes.extend(
                producer
                for value in origin.inputs
                if value is not None and value.name not in read and value.name not in self._known
                if (producer := value.producer()) in self._position and producer is not None
            )
        return region

    def _starts(self, node: ir.Node) -> list[str]:
        """Return the original names of the node's outputs, or of its followers' outputs when it was inlined."""
        names = [self._alias(value) for value in node.outputs]
        if any(name in self._producers for name in names) or not any(_FUNCTION in name for name in names):
            return names
        following, seen = deque([node]), {node}
        while following and len(seen) < _MAX_FORWARD:
            for value in following.popleft().outputs:
                for follower in value.consumers():
                    made = [self._alias(output) for output in follower.outputs]
                    if any(name in self._producers for name in made):
                        return made
                    if follower not in seen:
                        seen.add(follower)
                        following.append(follower)
        return names

    def _named_alike(self, node: ir.Node) -> set[ir.Node]:
        origin = self._by_name.get((node.op_type, node.name or ""))
        return set() if origin is None else {origin}

    def _producer(self, name: str, node: ir.Node) -> ir.Node:
        """Return the producer; where several branches compute a tensor of this name, the one with the node's name."""
        candidates = self._producers[name]
        return next((origin for origin in candidates if origin.name == node.name), candidates[0])

    def _alias(self, value: ir.Value) -> str:
        return self._aliases.get(value.name or "", value.name or "")


def _aliases(optimised: Iterable[ir.Node]) -> dict[str, str]:
    """Return renamed tensor -> its name in the original model."""
    found: dict[str, str] = {}
    for node in optimised:
        if not node.outputs:
            continue
        name = node.outputs[0].name or ""
        if node.op_type == "ReorderInput" and node.inputs and node.inputs[0] is not None:
            read = node.inputs[0].name or ""
            found[name] = found.get(read, read)
        elif node.domain == "com.microsoft.nchwc" and (node.name or "").endswith(_NCHWC):
            found[name] = (node.name or "").removesuffix(_NCHWC).removeprefix(_CAST)
        for output in node.outputs:
            own = output.name or ""
            if own.startswith(_CAST):
                found[own] = own.removeprefix(_CAST)
    return found


def origin_name(node: ir.Node) -> str:
    """Return the node's name, or that of its first output."""
    return node.name or (node.outputs[0].name if node.outputs else "") or node.op_type


def count_covered(origins: Iterable[Iterable[ir.Node]]) -> int:
    """Return the number of distinct original nodes that layers came from."""
    return len({node for nodes in origins for node in nodes})
