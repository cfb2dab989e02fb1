"""One node as an emitter reads it, and the table of emitters."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import onnx
import onnx_ir as ir

from ndld_flow.models.element_types import dtype_name, schema_of
from ndld_flow.models.nodes import constant_tensor
from ndld_flow.models.tensors import Array

NEWEST_OPSET = 28
"""The newest opset whose definitions the emitters follow."""
MOST_LITERALS = 64
"""Largest number of elements of a constant that is written into the code."""
TORCH_DTYPES = {
    dtype: f"torch.{dtype_name(dtype)}"
    for dtype in (
        ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.INT8,
        ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8, ir.DataType.BOOL,
    )
}  # fmt: skip
"""Element types for which PyTorch has the arithmetic; it stores others, and computes next to nothing on them."""


class Unsupported(Exception):
    """A node has no equivalent here; the text names what is missing: `auto_pad: SAME_LOWER`."""


@dataclass(frozen=True)
class Several:
    """An expression whose value is a tuple, as the outputs of a node."""

    expression: str
    count: int


@dataclass(frozen=True)
class Slot:
    """A literal in a constructor: classes that differ only in these are one class with parameters."""

    hint: str
    value: object


Piece = str | Slot
Emitted = str | Several | None
"""An expression, or None for a node that wrote its statements itself."""
Emitter = Callable[["Call"], Emitted]


@dataclass(frozen=True)
class Entry:
    """One row of the table."""

    emit: Emitter
    since: int
    """The first version of the operator that the emitter follows."""


EMITTERS: dict[str, Entry] = {}
"""Operator of the default domain -> its emitter."""


def emits(*op_types: str, since: int = 1) -> Callable[[Emitter], Emitter]:
    """Add an emitter to the table: a function that returns the Python expression of a node.

    `since` is the first version of the operators whose definition it follows. Attributes that it does not read are
    refused, so that a setting can never be ignored.
    """

    def add(emit: Emitter) -> Emitter:
        EMITTERS.update({op_type: Entry(emit, since) for op_type in op_types})
        return emit

    return add


class Writer(Protocol):
    """The class that is being written, for emitters that need more than an expression."""

    def expression(self, value: ir.Value) -> str: ...
    def add_module(
        self, hint: str, pieces: Sequence[Piece], weights: dict[str, ir.Value], extra: Sequence[str]
    ) -> str: ...
    def use(self, function: str) -> str: ...
    def line(self, text: str) -> None: ...
    def variable(self, hint: str) -> str: ...
    def indented(self) -> AbstractContextManager[None]: ...
    def bind(self, value: ir.Value, name: str) -> None: ...
    def emit_graph(self, graph: ir.Graph) -> list[str]: ...


@dataclass
class Call:
    """A node with its inputs and attributes; reading an attribute marks it as handled."""

    node: ir.Node
    opset: int
    writer: Writer
    read: set[str] = field(default_factory=set)

    @property
    def version(self) -> int:
        """Return the version of the operator: the opset that defined it last."""
        schema = schema_of(self.node.op_type, self.opset)
        return schema.since_version if schema else 0

    def value(self, index: int) -> ir.Value | None:
        inputs = self.node.inputs
        return inputs[index] if index < len(inputs) else None

    def has(self, index: int) -> bool:
        return self.value(index) is not None

    @property
    def count(self) -> int:
        return len(self.node.inputs)

    def x(self, index: int = 0) -> str:
        """Return the expression of an input; `None` if it is omitted."""
        value = self.value(index)
        return "None" if value is None else self.writer.expression(value)

    def xs(self) -> list[str]:
        return [self.x(index) for index in range(self.count)]

    def array(self, index: int, most: int = MOST_LITERALS) -> Array | None:
        """Return the values of an input that is a small constant."""
        tensor = constant_tensor(self.value(index))
        if tensor is None or tensor.size > most or tensor.dtype == ir.DataType.STRING:
            return None
        return tensor.numpy()

    def operand(self, index: int) -> str:
        """Return an input of arithmetic: a scalar constant as a number, which has the other operand's type."""
        array, others = self.array(index, 1), [self.value(i) for i in range(self.count) if i != index]
        if array is None or array.ndim or array.dtype.kind not in "fi" or any(map(is_constant, others)):
            return self.x(index)
        return literal(array.item()) if np.isfinite(array) else self.x(index)

    def ints(self, index: int) -> str:
        """Return a list of integers, such as a shape, and `None` if the input is omitted."""
        return self._listed(index, int)

    def floats(self, index: int) -> str:
        """Return a list of floats, and `None` if the input is omitted."""
        return self._listed(index, float)

    def _listed(self, index: int, kind: type[int | float]) -> str:
        array = self.array(index)
        if array is not None:
            return literal([kind(each) for each in array.reshape(-1)])
        return f"{self.x(index)}.tolist()" if self.has(index) else "None"

    def integer(self, index: int, default: int | None = None) -> str:
        """Return an input of one integer as a number."""
        array = self.array(index, 1)
        if array is not None:
            return literal(int(array.reshape(-1)[0]))
        return f"int({self.x(index)})" if self.has(index) else literal(default)

    def number(self, index: int) -> str:
        """Return an input of one number; a tensor if it is not constant."""
        array = self.array(index, 1)
        if array is not None and array.dtype.kind in "fi" and np.isfinite(array).all():
            return literal(array.reshape(-1)[0].item())
        return self.x(index)

    def attribute(self, name: str, default: Any = None) -> Any:  # noqa: ANN401  attributes have many types
        """Return an attribute's value, or the operator's default, or the one given."""
        self.read.add(name)
        attribute = self.node.attributes.get(name)
        if attribute is not None:
            if attribute.is_ref():
                raise Unsupported(f"a reference as attribute `{name}`")
            value = attribute.value
            if attribute.type == ir.AttributeType.FLOAT and self.dtype() != ir.DataType.DOUBLE:
                return float(str(np.float32(value)))  # the same float32, as people write it: 1e-05
            return tuple(value) if attribute.type in (ir.AttributeType.INTS, ir.AttributeType.FLOATS) else value
        schema = schema_of(self.node.op_type, self.opset)
        declared = schema.attributes.get(name) if schema else None
        if declared is not None and declared.default_value.type:
            found = onnx.helper.get_attribute_value(declared.default_value)
            if isinstance(found, float) and self.dtype() != ir.DataType.DOUBLE:
                return float(str(np.float32(found)))
            return found.decode() if isinstance(found, bytes) else found
        return default

    def text(self, name: str, *allowed: str) -> str:
        """Return a word among those that are handled."""
        word = str(self.attribute(name))
        if word not in allowed:
            raise Unsupported(f"`{name}: {word}`")
        return word

    def axes(self, index: int, name: str = "axes") -> str:
        """Return axes, which older versions have as an attribute."""
        return self.ints(index) if self.has(index) else literal(self.attribute(name))

    def dtype(self, index: int = 0) -> ir.DataType | None:
        value = self.value(index)
        return None if value is None else value.dtype

    def known_rank(self, index: int = 0) -> int | None:
        """Return the number of dimensions of an input; None if it is unknown."""
        value = self.value(index)
        return None if value is None or value.shape is None else len(value.shape)

    def rank(self, index: int = 0) -> int:
        """Return the number of dimensions of an input. Raises `Unsupported` if it is unknown."""
        rank = self.known_rank(index)
        if rank is None:
            raise Unsupported("an input of unknown rank")
        return rank

    def use(self, function: str, *expressions: str, values: Sequence[object] = ()) -> str:
        """Return a call of a function of `onnx_operators.py`, by expressions and then by literals of `values`."""
        return f"{self.writer.use(function)}({', '.join([*expressions, *map(literal, values)])})"

    def own_weights(self, *indices: int) -> bool:
        """Return whether these inputs are weights that only this node reads, or omitted."""
        values = [value for index in indices if (value := self.value(index)) is not None]
        return all(is_weight(value) and len(value.uses()) == 1 and not value.is_graph_output() for value in values)

    def module(
        self, pieces: Sequence[Piece], weights: dict[str, int], extra: Sequence[str] = (), hint: str = ""
    ) -> str:
        """Return `self.name` of a module with weights: their names in it -> input."""
        values = {name: value for name, index in weights.items() if (value := self.value(index)) is not None}
        return self.writer.add_module(hint, pieces, values, extra)


def literal(value: object) -> str:
    """Return Python code of numbers, words and lists of them, which can have no other effect than their value."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, float | np.floating):
        number = float(value)
        return repr(number) if np.isfinite(number) else f'float("{number}")'
    if isinstance(value, str):
        return json.dumps(value)
    if value is None or isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, np.integer):
        return repr(int(value))
    raise Unsupported(f"a value of type {type(value).__name__}")


def torch_dtype(dtype: ir.DataType | int | None) -> str:
    """Return `torch.float32`. Raises `Unsupported` for a type that PyTorch does not compute with."""
    if dtype is None:
        raise Unsupported("a tensor of unknown type")
    found = TORCH_DTYPES.get(ir.DataType(dtype))
    if found is None:
        raise Unsupported(f"tensors of type {ir.DataType(dtype).name.lower()}")
    return found


def is_weight(value: ir.Value | None) -> bool:
    """Return whether a value is an initializer."""
    return value is not None and value.const_value is not None and value.producer() is None


def is_constant(value: ir.Value | None) -> bool:
    """Return whether a value is an initializer or the output of a Constant node."""
    return constant_tensor(value) is not None
