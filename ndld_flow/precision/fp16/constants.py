"""Weights and Constant nodes in the precision that their readers need."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ndld_flow.models.float_tensors import FORMATS, Loss, RoundedTensor, rounded_sparse
from ndld_flow.models.sparse_tensors import SparseInitializer
from ndld_flow.models.type_groups import constant_tensor
from ndld_flow.models.unique_names import UniqueNames

Progress = Callable[[int, int, str], None]
"""`progress(done, total, what)`"""


class RoundedConstants:
    """Converts a model's floating-point constants to other types and records what each loses."""

    def __init__(self, names: UniqueNames, progress: Progress) -> None:
        self._names = names
        self._progress = progress
        self._written = 0
        self._rounded: list[RoundedTensor] = []
        self._sparse: list[Loss] = []

    @property
    def losses(self) -> list[Loss]:
        """The loss of each converted tensor; complete once the model is saved, which converts them."""
        return [*(tensor.loss for tensor in self._rounded), *self._sparse]

    def rounded(self, tensor: ir.TensorProtocol, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
        """Return a tensor in another type, computed when it is written."""
        if tensor.dtype == dtype:
            return tensor
        if isinstance(tensor, SparseInitializer):
            converted, loss = rounded_sparse(tensor, dtype, name)
            self._sparse.append(loss)
            return converted
        self._rounded.append(RoundedTensor(tensor, dtype, name, self._report))
        return self._rounded[-1]

    def _report(self, name: str) -> None:
        self._written += 1
        self._progress(min(self._written, len(self._rounded)), len(self._rounded), name)

    def zero(self, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
        """Return the default value of ConstantOfShape."""
        return self.rounded(ir.Tensor(np.zeros(1, np.float32)), dtype, name)

    def convert(self, value: ir.Value, dtype: ir.DataType) -> None:
        """Give a constant another type in place."""
        tensor = self.rounded(tensor_of_constant(value), dtype, value.name or "")
        producer = value.producer()
        if producer is None:
            value.const_value = tensor
        else:
            producer.attributes.clear()
            producer.attributes["value"] = ir.AttrTensor("value", tensor)
        value.type = type_with(value.type, dtype)

    def copy_in(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Add a copy of a constant in another type to its graph."""
        suffix = FORMATS[dtype].precision
        name = self._names.value(f"{value.name}_{suffix}")
        tensor = self.rounded(tensor_of_constant(value), dtype, name)
        copy = ir.Value(name=name, shape=value.shape, type=type_with(value.type, dtype))
        producer = value.producer()
        if producer is None:
            copy.const_value = tensor
            graph_of(value).register_initializer(copy)
        else:
            node_name = self._names.node(f"{producer.name or value.name}_{suffix}")
            attributes = [ir.AttrTensor("value", tensor)]
            node = ir.Node("", "Constant", [], attributes, outputs=[copy], name=node_name)
            graph_of(value).insert_after(producer, node)
        return copy


def tensor_of_constant(value: ir.Value) -> ir.TensorProtocol:
    """Return the tensor of a floating-point constant."""
    tensor = constant_tensor(value)
    if tensor is None:
        raise TypeError(f"{value.name!r} is not a constant")
    return tensor


def graph_of(value: ir.Value) -> ir.Graph:
    """Return the graph that a value belongs to."""
    if value.graph is None:
        raise ValueError(f"{value.name!r} belongs to no graph")
    return value.graph


def type_with(type_: ir.TypeProtocol | None, dtype: ir.DataType) -> ir.TypeProtocol | None:
    """Return a type with other elements; a new object, since values may share types."""
    if isinstance(type_, ir.SequenceType | ir.OptionalType):
        inner = type_with(type_.elem_type, dtype)
        return type_ if inner is None else type(type_)(inner, denotation=type_.denotation)
    if isinstance(type_, ir.TensorType | ir.SparseTensorType):
        return type(type_)(dtype, denotation=type_.denotation)
    return type_
