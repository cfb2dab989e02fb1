"""A model in bf16 with some of its nodes kept, as `constrain_precision` with `{"*": bf16}` and `apply_precision` do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.models.element_types import infer_types, subgraphs_of
from ndld_flow.models.files import load_model, save_model
from ndld_flow.models.node_selection import nodes_named
from ndld_flow.precision.constraints.constraining import constrain_file
from ndld_flow.precision.constraints.selection import Rule, Selection
from ndld_flow.precision.constraints.typed_model import write_typed_model
from ndld_flow.precision.constraints.verdicts import decide
from ndld_flow.precision.fp16.choice import why_sensitive
from ndld_flow.precision.fp16.convert import prepare
from ndld_flow.precision.fp16.rewrite import Rewriter
from ndld_flow.precision_search.reducing import searched_nodes
from ndld_flow.records.precision_search import PrecisionSearch

_FIRST_OPSET = 13
_EVERYTHING = Rule("find_precision", "name", "*", "bf16")


class Bf16Reducer:
    """Asks bf16 of every node that can have it, and fp32 of those that are kept.

    Raises `ModelError` for a model that cannot be read or that local functions hide nodes of.
    """

    def __init__(self, source: Path, keep: Sequence[str]) -> None:
        self._source = source
        model = load_model(source)
        if model.functions:
            raise ModelError(
                f"{source}: it calls local functions, whose nodes cannot be asked for bf16. `sanitize` with "
                "`inline_functions: true` puts them into the graph."
            )
        opset = model.opset_imports.get("", _FIRST_OPSET)
        if opset < _FIRST_OPSET:
            raise RequestError(
                f"{source}: bf16 needs opset {_FIRST_OPSET} or later, and the model has {opset}. Convert it first "
                "(step edit, operation set_opset)."
            )
        prepare(model, source)
        self.nodes = searched_nodes(model)
        able = self._able(model)
        kept = {node for nodes in nodes_named(model, keep, "keep").values() for node in nodes}
        places = dict(enumerate(model.graph.all_nodes()))
        self._reduced = frozenset(place for place, node in places.items() if node in able and node not in kept)
        # Keeping a node with bodies says nothing of what is in them.
        self.candidates = tuple(place for place in sorted(self._reduced) if not any(subgraphs_of(places[place])))
        self.always_kept = _reasons(places, able, kept)

    settings: Mapping[str, bool | int | float | str] = {}

    def _able(self, model: ir.Model) -> set[ir.Node]:
        selected = Selection(model).select(_EVERYTHING)
        if selected.problem:
            raise RequestError(f"{self._source}: no node of this model can be bf16: {selected.problem}.")
        return set(selected.nodes)

    def write(self, kept: frozenset[int], target: Path) -> None:
        """Write the model with these nodes in fp32."""
        model = load_model(self._source)
        prepare(model, self._source)
        reduced = self._reduced - kept
        asked = {node: "bf16" for place, node in enumerate(model.graph.all_nodes()) if place in reduced}
        types = infer_types(model)
        verdicts = decide(model, types, asked)
        Rewriter(model, types, verdicts.groups, verdicts.choice, lambda done, total, what: None).rewrite()
        save_model(model, target)

    def write_found(self, search: PrecisionSearch, target: Path) -> None:
        """Write the model as `constrain_precision` with `found_by` and `apply_precision` do."""
        asked = target.with_name("asked.onnx")
        constrain_file(self._source, asked, [_EVERYTHING], keep=True, allow_empty=False, found=search)
        write_typed_model(asked, target)


def _reasons(places: Mapping[int, ir.Node], able: set[ir.Node], kept: set[ir.Node]) -> dict[int, str]:
    """Positions of nodes that stay as they are though bf16 could hold them -> why."""
    reasons = {place: why for place, node in places.items() if (why := why_sensitive(node))}
    return reasons | {place: "keep" for place, node in places.items() if node in kept and node in able}
