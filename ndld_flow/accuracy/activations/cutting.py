"""Cut a model behind a tensor, so that what comes after does not run. It may even be broken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.models.files import load_model, save_model


def cut_behind(source: Path, target: Path, until: str) -> tuple[str, ...]:
    """Write the model as far as a tensor, or a node with all that it gives; returns the tensors that end it.

    All nodes before it in the order of execution stay, inputs too. Raises `RequestError` where the main graph has
    neither such a tensor nor such a node, naming the nearest.
    """
    model = load_model(source)
    graph = model.graph
    last, ends = _found(graph, until)
    later = _behind(graph, last)
    graph.outputs[:] = ends
    graph.remove(later, safe=True)
    unused = [name for name, value in graph.initializers.items() if not value.uses() and not value.is_graph_input()]
    for name in unused:
        del graph.initializers[name]
    save_model(model, target)
    return tuple(value.name or "" for value in ends)


def _found(graph: ir.Graph, until: str) -> tuple[ir.Node, list[ir.Value]]:
    for node in graph:
        ends = [value for value in node.outputs if value.name == until]
        if ends:
            return node, ends
    for node in graph:
        if node.name == until:
            return node, [value for value in node.outputs if value.name]
    raise RequestError(f'until: the model has no tensor and no node "{until}"; {suggest(until, _names(graph))}')


def _behind(graph: ir.Graph, last: ir.Node) -> list[ir.Node]:
    nodes = list(graph)
    return nodes[nodes.index(last) + 1 :]


def _names(graph: ir.Graph) -> Iterator[str]:
    for node in graph:
        yield from (value.name for value in node.outputs if value.name)
        yield from filter(None, (node.name,))
