"""How local functions are called and found, and what a model must declare to have them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir

from ndld_flow.backends.editing.edited_model import EditedModel
from ndld_flow.backends.models.op_signatures import is_known_op
from ndld_flow.backends.models.scopes import function_address
from ndld_flow.errors import RequestError
from ndld_flow.name_patterns import name_matcher
from ndld_flow.nearest import say_nearest

_DOMAIN = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class FunctionName(NamedTuple):
    """A function's domain and name."""

    domain: str
    name: str

    def __str__(self) -> str:
        return f"{self.domain}::{self.name}"


def new_function_name(model: ir.Model, text: str) -> FunctionName:
    """Read `domain::Name`. Raises `RequestError` when it is written otherwise, or means an operator that there is."""
    domain, _, name = text.partition("::")
    if not _DOMAIN.fullmatch(domain) or not _IDENTIFIER.fullmatch(name):
        raise RequestError(
            f"{text!r} is no name for a function: say `domain::Name`, such as `model::Layer`; letters, digits and `_`"
        )
    if (domain, name, "") in model.functions:
        raise RequestError(f"there is a function {text!r} in this model already; choose another name")
    if domain in ("ai.onnx", "ai.onnx.ml") or is_known_op(name, domain):
        raise RequestError(f"{text!r} is or may become an operator of ONNX; choose another domain, such as `model`")
    return FunctionName(domain, name)


def find_functions(model: ir.Model, patterns: Sequence[str]) -> list[ir.Function]:
    """The functions that fit one of the patterns by `domain::Name` or by their name alone, in the model's order.

    Raises `RequestError` with the nearest name for a pattern that fits none.
    """
    chosen: set[tuple[str, str, str]] = set()
    addresses = {function.identifier(): function_address(function) for function in model.functions.values()}
    for pattern in patterns:
        fits = name_matcher(pattern)
        found = {key for key, address in addresses.items() if fits(address) or fits(key[1])}
        if not found:
            told = say_nearest(pattern, addresses.values()) or "this model has none"
            raise RequestError(f"there is no local function {pattern!r}; {told}")
        chosen |= found
    return [function for key, function in model.functions.items() if key in chosen]


def find_function(model: ir.Model, name: str) -> ir.Function:
    """The one function of a name. Raises `RequestError` when there is none, or several."""
    found = find_functions(model, [name])
    if len(found) > 1:
        told = ", ".join(map(function_address, found))
        raise RequestError(f"{name!r} may be {told}: say which")
    return found[0]


def import_domain(model: ir.Model, graph: ir.Graph, domain: str) -> None:
    """Let the model, and the function that a graph belongs to, import a function's domain."""
    model.opset_imports.setdefault(domain, 1)
    for function in model.functions.values():
        if graph is function.graph or graph in set(function.subgraphs()):
            function.opset_imports.setdefault(domain, 1)


def need_ir_version(edited: EditedModel, version: int) -> None:
    """Raise the model's IR version where it is too old, and say so."""
    old = edited.model.ir_version or 0
    if old < version:
        edited.model.ir_version = version
        edited.note(f"IR version {old} -> {version}: older ones have no such functions")
