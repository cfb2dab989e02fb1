"""Initializers kept by their values other than 0, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import numpy_helper
from pydantic import JsonValue

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.quantities import share
from ndld_flow.graph.edit.dtype_words import dtype_of_word
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.format_version import raise_ir_version
from ndld_flow.graph.edit.initializers import add_initializer
from ndld_flow.graph.edit.tensor_criteria import TensorCriteria
from ndld_flow.graph.edit.tensor_selecting import ConstantTensor, fitting_tensors
from ndld_flow.graph.edit.tensor_sources import SaidTensor, Wanted, make_tensor
from ndld_flow.models.generated_tensors import element_bytes
from ndld_flow.models.sparse_tensors import SparseInitializer, dense_array
from ndld_flow.models.tensor_statistics import element_pieces

FIRST_IR_VERSION = 6
"""Earlier models hold no sparse initializers."""
_PIECE_BYTES = 3 * 2**18
_Places = npt.NDArray[np.int64]


class SparseSettings(Protocol):
    """What `add_sparse_initializer` says."""

    @property
    def name(self) -> str: ...
    @property
    def values(self) -> JsonValue: ...
    @property
    def values_file(self) -> Path | None: ...
    @property
    def indices(self) -> JsonValue: ...
    @property
    def indices_file(self) -> Path | None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def scope(self) -> str: ...


class MakeSparseSettings(Protocol):
    """What `make_sparse` says."""

    @property
    def select(self) -> TensorCriteria: ...
    @property
    def zeros(self) -> float: ...
    @property
    def allow_empty(self) -> bool: ...


class MakeDenseSettings(Protocol):
    """What `make_dense` says."""

    @property
    def select(self) -> TensorCriteria: ...
    @property
    def allow_empty(self) -> bool: ...


def add_sparse(edited: EditedModel, said: SparseSettings) -> ir.Value:
    """Add a sparse initializer. Raises `RequestError` as `sparse_of` does, and for a name that is taken."""
    if "::" in said.scope:
        raise RequestError(f"{said.scope!r} is a local function, which holds no initializers")
    dtype = dtype_of_word(said.dtype)
    values = make_tensor(SaidTensor(said.values, said.values_file), Wanted(said.name, dtype))
    places = SaidTensor(said.indices, said.indices_file)
    indices = make_tensor(places, Wanted(f"{said.name}_indices", ir.DataType.INT64))
    tensor = sparse_of(values, indices, said.shape, said.name)
    value = add_initializer(edited, tensor, said.name, said.scope)
    raise_ir_version(edited, FIRST_IR_VERSION)
    return value


def make_sparse(edited: EditedModel, said: MakeSparseSettings) -> int:
    """Make those sparse that have enough zeros; returns how many.

    Raises `RequestError` when there are none and that is not allowed.
    """
    held = fitting_tensors(edited.model, said.select, said.allow_empty, constants=False)
    shares = {one.value: zeros_share(one.tensor) for one in held if can_be_sparse(one)}
    chosen = [one for one in held if shares.get(one.value, -1) >= said.zeros]
    if not chosen and not said.allow_empty:
        most = f"the one with most has {share(max(shares.values()))}" if shares else "none of them can be sparse"
        raise RequestError(f"no initializer has {share(said.zeros)} zeros; {most}")
    for one in chosen:
        edited.log.info("%s: %s zeros", one.name, share(shares[one.value]))
        one.value.const_value = made_sparse(one.tensor, one.name)
    if chosen:
        raise_ir_version(edited, FIRST_IR_VERSION)
    return len(chosen)


def make_dense(edited: EditedModel, said: MakeDenseSettings) -> int:
    """Make sparse initializers dense; returns how many. Raises `RequestError` as `make_sparse` does."""
    held = fitting_tensors(edited.model, said.select, said.allow_empty, constants=False)
    sparse = [(one, one.tensor) for one in held if isinstance(one.tensor, SparseInitializer)]
    if not sparse and not said.allow_empty:
        raise RequestError("no initializer that is selected is sparse")
    for one, tensor in sparse:
        one.hold(made_dense(tensor, one.name))
    return len(sparse)


def can_be_sparse(held: ConstantTensor) -> bool:
    """Whether an initializer is dense, no scalar, of numbers of whole bytes, and nobody outside knows its type."""
    outside = held.value.is_graph_input() or held.value.is_graph_output()
    dtype = held.tensor.dtype
    plain = dtype != ir.DataType.STRING and dtype.bitwidth >= 8 and not dtype.name.startswith("COMPLEX")
    return plain and len(held.tensor.shape) > 0 and held.node is None and not outside and held.stored != "sparse"


def zeros_share(tensor: ir.TensorProtocol) -> float:
    """How much of a tensor is 0; none of an empty one."""
    zeros = sum(int(piece.size - np.count_nonzero(piece)) for piece in element_pieces(tensor, _PIECE_BYTES))
    return zeros / tensor.size if tensor.size else 0.0


def made_sparse(tensor: ir.TensorProtocol, name: str) -> SparseInitializer:
    """The same tensor by its values other than 0 and their positions in memory's order."""
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
    """A sparse initializer from its parts: positions are numbers of elements, or one row of coordinates for each value.

    Raises `RequestError` for positions outside the shape, not in rising order, or not as many as values.
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
            f"`indices` must rise, none twice, and lie within the {math.prod(shape)} elements of the shape"
        )
    proto = ir.serde.serialize_tensor(values)
    proto.name = name
    proto.dims[:] = [count]
    return _sparse(proto, places.astype(np.int64), shape)


def made_dense(tensor: SparseInitializer, name: str) -> ir.TensorProtocol:
    """The same tensor with all its elements. Raises `RequestError` for one over 2 GiB."""
    try:
        array = dense_array(tensor.proto)
    except ModelError as error:
        raise RequestError(str(error)) from None
    return ir.Tensor(array, dtype=tensor.dtype, name=name)


def _flat(places: _Places, shape: Sequence[int]) -> _Places:
    try:
        return np.asarray(np.ravel_multi_index(tuple(places.T), tuple(shape)), dtype=np.int64)
    except ValueError as error:
        raise RequestError(f"`indices` lie outside the shape {list(shape)}: {error}") from None


def _sparse(values: onnx.TensorProto, indices: _Places, shape: Sequence[int]) -> SparseInitializer:
    positions = numpy_helper.from_array(indices.astype(np.int64), f"{values.name}_indices")
    return SparseInitializer(onnx.SparseTensorProto(values=values, indices=positions, dims=shape))
