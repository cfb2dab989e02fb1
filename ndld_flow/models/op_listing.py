"""Operators that a person asks for: by name, domain, family, words, opset, or because a model uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.drawing.families import FAMILIES, Family, family_of
from ndld_flow.models.files import load_model
from ndld_flow.models.op_reference import DEFAULT_DOMAIN, Operator, OperatorVersion, operators

NO_SCHEMA = "no schema of it is known here"
LOCAL_FUNCTION = "a function of this model"


@dataclass(frozen=True)
class OpQuery:
    """Which operators; all that is given must fit."""

    name: str = ""
    """In any letter case; `domain::Name` for one of a domain."""
    opset: int | None = None
    """As a model of this opset sees them; of ONNX's own domain unless another is named. `model` has its own opsets."""
    domain: str | None = None
    """`ai.onnx` or empty for ONNX's own."""
    category: str = ""
    """One of `drawing.families.FAMILIES`."""
    search: str = ""
    """Words that its name or its doc hold."""
    model: Path | None = None
    """Only what this model uses."""


@dataclass(frozen=True)
class ListedOperator:
    """One operator that fits."""

    name: str
    domain: str
    family: Family
    operator: Operator | None
    """None for an operator that no schema is known of."""
    version: OperatorVersion | None
    """The one that holds at the opset that was asked for; else the newest."""
    uses: int = 0
    """Nodes of the model, those in bodies and functions included."""
    note: str = ""


def list_operators(query: OpQuery) -> tuple[ListedOperator, ...]:
    """What fits, by family, domain and name.

    Raises `RequestError` for a name, domain, family or opset that does not exist; `ModelError` as `load_model`.
    """
    domain = _domain(query)
    newest = onnx.defs.onnx_opset_version()
    if domain == "" and query.opset is not None and query.opset > newest:
        raise RequestError(f"opset {query.opset} is not known here: the installed onnx knows opsets up to {newest}.")
    known = [_listed(operator, query.opset) for operator in operators().values()]
    listed = known if query.model is None else list(_of_model(load_model(query.model)))
    _check(query, domain, listed)
    words = query.search.lower().split()
    fitting = [
        one
        for one in listed
        if (not query.name or _is_named(one, query.name))
        and domain in (None, one.domain)
        and query.category in ("", one.family)
        and (one.version is not None or query.model is not None)
        and all(word in _words_of(one) for word in words)
    ]
    order = {family: place for place, family in enumerate(FAMILIES)}
    return tuple(sorted(fitting, key=lambda one: (order[one.family], one.domain, one.name)))


def _domain(query: OpQuery) -> str | None:
    """None for any."""
    if query.domain is not None:
        return "" if query.domain == DEFAULT_DOMAIN else query.domain
    # Other domains count their versions by themselves.
    return "" if query.opset is not None and query.model is None and "::" not in query.name else None


def _listed(operator: Operator, opset: int | None) -> ListedOperator:
    version = operator.newest if opset is None else operator.at(opset)
    return ListedOperator(operator.name, operator.domain, operator.family, operator, version)


def _of_model(model: ir.Model) -> Iterator[ListedOperator]:
    for (domain, name, opset), uses in sorted(_uses(model).items(), key=str):
        local = any((function.domain, function.name) == (domain, name) for function in model.functions.values())
        operator = None if local else operators().get((domain, name))
        version = operator.at(opset) if operator is not None else None
        note = LOCAL_FUNCTION if local else "" if version is not None else NO_SCHEMA
        yield ListedOperator(name, domain, "control" if local else family_of(name), operator, version, uses, note)


def _uses(model: ir.Model) -> Counter[tuple[str, str, int]]:
    """(domain, name, opset) -> nodes; functions import opsets of their own."""
    found: Counter[tuple[str, str, int]] = Counter()
    for graph in model.graphs():
        found.update(_keys(graph, model.opset_imports))
    for function in model.functions.values():
        for graph in (function.graph, *function.subgraphs()):
            found.update(_keys(graph, function.opset_imports or model.opset_imports))
    return found


def _keys(graph: ir.Graph, opsets: Mapping[str, int]) -> Iterator[tuple[str, str, int]]:
    for node in graph:
        domain = "" if node.domain == DEFAULT_DOMAIN else node.domain
        yield domain, node.op_type, opsets.get(domain, 1)


def _is_named(one: ListedOperator, name: str) -> bool:
    domain, _, short = name.rpartition("::")
    return one.name.lower() == short.lower() and domain in ("", one.domain or DEFAULT_DOMAIN)


def _words_of(one: ListedOperator) -> str:
    return f"{one.domain}::{one.name} {one.version.doc if one.version else ''}".lower()


def _check(query: OpQuery, domain: str | None, listed: list[ListedOperator]) -> None:
    """Raises `RequestError` for what cannot fit anything."""
    if query.category and query.category not in FAMILIES:
        raise RequestError(f"--category {query.category}: {suggest(query.category, FAMILIES)}")
    domains = {one.domain or DEFAULT_DOMAIN for one in listed}
    if domain is not None and (domain or DEFAULT_DOMAIN) not in domains:
        raise RequestError(f"--domain {query.domain}: {suggest(query.domain or '', domains)}")
    if query.name:
        _check_name(query, domain, listed)


def _check_name(query: OpQuery, domain: str | None, listed: list[ListedOperator]) -> None:
    named = [one for one in listed if _is_named(one, query.name) and domain in (None, one.domain)]
    if not named:
        names = [one.name for one in listed if domain in (None, one.domain)]
        where = "the model has no operator" if query.model else "there is no operator"
        raise RequestError(f"{where} {query.name!r}; {suggest(query.name.rpartition('::')[2], names)}")
    if query.model is None and not any(one.version for one in named):
        first = min(one.operator.versions[0].since_version for one in named if one.operator)
        raise RequestError(f"{named[0].name} exists since opset {first}: at opset {query.opset} there is none.")
