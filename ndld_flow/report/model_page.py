"""Write the pages of models: a graph that can be opened and searched in a browser, and the differences between two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ndld_flow.base.garbage_collection import paused_garbage_collection
from ndld_flow.base.text import short_name, visible_name, visible_text
from ndld_flow.drawing.draw import compose
from ndld_flow.drawing.engine_graph import Terminal
from ndld_flow.drawing.graph import (
    FAMILIES,
    DrawnEdge,
    DrawnGraph,
    HeldTensor,
    Look,
    ModelDocument,
    ModelNode,
    ModelOperator,
    ModelScope,
    ModelTensor,
)
from ndld_flow.drawing.layout import Extent
from ndld_flow.drawing.picture import Colours, svg_text
from ndld_flow.records.model_diff import GraphChange
from ndld_flow.report.diff_rows import ChangeView, DiffRow, collect_change
from ndld_flow.report.encoding import Columns
from ndld_flow.report.measured import Fact
from ndld_flow.report.render import MODEL_PAGE, PageParts, render, write_page
from ndld_flow.report.report_data import NODE_SIZE, GraphShape, fold, graph_shape, lay_out_edges

DIFF_PAGE = PageParts("diff", "charts tables diff")


@dataclass(frozen=True)
class DiffPage:
    """The page of one diff."""

    before: str
    after: str
    where: str
    """The run of both, or the paths of two files; empty if the names of both have it."""
    change: ChangeView
    region: str
    """A drawing of the nodes that changed and their neighbours, as SVG; empty if no node changed."""
    region_words: str
    data: list[tuple[DiffRow, ...]]

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title) of sections; a page with one table has none."""
        return ()


def draw_diff(change: GraphChange, names: tuple[str, str], path: Path, region: DrawnGraph | None = None) -> Path:
    """Write the page of a change, which has a diff, atomically and return its path.

    `names` are those of the models before and after, `region` the nodes that changed and their neighbours. Raises an
    `OutputsError` if it cannot be written.
    """
    view = collect_change(change)
    assert view.diff is not None
    (run, before), (of_run, after) = (_step_of_run(name) for name in names)
    where = f"run {run}"
    if run != of_run or not run:
        before, after = (Path(name).name for name in names)
        where = " → ".join(names)
        if before == after or names == (before, after):
            where, before, after = "", *names
    page = DiffPage(
        short_name(before),
        short_name(after),
        short_name(where),
        view,
        svg_text(compose(replace(region, subtitle=""), Look(legend=False), _COLOURS, aspect=2.4)) if region else "",
        region.subtitle if region else "",
        [view.diff.rows],
    )
    return write_page(path, render(DIFF_PAGE, page), "ndld-flow diff")


def _step_of_run(name: str) -> tuple[str, str]:
    """Return the run and the step of `RUN:STEP`; the run is empty for a path."""
    run, _, step = name.rpartition(":")
    return ("", name) if "/" in name or "\\" in name else (run, step)


class _ChangeColours(Colours):
    def family(self, name: str) -> str:
        """Return the fill of a kind of change, which takes the place of an operator's family."""
        return f"var(--node-{name})"


_COLOURS = _ChangeColours(
    background=None,
    ink="var(--ink)",
    quiet="var(--quiet)",
    edge="var(--quiet)",
    grid="",
    border="var(--strong-line)",
    paper="var(--paper)",
    families=(),
    on_family="var(--ink)",
)
"""Colours of the page, so that the drawing follows its theme."""


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
