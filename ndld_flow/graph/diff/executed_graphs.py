"""Comparison of the graphs that two releases of a runtime run: a model as each has optimized it.

A runtime names the nodes and tensors that it adds by counting (`ReorderOutput_token_255`), so that the same name means
another node in another release. Only names of the model itself identify anything; all others are removed first, and
their nodes are matched by structure.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import onnx_ir as ir

from ndld_flow.graph.diff.diff_models import diff_models
from ndld_flow.models.files import all_graphs, load_structure, summarize_model
from ndld_flow.records.model_diff import GraphChange, Part

_PARTS: tuple[Part, ...] = ("nodes", "opsets")


def compare_executed_graphs(sources: Collection[Path], before: Path, after: Path) -> GraphChange:
    """Return operators and differences of two optimized graphs; `sources` are the models that were optimized.

    The graphs need no weights. Raises ModelError if one of the files cannot be read.
    """
    known = frozenset[str]().union(*(_names_of(load_structure(source)) for source in sources))
    older, newer = load_structure(before), load_structure(after)
    summaries = summarize_model(older), summarize_model(newer)
    for model, mark in ((older, ""), (newer, "\N{PRIME}")):
        _remove_inventions(model, known, mark)
    diff = diff_models(older, newer, compare_values=False).only(_PARTS)
    # A runtime imports every domain that it knows: only those whose operators run are a difference.
    used = {node.domain for model in (older, newer) for graph in all_graphs(model) for node in graph}
    diff = diff.model_copy(update={"opsets": tuple(opset for opset in diff.opsets if opset.domain in used)})
    return GraphChange(before=summaries[0], after=summaries[1], diff=diff)


def _names_of(model: ir.Model) -> set[str]:
    """Return the names of all nodes and tensors."""
    names = {node.name for graph in all_graphs(model) for node in graph}
    for graph in all_graphs(model):
        names |= {value.name for value in (*graph.inputs, *graph.initializers.values())}
        names |= {value.name for node in graph for value in node.outputs}
    return {name for name in names if name}


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
