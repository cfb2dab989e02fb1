"""A model in another opset: every node that has another version there is converted, the rest is left as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.opset_adapters import Adapted, adapt_node, must_change
from ndld_flow.graph.edit.opset_steps import CannotConvertError
from ndld_flow.graph.edit.removal import prune_values
from ndld_flow.models.new_model import oldest_ir_version, refuse_unknown_opset
from ndld_flow.models.scopes import function_address, node_label, scopes_of
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.models.unique_names import free_name, identifier

_MOST_TOLD = 3


def convert_opset(edited: EditedModel, target: int) -> Counter[str]:
    """Convert a model, its subgraphs and local functions to another version of the default domain.

    Returns how many nodes of which operator were converted. Raises `RequestError` that names the nodes which have no
    way there; the model is then as it was.
    """
    model = edited.model
    refuse_unknown_opset(target)
    infer_shapes(model)
    adapted = _adapt_all(model, target)
    done = Counter(node.op_type for node in adapted)
    taken = edited.names()
    for node, instead in adapted.items():
        _replace(node, instead, taken)
    for opsets in _default_opsets(model):
        opsets[""] = target
    model.ir_version = max(model.ir_version or 0, oldest_ir_version(target))
    return done


def import_domain(edited: EditedModel, domain: str, version: int) -> str:
    """Import a domain, or another version of it, and return a summary. Its nodes stay unchanged."""
    before = edited.model.opset_imports.get(domain)
    edited.model.opset_imports[domain] = version
    for function in edited.model.functions.values():
        if domain in function.opset_imports:
            function.opset_imports[domain] = version
    return f"{domain} {version} imported" if before is None else f"{domain} {before} -> {version}"


def _default_opsets(model: ir.Model) -> Iterator[dict[str, int]]:
    """Return the opset imports to set: the model's, and those of functions that use the default domain."""
    yield model.opset_imports
    yield from (function.opset_imports for function in model.functions.values() if "" in function.opset_imports)


def _adapt_all(model: ir.Model, target: int) -> dict[ir.Node, Adapted]:
    adapted: dict[ir.Node, Adapted] = {}
    refused: list[str] = []
    for scope, source, graph in _graphs(model):
        for node in graph:
            try:
                if must_change(node, source, target):
                    adapted[node] = adapt_node(node, source, target)
            except CannotConvertError as error:
                where = f" in {short_name(scope)}" if scope else ""
                refused.append(f"{node.op_type} {short_name(node_label(node))!r}{where}: {error}")
    if refused:
        for instead in adapted.values():
            instead.drop()
        more = f"; and {len(refused) - _MOST_TOLD} more" if len(refused) > _MOST_TOLD else ""
        raise RequestError(f"not all nodes can be converted to opset {target}. {'; '.join(refused[:_MOST_TOLD])}{more}")
    return adapted


def _graphs(model: ir.Model) -> Iterator[tuple[str, int, ir.Graph]]:
    """Yield address, opset and graph; a function has its own opset."""
    own = {function_address(function): function.opset_imports for function in model.functions.values()}
    for scope, graph in scopes_of(model).items():
        opsets = next((imports for address, imports in own.items() if _is_in(scope, address)), model.opset_imports)
        yield scope, opsets.get("", 1), graph


def _is_in(scope: str, function: str) -> bool:
    return scope == function or scope.startswith(f"{function}/")


def _replace(node: ir.Node, instead: Adapted, taken: set[str]) -> None:
    """Insert the new nodes in place of the old one; the one that corresponds to it keeps its name and metadata."""
    graph = node.graph
    assert graph is not None
    read = [value for value in node.inputs if value is not None]
    heir = instead.heir(node.op_type)
    for new in instead.nodes:
        label = node.name or node.op_type
        new.name = node.name if new is heir else free_name(identifier(f"{label}_{new.op_type}"), taken)
        for value in new.outputs:
            if value not in instead.outputs:
                value.name = free_name(identifier(f"{new.name}_out"), taken)
    heir.doc_string = node.doc_string
    heir.metadata_props.update(node.metadata_props)
    heir.meta.update(node.meta)
    for old, new_value in zip(node.outputs, instead.outputs, strict=True):
        new_value.doc_string = old.doc_string
        new_value.metadata_props.update(old.metadata_props)
    ir.convenience.replace_nodes_and_values(graph, node, [node], instead.nodes, node.outputs, instead.outputs)
    prune_values(read)
