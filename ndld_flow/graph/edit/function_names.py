"""Names, lookup, order and opset imports of local functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import NamedTuple

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.names_in_use import values_of
from ndld_flow.graph.edit.node_pieces import deep_nodes
from ndld_flow.models.files import all_graphs
from ndld_flow.models.op_signatures import is_known_op
from ndld_flow.models.scopes import function_address

IR_OF_FUNCTIONS = 8
"""The first IR version with local functions."""
IR_OF_DEFAULTS = 9
"""The first IR version whose functions can have attributes with defaults."""

_DOMAIN = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class FunctionName(NamedTuple):
    """Domain and name of a function."""

    domain: str
    name: str

    def __str__(self) -> str:
        return f"{self.domain}::{self.name}"


def new_function_name(model: ir.Model, text: str) -> FunctionName:
    """Parse `domain::Name`. Raises `RequestError` for another form, and for the name of an operator."""
    domain, _, name = text.partition("::")
    if not _DOMAIN.fullmatch(domain) or not _IDENTIFIER.fullmatch(name):
        raise RequestError(
            f"{text!r} is not a function name: write `domain::Name`, such as `model::Layer`, of letters, digits and `_`"
        )
    if (domain, name, "") in model.functions:
        raise RequestError(f"there is a function {text!r} in this model already; choose another name")
    if domain in ("ai.onnx", "ai.onnx.ml") or is_known_op(name, domain):
        raise RequestError(f"{text!r} is or may become an operator of ONNX; choose another domain, such as `model`")
    return FunctionName(domain, name)


def find_functions(model: ir.Model, patterns: Sequence[str], allow_empty: bool = False) -> list[ir.Function]:
    """The functions that fit one of the patterns by `domain::Name` or by their name alone, in the model's order.

    Raises `RequestError` with the nearest name for a pattern that fits none, unless that is allowed.
    """
    chosen: set[tuple[str, str, str]] = set()
    addresses = {function.identifier(): function_address(function) for function in model.functions.values()}
    for pattern in patterns:
        fits = name_matcher(pattern)
        found = {key for key, address in addresses.items() if fits(address) or fits(key[1])}
        if not found and not allow_empty:
            hint = suggest(pattern, addresses.values()) or "this model has none"
            raise RequestError(f"there is no local function {pattern!r}; {hint}")
        chosen |= found
    return [function for key, function in model.functions.items() if key in chosen]


def find_function(model: ir.Model, name: str) -> ir.Function:
    """Return the function of a name. Raises `RequestError` when there is none, or several."""
    found = find_functions(model, [name])
    if len(found) > 1:
        told = ", ".join(map(function_address, found))
        raise RequestError(f"{name!r} is ambiguous: {told}")
    return found[0]


class Imports:
    """Opset imports of each graph: a function has its own, which hold for its subgraphs too."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._own: dict[object, ir.Function] = {
            graph: function
            for function in model.functions.values()
            for graph in (function.graph, *function.subgraphs())
        }

    def of(self, graph: object) -> dict[str, int]:
        """Domain -> version, for reading only."""
        return self._own[graph].opset_imports if graph in self._own else self._model.opset_imports

    def add(self, graph: object, domains: Mapping[str, int]) -> None:
        """Import domains into the model and, for a graph in a function, into the function, unless they are imported."""
        for imports in (self.of(graph), self._model.opset_imports):
            for domain, version in domains.items():
                imports.setdefault(domain, version)


def drop_unused_domains(model: ir.Model) -> None:
    """Remove imports of domains that no node and no function of the model uses, except the default domain."""
    used = {"", "ai.onnx", *(function.domain for function in model.functions.values())}
    used |= {node.domain for graph in all_graphs(model) for node in graph}
    for imports in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
        for domain in set(imports) - used:
            del imports[domain]


def names_of(graph: ir.Graph) -> Iterator[str]:
    """Return the names of a graph's own nodes and tensors."""
    yield from (name for node in graph if (name := node.name))
    yield from (name for value in values_of(graph) if (name := value.name))


def need_ir_version(edited: EditedModel, version: int) -> None:
    """Raise the model's IR version to the minimum, with a note."""
    old = edited.model.ir_version or 0
    if old < version:
        edited.model.ir_version = version
        edited.note(f"IR version {old} -> {version}: older ones have no such functions")


def callees_first(functions: Mapping[ir.OperatorIdentifier, ir.Function]) -> list[ir.Function]:
    """Return functions after those that they call. Raises `graphlib.CycleError` for recursive ones."""
    calls = {
        key: [called for node in deep_nodes(function.graph) if (called := node.op_identifier()) in functions]
        for key, function in functions.items()
    }
    return [functions[key] for key in TopologicalSorter(calls).static_order()]
