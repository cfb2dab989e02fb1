"""Conversions between sparse and dense initializers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.graph.edit.constant_tensors import ConstantTensor
from ndld_flow.models.generated_tensors import element_bytes
from ndld_flow.models.sparse_tensors import SparseInitializer, dense_array
from ndld_flow.models.tensor_statistics import element_pieces

FIRST_IR_VERSION = 6
"""The first IR version with sparse initializers."""
_PIECE_BYTES = 3 * 2**18
_Places = npt.NDArray[np.int64]


def can_be_sparse(held: ConstantTensor) -> bool:
    """Return whether a sparse form exists: dense, no scalar, of whole bytes, and no input or output of the graph."""
    outside = held.value.is_graph_input() or held.value.is_graph_output()
    dtype = held.tensor.dtype
    plain = dtype != ir.DataType.STRING and dtype.bitwidth >= 8 and not dtype.name.startswith("COMPLEX")
    return plain and len(held.tensor.shape) > 0 and held.node is None and not outside and held.stored != "sparse"


def zeros_share(tensor: ir.TensorProtocol) -> float:
    """Return the fraction of zeros; 0 for an empty tensor."""
    zeros = sum(int(piece.size - np.count_nonzero(piece)) for piece in element_pieces(tensor, _PIECE_BYTES))
    return zeros / tensor.size if tensor.size else 0.0


def to_sparse(tensor: ir.TensorProtocol, name: str) -> SparseInitializer:
    """Return the sparse form of a tensor: its nonzero values and their flat positions."""
    data, positions, start = [], [], 0
    for piece in element_pieces(tensor, _PIECE_BYTES):
        places = np.flatnonzero(piece)
        data.append(element_bytes(piece[places], tensor.dtype))
        positions.append(places + start)
        start += piece.size
    indices = np.concatenate(positions) if positions else np.zeros(0, np.int64)
    values = onnx.TensorProto(name=name, data_type=tensor.dtype.value, dims=[indices.size], raw_data=b"".join(data))
    return _sparse(values, indices.reshape(-1), [int(dim) for dim in tensor.shape.numpy()])


def sparse_of(
    values: ir.TensorProtocol, indices: ir.TensorProtocol, shape: Sequence[int], name: str
) -> SparseInitializer:
    """Return a sparse initializer of nonzero values at flat positions, or at one row of coordinates for each value.

    Raises `RequestError` for positions outside the shape, not ascending, or not as many as values.
    """
    places = indices.numpy()
    count = values.size
    if not np.issubdtype(places.dtype, np.integer) or places.shape not in ((count,), (count, len(shape))):
        raise RequestError(
            f"`indices` has the shape {list(places.shape)}; {count} values need {count} numbers, or {count} rows of "
            f"{len(shape)} coordinates"
        )
    if places.ndim == 2:
        places = _flat(places.astype(np.int64), shape)
    if count and (places.min() < 0 or places.max() >= math.prod(shape) or np.any(np.diff(places) <= 0)):
        raise RequestError(
            f"`indices` must be ascending, unique, and within the {math.prod(shape)} elements of the shape"
        )
    proto = ir.serde.serialize_tensor(values)
    proto.name = name
    proto.dims[:] = [count]
    return _sparse(proto, places.astype(np.int64), shape)


def to_dense(tensor: SparseInitializer, name: str) -> ir.TensorProtocol:
    """Return the dense form of a tensor. Raises `RequestError` for one over 2 GiB."""
    try:
        array = dense_array(tensor.proto)
    except ModelError as error:
        raise RequestError(str(error)) from None
    return ir.Tensor(array, dtype=tensor.dtype, name=name)


def _flat(places: _Places, shape: Sequence[int]) -> _Places:
    try:
        return np.asarray(np.ravel_multi_index(tuple(places.T), tuple(shape)), dtype=np.int64)
    except ValueError as error:
        raise RequestError(f"`indices` are outside the shape {list(shape)}: {error}") from None


def _sparse(values: onnx.TensorProto, indices: _Places, shape: Sequence[int]) -> SparseInitializer:
    positions = numpy_helper.from_array(indices.astype(np.int64), f"{values.name}_indices")
    return SparseInitializer(onnx.SparseTensorProto(values=values, indices=positions, dims=shape))
