"""Write the page of a model's graph, which can be opened and searched in a browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ndld_flow.base.garbage_collection import paused_garbage_collection
from ndld_flow.base.text import short_name, visible_name, visible_text
from ndld_flow.drawing.engine_graph import Terminal
from ndld_flow.drawing.graph import (
    FAMILIES,
    DrawnEdge,
    HeldTensor,
    ModelDocument,
    ModelNode,
    ModelOperator,
    ModelScope,
    ModelTensor,
)
from ndld_flow.drawing.layout import Extent
from ndld_flow.report.collect_graph import NODE_SIZE, GraphShape, fold, graph_shape, lay_out_edges
from ndld_flow.report.encoding import Columns
from ndld_flow.report.render import MODEL_PAGE, render, write_page
from ndld_flow.report.value_text import Fact

_ASPECT = 1.4
"""Width over height of the graph's area."""
_ROOM_BELOW = 14.0
"""Room for the dimensions below a node."""


@dataclass(frozen=True)
class Reduction:
    """The failure of a reduced model, and how it was reduced."""

    failure: str
    message: str
    facts: tuple[Fact, ...]
    trials: tuple[tuple[int, str, bool], ...]
    """(number of the trial, what was tried, whether it still failed)."""


@dataclass(frozen=True)
class ScopeData:
    """A graph of a model: the main one, a body or a local function."""

    address: str
    parent: int
    first: int
    terminals: list[int]
    doc: str
    graph: GraphShape


@dataclass(frozen=True)
class DrawnModel:
    """The graphs of a model with all that is in them."""

    shown: int
    scopes: list[ScopeData]
    nodes: Columns[ModelNode]
    tensors: Columns[ModelTensor]
    held: Sequence[HeldTensor]


@dataclass(frozen=True)
class ModelPage:
    """Data of the template; the graphs are in the payload."""

    title: str
    node_count: int
    facts: tuple[Fact, ...]
    inputs: tuple[ModelTensor, ...]
    outputs: tuple[ModelTensor, ...]
    operators: tuple[ModelOperator, ...]
    weight_bytes: int
    has_values: bool
    data: DrawnModel
    reduction: Reduction | None


def write_model_page(document: ModelDocument, path: Path, reduction: Reduction | None = None) -> Path:
    """Write the page atomically and return its path. Raises `OutputsError` if it cannot be written."""
    with paused_garbage_collection():
        text = render(MODEL_PAGE, collect_model_page(document, reduction), families=FAMILIES)
    return write_page(path, text, "ndld-flow draw" if reduction is None else "ndld-flow reduce")


def collect_model_page(document: ModelDocument, reduction: Reduction | None = None) -> ModelPage:
    """Lay out every graph and convert the document to columns."""
    main = document.scopes[0]
    return ModelPage(
        short_name(document.title),
        len(document.nodes),
        tuple(Fact(visible_name(name), visible_text(value)) for name, value in document.facts if value),
        tuple(document.tensors[index] for index in main.inputs),
        tuple(document.tensors[index] for index in main.outputs),
        document.operators,
        sum(held.size_bytes for held in document.held),
        document.has_values,
        DrawnModel(
            shown=document.shown,
            scopes=[_scope(document, scope) for scope in document.scopes],
            nodes=Columns(ModelNode, document.nodes),
            tensors=Columns(ModelTensor, document.tensors),
            held=document.held,
        ),
        reduction,
    )


def _scope(document: ModelDocument, scope: ModelScope) -> ScopeData:
    nodes = [document.nodes[index] for index in scope.nodes]
    return ScopeData(
        address=visible_name(scope.address),
        parent=scope.parent,
        first=scope.nodes[0] if scope.nodes else 0,
        terminals=[*scope.inputs, *scope.outside, *scope.outputs],
        doc=visible_text(scope.doc),
        graph=_graph(document, scope, nodes),
    )


def _graph(document: ModelDocument, scope: ModelScope, nodes: Sequence[ModelNode]) -> GraphShape:
    entering = (*scope.inputs, *scope.outside)
    sources = {tensor: len(nodes) + index for index, tensor in enumerate(entering)}
    sources |= {tensor: index for index, node in enumerate(nodes) for tensor in node.outputs}
    edges = [
        DrawnEdge(sources[tensor], index, tensor=str(tensor))
        for index, node in enumerate(nodes)
        for tensor in dict.fromkeys((*node.inputs, *node.outside))
        if tensor in sources
    ]
    first_output = len(nodes) + len(entering)
    edges += [
        DrawnEdge(sources[tensor], first_output + index, tensor=str(tensor))
        for index, tensor in enumerate(scope.outputs)
        if tensor in sources
    ]
    terminals = [Terminal(short_name(document.tensors[place].name), True) for place in entering]
    terminals += [Terminal(short_name(document.tensors[place].name), False) for place in scope.outputs]
    written = [*((node.outputs[:1]) for node in nodes), *((place,) for place in (*entering, *scope.outputs))]
    layout = lay_out_edges(
        [
            Extent(*NODE_SIZE, _ROOM_BELOW, NODE_SIZE[0])
            if any(document.tensors[tensor].label for tensor in tensors)
            else Extent(*NODE_SIZE)
            for tensors in written
        ],
        edges,
        _ASPECT,
    )
    families = tuple(FAMILIES.index(node.family) for node in nodes)
    blocks = fold([node.name for node in nodes], families, edges, terminals, _ASPECT)
    composite, constant = (
        [index for index, node in enumerate(nodes) if node.kind == kind] for kind in ("composite", "constant")
    )
    graph = graph_shape(layout, edges, terminals, families)
    return replace(graph, blocks=blocks, composite=composite, constant=constant)
