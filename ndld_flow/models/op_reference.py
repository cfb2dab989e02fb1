"""x"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from onnx import helper

from ndld_flow.drawing.families import Family, family_of

CONTRIB_DOMAINS = ("com.microsoft", "com.microsoft.nchwc")
"""Of ONNX Runtime: the operators it offers, and those it lays out for the CPU."""
DEFAULT_DOMAIN = "ai.onnx"
"""What people call the domain that models leave empty."""

Value = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
PortKind = Literal["required", "optional", "variadic"]
_EMPTY_DOC = "(not documented)"


@dataclass(frozen=True)
class Port:
    """An input or an output."""

    name: str
    description: str
    variable: str
    """`T` where a type variable says the type, else the type itself: `tensor(int64)`."""
    types: tuple[str, ...]
    """All that it may be, sorted."""
    kind: PortKind
    least: int = 1
    """Of a variadic one: how many there are at least."""
    alike: bool = True
    """Of a variadic one: whether all have one type."""


@dataclass(frozen=True)
class AttributeReference:
    """An attribute."""

    name: str
    description: str
    type: str
    """`int`, `floats`, `tensor`, `graph`, ..."""
    required: bool
    default: Value | None
    """What is taken where it is not given; None where there is nothing to take."""


@dataclass(frozen=True)
class OperatorVersion:
    """An operator as one opset, and those after it, see it."""

    name: str
    domain: str
    """Empty for ONNX's own, as in models."""
    since_version: int
    doc: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    attributes: tuple[AttributeReference, ...]
    deprecated: bool
    is_function: bool
    """Whether it can be written in other operators."""

    @property
    def summary(self) -> str:
        """The doc's first sentence, on one line."""
        first = " ".join(self.doc.split("\n\n")[0].split())
        return f"{first.partition('. ')[0].rstrip('.:')}." if first else _EMPTY_DOC

    @property
    def variables(self) -> dict[str, tuple[str, ...]]:
        """Type variable -> the types it stands for."""
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
        """As a model of this opset sees it; None where it is newer than that."""
        fitting = [version for version in self.versions if version.since_version <= opset]
        return fitting[-1] if fitting else None


@functools.cache
def operators() -> Mapping[tuple[str, str], Operator]:
    """(domain, name) -> operator: all that onnx knows, and ONNX Runtime's own where its wheel tells them."""
    versions: dict[tuple[str, str], dict[int, OperatorVersion]] = {}
    for schema in (*onnx.defs.get_all_schemas_with_history(), *_contrib_schemas()):
        found = _version(schema)
        versions.setdefault((found.domain, found.name), {})[found.since_version] = found
    return {
        key: Operator(key[1], key[0], tuple(by_version[number] for number in sorted(by_version)))
        for key, by_version in sorted(versions.items())
    }


def has_contrib() -> bool:
    """Whether the installed ONNX Runtime tells its own operators: some wheels are built without their schemas."""
    return any(domain in CONTRIB_DOMAINS for domain, _ in operators())


def attribute_defaults(op_type: str, domain: str, opset: int) -> dict[str, Value]:
    """Attribute -> what is taken where it is not given; empty for an operator that is not known at this opset."""
    operator = operators().get(("" if domain == DEFAULT_DOMAIN else domain, op_type))
    version = operator.at(opset) if operator is not None else None
    attributes = version.attributes if version is not None else ()
    return {one.name: one.default for one in attributes if one.default is not None}


def _contrib_schemas() -> Iterable[Any]:
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    if not hasattr(native, "get_all_operator_schema"):
        return ()
    return [schema for schema in native.get_all_operator_schema() if schema.domain in CONTRIB_DOMAINS]


def _version(schema: Any) -> OperatorVersion:  # noqa: ANN401 - onnx' OpSchema, or ONNX Runtime's copy of it
    return OperatorVersion(
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
    held = getattr(attribute, "default_value", None)
    if held is None:
        held = onnx.AttributeProto.FromString(attribute._default_value)
    return AttributeReference(
        attribute.name,
        " ".join(_clean(attribute.description).split()),
        attribute.type.name.lower(),
        attribute.required,
        _value(held),
    )


def _value(held: onnx.AttributeProto) -> Value | None:
    """None for no value, and for a tensor or a graph, which no operator has as its default."""
    value: Any = onnx.helper.get_attribute_value(held) if held.type else None
    if hasattr(value, "extend"):
        return tuple(map(_plain, value))
    return None if value is None or isinstance(value, onnx.TensorProto | onnx.GraphProto) else _plain(value)


def _plain(value: float | bytes | str) -> Any:  # noqa: ANN401 - int, float or str, as it came
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    # 0.01 is kept as a float of 32 bits: 0.009999999776 is not what the schema's author wrote.
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _clean(doc: str | None) -> str:
    return inspect.cleandoc(doc or "").strip()


_USUAL_TYPES = ("tensor(float)", "tensor(int64)", "tensor(bool)")


@dataclass(frozen=True)
class OperatorBody:
    """What an operator stands for."""

    text: str
    """As onnx prints a function."""
    is_example: bool
    """True where the body depends on a node's attributes and types: then it is that of the defaults, on floats."""


def body_of(version: OperatorVersion) -> OperatorBody | None:
    """None where the operator is no function, or where its body cannot be told without a model."""
    if not version.is_function:
        return None
    # onnx' stubs do not know all that its schemas have.
    schema: Any = onnx.defs.get_schema(version.name, version.since_version, version.domain)
    if schema.has_function:
        return OperatorBody(onnx.printer.to_text(schema.function_body), is_example=False)
    opsets = schema.context_dependent_function_opset_versions
    try:
        data = schema.get_context_dependent_function_with_opset_version(
            max(opsets), _example(schema).SerializeToString(), [_type(port) for port in schema.inputs]
        )
    except (ValueError, RuntimeError):  # it needs what no example has, such as a graph
        return None
    body = onnx.FunctionProto.FromString(data)
    return OperatorBody(onnx.printer.to_text(body), is_example=True) if body.node else None


def _example(schema: onnx.defs.OpSchema) -> onnx.NodeProto:
    """A node with all inputs and outputs, and every attribute at its default."""
    inputs, outputs = [port.name for port in schema.inputs], [port.name for port in schema.outputs]
    node = helper.make_node(schema.name, inputs, outputs, domain=schema.domain)
    node.attribute.extend(one.default_value for one in schema.attributes.values() if one.default_value.type)
    return node


def _type(port: onnx.defs.OpSchema.FormalParameter) -> bytes:
    found = next((type_ for type_ in _USUAL_TYPES if type_ in port.types), min(port.types))
    proto = onnx.TypeProto()
    if found.startswith("tensor("):
        proto.tensor_type.elem_type = onnx.TensorProto.DataType.Value(found[7:-1].upper())
    return bytes(proto.SerializeToString())


SAME_SIGNATURE = "same inputs, outputs, attributes and types; what changed is in the doc"


@dataclass(frozen=True)
class VersionChange:
    """One entry of an operator's history."""

    since_version: int
    changes: tuple[str, ...]
    """One line each; `introduced` for the first version; `SAME_SIGNATURE` where none of these changed."""


def history_of(operator: Operator) -> tuple[VersionChange, ...]:
    """All versions, newest first, each with what is different from the one before."""
    pairs = zip(operator.versions, operator.versions[1:], strict=False)
    entries = [VersionChange(operator.versions[0].since_version, ("introduced",))]
    entries += [VersionChange(new.since_version, changes_between(old, new)) for old, new in pairs]
    return tuple(reversed(entries))


def changes_between(old: OperatorVersion, new: OperatorVersion) -> tuple[str, ...]:
    """Inputs, outputs, attributes and types that came, went or changed."""
    found = [
        *_ports("input", old.inputs, new.inputs),
        *_ports("output", old.outputs, new.outputs),
        *_attributes(old.attributes, new.attributes),
        *_types(old, new),
        *_ties(old, new),
    ]
    if new.deprecated and not old.deprecated:
        found.append("deprecated")
    if new.is_function and not old.is_function:
        found.append("can be written in other operators")
    return tuple(found) or (SAME_SIGNATURE,)


def _ports(word: str, old: Sequence[Port], new: Sequence[Port]) -> Iterator[str]:
    before, after = {port.name: port for port in old}, {port.name: port for port in new}
    came, gone = [name for name in after if name not in before], [name for name in before if name not in after]
    # A port that has another name in the same place was renamed.
    for name in list(came):
        place = list(after).index(name)
        former = old[place].name if place < len(old) else ""
        if former in gone:
            came.remove(name)
            gone.remove(former)
            yield f"{word} {former} is called {name}"
    yield from (f"{word} {name} added, {after[name].kind}" for name in came)
    yield from (f"{word} {name} removed" for name in gone)
    for name in [name for name in after if name in before]:
        if before[name].kind != after[name].kind:
            yield f"{word} {name} is {after[name].kind}, was {before[name].kind}"


def _attributes(old: Sequence[AttributeReference], new: Sequence[AttributeReference]) -> Iterator[str]:
    before, after = {one.name: one for one in old}, {one.name: one for one in new}
    yield from (f"attribute {name} added" for name in after if name not in before)
    yield from (f"attribute {name} removed" for name in before if name not in after)
    for name, now in after.items():
        then = before.get(name, now)
        if then.type != now.type:
            yield f"attribute {name} is {now.type}, was {then.type}"
        if then.default != now.default:
            yield f"attribute {name} defaults to {_said(now.default)}, was {_said(then.default)}"
        if then.required != now.required:
            yield f"attribute {name} is {'required' if now.required else 'no longer required'}"


def _said(default: object) -> str:
    return "nothing" if default is None else repr(default)


def _types(old: OperatorVersion, new: OperatorVersion) -> Iterator[str]:
    before, after = _types_of_ports(old), _types_of_ports(new)
    told: set[str] = set()
    for name in [name for name in after if name in before]:
        came, gone = after[name] - before[name], before[name] - after[name]
        for words, types in (("may be", came), ("may no longer be", gone)):
            line = f"{words} {types_text(types)}"
            # Ports of one type variable change together: the first of them speaks for all.
            if types and line not in told:
                told.add(line)
                yield f"{name} {line}"


def _ties(old: OperatorVersion, new: OperatorVersion) -> Iterator[str]:
    """Ports that had to have one type and need not any more, or the other way round."""
    before, after = _leaders(old, new), _leaders(new, old)
    for name in [name for name in after if name in before]:
        if before[name] == name != after[name]:
            yield f"{name} has the type of {after[name]}"
        elif after[name] == name != before[name]:
            yield f"{name} need not have the type of {before[name]}"


def _leaders(version: OperatorVersion, other: OperatorVersion) -> dict[str, str]:
    """Port -> the first port of its type variable; only ports that both versions have."""
    names = {port.name for port in (*other.inputs, *other.outputs)}
    ports = [port for port in (*version.inputs, *version.outputs) if port.name in names]
    first: dict[str, str] = {}
    for port in ports:
        first.setdefault(port.variable, port.name)
    return {port.name: first[port.variable] for port in ports}


def _types_of_ports(version: OperatorVersion) -> Mapping[str, frozenset[str]]:
    return {port.name: frozenset(port.types) for port in (*version.inputs, *version.outputs)}


def types_text(types: Iterable[str]) -> str:
    """`float, int64; seq of float`: tensors by their elements, what holds tensors after them."""
    groups: dict[str, list[str]] = {}
    for type_ in sorted(types):
        wrapper, _, element = type_.rstrip(")").rpartition("(")
        groups.setdefault(wrapper, []).append(element)
    order = sorted(groups, key=lambda wrapper: (wrapper != "tensor", len(wrapper), wrapper))
    return "; ".join(f"{_wrapper_text(wrapper)}{', '.join(groups[wrapper])}" for wrapper in order)


def _wrapper_text(wrapper: str) -> str:
    """`optional(seq(tensor` -> `optional seq of `; nothing for a tensor."""
    outer = wrapper.removesuffix("tensor").rstrip("(")
    return f"{outer.replace('(', ' ')} of " if outer else ""
