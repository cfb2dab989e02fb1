"""Reference of operators from the schemas in onnx and ONNX Runtime: versions, changes, bodies, and queries for them.

::

    operators()[("", "Conv")].versions          # oldest first
    operators()[("", "Clip")].at(12)            # as a model of opset 12 sees it
    attribute_defaults("Conv", "", 17)          # {"auto_pad": "NOTSET", "group": 1}
"""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx
from onnx import helper

from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.drawing.graph import FAMILIES, Family, family_of
from ndld_flow.records.document import Record

if TYPE_CHECKING:
    import onnx_ir as ir

CONTRIB_DOMAINS = ("com.microsoft", "com.microsoft.nchwc")
"""Domains of ONNX Runtime: its operators, and those for its blocked CPU layout."""
DEFAULT_DOMAIN = "ai.onnx"
"""Name of the default domain, which is empty in models."""

Value = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
PortKind = Literal["required", "optional", "variadic"]
_EMPTY_DOC = "(not documented)"


@dataclass(frozen=True)
class Port:
    """An input or an output."""

    name: str
    description: str
    variable: str
    """Type variable such as `T`, or else the type itself: `tensor(int64)`."""
    types: tuple[str, ...]
    """Allowed types, sorted."""
    kind: PortKind
    least: int = 1
    """Minimum number of arguments of a variadic port."""
    alike: bool = True
    """True if all arguments of a variadic port have the same type."""


@dataclass(frozen=True)
class AttributeReference:
    """An attribute of an operator."""

    name: str
    description: str
    type: str
    """`int`, `floats`, `tensor`, `graph`, ..."""
    required: bool
    default: Value | None
    """Default value; None if there is none."""


@dataclass(frozen=True)
class OperatorVersion:
    """An operator as defined from one opset on."""

    name: str
    domain: str
    """Empty for the default domain, as in models."""
    since_version: int
    doc: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    attributes: tuple[AttributeReference, ...]
    deprecated: bool
    is_function: bool
    """True if it is defined as a function of other operators."""

    @property
    def summary(self) -> str:
        """The doc's first sentence, on one line, without its Markdown."""
        first = " ".join(self.doc.split("\n\n")[0].split())
        first = re.sub(r"\[([^\]]+)\]\([^)]*\)|[`$]+|\*\*|<br\s*/?>", r"\1", first)
        return f"{first.partition('. ')[0].rstrip('.:')}." if first else _EMPTY_DOC

    @property
    def variables(self) -> dict[str, tuple[str, ...]]:
        """Type variable -> the types that it allows."""
        ports = (*self.inputs, *self.outputs)
        return {port.variable: port.types for port in ports if port.types != (port.variable,)}


@dataclass(frozen=True)
class Operator:
    """All versions of one operator."""

    name: str
    domain: str
    versions: tuple[OperatorVersion, ...]
    """Oldest first."""

    @property
    def newest(self) -> OperatorVersion:
        return self.versions[-1]

    @property
    def family(self) -> Family:
        return family_of(self.name)

    @property
    def full_name(self) -> str:
        """`Conv`, or `com.microsoft::FusedConv`."""
        return f"{self.domain}::{self.name}" if self.domain else self.name

    def at(self, opset: int) -> OperatorVersion | None:
        """Return the version at this opset; None if the operator is newer."""
        fitting = [version for version in self.versions if version.since_version <= opset]
        return fitting[-1] if fitting else None


@functools.cache
def operators() -> Mapping[tuple[str, str], Operator]:
    """Return (domain, name) -> operator: all of onnx, and those of ONNX Runtime if its wheel includes schemas."""
    versions: dict[tuple[str, str], dict[int, OperatorVersion]] = {}
    for schema in (*onnx.defs.get_all_schemas_with_history(), *_contrib_schemas()):
        version = OperatorVersion(
            schema.name,
            "" if schema.domain == DEFAULT_DOMAIN else schema.domain,
            schema.since_version,
            _clean(schema.doc),
            tuple(map(_port, schema.inputs)),
            tuple(map(_port, schema.outputs)),
            tuple(_attribute(schema.attributes[name]) for name in sorted(schema.attributes)),
            schema.deprecated,
            getattr(schema, "has_function", False) or getattr(schema, "has_context_dependent_function", False),
        )
        versions.setdefault((version.domain, version.name), {})[version.since_version] = version
    return {
        key: Operator(key[1], key[0], tuple(by_version[number] for number in sorted(by_version)))
        for key, by_version in sorted(versions.items())
    }


def has_contrib() -> bool:
    """Return whether the installed ONNX Runtime includes the schemas of its own operators; some wheels do not."""
    return any(domain in CONTRIB_DOMAINS for domain, _ in operators())


def attribute_defaults(op_type: str, domain: str, opset: int) -> dict[str, Value]:
    """Return attribute -> default value; empty for an operator that is unknown at this opset."""
    operator = operators().get(("" if domain == DEFAULT_DOMAIN else domain, op_type))
    version = operator.at(opset) if operator is not None else None
    attributes = version.attributes if version is not None else ()
    return {item.name: item.default for item in attributes if item.default is not None}


def _contrib_schemas() -> Iterable[Any]:
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    if not hasattr(native, "get_all_operator_schema"):
        return ()
    schemas = native.get_all_operator_schema()
    registered = [
        schema for schema in schemas if not (schema.domain or schema.deprecated or onnx.defs.has(schema.name))
    ]
    return [
        *(schema for schema in schemas if schema.domain in CONTRIB_DOMAINS),
        # Of those that it registers in ONNX's domain, it inserts Memcpy nodes by itself.
        *(each for each in registered if each.since_version == 1 and not each.name.startswith("Memcpy")),
    ]


def _port(formal: Any) -> Port:  # noqa: ANN401 - a FormalParameter of either library
    kinds: dict[str, PortKind] = {"Single": "required", "Optional": "optional", "Variadic": "variadic"}
    spelled = hasattr(formal, "typeStr")
    return Port(
        formal.name,
        " ".join(_clean(formal.description).split()),
        formal.typeStr if spelled else formal.type_str,
        tuple(sorted(formal.types)),
        kinds[formal.option.name],
        getattr(formal, "min_arity", 1),
        formal.isHomogeneous if spelled else formal.is_homogeneous,
    )


def _attribute(attribute: Any) -> AttributeReference:  # noqa: ANN401 - an Attribute of either library
    default = getattr(attribute, "default_value", None)
    if default is None:
        default = onnx.AttributeProto.FromString(attribute._default_value)
    return AttributeReference(
        attribute.name,
        " ".join(_clean(attribute.description).split()),
        attribute.type.name.lower(),
        attribute.required,
        _value(default),
    )


def _value(default: onnx.AttributeProto) -> Value | None:
    """Return a default; None for no value, and for a tensor or a graph, which no operator has as default."""
    value: Any = onnx.helper.get_attribute_value(default) if default.type else None
    if hasattr(value, "extend"):
        return tuple(map(_plain, value))
    return None if value is None or isinstance(value, onnx.TensorProto | onnx.GraphProto) else _plain(value)


def _plain(value: float | bytes | str) -> Any:  # noqa: ANN401 - int, float or str, as it came
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    # Defaults are 32-bit floats: shorten 0.009999999776 to the 0.01 of the schema.
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _clean(doc: str | None) -> str:
    return inspect.cleandoc(doc or "").strip()


_USUAL_TYPES = ("tensor(float)", "tensor(int64)", "tensor(bool)")


@dataclass(frozen=True)
class OperatorBody:
    """The definition of an operator as a function."""

    text: str
    """The function as onnx prints it."""
    is_example: bool
    """True if the body depends on a node's attributes and types: this one is for default attributes and floats."""


def body_of(version: OperatorVersion) -> OperatorBody | None:
    """Return the body of an operator; None if it is not a function, or if its body depends on a model."""
    if not version.is_function:
        return None
    # onnx's stubs lack some methods of its schemas.
    schema: Any = onnx.defs.get_schema(version.name, version.since_version, version.domain)
    if schema.has_function:
        return OperatorBody(onnx.printer.to_text(schema.function_body), is_example=False)
    opsets = schema.context_dependent_function_opset_versions
    try:
        # An example has all inputs and outputs, and every attribute at its default.
        inputs, outputs = [port.name for port in schema.inputs], [port.name for port in schema.outputs]
        node = helper.make_node(schema.name, inputs, outputs, domain=schema.domain)
        node.attribute.extend(item.default_value for item in schema.attributes.values() if item.default_value.type)
        data = schema.get_context_dependent_function_with_opset_version(
            max(opsets), node.SerializeToString(), [_type(port) for port in schema.inputs]
        )
    except (ValueError, RuntimeError):  # it needs an attribute without a default, such as a graph
        return None
    body = onnx.FunctionProto.FromString(data)
    return OperatorBody(onnx.printer.to_text(body), is_example=True) if body.node else None


def _type(port: onnx.defs.OpSchema.FormalParameter) -> bytes:
    usual = next((type_ for type_ in _USUAL_TYPES if type_ in port.types), min(port.types))
    proto = onnx.TypeProto()
    if usual.startswith("tensor("):
        proto.tensor_type.elem_type = onnx.TensorProto.DataType.Value(usual[7:-1].upper())
    return bytes(proto.SerializeToString())


SAME_SIGNATURE = "same inputs, outputs, attributes and types; see the doc for changes"


@dataclass(frozen=True)
class VersionChange:
    """One entry of an operator's history."""

    since_version: int
    changes: tuple[str, ...]
    """One line each; `introduced` for the first version; `SAME_SIGNATURE` if the signature did not change."""


def history_of(operator: Operator) -> tuple[VersionChange, ...]:
    """Return all versions, newest first, each with its changes from the previous one."""
    pairs = zip(operator.versions, operator.versions[1:], strict=False)
    entries = [VersionChange(operator.versions[0].since_version, ("introduced",))]
    entries += [VersionChange(new.since_version, changes_between(old, new)) for old, new in pairs]
    return tuple(reversed(entries))


def changes_between(old: OperatorVersion, new: OperatorVersion) -> tuple[str, ...]:
    """Return lines on inputs, outputs, attributes and types that were added, removed or changed."""
    changes = [
        *_ports("input", old.inputs, new.inputs),
        *_ports("output", old.outputs, new.outputs),
        *_attributes(old.attributes, new.attributes),
        *_types(old, new),
        *_ties(old, new),
    ]
    if new.deprecated and not old.deprecated:
        changes.append("deprecated")
    if new.is_function and not old.is_function:
        changes.append("is a function of other operators")
    return tuple(changes) or (SAME_SIGNATURE,)


def _ports(word: str, old: Sequence[Port], new: Sequence[Port]) -> Iterator[str]:
    before, after = {port.name: port for port in old}, {port.name: port for port in new}
    added, removed = [name for name in after if name not in before], [name for name in before if name not in after]
    # A port with another name at the same position was renamed.
    for name in list(added):
        index = list(after).index(name)
        former = old[index].name if index < len(old) else ""
        if former in removed:
            added.remove(name)
            removed.remove(former)
            yield f"{word} {former} renamed to {name}"
    yield from (f"{word} {name} added, {after[name].kind}" for name in added)
    yield from (f"{word} {name} removed" for name in removed)
    for name in [name for name in after if name in before]:
        if before[name].kind != after[name].kind:
            yield f"{word} {name} is {after[name].kind}, was {before[name].kind}"


def _attributes(old: Sequence[AttributeReference], new: Sequence[AttributeReference]) -> Iterator[str]:
    before, after = {item.name: item for item in old}, {item.name: item for item in new}
    yield from (f"attribute {name} added" for name in after if name not in before)
    yield from (f"attribute {name} removed" for name in before if name not in after)
    for name, now in after.items():
        then = before.get(name, now)
        if then.type != now.type:
            yield f"attribute {name} is {now.type}, was {then.type}"
        if then.default != now.default:
            yield f"attribute {name} defaults to {_default_text(now.default)}, was {_default_text(then.default)}"
        if then.required != now.required:
            yield f"attribute {name} is {'required' if now.required else 'no longer required'}"


def _default_text(default: object) -> str:
    return "nothing" if default is None else repr(default)


def _types(old: OperatorVersion, new: OperatorVersion) -> Iterator[str]:
    before, after = _types_of_ports(old), _types_of_ports(new)
    reported: set[str] = set()
    for name in [name for name in after if name in before]:
        added, removed = after[name] - before[name], before[name] - after[name]
        for verb, types in (("may be", added), ("may no longer be", removed)):
            line = f"{verb} {types_text(types)}"
            # Ports of one type variable change together: report only the first of them.
            if types and line not in reported:
                reported.add(line)
                yield f"{name} {line}"


def _ties(old: OperatorVersion, new: OperatorVersion) -> Iterator[str]:
    """Yield ports that had to share a type and no longer do, or the reverse."""
    before, after = _leaders(old, new), _leaders(new, old)
    for name in [name for name in after if name in before]:
        if before[name] == name != after[name]:
            yield f"{name} has the type of {after[name]}"
        elif after[name] == name != before[name]:
            yield f"{name} need not have the type of {before[name]}"


def _leaders(version: OperatorVersion, other: OperatorVersion) -> dict[str, str]:
    """Return port -> the first port of its type variable; only ports that both versions have."""
    names = {port.name for port in (*other.inputs, *other.outputs)}
    ports = [port for port in (*version.inputs, *version.outputs) if port.name in names]
    first: dict[str, str] = {}
    for port in ports:
        first.setdefault(port.variable, port.name)
    return {port.name: first[port.variable] for port in ports}


def _types_of_ports(version: OperatorVersion) -> Mapping[str, frozenset[str]]:
    return {port.name: frozenset(port.types) for port in (*version.inputs, *version.outputs)}


def types_text(types: Iterable[str]) -> str:
    """Return `float, int64; seq of float`: tensors by their elements, then containers of tensors."""
    groups: dict[str, list[str]] = {}
    for type_ in sorted(types):
        wrapper, _, element = type_.rstrip(")").rpartition("(")
        groups.setdefault(wrapper, []).append(element)
    order = sorted(groups, key=lambda wrapper: (wrapper != "tensor", len(wrapper), wrapper))
    # `optional(seq(tensor` is `optional seq of`; a tensor has no prefix.
    outer = {wrapper: wrapper.removesuffix("tensor").rstrip("(").replace("(", " ") for wrapper in order}
    prefixes = {wrapper: f"{text} of " if text else "" for wrapper, text in outer.items()}
    return "; ".join(f"{prefixes[wrapper]}{', '.join(groups[wrapper])}" for wrapper in order)


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
    """Words in the name or documentation."""
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

    @property
    def text(self) -> str:
        """Its name and documentation in lower case, in which words are searched."""
        return f"{self.domain}::{self.name} {self.version.doc if self.version else ''}".lower()


def list_operators(query: OpQuery) -> tuple[ListedOperator, ...]:
    """Return the operators that match, by family, domain and name.

    Raises `RequestError` for an unknown name, domain, family or opset; `ModelError` as `load_structure`.
    """
    domain = _domain(query)
    newest = onnx.defs.onnx_opset_version()
    if domain == "" and query.opset is not None and query.opset > newest:
        raise RequestError(f"opset {query.opset} is unknown: the installed onnx supports opsets up to {newest}.")
    known = [
        ListedOperator(op.name, op.domain, op.family, op, op.newest if query.opset is None else op.at(query.opset))
        for op in operators().values()
    ]
    listed = known if query.model is None else list(_of_model(query.model))
    _check(query, domain, listed)
    words = query.search.lower().split()
    fitting = [
        entry
        for entry in listed
        if (not query.name or _is_named(entry, query.name))
        and domain in (None, entry.domain)
        and query.category in ("", entry.family)
        and (entry.version is not None or query.model is not None)
        and all(word in entry.text for word in words)
    ]
    order = {family: index for index, family in enumerate(FAMILIES)}
    return tuple(sorted(fitting, key=lambda entry: (order[entry.family], entry.domain, entry.name)))


def _domain(query: OpQuery) -> str | None:
    """Return the domain to search, or None for any."""
    if query.domain is not None:
        return "" if query.domain == DEFAULT_DOMAIN else query.domain
    # Other domains have their own version numbers.
    return "" if query.opset is not None and query.model is None and "::" not in query.name else None


def _of_model(path: Path) -> Iterator[ListedOperator]:
    from ndld_flow.models.files import load_structure  # imports onnx_ir, which other queries need not wait for

    model = load_structure(path)
    uses: Counter[tuple[str, str, int]] = Counter()
    homes: tuple[ir.Graph | ir.Function, ...] = (model.graph, *model.functions.values())
    for home in homes:
        opsets = home.opset_imports or model.opset_imports  # functions import their own
        for node in home.all_nodes():
            uses[node.domain, node.op_type, opsets.get(node.domain, 1)] += 1
    for (domain, name, opset), count in sorted(uses.items(), key=str):
        local = any((function.domain, function.name) == (domain, name) for function in model.functions.values())
        operator = None if local else operators().get((domain, name))
        version = operator.at(opset) if operator is not None else None
        note = LOCAL_FUNCTION if local else "" if version is not None else NO_SCHEMA
        yield ListedOperator(name, domain, "control" if local else family_of(name), operator, version, count, note)


def _is_named(entry: ListedOperator, name: str) -> bool:
    domain, _, short = name.rpartition("::")
    return entry.name.lower() == short.lower() and domain in ("", entry.domain or DEFAULT_DOMAIN)


def _check(query: OpQuery, domain: str | None, listed: list[ListedOperator]) -> None:
    """Raise `RequestError` for criteria that can match nothing."""
    if query.category and query.category not in FAMILIES:
        raise UnknownNameError(f"--category {query.category}: there is no such category", query.category, FAMILIES)
    domains = {entry.domain or DEFAULT_DOMAIN for entry in listed}
    if domain is not None and (domain or DEFAULT_DOMAIN) not in domains:
        raise UnknownNameError(f"--domain {query.domain}: there is no such domain", query.domain or "", domains)
    if not query.name:
        return
    named = [entry for entry in listed if _is_named(entry, query.name) and domain in (None, entry.domain)]
    if not named:
        names = [entry.name for entry in listed if domain in (None, entry.domain)]
        where = "the model has no operator" if query.model else "there is no operator"
        raise UnknownNameError(f"{where} {query.name!r}", query.name.rpartition("::")[2], names)
    if query.model is None and not any(entry.version for entry in named):
        first = min(entry.operator.versions[0].since_version for entry in named if entry.operator)
        raise RequestError(f"{named[0].name} exists since opset {first}, not at opset {query.opset}.")


class DescribedOperator(Record):
    """An operator that matches the query of `ndld-flow ops`."""

    name: str
    domain: str
    """Empty for the default domain."""
    family: Family
    uses: int | None
    """Nodes of the model with this operator; None without a model."""
    note: str
    """The reason why its schema is unknown, or another remark; usually empty."""
    newest: int | None
    """The opset of its newest version; None if its schema is unknown."""
    version: OperatorVersion | None
    """The version at the requested opset, or else the newest."""
    history: tuple[VersionChange, ...]
    """All versions, the newest first, with their changes."""


def describe_operator(operator: ListedOperator) -> DescribedOperator:
    """Return an operator as a record, with its history."""
    return DescribedOperator(
        name=operator.name,
        domain=operator.domain,
        family=operator.family,
        uses=operator.uses or None,
        note=operator.note,
        newest=operator.operator.newest.since_version if operator.operator else None,
        version=operator.version,
        history=tuple(history_of(operator.operator)) if operator.operator else (),
    )
