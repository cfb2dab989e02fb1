"""Write the page of a model's graph, which can be opened and searched in a browser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ndld_flow.base.garbage_collection import paused_garbage_collection
from ndld_flow.base.text import short_name, visible_name, visible_text
from ndld_flow.drawing.engine_graph import LayerEdge, Terminal
from ndld_flow.drawing.graph import FAMILIES
from ndld_flow.drawing.layout import Extent, lay_out
from ndld_flow.drawing.model_document import HeldTensor, ModelDocument, ModelNode, ModelScope
from ndld_flow.report.collect_graph import NODE_SIZE, GraphPicture, fold, graph_payload
from ndld_flow.report.encoding import Texts, steps
from ndld_flow.report.page_data import HeldPayload, ModelNodes, ModelPayload, ScopePayload
from ndld_flow.report.render import MODEL_PAGE, render, write_page
from ndld_flow.report.value_text import Fact

_ASPECT = 1.4
"""Width over height of the graph's area."""
_ROOM_BELOW = 14.0
"""Room for the dimensions below a node."""
_KINDS = ("computed", "input", "initializer", "constant")


@dataclass(frozen=True)
class Port:
    """An input or an output of the model."""

    name: str
    dtype: str
    dims: str


@dataclass(frozen=True)
class OperatorRow:
    """An operator of the model; `family` is a position in `FAMILIES`."""

    name: str
    family: int
    uses: int
    version: str
    summary: str


@dataclass(frozen=True)
class Reduction:
    """The failure of a reduced model, and how it was reduced."""

    failure: str
    message: str
    facts: tuple[Fact, ...]
    trials: tuple[tuple[int, str, bool], ...]
    """(number of the trial, what was tried, whether it still failed)."""


@dataclass(frozen=True)
class ModelPage:
    """Data of the template; the graphs are in the payload."""

    title: str
    node_count: int
    facts: tuple[Fact, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    operators: tuple[OperatorRow, ...]
    weight_bytes: int
    has_values: bool
    data: ModelPayload
    reduction: Reduction | None


def write_model_page(document: ModelDocument, path: Path, reduction: Reduction | None = None) -> Path:
    """Write the page atomically and return its path. Raises `OutputsError` if it cannot be written."""
    with paused_garbage_collection():
        page = collect_model_page(document, reduction)
        return write_page(path, render(MODEL_PAGE, page), "ndld-flow draw" if reduction is None else "ndld-flow reduce")


def collect_model_page(document: ModelDocument, reduction: Reduction | None = None) -> ModelPage:
    """Lay out every graph and convert the document to columns."""
    main = document.scopes[0]
    return ModelPage(
        short_name(document.title),
        len(document.nodes),
        tuple(Fact(visible_name(name), visible_text(value)) for name, value in document.facts if value),
        tuple(_port(document, place) for place in main.inputs),
        tuple(_port(document, place) for place in main.outputs),
        tuple(
            OperatorRow(
                visible_name(operator.name),
                FAMILIES.index(operator.family),
                operator.uses,
                operator.version,
                operator.summary,
            )
            for operator in document.operators
        ),
        sum(held.size_bytes for held in document.held),
        document.has_values,
        _payload(document),
        reduction,
    )


def _port(document: ModelDocument, place: int) -> Port:
    tensor = document.tensors[place]
    return Port(visible_name(tensor.name), visible_name(tensor.dtype), visible_name(tensor.dims))


def _payload(document: ModelDocument) -> ModelPayload:
    texts = Texts()
    return {
        "shown": document.shown,
        "scopes": [_scope(document, scope, texts) for scope in document.scopes],
        "nodes": _nodes(document.nodes, texts),
        "tensors": {
            "name": texts.places((tensor.name for tensor in document.tensors), visible_name),
            "dtype": texts.places((tensor.dtype for tensor in document.tensors), visible_name),
            "dims": texts.places((tensor.dims for tensor in document.tensors), visible_name),
            "label": texts.places((tensor.label for tensor in document.tensors), visible_name),
            "kind": [_KINDS.index(tensor.kind) for tensor in document.tensors],
            "held": steps([tensor.held for tensor in document.tensors]),
        },
        "held": [_held(tensor) for tensor in document.held],
        "texts": texts.as_list(),
    }


def _nodes(nodes: Sequence[ModelNode], texts: Texts) -> ModelNodes:
    return {
        "name": texts.places((node.name for node in nodes), visible_name),
        "operator": texts.places((node.operator for node in nodes), visible_name),
        "details": texts.places((node.details for node in nodes), visible_name),
        "precision": texts.places((node.precision for node in nodes), visible_name),
        "doc": texts.places((node.doc for node in nodes), visible_text),
        "inputs": [node.inputs for node in nodes],
        "outputs": [node.outputs for node in nodes],
        "outside": [node.outside for node in nodes],
        "bodies": [node.bodies for node in nodes],
        "attributes": [list(_attributes(node, texts)) for node in nodes],
        "metadata": [texts.places(chain.from_iterable(node.metadata), visible_text) for node in nodes],
    }


def _attributes(node: ModelNode, texts: Texts) -> Iterator[int]:
    """Yield name, type, value, whether it is a default, and the position of its tensor, one after the other."""
    for attribute in node.attributes:
        yield from texts.places((attribute.name, attribute.type, attribute.text), visible_text)
        yield from (int(attribute.is_default), attribute.held)


def _held(tensor: HeldTensor) -> HeldPayload:
    numbers = tensor.numbers
    held: HeldPayload = {
        "dtype": tensor.dtype,
        "dims": tensor.dims,
        "elements": tensor.elements,
        "bytes": tensor.size_bytes,
        "first": [visible_name(text) for text in tensor.first],
        "where": visible_name(tensor.where),
    }
    if numbers is None:
        held["unread"] = tensor.unread
        return held
    held["range"] = [numbers.minimum, numbers.maximum, numbers.mean, numbers.std]
    held["counts"] = [numbers.nans, numbers.infinities, numbers.zeros]
    held["histogram"] = numbers.histogram
    return held


def _scope(document: ModelDocument, scope: ModelScope, texts: Texts) -> ScopePayload:
    nodes = [document.nodes[place] for place in scope.nodes]
    graph = graph_payload(_picture(document, scope, nodes))
    graph["composite"] = [place for place, node in enumerate(nodes) if node.kind == "composite"]
    graph["constant"] = [place for place, node in enumerate(nodes) if node.kind == "constant"]
    return {
        "address": visible_name(scope.address),
        "parent": scope.parent,
        "first": scope.nodes[0] if scope.nodes else 0,
        "terminals": [*scope.inputs, *scope.outside, *scope.outputs],
        "doc": visible_text(scope.doc),
        "graph": graph,
    }


def _picture(document: ModelDocument, scope: ModelScope, nodes: Sequence[ModelNode]) -> GraphPicture:
    entering = (*scope.inputs, *scope.outside)
    sources = {tensor: len(nodes) + place for place, tensor in enumerate(entering)}
    sources |= {tensor: place for place, node in enumerate(nodes) for tensor in node.outputs}
    edges = [
        LayerEdge(sources[tensor], place, str(tensor))
        for place, node in enumerate(nodes)
        for tensor in dict.fromkeys((*node.inputs, *node.outside))
        if tensor in sources
    ]
    first_output = len(nodes) + len(entering)
    edges += [
        LayerEdge(sources[tensor], first_output + place, str(tensor))
        for place, tensor in enumerate(scope.outputs)
        if tensor in sources
    ]
    terminals = [Terminal(short_name(document.tensors[place].name), True) for place in entering]
    terminals += [Terminal(short_name(document.tensors[place].name), False) for place in scope.outputs]
    written = [*((node.outputs[:1]) for node in nodes), *((place,) for place in (*entering, *scope.outputs))]
    layout = lay_out(
        [
            Extent(*NODE_SIZE, _ROOM_BELOW, NODE_SIZE[0])
            if any(document.tensors[tensor].label for tensor in tensors)
            else Extent(*NODE_SIZE)
            for tensors in written
        ],
        [(edge.source, edge.target) for edge in edges],
        [edge.tensor for edge in edges],
        aspect=_ASPECT,
    )
    families = tuple(FAMILIES.index(node.family) for node in nodes)
    blocks = fold([node.name for node in nodes], families, edges, terminals, _ASPECT)
    return GraphPicture(layout, tuple(edges), tuple(terminals), families, blocks=blocks)
