"""Tensors that onnx_ir does not have: sparse initializers, and those that are computed while they are written.

onnx_ir would drop sparse initializers: before it reads a proto, each becomes a dense placeholder whose "external
location" is a marker, and each placeholder becomes a `SparseInitializer` afterwards. Writing reverses this. Others are
converted, transposed or generated piece by piece: a weight of any size on disk in a few megabytes of memory.
"""

from __future__ import annotations

import math
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.quantities import count
from ndld_flow.base.text import short_name
from ndld_flow.models.element_types import dtype_name, graphs_of

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
            f"Sparse initializer {proto.values.name!r} would be {count(size * values.itemsize)} bytes as a dense "
            "tensor; the limit is 2 GiB. Its declared shape is probably wrong."
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
            tensor = onnx.TensorProto(
                name=sparse.values.name,
                data_type=sparse.values.data_type,
                dims=sparse.dims,
                data_location=onnx.TensorProto.EXTERNAL,
            )
            tensor.external_data.add(key="location", value=f"{_MARK}{len(extracted)}")
            graph.initializer.append(tensor)
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


Array = npt.NDArray[Any]
_PIECE_BYTES = 2**20
UNPACKED_BYTES = 3 * 2**18
"""A multiple of every element's size and, for types of 2, 4 and 6 bits, of whole groups of eight elements."""
_TRANSPOSED_ELEMENTS = 2**20


class Writable(Protocol):
    """An object to which bytes can be written."""

    def write(self, data: Any, /) -> object: ...  # noqa: ANN401 - bytes or any other buffer


class StreamedTensor(ir.LazyTensor):
    """A tensor whose bytes are computed while they are written and are never all in memory at once."""

    def __init__(self, dtype: ir.DataType, shape: Sequence[int], name: str) -> None:
        super().__init__(self._materialize, dtype, ir.Shape(shape), name=name)

    @property
    @abstractmethod
    def on_disk(self) -> bool:
        """True if its data belongs in an external data file."""

    @abstractmethod
    def pieces(self) -> Iterator[bytes]:
        """Yield the elements' bytes in pieces of any size."""

    def tofile(self, file: Writable) -> None:
        """Write the elements' bytes, piece by piece."""
        for piece in self.pieces():
            file.write(piece)

    def tobytes(self) -> bytes:
        return b"".join(self.pieces())

    def _materialize(self) -> ir.Tensor[Array] | ir.PackedTensor[Array]:
        shape = self.shape.numpy()
        if self.dtype.bitwidth < 8:
            return ir.PackedTensor(np.frombuffer(self.tobytes(), np.uint8), self.dtype, shape=shape, name=self.name)
        flat = np.frombuffer(self.tobytes(), dtype=self.dtype.numpy())
        return ir.Tensor(flat.reshape(shape), dtype=self.dtype, name=self.name)


def on_disk(tensor: ir.TensorProtocol) -> bool:
    """Return whether a tensor is in a data file, or is computed and belongs there."""
    return isinstance(tensor, ir.ExternalTensor) or (isinstance(tensor, StreamedTensor) and tensor.on_disk)


class TensorFromSource(StreamedTensor):
    """A tensor that is computed from another one, in a data file if that is."""

    def __init__(self, source: ir.TensorProtocol, dtype: ir.DataType, shape: Sequence[int], name: str) -> None:
        super().__init__(dtype, shape, name)
        self.source = source

    @property
    def on_disk(self) -> bool:
        return on_disk(self.source)


class DerivedTensor(TensorFromSource):
    """A tensor of the same shape as its source, computed elementwise from it."""

    def __init__(self, source: ir.TensorProtocol, dtype: ir.DataType, name: str) -> None:
        super().__init__(source, dtype, source.shape.numpy(), name)

    @abstractmethod
    def convert(self, piece: Array) -> Array:
        """Convert flat elements of the source to as many elements of this tensor's dtype."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the converted bytes; a source on disk is read in pieces."""
        for piece in array_pieces(self.source):
            yield self.convert(piece).tobytes()


class TransposedTensor(TensorFromSource):
    """A tensor with its axes in another order."""

    def __init__(self, source: ir.TensorProtocol, perm: Sequence[int], name: str) -> None:
        shape = source.shape.numpy()
        super().__init__(source, source.dtype, [shape[axis] for axis in perm], name)
        self._perm = tuple(perm)

    def pieces(self) -> Iterator[bytes]:
        """Yield some indices of the first axis at a time; a source on disk is mapped while it is read."""
        count, *rest = self.shape.numpy()
        # A part of a tensor of packed elements need not fill whole bytes.
        step = max(1, _TRANSPOSED_ELEMENTS // max(math.prod(rest), 1)) if self.dtype.bitwidth >= 8 else count
        moved = _mapped(self.source).transpose(self._perm)
        for start in range(0, count, step):
            yield element_bytes(np.ascontiguousarray(moved[start : start + step]), self.dtype)


def _mapped(tensor: ir.TensorProtocol) -> Array:
    """Return a tensor's values; the map of one on disk ends with the array, unlike onnx_ir's."""
    if not isinstance(tensor, ir.ExternalTensor) or tensor.dtype.bitwidth < 8 or not tensor.nbytes:
        return tensor.numpy()
    kind, shape = np.dtype(tensor.dtype.numpy()), tensor.shape.numpy()
    return np.memmap(tensor.path, kind.newbyteorder("<"), "r", tensor.offset or 0, shape)


def array_pieces(tensor: ir.TensorProtocol) -> Iterator[Array]:
    """Yield the elements of a tensor, flat and in order, in pieces of about a megabyte; not for types below 8 bits."""
    for data in byte_pieces(tensor, _PIECE_BYTES):
        yield np.frombuffer(data, dtype=tensor.dtype.numpy())


def byte_pieces(tensor: ir.TensorProtocol, size: int) -> Iterator[bytes]:
    """Yield a tensor's bytes in pieces of this size; the last may be shorter.

    The file is read, not mapped: mapped pages would count as memory of this process.
    """
    if isinstance(tensor, StreamedTensor):
        rest = b""
        for part in tensor.pieces():
            rest += part
            whole = len(rest) // size * size
            yield from (rest[start : start + size] for start in range(0, whole, size))
            rest = rest[whole:]
        if rest:
            yield rest
        return
    if not isinstance(tensor, ir.ExternalTensor):
        data = memoryview(tensor.tobytes())
        yield from (data[start : start + size].tobytes() for start in range(0, len(data), size))
        return
    with Path(tensor.path).open("rb") as file:
        file.seek(tensor.offset or 0)
        left = tensor.nbytes
        while left > 0 and (piece := file.read(min(size, left))):
            left -= len(piece)
            yield piece


def element_pieces(tensor: ir.TensorProtocol, piece_bytes: int) -> Iterator[Array]:
    """Yield the elements, flat and in order, in numpy's dtypes: floats and types of ml_dtypes as doubles or int64.

    A piece's bytes should be a multiple of 48, so that it contains whole elements of 2 to 128 bits. Not for strings.
    """
    left = tensor.size
    for data in byte_pieces(tensor, piece_bytes):
        piece = _unpacked(tensor.dtype, data)[:left]
        left -= piece.size
        yield piece


def _unpacked(dtype: ir.DataType, data: bytes) -> Array:
    kind = np.dtype(dtype.numpy())
    if dtype.bitwidth >= 8:
        piece = np.frombuffer(data, dtype=kind.newbyteorder("<"))
    else:
        groups = np.frombuffer(data, dtype=np.uint8)
        piece = ir.PackedTensor(groups, dtype, shape=ir.Shape([len(groups) * 8 // dtype.bitwidth])).numpy()
    if kind.kind in "biuc":
        return piece.astype(np.uint8) if kind.kind == "b" else piece
    return piece.astype(np.int64 if dtype.is_integer() else np.float64)


_PIECE_ELEMENTS = 2**18
"""Part of what the seed determines: another size would give other numbers. A multiple of the elements that fill whole
bytes."""
_ON_DISK_BYTES = 64 * 2**20
"""Larger tensors belong in a data file."""


class GeneratedTensor(StreamedTensor):
    """Random or constant numbers; the same for the same seed, name, type and shape.

    `normal`: mean 0, standard deviation 1, rounded for integers. `uniform_positive`: (0, 1], for integers 1 to
    the type's largest value. `uniform_negative`: the same with a minus sign. Booleans are `zeros`, `ones`, or, for
    `uniform_positive`, half of each.
    """

    def __init__(self, kind: str, dtype: ir.DataType, shape: Sequence[int], name: str, seed: int = 0) -> None:
        """Raise `RequestError` for a kind that the dtype cannot represent."""
        word = dtype.name.lower()
        if not _is_integral(dtype) and not dtype.is_floating_point():
            raise RequestError(f"numbers of type {word} cannot be generated; give a value or a .npy file")
        below_zero = kind in ("normal", "uniform_negative")
        if below_zero and (dtype in (ir.DataType.BOOL, ir.DataType.FLOAT8E8M0) or not dtype.is_signed()):
            raise RequestError(
                f"{kind} generates negative numbers, which {word} cannot represent; use uniform_positive"
            )
        if kind == "zeros" and dtype == ir.DataType.FLOAT8E8M0:
            raise RequestError(f"{word} represents powers of 2 and not 0; use ones")
        super().__init__(dtype, shape, name)
        self._kind = kind
        self._seed = (seed, zlib.crc32(name.encode()))
        self.belongs_outside = self.nbytes > _ON_DISK_BYTES
        """True if it goes to a data file; set it for a tensor that replaces an external one."""

    @property
    def on_disk(self) -> bool:
        return self.belongs_outside

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of a quarter of a million numbers at a time."""
        random = np.random.default_rng(self._seed)
        left = math.prod(self.shape.numpy())
        while left > 0:
            count = min(left, _PIECE_ELEMENTS)
            yield element_bytes(_draw(self._kind, self.dtype, random, count), self.dtype)
            left -= count


def element_bytes(elements: Array, dtype: ir.DataType) -> bytes:
    """Return the numbers as a tensor stores them; types below 8 bits are packed."""
    return ir.Tensor(elements.astype(dtype.numpy()), dtype=dtype).tobytes()


def _is_integral(dtype: ir.DataType) -> bool:
    return dtype.is_integer() or dtype == ir.DataType.BOOL


def _draw(kind: str, dtype: ir.DataType, random: np.random.Generator, count: int) -> Array:
    """Return numbers of a kind. The type rounds no uniform one to 0."""
    if kind in ("zeros", "ones"):
        return np.full(count, kind == "ones", np.int64)
    is_integral = _is_integral(dtype)
    most = 1 if dtype == ir.DataType.BOOL else int(ml_dtypes.iinfo(dtype.numpy()).max) if is_integral else 0
    if kind == "normal":
        drawn = random.standard_normal(count)
        return np.clip(np.rint(drawn), -most, most).astype(np.int64) if is_integral else drawn
    sign = -1 if kind == "uniform_negative" else 1
    if is_integral:
        least, wide = 0 if dtype == ir.DataType.BOOL else 1, np.uint64 if dtype == ir.DataType.UINT64 else np.int64
        return sign * random.integers(least, most, count, wide, endpoint=True)
    smallest = float(ml_dtypes.finfo(dtype.numpy()).smallest_subnormal)
    return sign * np.maximum(1 - random.random(count), smallest)


@dataclass
class Lost:
    """Numbers of values that a conversion changes; each value counts once, by its worst change."""

    beyond: int = 0
    """Values outside the type's range, clamped to it, and NaN converted to 0 because the type has none."""
    vanished: int = 0
    """Nonzero values that became 0."""
    rounded: int = 0
    """Values that were rounded; for integer types, truncated."""

    def add(self, other: Lost) -> None:
        self.beyond += other.beyond
        self.vanished += other.vanished
        self.rounded += other.rounded

    def describe(self, of: int, dtype: ir.DataType) -> str:
        """Return `of 100 values 3 beyond float16's range, 2 became 0, 40 rounded`; empty if none changed."""
        parts = [
            f"{count(number)} {text}"
            for number, text in (
                (self.beyond, f"beyond {dtype_name(dtype)}'s range"),
                (self.vanished, "became 0"),
                (self.rounded, "rounded"),
            )
            if number
        ]
        return f"of {count(of)} values {', '.join(parts)}" if parts else ""


class ConvertedTensor(DerivedTensor):
    """A tensor in another type: rounded to nearest, clamped to its range; integers are truncated."""

    def convert(self, piece: Array) -> Array:
        return in_type(piece, self.dtype)[0]

    def pieces(self) -> Iterator[bytes]:
        for piece in element_pieces(self.source, UNPACKED_BYTES):
            yield element_bytes(self.convert(piece), self.dtype)

    def lost(self) -> Lost:
        """Read all values and count those that change."""
        total = Lost()
        for piece in element_pieces(self.source, UNPACKED_BYTES):
            total.add(in_type(piece, self.dtype)[1])
        return total


def check_conversion(source: ir.DataType, target: ir.DataType) -> None:
    """Raise `RequestError` for types between which numbers cannot be converted."""
    for dtype in (source, target):
        if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED) or dtype.name.startswith("COMPLEX"):
            raise RequestError(f"{dtype_name(source)} cannot be converted to {dtype_name(target)}")


def in_type(piece: Array, dtype: ir.DataType) -> tuple[Array, Lost]:
    """Convert integers or doubles to another type; return them with the number of values that changed."""
    if dtype == ir.DataType.BOOL:
        return piece != 0, Lost(rounded=int(np.count_nonzero((piece != 0) & (piece != 1))))
    return _as_integers(piece, dtype) if dtype.is_integer() else _as_floats(piece, dtype)


def _as_integers(piece: Array, dtype: ir.DataType) -> tuple[Array, Lost]:
    limits = ml_dtypes.iinfo(dtype.numpy())
    low, high = int(limits.min), int(limits.max)
    if piece.dtype.kind != "f":
        over, under, nan, truncated = piece > high, piece < low, np.zeros(piece.shape, bool), piece
    else:
        # A double cannot represent 2**63 - 1: values from 2**63 on are out of range.
        truncated = np.trunc(piece)
        over, under, nan = truncated >= float(high + 1), truncated < float(low), np.isnan(piece)
    beyond = over | under | nan
    result = np.where(beyond, 0, truncated).astype(np.uint64 if high > 2**63 else np.int64)
    result[over], result[under] = high, low
    cut = ~beyond & (truncated != piece)
    vanished = int(np.count_nonzero(cut & (truncated == 0)))
    lost = Lost(int(np.count_nonzero(beyond)), vanished, int(np.count_nonzero(cut)) - vanished)
    return result.astype(dtype.numpy()), lost


def _as_floats(piece: Array, dtype: ir.DataType) -> tuple[Array, Lost]:
    target = dtype.numpy()
    largest = float(ml_dtypes.finfo(target).max)
    with np.errstate(over="ignore", invalid="ignore"):
        result = piece.astype(target)
        doubles = piece.astype(np.float64)
        has_infinity = bool(np.isinf(np.array(np.inf).astype(target)))
        beyond = (np.abs(doubles) > largest) & ~(np.isinf(doubles) & has_infinity)
        result[beyond] = np.copysign(largest, doubles[beyond]).astype(target)
        nan = np.isnan(doubles) & ~np.isnan(result.astype(np.float64))
        result[nan] = 0
        back = result.astype(np.float64)
        differs = ~beyond & ~np.isnan(doubles) & (back.astype(piece.dtype) != piece)
    vanished = int(np.count_nonzero(differs & (back == 0)))
    lost = Lost(int(np.count_nonzero(beyond | nan)), vanished, int(np.count_nonzero(differs)) - vanished)
    return result, lost


@dataclass(frozen=True)
class Format:
    """A floating-point type and its limits."""

    precision: str
    """Common name: `fp16`."""
    dtype: np.dtype[Any]
    largest: float
    """Largest finite value."""
    smallest: float
    """Smallest positive value (subnormal)."""
    smallest_normal: float
    """Smallest normal value; smaller ones have fewer bits."""


def format_of(precision: str, dtype: ir.DataType) -> Format:
    """Return the limits of a floating-point type of numpy or ml_dtypes."""
    limits = ml_dtypes.finfo(dtype.numpy())
    smallest, normal = float(limits.smallest_subnormal), float(limits.smallest_normal)
    return Format(precision, dtype.numpy(), float(limits.max), smallest, normal)


FORMATS: Mapping[ir.DataType, Format] = {
    dtype: format_of(precision, dtype)
    for dtype, precision in (
        (ir.DataType.FLOAT16, "fp16"),
        (ir.DataType.BFLOAT16, "bf16"),
        (ir.DataType.FLOAT, "fp32"),
        (ir.DataType.DOUBLE, "fp64"),
    )
}
HALF = FORMATS[ir.DataType.FLOAT16]


@dataclass
class Loss:
    """The changes of one tensor's values by a conversion."""

    name: str
    size: int
    """Number of values."""
    format: Format = HALF
    """Target type."""
    clamped: int = 0
    """Finite values beyond the type's range, which become its largest value, not infinity."""
    vanished: int = 0
    """Nonzero values that are closer to 0 than to the type's smallest value."""
    largest: float = 0.0
    """Largest finite absolute value before the conversion."""


class RoundedTensor(DerivedTensor):
    """A floating-point tensor in another floating-point type, rounded to nearest.

    Finite values beyond the range are clamped. In scalars and per-channel vectors a nonzero value never becomes 0: they
    are divisors and epsilons. In weight matrices it may: rounding to nearest is the smaller error there.
    """

    def __init__(
        self, source: ir.TensorProtocol, dtype: ir.DataType, name: str, writing: Callable[[str], None]
    ) -> None:
        super().__init__(source, dtype, name)
        self._writing = writing
        self.loss = Loss(name, self.size, FORMATS[dtype])
        self._keeps_nonzero = sum(size != 1 for size in self.source.shape) <= 1

    def pieces(self) -> Iterator[bytes]:
        self._writing(self.name or "")
        self.loss = Loss(self.name or "", self.size, self.loss.format)
        yield from super().pieces()

    def convert(self, piece: Array) -> Array:
        """Convert elements of the source to this type; add their changes to `loss`."""
        return rounded(piece, self._keeps_nonzero, self.loss)


def rounded(values: Array, keeps_nonzero: bool, loss: Loss) -> Array:
    """Round to the loss's format, clamp to its range, and count the changes."""
    target = loss.format
    if values.dtype == FORMATS[ir.DataType.BFLOAT16].dtype:
        values = values.astype(np.float32)  # numpy lacks some of these operations for bf16
    with np.errstate(over="ignore"):
        result = values.astype(target.dtype)
    if not values.size:
        return result
    largest = float(np.max(np.abs(values)))
    if not largest <= target.largest:  # also for infinity and NaN, which stay unchanged
        # Finite values are clamped to the range.
        finite = np.isfinite(values)
        beyond = finite & (np.abs(values) > loss.format.largest)
        result[beyond] = np.copysign(loss.format.largest, values[beyond]).astype(result.dtype)
        loss.clamped += int(np.count_nonzero(beyond))
        largest = float(np.max(np.abs(values), initial=0.0, where=finite))
    loss.largest = max(loss.largest, largest)
    lost = np.count_nonzero(values) - np.count_nonzero(result)
    if lost:
        loss.vanished += int(lost)
        if keeps_nonzero:
            gone = (result == 0) & (values != 0)
            result[gone] = np.copysign(target.smallest, values[gone]).astype(target.dtype)
    return result


def rounded_sparse(tensor: SparseInitializer, dtype: ir.DataType, name: str) -> tuple[SparseInitializer, Loss]:
    """Return a sparse floating-point initializer in another type, and its loss."""
    proto = onnx.SparseTensorProto.FromString(tensor.proto.SerializeToString())
    values = numpy_helper.to_array(tensor.proto.values)
    loss = Loss(name, values.size, FORMATS[dtype])
    converted = ir.serde.serialize_tensor(ir.Tensor(rounded(values, False, loss), dtype=dtype, name=name))
    proto.values.CopyFrom(converted)
    return SparseInitializer(proto), loss


_INFINITE = 1e30
_INFINITE_SCALAR = 1e9
"""Larger values stand for infinity in masks: clamping them is intended."""


@dataclass
class Survey:
    """The range of a tensor's values."""

    count: int = 0
    """Nonzero values."""
    largest: float = 0.0
    """Largest absolute value that does not represent infinity."""
    small: int = 0
    """Nonzero values whose absolute value is below the requested limit."""


def survey(tensor: ir.TensorProtocol, min_abs: float) -> Survey:
    """Survey every value of an fp32 tensor, in pieces."""
    result = Survey()
    end = _INFINITE_SCALAR if tensor.size == 1 else _INFINITE
    for piece in array_pieces(tensor):
        size = np.abs(piece)
        result.count += int(np.count_nonzero(size))
        result.small += int(np.count_nonzero((size < min_abs) & (size > 0)))
        result.largest = max(result.largest, float(np.max(size, initial=0.0, where=size < end)))
    return result
