"""Uses of a model's inputs: tables that their values index, constants and texts that they are compared with.

An index beyond its table ends the run, zeros read a single row, and a comparison with 16000 chooses a branch that no
number between 0 and 1 reaches, so generated values come from here. Values are followed through operators that move
or round them, into the bodies of If, Loop and Scan and into local functions. An input with any use whose limits are
unknown (a shifted index, a size, arithmetic) is marked as such.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.models.element_types import bodies_of
from ndld_flow.models.tensors import Array, InputUses

_TYPES = frozenset(
    getattr(TensorProto, name)
    for name in (
        *("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
        *("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"),
    )
)
_FIRST = range(1)
_ALL = range(2**31)
SAME_VALUES = frozenset(("Cast", "CastLike", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"))
"""Operators whose result has the values of their first input."""
_PASSING: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(
        (*SAME_VALUES, "Expand", "Slice", "Gather", "Tile", "Split", "Pad", "ReverseSequence", "Dropout"), _FIRST
    ),
    **dict.fromkeys(("Floor", "Ceil", "Round", "Clip"), _FIRST),
    "Concat": _ALL,
    "Where": range(1, 3),
}
"""Operator -> positions of the inputs whose values its outputs have, if need be rounded or limited."""
_HARMLESS = frozenset(
    ("Shape", "Size", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "ArgMax", "ArgMin", "Not", "IsNaN")
)
"""Operators that accept any value."""
_TABLES: Mapping[str, Mapping[int, int]] = {
    "Gather": {1: 0},
    "com.microsoft:GatherBlockQuantized": {1: 0},
    "com.microsoft:EmbedLayerNormalization": {0: 2, 1: 4, 8: 3},
}
"""Operator -> position of the indices -> position of their table."""
_CONVERSIONS = ("DequantizeLinear", "QuantizeLinear", "Cast", "CastLike", "Identity")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div")
"""Operators that dequantize a table with its scales and offsets."""
_ALIASES = SAME_VALUES | {"Expand", "Tile"}
"""Operators whose result has the values of a constant, perhaps repeated."""
_MOST_CONSTANTS = 4096
"""Larger constants are not read: what an input is compared with is one number or a row of them."""
_MOST_DEPTH = 30
_MOST_NODES = 500_000
"""Visits of nodes after which nothing is known: functions that call each other may unfold without end."""

_NONE: frozenset[str] = frozenset()
Origins = frozenset[str]
"""The inputs whose values a tensor has."""


class _TooManyNodesError(Exception):
    pass


@dataclass(frozen=True)
class _Scope:
    """The tensors that the nodes of a graph can read."""

    origins: ChainMap[str, Origins] = field(default_factory=ChainMap)
    dims: ChainMap[str, tuple[int, ...]] = field(default_factory=ChainMap)
    """Dimensions of weights, and of tensors computed from weights as dequantization does."""
    constants: ChainMap[str, TensorProto] = field(default_factory=ChainMap)

    def child(self) -> _Scope:
        """Return the scope of a body, which also reads the tensors around it."""
        return _Scope(self.origins.new_child(), self.dims.new_child(), self.constants.new_child())

    def add_weights(self, tensors: Iterable[TensorProto]) -> None:
        for tensor in tensors:
            self.dims[tensor.name], self.constants[tensor.name] = tuple(tensor.dims), tensor

    def add_computed(self, node: onnx.NodeProto) -> None:
        """Add the output of a node that computes a constant or a table from others."""
        op, inputs = node.op_type, node.input
        if _domain(node):
            return
        if op == "Constant":
            tensor = _constant(node)
            if tensor is not None:
                self.dims[node.output[0]], self.constants[node.output[0]] = tuple(tensor.dims), tensor
            return
        if op in _ALIASES and inputs and inputs[0] in self.constants:
            self.constants[node.output[0]] = self.constants[inputs[0]]
        if op in (*_CONVERSIONS, "Transpose") and inputs and inputs[0] in self.dims:
            dims = self.dims[inputs[0]]
            self.dims[node.output[0]] = _permuted(node, dims) if op == "Transpose" else dims
        elif op in _ARITHMETIC and all(name in self.dims for name in inputs):
            with suppress(ValueError):  # of shapes that do not fit, which another check reports
                self.dims[node.output[0]] = np.broadcast_shapes(*(self.dims[name] for name in inputs))

    def values(self, name: str) -> list[float]:
        """Return the values of a small constant; none if it is no constant, or unreadable."""
        tensor = self.constants.get(name)
        if tensor is None or np.prod(tensor.dims, dtype=float) > _MOST_CONSTANTS or tensor.external_data:
            return []
        with suppress(ValueError, TypeError):
            array: Array = numpy_helper.to_array(tensor)
            if array.dtype.kind in "biuf":
                return [float(value) for value in np.unique(array) if np.isfinite(value)]
        return []


def input_uses(model: onnx.ModelProto) -> dict[str, InputUses]:
    """Return input -> its uses, for inputs of numbers that index a table or are compared with constants."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    names = [value.name for value in inputs if value.type.tensor_type.elem_type in _TYPES]
    trace, scope = _Trace(model.functions), _Scope()
    scope.origins.update({name: frozenset([name]) for name in names})
    scope.add_weights(model.graph.initializer)
    with suppress(_TooManyNodesError):
        trace.visit(model.graph.node, scope, 0)
        return {name: trace.found(name) for name in names if trace.found(name) != InputUses()}
    return {}


def weight_dims(graph: onnx.GraphProto) -> Mapping[str, tuple[int, ...]]:
    """Return the dimensions of weights, and of tensors computed from weights as dequantization does."""
    scope = _Scope()
    scope.add_weights(graph.initializer)
    for node in graph.node:
        scope.add_computed(node)
    return scope.dims


class _Trace:
    """The uses that are found while the nodes of a model are visited."""

    def __init__(self, functions: Iterable[onnx.FunctionProto]) -> None:
        self._functions = {(function.domain, function.name): function for function in functions}
        self._rows: dict[str, set[int]] = defaultdict(set)
        self._constants: dict[str, set[float]] = defaultdict(set)
        self._others: set[str] = set()
        self._left = _MOST_NODES

    def found(self, name: str) -> InputUses:
        constants = tuple(sorted(self._constants[name]))
        return InputUses(min(self._rows[name], default=None), constants, name in self._others)

    def visit(self, nodes: Sequence[onnx.NodeProto], scope: _Scope, depth: int) -> None:
        """Record the uses in a graph, and the origins of its tensors in the scope; nodes may be in any order."""
        again = True
        while again:
            again, read = False, set[str]()
            for node in nodes:
                self._left -= 1
                if self._left < 0:
                    raise _TooManyNodesError
                read.update(node.input)
                scope.add_computed(node)
                for name, origins in zip(node.output, self._pass(node, scope, depth), strict=False):
                    known = scope.origins.get(name, _NONE)
                    if name and not origins <= known:
                        scope.origins[name] = origins | known
                        again |= name in read

    def _pass(self, node: onnx.NodeProto, scope: _Scope, depth: int) -> Sequence[Origins]:
        """Record the uses by one node, and return the origins of its outputs."""
        sources = [scope.origins.get(name, _NONE) for name in node.input]
        bodies = list(bodies_of(node))
        if bodies:
            return self._through_bodies(node, bodies, scope, depth)
        if not any(sources):
            return ()
        function = self._functions.get((node.domain, node.op_type))
        if function is not None:
            return self._through_function(node, function, scope, depth)
        passing = _PASSING.get(_key(node), ())
        for index, origins in enumerate(sources):
            if origins:
                self._record(node, index, origins, scope)
        passed = _NONE.union(*(origins for index, origins in enumerate(sources) if index in passing))
        return [passed] * len(node.output)

    def _record(self, node: onnx.NodeProto, place: int, origins: Origins, scope: _Scope) -> None:
        op = _key(node)
        if place in _TABLES.get(op, {}) or (op == "OneHot" and place == 0):
            rows = _depth(node, scope) if op == "OneHot" else _rows(node, place, scope)
            for name in origins:
                self._rows[name].update([rows] if rows else [])
                self._others.update(() if rows else (name,))
        elif op == "Equal" and len(node.input) == 2:
            for name in origins:
                self._constants[name].update(scope.values(node.input[1 - place]))
        elif op not in _HARMLESS and place not in _PASSING.get(op, ()) and (op, place) != ("Where", 0):
            self._others |= origins

    def _through_bodies(
        self, node: onnx.NodeProto, bodies: Sequence[onnx.GraphProto], scope: _Scope, depth: int
    ) -> Sequence[Origins]:
        if depth >= _MOST_DEPTH:
            raise _TooManyNodesError
        sources = [scope.origins.get(name, _NONE) for name in node.input]
        is_loop, is_if = node.op_type == "Loop", node.op_type == "If"
        if is_loop and sources:
            self._others |= sources[0]  # the number of iterations
        own = 2 if is_loop else 0
        passed: list[Origins] = [_NONE] * len(node.output)
        for body in bodies:
            inner = scope.child()
            inner.add_weights(body.initializer)
            for index, value in enumerate(body.input):
                mapped = index >= own and not is_if and index < len(sources)
                inner.origins[value.name] = sources[index] if mapped else _NONE
            self.visit(body.node, inner, depth + 1)
            for index, value in enumerate(body.output[1 if is_loop else 0 :][: len(passed)]):
                passed[index] |= inner.origins.get(value.name, _NONE)
        return passed

    def _through_function(
        self, node: onnx.NodeProto, function: onnx.FunctionProto, scope: _Scope, depth: int
    ) -> Sequence[Origins]:
        if depth >= _MOST_DEPTH:
            raise _TooManyNodesError
        inner = _Scope()
        for own, given in zip(function.input, node.input, strict=False):
            inner.origins[own] = scope.origins.get(given, _NONE)
            if given in scope.dims:
                inner.dims[own] = scope.dims[given]
            if given in scope.constants:
                inner.constants[own] = scope.constants[given]
        self.visit(function.node, inner, depth + 1)
        return [inner.origins.get(name, _NONE) for name in function.output]


def _key(node: onnx.NodeProto) -> str:
    domain = _domain(node)
    return f"{domain}:{node.op_type}" if domain else node.op_type


def _domain(node: onnx.NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def _rows(node: onnx.NodeProto, place: int, scope: _Scope) -> int:
    """Return the rows of the table that a node reads; 0 if they are unknown."""
    table = _TABLES[_key(node)][place]
    axes = [each for each in node.attribute if each.name in ("axis", "gather_axis")]
    axis = axes[0].i if axes else 0
    dims = scope.dims.get(node.input[table], ()) if table < len(node.input) else ()
    is_known = -len(dims) <= axis < len(dims) and not any(each.ref_attr_name for each in axes)
    return dims[axis] if is_known else 0


def _depth(node: onnx.NodeProto, scope: _Scope) -> int:
    """Return the length of a one-hot vector; 0 if it is unknown."""
    values = scope.values(node.input[1]) if len(node.input) > 1 else []
    return int(values[0]) if len(values) == 1 and values[0] >= 1 else 0


def _permuted(node: onnx.NodeProto, dims: tuple[int, ...]) -> tuple[int, ...]:
    order = next((list(each.ints) for each in node.attribute if each.name == "perm"), list(range(len(dims)))[::-1])
    return tuple(dims[axis] for axis in order) if sorted(order) == list(range(len(dims))) else ()


def _constant(node: onnx.NodeProto) -> TensorProto | None:
    """Return the value of a Constant node; None for text, a sparse tensor, or the attribute of a function."""
    for each in node.attribute:
        if each.name == "value" and each.HasField("t"):
            tensor: TensorProto = each.t
            return tensor
        if each.name.startswith(("value_float", "value_int")) and not each.ref_attr_name:
            value = helper.get_attribute_value(each)
            return numpy_helper.from_array(np.array(value, np.float32 if "float" in each.name else np.int64))
    return None


_KNOWN = ("cats_strings", "keys_strings", "pool_strings")
"""Attributes of OneHotEncoder, CategoryMapper, LabelEncoder and TfIdfVectorizer."""
_PASSING_TEXTS = frozenset(("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "StringNormalizer"))
"""Operators whose result has the texts of their first input, or the same in another case."""


def known_texts(graph: onnx.GraphProto) -> dict[str, tuple[str, ...]]:
    """Return input of strings -> the texts that the operators that read it know, without repetition."""
    origins = {
        value.name: value.name for value in graph.input if value.type.tensor_type.elem_type == TensorProto.STRING
    }
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for node in graph.node if origins else ():
        if not node.input or node.input[0] not in origins:
            continue
        origin = origins[node.input[0]]
        if node.op_type in _PASSING_TEXTS and not node.domain:
            origins[node.output[0]] = origin
        for attribute in node.attribute:
            if attribute.name in _KNOWN:
                texts = (item.decode(errors="replace") for item in attribute.strings)
                found[origin].update(dict.fromkeys(texts))
    return {name: tuple(texts) for name, texts in found.items() if texts}
