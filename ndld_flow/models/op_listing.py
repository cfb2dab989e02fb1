"""Queries for operators: by name, domain, family, words, opset or use in a model."""

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

NO_SCHEMA = "its schema is not installed"
LOCAL_FUNCTION = "a function of this model"


@dataclass(frozen=True)
class OpQuery:
    """A query; all given criteria must match."""

    name: str = ""
    """Case-insensitive; `domain::Name` for an operator of a domain."""
    opset: int | None = None
    """Versions at this opset, of the default domain unless another is given. `model` has its own opsets."""
    domain: str | None = None
    """`ai.onnx` or empty for the default domain."""
    category: str = ""
    """One of `drawing.families.FAMILIES`."""
    search: str = ""
    """Words in its name or doc."""
    model: Path | None = None
    """Only operators that this model uses."""


@dataclass(frozen=True)
class ListedOperator:
    """One operator that matches."""

    name: str
    domain: str
    family: Family
    operator: Operator | None
    """None for an operator without a known schema."""
    version: OperatorVersion | None
    """Version at the requested opset, or else the newest."""
    uses: int = 0
    """Nodes of the model, including those in bodies and functions."""
    note: str = ""


def list_operators(query: OpQuery) -> tuple[ListedOperator, ...]:
    """Return the operators that match, by family, domain and name.

    Raises `RequestError` for an unknown name, domain, family or opset; `ModelError` as `load_model`.
    """
    domain = _domain(query)
    newest = onnx.defs.onnx_opset_version()
    if domain == "" and query.opset is not None and query.opset > newest:
        raise RequestError(f"opset {query.opset} is unknown: the installed onnx supports opsets up to {newest}.")
    known = [_listed(operator, query.opset) for operator in operators().values()]
    listed = known if query.model is None else list(_of_model(load_model(query.model)))
    _check(query, domain, listed)
    words = query.search.lower().split()
    fitting = [
        entry
        for entry in listed
        if (not query.name or _is_named(entry, query.name))
        and domain in (None, entry.domain)
        and query.category in ("", entry.family)
        and (entry.version is not None or query.model is not None)
        and all(word in _words_of(entry) for word in words)
    ]
    order = {family: place for place, family in enumerate(FAMILIES)}
    return tuple(sorted(fitting, key=lambda entry: (order[entry.family], entry.domain, entry.name)))


def _domain(query: OpQuery) -> str | None:
    """Return the domain to search, or None for any."""
    if query.domain is not None:
        return "" if query.domain == DEFAULT_DOMAIN else query.domain
    # Other domains have their own version numbers.
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
    """Return (domain, name, opset) -> number of nodes; functions import their own opsets."""
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


def _is_named(entry: ListedOperator, name: str) -> bool:
    domain, _, short = name.rpartition("::")
    return entry.name.lower() == short.lower() and domain in ("", entry.domain or DEFAULT_DOMAIN)


def _words_of(entry: ListedOperator) -> str:
    return f"{entry.domain}::{entry.name} {entry.version.doc if entry.version else ''}".lower()


def _check(query: OpQuery, domain: str | None, listed: list[ListedOperator]) -> None:
    """Raise `RequestError` for criteria that can match nothing."""
    if query.category and query.category not in FAMILIES:
        raise RequestError(f"--category {query.category}: {suggest(query.category, FAMILIES)}")
    domains = {entry.domain or DEFAULT_DOMAIN for entry in listed}
    if domain is not None and (domain or DEFAULT_DOMAIN) not in domains:
        raise RequestError(f"--domain {query.domain}: {suggest(query.domain or '', domains)}")
    if query.name:
        _check_name(query, domain, listed)


def _check_name(query: OpQuery, domain: str | None, listed: list[ListedOperator]) -> None:
    named = [entry for entry in listed if _is_named(entry, query.name) and domain in (None, entry.domain)]
    if not named:
        names = [entry.name for entry in listed if domain in (None, entry.domain)]
        where = "the model has no operator" if query.model else "there is no operator"
        raise RequestError(f"{where} {query.name!r}; {suggest(query.name.rpartition('::')[2], names)}")
    if query.model is None and not any(entry.version for entry in named):
        first = min(entry.operator.versions[0].since_version for entry in named if entry.operator)
        raise RequestError(f"{named[0].name} exists since opset {first}, not at opset {query.opset}.")
