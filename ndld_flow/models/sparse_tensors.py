"""Sparse initializers in onnx_ir, which supports only dense ones and would drop them.

A model proto is changed before onnx_ir reads it: each sparse initializer becomes a dense placeholder whose "external
location" is a marker, and each placeholder becomes a `SparseInitializer` afterwards. Writing reverses this.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ndld_flow.base.errors import ModelError
from ndld_flow.base.text import short_name
from ndld_flow.models.element_types import graphs_of

_MARK = "ndld_flow:sparse:"
_MAX_DENSE_BYTES = 2**31
"""A few hostile bytes can declare any dense size: reject sizes that no model needs."""


class SparseInitializer(ir.LazyTensor):
    """An initializer stored as values and positions; converted to dense only when its values are read."""

    def __init__(self, proto: onnx.SparseTensorProto) -> None:
        super().__init__(
            lambda: ir.Tensor(dense_array(proto), name=proto.values.name),
            dtype=ir.DataType(proto.values.data_type),
            shape=ir.Shape(list(proto.dims)),
            name=proto.values.name,
        )
        self.proto = proto

    @property
    def stored_count(self) -> int:
        """Number of stored values."""
        return int(self.proto.values.dims[0]) if self.proto.values.dims else 0

    @property
    def stored_bytes(self) -> int:
        """Bytes of the stored values and of their positions."""
        return int(self.proto.ByteSize())


def dense_array(proto: onnx.SparseTensorProto) -> npt.NDArray[Any]:
    """Return the dense array. Raises `ModelError` for positions outside the shape or a dense size over 2 GiB."""
    refuse_external(proto)
    values = numpy_helper.to_array(proto.values)
    size = math.prod(proto.dims)
    if size * values.itemsize > _MAX_DENSE_BYTES:
        raise ModelError(
            f"Sparse initializer {proto.values.name!r} would be {size * values.itemsize} bytes as a dense tensor; "
            "the limit is 2 GiB. Its declared shape is probably wrong."
        )
    flat = np.zeros(size, dtype=values.dtype)
    flat[_flat_positions(proto, tuple(proto.dims))] = values
    return flat.reshape(tuple(proto.dims))


def refuse_external(proto: onnx.SparseTensorProto) -> None:
    """Raise `ModelError` for a sparse tensor with external data: onnx would read them from the current directory, and
    prefer them to those in the tensor."""
    if onnx.TensorProto.EXTERNAL in (proto.values.data_location, proto.indices.data_location):
        raise ModelError(
            f"Sparse tensor {short_name(proto.values.name)!r} has external data, which no runtime reads. Export the "
            "model with dense weights."
        )


def _flat_positions(proto: onnx.SparseTensorProto, dims: tuple[int, ...]) -> npt.NDArray[np.int64]:
    indices = numpy_helper.to_array(proto.indices)
    try:
        if indices.ndim == 2:
            return np.asarray(np.ravel_multi_index(tuple(indices.T), dims), dtype=np.int64)
        if indices.size and not 0 <= indices.min() <= indices.max() < math.prod(dims):
            raise ValueError("position outside the shape")
        return np.asarray(indices, dtype=np.int64)
    except ValueError as error:
        raise ModelError(f"Sparse initializer {proto.values.name!r} has broken indices ({error}).") from None


def extract_sparse(proto: onnx.ModelProto) -> list[onnx.SparseTensorProto]:
    """Replace every sparse initializer and sparse Constant of a model by a placeholder; return them in order."""
    extracted: list[onnx.SparseTensorProto] = []
    for graph in graphs_of(proto.graph):
        # onnx_ir rejects Constant(sparse_value): it becomes a sparse initializer first.
        for i in reversed(range(len(graph.node))):
            node = graph.node[i]
            if _is_sparse_constant(node):
                lifted = graph.sparse_initializer.add()
                lifted.CopyFrom(node.attribute[0].sparse_tensor)
                lifted.values.name = node.output[0]
                del graph.node[i]
        for sparse in graph.sparse_initializer:
            graph.initializer.append(_placeholder(sparse, len(extracted)))
            extracted.append(onnx.SparseTensorProto.FromString(sparse.SerializeToString()))
        del graph.sparse_initializer[:]
    for function in proto.functions:
        for node in function.node:
            if _is_sparse_constant(node):  # a function has no initializers
                dense = numpy_helper.from_array(dense_array(node.attribute[0].sparse_tensor))
                node.attribute[0].CopyFrom(onnx.helper.make_attribute("value", dense))
    return extracted


def restore_sparse(model: ir.Model, extracted: list[onnx.SparseTensorProto]) -> None:
    """Put a `SparseInitializer` where `extract_sparse` left a placeholder."""
    if not extracted:
        return
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            location = str(tensor.location) if isinstance(tensor, ir.ExternalTensor) else ""
            if location.startswith(_MARK):
                index = int(location.removeprefix(_MARK))
                value.const_value = SparseInitializer(extracted[index])


def sparse_placeholders(model: ir.Model) -> dict[ir.Value, tuple[SparseInitializer, ir.ExternalTensor]]:
    """Return, for each sparse initializer, its tensor and the placeholder to serialize in its place."""
    sparse = [
        (value, value.const_value)
        for graph in model.graphs()
        for value in graph.initializers.values()
        if isinstance(value.const_value, SparseInitializer)
    ]
    marked: dict[ir.Value, tuple[SparseInitializer, ir.ExternalTensor]] = {}
    for i, (value, tensor) in enumerate(sparse):
        name = value.name or ""
        marker = ir.ExternalTensor(f"{_MARK}{i}", None, None, tensor.dtype, shape=tensor.shape, name=name)
        marked[value] = (tensor, marker)
    return marked


def write_sparse(proto: onnx.ModelProto, tensors: list[SparseInitializer]) -> None:
    """Turn the placeholders of a serialized model back into sparse initializers."""
    if not tensors:
        return
    for graph in graphs_of(proto.graph):
        names = set()
        for i in reversed(range(len(graph.initializer))):
            entries = graph.initializer[i].external_data
            locations = [entry.value for entry in entries if entry.key == "location" and entry.value.startswith(_MARK)]
            if locations:
                index = int(locations[0].removeprefix(_MARK))
                names.add(graph.initializer[i].name)
                sparse = graph.sparse_initializer.add()
                sparse.CopyFrom(tensors[index].proto)
                sparse.values.name = graph.initializer[i].name
                del graph.initializer[i]
        # onnx infers a sparse type for them, which contradicts the dense type that onnx_ir wrote.
        for i in reversed(range(len(graph.value_info))):
            if graph.value_info[i].name in names:
                del graph.value_info[i]


def _is_sparse_constant(node: onnx.NodeProto) -> bool:
    return (
        node.op_type == "Constant"
        and len(node.attribute) == 1
        and node.attribute[0].type == onnx.AttributeProto.SPARSE_TENSOR
    )


def _placeholder(sparse: onnx.SparseTensorProto, index: int) -> onnx.TensorProto:
    tensor = onnx.TensorProto(
        name=sparse.values.name,
        data_type=sparse.values.data_type,
        dims=sparse.dims,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    tensor.external_data.add(key="location", value=f"{_MARK}{index}")
    return tensor
