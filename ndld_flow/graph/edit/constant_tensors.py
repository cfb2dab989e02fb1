"""Constant tensors that match a selection: initializers, and optionally Constant nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.dtype_names import parse_dtype
from ndld_flow.graph.edit.find_nodes import find_nodes
from ndld_flow.graph.edit.selection import TensorSelect
from ndld_flow.models.element_types import held_tensor
from ndld_flow.models.external_data import on_disk, placement_of
from ndld_flow.models.node_details import is_constant
from ndld_flow.models.scopes import scopes_of
from ndld_flow.models.sparse_tensors import SparseInitializer
from ndld_flow.models.tensor_statistics import dtype_name, tensor_bytes


@dataclass(frozen=True)
class ConstantTensor:
    """A constant tensor of a model: an initializer, or the output of a Constant node."""

    value: ir.Value
    tensor: ir.TensorProtocol
    graph: ir.Graph
    scope: str
    """Address of the graph."""

    @property
    def name(self) -> str:
        return self.value.name or ""

    @property
    def node(self) -> ir.Node | None:
        """The Constant node; None for an initializer."""
        return self.value.producer()

    @property
    def stored(self) -> str:
        """`inline`, `external` or `sparse`."""
        if isinstance(self.tensor, SparseInitializer):
            return "sparse"
        return "external" if on_disk(self.tensor) else "inline"

    @property
    def is_written_inline(self) -> bool:
        """True when it will be written inside the model file."""
        placement = placement_of(self.value)
        if self.tensor.dtype == ir.DataType.STRING:
            return False
        return placement.file is None if placement is not None else self.stored == "inline"

    def hold(self, tensor: ir.TensorProtocol) -> None:
        """Replace the tensor, with its type and shape."""
        node = self.node
        if node is None:
            self.value.const_value = tensor
        else:
            node.attributes.clear()
            node.attributes["value"] = ir.AttrTensor("value", tensor)
        self.value.type = ir.TensorType(tensor.dtype)
        self.value.shape = ir.Shape(tensor.shape.numpy())


def constant_tensors(model: ir.Model, constants: bool = True) -> Iterator[ConstantTensor]:
    """Yield all constant tensors of a model, graph by graph."""
    for address, graph in scopes_of(model).items():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield ConstantTensor(value, value.const_value, graph, address)
        for node in graph if constants else ():
            tensor = constant_of(node)
            if tensor is not None:
                yield ConstantTensor(node.outputs[0], tensor, graph, address)


def constant_of(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the tensor of a Constant node in any of its forms; None for other nodes and other values."""
    attribute = next(iter(node.attributes.values()), None) if is_constant(node) else None
    if attribute is None or attribute.is_ref():
        return None
    if attribute.name == "value" and attribute.type == ir.AttributeType.TENSOR:
        return held_tensor(attribute)
    return _plain_constant(attribute, node.outputs[0].name)


def _plain_constant(attribute: ir.Attr, name: str | None) -> ir.TensorProtocol | None:
    kind = attribute.name.removeprefix("value_").removesuffix("s")
    if kind == "string":
        texts = np.asarray(attribute.value, dtype=np.object_)
        return ir.StringTensor(np.vectorize(str.encode, otypes=[object])(texts), shape=ir.Shape(texts.shape), name=name)
    dtype = {"float": np.float32, "int": np.int64}.get(kind)
    return None if dtype is None else ir.tensor(np.asarray(attribute.value, dtype=dtype), name=name)


def find_tensors(
    model: ir.Model, select: TensorSelect, allow_empty: bool = False, constants: bool | None = None
) -> list[ConstantTensor]:
    """Return the selected tensors in the model's order; `constants` overrides whether Constant nodes are included.

    Raises `RequestError` when it means none and that is not allowed.
    """
    every = list(constant_tensors(model, select.constants if constants is None else constants))
    dtypes = {parse_dtype(word) for word in select.dtype}
    found = [one for one in every if _is_named(one, select) and _is_like(one, select, dtypes)]
    if select.read_by is not None:
        readers = set(find_nodes(model, select.read_by, allow_empty))
        found = [one for one in found if any(use.node in readers for use in one.value.uses())]
    if select.exclude is not None:
        left_out = {one.value for one in find_tensors(model, select.exclude, True, constants=True)}
        found = [one for one in found if one.value not in left_out]
    if not found and not allow_empty:
        raise RequestError(_nothing(every, select) if every else _none_at_all(model))
    return found


def dense_initializers(model: ir.Model, select: TensorSelect | None, allow_empty: bool) -> list[ConstantTensor]:
    """Return the selected initializers that a data file can hold: all but sparse ones and strings."""
    if select is None:
        initializers = list(constant_tensors(model, constants=False))
    else:
        initializers = find_tensors(model, select, allow_empty, constants=False)
    return [
        held
        for held in initializers
        if not isinstance(held.tensor, SparseInitializer) and held.tensor.dtype != ir.DataType.STRING
    ]


def _is_named(one: ConstantTensor, select: TensorSelect) -> bool:
    return (not select.name or _fits(select.name, one.name)) and (
        select.scope is None or _fits(select.scope, one.scope)
    )


def _fits(patterns: tuple[str, ...], text: str) -> bool:
    return any(name_matcher(pattern)(text) for pattern in patterns)


def _is_like(one: ConstantTensor, select: TensorSelect, dtypes: set[ir.DataType]) -> bool:
    tensor = one.tensor
    shape = tuple(int(dim) for dim in tensor.shape.numpy())
    return (
        (not dtypes or tensor.dtype in dtypes)
        and select.stored in (None, one.stored)
        and (select.rank is None or len(shape) == select.rank)
        and (select.shape is None or _has_shape(shape, select.shape))
        and (select.larger_than is None or tensor_bytes(tensor) > select.larger_than)
        and (select.smaller_than is None or tensor_bytes(tensor) < select.smaller_than)
    )


def _has_shape(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(size in (None, dim) for dim, size in zip(shape, wanted, strict=True))


def _none_at_all(model: ir.Model) -> str:
    nodes = sum(1 for _ in constant_tensors(model))
    told = f"; {nodes} Constant nodes hold its weights, which `constants: true` takes" if nodes else ""
    return f"the model has no initializer{told}"


def _nothing(every: list[ConstantTensor], select: TensorSelect) -> str:
    """Return which criterion matches nothing, with the nearest name."""
    kind = "initializer or Constant" if select.constants else "initializer"
    names = [one.name for one in every]
    for pattern in select.name:
        if not any(map(name_matcher(pattern), names)):
            return f"no {kind} has a name like {pattern!r}; {suggest(pattern, names)}"
    dtypes = sorted({dtype_name(one.tensor.dtype) for one in every})
    for word in select.dtype:
        if dtype_name(parse_dtype(word)) not in dtypes:
            return f"no {kind} is of the type {word}; there are: {', '.join(dtypes)}"
    return f"no {kind} meets all criteria of `select`; `ndld-flow inspect MODEL --initializers` lists them"
