"""What every operator is, from the schemas that come with onnx and ONNX Runtime: nothing is fetched.

::

    operators()[("", "Conv")].versions          # oldest first
    operators()[("", "Clip")].at(12)            # as a model of opset 12 sees it
    attribute_defaults("Conv", "", 17)          # {"auto_pad": "NOTSET", "group": 1}
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx

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
