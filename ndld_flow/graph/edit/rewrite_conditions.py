"""When a match of a pattern may be rewritten: values of constants and attributes, dtypes and shapes of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.dtype_words import dtype_of_word
from ndld_flow.graph.edit.function_attributes import typed_attribute
from ndld_flow.graph.edit.pattern_matching import Match
from ndld_flow.graph.edit.rewrite_text import RuleText
from ndld_flow.graph.edit.tensor_selecting import constant_of
from ndld_flow.models.sparse_tensors import SparseInitializer

Array = npt.NDArray[Any]
_ALMOST_ZERO = 1e-8
"""Numbers this near are equal whatever the relative tolerance is."""


@dataclass(frozen=True)
class Conditions:
    """Input of the pattern -> what it must be, and attribute variable -> the values it may have."""

    constants: Mapping[str, JsonValue] = field(default_factory=dict)
    """A number or nested lists of them; None: any constant."""
    dtypes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int | str | None]] = field(default_factory=dict)
    """None fits any dimension."""
    attributes: Mapping[str, Sequence[JsonValue]] = field(default_factory=dict)
    single_use: Sequence[str] = ()
    """Inputs that nothing but the match reads."""
    tolerance: float = 1e-5
    """Relative, for all constants."""

    @property
    def need_shapes(self) -> bool:
        return bool(self.dtypes or self.ranks or self.shapes)

    def check(self, pattern: RuleText) -> None:
        """Raises `RequestError` for names that the pattern does not have, unknown dtypes, and what is no number."""
        for name in (*self.constants, *self.dtypes, *self.ranks, *self.shapes, *self.single_use):
            pattern.input(name, "where")
        for name, wanted in self.constants.items():
            if not _is_numeric(wanted):
                raise RequestError(f"`where`: constant {name!r} is a number, or even lists of numbers, not {wanted!r}")
        for words in self.dtypes.values():
            for word in words:
                dtype_of_word(word)
        variables = pattern.variables()
        for name in self.attributes:
            if name not in variables:
                told = suggest(name, variables) or "it has none"
                raise RequestError(f"`where`: ${name} is no attribute of the pattern; {told}")

    def hold_for(self, name: str, value: ir.Value) -> bool:
        """Whether a tensor may be the pattern's input of that name."""
        if name in self.constants:
            tensor, wanted = constant_tensor(value), self.constants[name]
            if tensor is None or (wanted is not None and not is_close(np.asarray(wanted), tensor, self.tolerance)):
                return False
        if name in self.dtypes and value.dtype not in [dtype_of_word(word) for word in self.dtypes[name]]:
            return False
        if name in self.ranks and (value.shape is None or len(value.shape) != self.ranks[name]):
            return False
        return name not in self.shapes or _shape_fits(value.shape, self.shapes[name])

    def allow(self, attributes: Mapping[str, ir.Attr], match: Match, pattern: RuleText) -> bool:
        """Whether a whole match may be rewritten."""
        for name, allowed in self.attributes.items():
            found = attributes.get(name)
            if found is None or not any(_says(found, each) for each in allowed):
                return False
        taken = set(match.nodes.values())
        values = {value.name: match.values[value] for value in pattern.inputs if value in match.values}
        alone = (values[name] for name in self.single_use if name in values)
        return all(not v.is_graph_output() and all(use.node in taken for use in v.uses()) for v in alone)


def constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor that a value always is: an initializer that cannot be fed, or what a Constant node makes."""
    producer = value.producer()
    if producer is not None:
        return constant_of(producer)
    return value.const_value if value.is_initializer() and not value.is_graph_input() else None


def is_close(wanted: Array, tensor: ir.TensorProtocol, tolerance: float) -> bool:
    """Whether a constant has these numbers, within a relative tolerance or as near as its own dtype comes.

    One number fits a constant of one element and any rank. Only as many elements as are wanted are ever read.
    """
    if tensor.size != wanted.size or isinstance(tensor, SparseInitializer) or tensor.dtype == ir.DataType.STRING:
        return False
    if wanted.ndim and tuple(tensor.shape.numpy()) != wanted.shape:
        return False
    found = tensor.numpy().reshape(wanted.shape)
    exact, rounded = (each.astype(np.float64) for each in (wanted, wanted.astype(found.dtype)))
    values = found.astype(np.float64)
    close = np.isclose(values, exact, rtol=tolerance, atol=_ALMOST_ZERO if tolerance else 0.0, equal_nan=True)
    # a whole number in the constant is not near 0.5 because 0.5 rounds to it
    return bool(np.all(close | ((values == rounded) & (found.dtype.kind not in "iub"))))


def _is_numeric(wanted: JsonValue) -> bool:
    try:
        return wanted is None or np.asarray(wanted).dtype.kind in "biuf"
    except ValueError:  # lists of different lengths
        return False


def _says(found: ir.Attr, wanted: JsonValue) -> bool:
    try:
        return same_value(found, typed_attribute(found.name, wanted, found.type))
    except RequestError:
        return False  # a value of another type


def _shape_fits(shape: ir.Shape | None, wanted: Sequence[int | str | None]) -> bool:
    if shape is None or len(shape) != len(wanted):
        return False
    found = (each if isinstance(each, int) else each.value for each in shape)
    return all(want is None or want == have for want, have in zip(wanted, found, strict=True))


def same_value(first: ir.Attr | None, second: ir.Attr | None) -> bool:
    """Whether two attributes are the same, as far as fp32 tells; None: a node does not have it."""
    if first is None or second is None:
        return first is second
    if first.is_ref() or second.is_ref():
        return first.is_ref() and second.is_ref() and first.ref_attr_name == second.ref_attr_name
    if first.type == second.type == ir.AttributeType.TENSOR:
        return is_close(first.as_tensor().numpy(), second.as_tensor(), 0.0)
    numbers = (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS, ir.AttributeType.INT, ir.AttributeType.INTS)
    if first.type in numbers and second.type in numbers:
        a, b = np.asarray(first.value, np.float64), np.asarray(second.value, np.float64)
        return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-6, atol=0))
    return first.type == second.type and bool(first.value == second.value)
