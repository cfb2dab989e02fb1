"""The model that a list of operations edits, with lookups by name and selection."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.find_nodes import find_nodes
from ndld_flow.graph.edit.names import NamesInUse, values_of
from ndld_flow.graph.edit.settings import NodeSelect
from ndld_flow.inputs import InputSpec
from ndld_flow.models.files import all_graphs, load_model
from ndld_flow.models.input_shapes import suggest_tensor
from ndld_flow.models.nodes import node_label, scopes_of

__all__ = ["FIRST_WITH_FREE_INITIALIZERS", "EditedModel", "values_of"]

FIRST_WITH_FREE_INITIALIZERS = 4
"""The first IR version in which an initializer need not be an input."""


@dataclass
class EditedModel:
    """A model while it is edited. Weights in external data stay on disk."""

    model: ir.Model
    path: Path
    """File of the original, for messages."""
    inputs: Mapping[str, InputSpec] = field(default_factory=dict)
    """The recipe's `inputs:`."""
    others: Mapping[str, Path] = field(default_factory=dict)
    """Name of an earlier step, or of a model of the recipe -> model file, for settings marked `Reads(Onnx)`."""
    log: logging.Logger = field(default_factory=lambda: logging.getLogger(__name__))
    notes: list[str] = field(default_factory=list)
    """Sentences that are kept in the record."""
    failures: list[str] = field(default_factory=list)
    """Expectations of the recipe that the model does not meet: the step fails, and no further operation runs."""
    bare: set[ir.Value] = field(default_factory=set)
    """Tensors that are written without shape and type; outputs keep theirs, which ONNX requires."""
    _names: NamesInUse | None = field(default=None, init=False, repr=False)

    def note(self, sentence: str) -> None:
        """Add a sentence to the step's log and record."""
        self.notes.append(sentence)
        self.log.info("%s", sentence)

    def raise_ir_version(self, least: int) -> None:
        """Raise the model's IR version to a minimum, with a note."""
        if (self.model.ir_version or 0) < least:
            self.note(f"IR version {self.model.ir_version} -> {least}: the first that supports this")
            self.model.ir_version = least

    def other(self, name: str) -> ir.Model:
        """Load another model of the recipe, a new copy each time because operations change it."""
        return load_model(self.others[name])

    def graphs(self) -> Iterable[ir.Graph]:
        """Return all graphs: the main one, functions' bodies, and all subgraphs."""
        return all_graphs(self.model)

    def scopes(self) -> dict[str, ir.Graph]:
        """Return address -> graph, as defined by `models.nodes`."""
        return scopes_of(self.model)

    def graph(self, scope: str) -> ir.Graph:
        """Return the graph at an address. Raises `RequestError` with the nearest address."""
        known = self.scopes()
        if scope not in known:
            hint = suggest(scope, [address for address in known if address])
            raise RequestError(
                f"there is no graph {scope!r} in this model; {hint or 'it has no subgraphs or functions'}"
            )
        return known[scope]

    def select_nodes(self, select: NodeSelect, allow_empty: bool = False) -> list[ir.Node]:
        """Return the selected nodes in the model's order. Raises `RequestError` for none, unless that is allowed."""
        return find_nodes(self.model, select, allow_empty)

    def node(self, name: str) -> ir.Node:
        """Return the node of a name, or the producer of a tensor of this name, anywhere in the model.

        Raises `RequestError` if there is none, or if several graphs have one.
        """
        nodes = [node for graph in self.graphs() for node in graph]
        named = [node for node in nodes if node.name == name]
        named = named or [node for node in nodes if any(value.name == name for value in node.outputs)]
        if not named:
            raise RequestError(f"there is no node {name!r}; {suggest(name, map(node_label, nodes))}")
        if len(named) > 1:
            raise RequestError(f"{len(named)} nodes are named {name!r}; rename them first, or select with `scope`")
        return named[0]

    def value(self, name: str, scope: str = "") -> ir.Value:
        """Return the tensor of a name in a graph: an input, an initializer, or a node's output, but no outer tensor.

        Raises `RequestError` with the nearest name.
        """
        known = {value.name or "": value for value in values_of(self.graph(scope))}
        if name not in known:
            where = f" in {scope!r}" if scope else ""
            raise RequestError(f"there is no tensor {name!r}{where}; {suggest_tensor(name, known.values())}")
        return known[name]

    def select_values(
        self, patterns: Sequence[str], allow_empty: bool = False, scope: str | None = None
    ) -> list[ir.Value]:
        """Return tensors whose names match one of the patterns, in the model's order; in one graph, or in all.

        Raises `RequestError` for a pattern that fits none, unless that is allowed.
        """
        graphs = self.graphs() if scope is None else [self.graph(scope)]
        values = [value for graph in graphs for value in values_of(graph) if value.name]
        chosen: set[ir.Value] = set()
        for pattern in patterns:
            fits = name_matcher(pattern)
            matching = [value for value in values if fits(value.name or "")]
            if not matching and not allow_empty:
                raise RequestError(f"no tensor has a name like {pattern!r}; {suggest_tensor(pattern, values)}")
            chosen.update(matching)
        return [value for value in values if value in chosen]

    def fresh_name(self, wish: str) -> str:
        """Return an unused name like `wish`, the same in every run.

        Generated names are C90 identifiers: characters other than letters, digits and `_` become `_`. A name that an
        operation assigns without this method must be added to `names()`.
        """
        if self._names is None:
            self._names = NamesInUse(self.model)
        return self._names.fresh(wish)

    def names(self) -> set[str]:
        """Return all names of nodes and tensors in the model; `fresh_name` avoids names that are added to it."""
        self._names = NamesInUse(self.model)
        return self._names.taken

    def forget_names(self) -> None:
        """Rebuild the set of names when it is next needed: between operations."""
        self._names = None
