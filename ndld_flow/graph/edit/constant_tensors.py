"""Constant tensors: initializers and Constant nodes, selected or added, and tensors from settings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ndld_flow.base.errors import ModelError, RequestError, check_known
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.text import one_paragraph, suggest
from ndld_flow.graph.edit.edited_model import FIRST_WITH_FREE_INITIALIZERS, EditedModel, find_nodes
from ndld_flow.graph.edit.graph_edits import connect
from ndld_flow.graph.edit.operation import InitializerOperation
from ndld_flow.graph.edit.settings import TensorSelect, TensorValue
from ndld_flow.graph.edit.value_grammar import Value, parse_dtype, parse_value, to_array
from ndld_flow.models.element_types import dtype_name
from ndld_flow.models.external_data import placement_of, stored_as
from ndld_flow.models.lazy_tensors import (
    UNPACKED_BYTES,
    GeneratedTensor,
    SparseInitializer,
    dense_array,
    element_bytes,
    element_pieces,
)
from ndld_flow.models.nodes import constant_of, put_constant, scopes_of
from ndld_flow.models.tensor_statistics import tensor_bytes

FIRST_WITH_SPARSE_INITIALIZERS = 6
"""The first IR version with sparse initializers."""
_Places = npt.NDArray[np.int64]
_Array = npt.NDArray[Any]
_MOST_FILLED_BYTES = 64 * 2**20
_STAYS_ON_DISK_BYTES = 64 * 2**20
"""A larger array is not read: its bytes are copied into the data file."""


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
        """Return the Constant node; None for an initializer."""
        return self.value.producer()

    @property
    def stored(self) -> str:
        """Return `inline`, `external` or `sparse`."""
        return stored_as(self.tensor)

    @property
    def is_written_inline(self) -> bool:
        """Return whether it will be written inside the model file."""
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


def find_tensors(
    model: ir.Model, select: TensorSelect, allow_empty: bool = False, constants: bool | None = None
) -> list[ConstantTensor]:
    """Return the selected tensors in the model's order; `constants` overrides whether Constant nodes are included.

    Raises `RequestError` if no tensor is selected, unless that is allowed.
    """
    every = list(constant_tensors(model, select.constants if constants is None else constants))
    dtypes = {parse_dtype(word) for word in select.dtype}
    selected = [constant for constant in every if _meets(constant, select, dtypes)]
    if select.read_by is not None:
        readers = set(find_nodes(model, select.read_by, allow_empty))
        selected = [constant for constant in selected if any(use.node in readers for use in constant.value.uses())]
    if select.exclude is not None:
        excluded = {constant.value for constant in find_tensors(model, select.exclude, True, constants=True)}
        selected = [constant for constant in selected if constant.value not in excluded]
    if not selected and not allow_empty:
        raise RequestError(_unmatched_criterion(model, every, select))
    return selected


def dense_initializers(model: ir.Model, select: TensorSelect | None, allow_empty: bool) -> list[ConstantTensor]:
    """Return the selected initializers that a data file can contain: all but sparse ones and strings."""
    if select is None:
        initializers = list(constant_tensors(model, constants=False))
    else:
        initializers = find_tensors(model, select, allow_empty, constants=False)
    return [
        held
        for held in initializers
        if not isinstance(held.tensor, SparseInitializer) and held.tensor.dtype != ir.DataType.STRING
    ]


def _fits(patterns: tuple[str, ...], text: str) -> bool:
    return any(name_matcher(pattern)(text) for pattern in patterns)


def _meets(constant: ConstantTensor, select: TensorSelect, dtypes: set[ir.DataType]) -> bool:
    """Return whether a tensor meets the criteria that need no search of the model; `dtypes` are those of `select`."""
    tensor = constant.tensor
    shape = tuple(int(dim) for dim in tensor.shape.numpy())
    sizes = shape if select.shape is None else select.shape
    return (
        (not select.name or _fits(select.name, constant.name))
        and (select.scope is None or _fits(select.scope, constant.scope))
        and (not dtypes or tensor.dtype in dtypes)
        and select.stored in (None, constant.stored)
        and (select.rank is None or len(shape) == select.rank)
        and len(shape) == len(sizes)
        and all(size in (None, dim) for dim, size in zip(shape, sizes, strict=True))
        and (select.larger_than is None or tensor_bytes(tensor) > select.larger_than)
        and (select.smaller_than is None or tensor_bytes(tensor) < select.smaller_than)
    )


def _unmatched_criterion(model: ir.Model, every: list[ConstantTensor], select: TensorSelect) -> str:
    """Return the criterion that matches nothing, with the nearest name."""
    if not every:
        nodes = sum(1 for _ in constant_tensors(model))
        hint = f"; {nodes} Constant nodes contain its weights: select them with `constants: true`" if nodes else ""
        return f"the model has no initializer{hint}"
    kind = "initializer or Constant" if select.constants else "initializer"
    names = [constant.name for constant in every]
    for pattern in select.name:
        if not any(map(name_matcher(pattern), names)):
            return f"no {kind} has a name like {pattern!r}; {suggest(pattern, names)}"
    dtypes = sorted({dtype_name(constant.tensor.dtype) for constant in every})
    for word in select.dtype:
        if dtype_name(parse_dtype(word)) not in dtypes:
            return f"no {kind} is of the type {word}; there are: {', '.join(dtypes)}"
    return f"no {kind} meets all criteria of `select`; `ndld-flow inspect MODEL --initializers` lists them"


def can_be_sparse(held: ConstantTensor) -> bool:
    """Return whether a sparse form exists: dense, no scalar, of whole bytes, and no input or output of the graph."""
    outside = held.value.is_graph_input() or held.value.is_graph_output()
    dtype = held.tensor.dtype
    plain = dtype != ir.DataType.STRING and dtype.bitwidth >= 8 and not dtype.name.startswith("COMPLEX")
    return plain and len(held.tensor.shape) > 0 and held.node is None and not outside and held.stored != "sparse"


def zeros_share(tensor: ir.TensorProtocol) -> float:
    """Return the fraction of zeros; 0 for an empty tensor."""
    zeros = sum(int(piece.size - np.count_nonzero(piece)) for piece in element_pieces(tensor, UNPACKED_BYTES))
    return zeros / tensor.size if tensor.size else 0.0


def to_sparse(tensor: ir.TensorProtocol, name: str) -> SparseInitializer:
    """Return the sparse form of a tensor: its nonzero values and their flat positions."""
    data, positions, start = [], [], 0
    for piece in element_pieces(tensor, UNPACKED_BYTES):
        nonzero = np.flatnonzero(piece)
        data.append(element_bytes(piece[nonzero], tensor.dtype))
        positions.append(nonzero + start)
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
    positions = indices.numpy()
    count = values.size
    if not np.issubdtype(positions.dtype, np.integer) or positions.shape not in ((count,), (count, len(shape))):
        raise RequestError(
            f"`indices` has the shape {list(positions.shape)}; {count} values need {count} numbers, or {count} rows of "
            f"{len(shape)} coordinates"
        )
    if positions.ndim == 2:
        try:
            positions = np.asarray(np.ravel_multi_index(tuple(positions.astype(np.int64).T), tuple(shape)))
        except ValueError as error:
            raise RequestError(f"`indices` are outside the shape {list(shape)}: {error}") from None
    if count and (positions.min() < 0 or positions.max() >= math.prod(shape) or np.any(np.diff(positions) <= 0)):
        raise RequestError(
            f"`indices` must be ascending, unique, and within the {math.prod(shape)} elements of the shape"
        )
    proto = ir.serde.serialize_tensor(values)
    proto.name = name
    proto.dims[:] = [count]
    return _sparse(proto, positions.astype(np.int64), shape)


def to_dense(tensor: SparseInitializer, name: str) -> ir.TensorProtocol:
    """Return the dense form of a tensor. Raises `RequestError` for one over 2 GiB."""
    try:
        array = dense_array(tensor.proto)
    except ModelError as error:
        raise RequestError(str(error)) from None
    return ir.Tensor(array, dtype=tensor.dtype, name=name)


def _sparse(values: onnx.TensorProto, indices: _Places, shape: Sequence[int]) -> SparseInitializer:
    positions = numpy_helper.from_array(indices.astype(np.int64), f"{values.name}_indices")
    return SparseInitializer(onnx.SparseTensorProto(values=values, indices=positions, dims=shape))


def make_tensor(
    value: TensorValue, name: str, dtype: ir.DataType | None = None, shape: Sequence[int] | None = None
) -> ir.TensorProtocol:
    """Return the tensor that settings describe; `dtype` and `shape` apply where the settings give none.

    Raises `RequestError` for numbers that do not fit the type or the shape.
    """
    dtype = dtype if value.dtype is None else parse_dtype(value.dtype)
    shape = shape if value.shape is None else value.shape
    if value.file is not None:
        return shaped(read_npy(value.file, dtype, name), shape)
    given = value.value
    parsed: Any = parse_value(given) if isinstance(given, str) and dtype != ir.DataType.STRING else given
    dtype = dtype or _default_dtype(parsed)
    array = to_array(parsed, dtype)
    if dtype == ir.DataType.STRING:
        return shaped(string_tensor(array, name), shape)
    return shaped(ir.Tensor(array, dtype=dtype, name=name), shape)


def shaped(tensor: ir.TensorProtocol, shape: Sequence[int] | None) -> ir.TensorProtocol:
    """Return the tensor with a shape, which a single element fills. Raises `RequestError` for another shape."""
    own = tuple(int(dim) for dim in tensor.shape.numpy())
    if shape is None or own == tuple(shape):
        return tensor
    if own != ():
        raise RequestError(f"the numbers have the shape {list(own)}, not {list(shape)}")
    if math.prod(shape) * tensor_bytes(tensor) > _MOST_FILLED_BYTES:
        raise RequestError(
            f"a tensor of shape {list(shape)} filled with one number is too large; use `generate`, or a .npy file"
        )
    filled = np.full(tuple(shape), tensor.numpy())
    if tensor.dtype == ir.DataType.STRING:
        return string_tensor(filled, tensor.name)
    return ir.Tensor(filled, dtype=tensor.dtype, name=tensor.name)


def _default_dtype(value: Value) -> ir.DataType:
    """Return the type of numbers for which none is given."""
    kinds: set[type] = set()
    waiting = [value]
    while waiting:
        element = waiting.pop()
        if isinstance(element, list):
            waiting += element
        else:
            kinds.add(type(element))
    if kinds == {int}:
        return ir.DataType.INT64
    if kinds == {bool}:
        return ir.DataType.BOOL
    return ir.DataType.STRING if kinds == {str} else ir.DataType.FLOAT


def read_npy(path: Path, dtype: ir.DataType | None, name: str) -> ir.TensorProtocol:
    """Return the tensor in a `.npy` file; a large one stays on disk.

    Raises `RequestError` for a file that is missing, damaged or of another type than `dtype`, and for pickled objects,
    whose loading would run code.
    """
    array = _native_array(_mapped(path), dtype)
    own = _dtype_of(array, path)
    if dtype is not None and own != dtype:
        raise RequestError(
            f"{path} contains {dtype_name(own)}, but the tensor is {dtype_name(dtype)}; save the file in that type"
        )
    if own == ir.DataType.STRING:
        return string_tensor(array, name)
    # numpy stores 4-bit types in a byte each, ONNX packs two: their bytes cannot be copied
    can_be_copied = array.nbytes > _STAYS_ON_DISK_BYTES and array.flags.c_contiguous and own.bitwidth >= 8
    if isinstance(array, np.memmap) and can_be_copied:
        real = path.resolve()
        shape = ir.Shape(array.shape)
        return ir.ExternalTensor(
            real.name, array.offset, array.nbytes, own, shape=shape, name=name, base_dir=real.parent
        )
    return ir.Tensor(np.array(array, order="C"), dtype=own, name=name)


def string_tensor(texts: _Array, name: str | None) -> ir.StringTensor:
    """Return a tensor of strings, of any shape."""
    encode = np.vectorize(lambda text: text if isinstance(text, bytes) else text.encode(), otypes=[object])
    encoded = encode(texts) if texts.size else texts.astype(object)
    return ir.StringTensor(encoded, shape=ir.Shape(texts.shape), name=name)


def _mapped(path: Path) -> _Array:
    """Return the memory-mapped array, so that a false size in the header takes no memory."""
    if path.exists() and not path.is_file():
        raise RequestError(f"{path} is not a file")
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise RequestError(f"there is no file {path} (relative to {Path.cwd()})") from None
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, EOFError, OverflowError, SyntaxError) as error:
        reason = one_paragraph(error)
        if "pickled" in reason:
            reason = "it has another header, or contains Python objects, which are not loaded"
        raise RequestError(f"{path} is not a .npy file of numbers: {reason}") from None
    if not isinstance(loaded, np.ndarray):
        loaded.close()
        raise RequestError(f"{path} is an archive of several arrays; give a .npy file, which contains one")
    return loaded


def _native_array(array: _Array, dtype: ir.DataType | None) -> _Array:
    """Return the array in native byte order, with the raw bytes that numpy writes for ml_dtypes as their type."""
    raw = array.dtype.kind == "V" and array.dtype.names is None
    if raw and dtype not in (None, ir.DataType.STRING) and array.dtype.itemsize == dtype.numpy().itemsize:
        return array.view(dtype.numpy())
    # `astype` alone returns a np.memmap that is not mapped
    return array if array.dtype.isnative else np.asarray(array.astype(array.dtype.newbyteorder("=")))


def _dtype_of(array: _Array, path: Path) -> ir.DataType:
    if array.dtype.kind in "US":
        return ir.DataType.STRING
    try:
        return ir.DataType.from_numpy(array.dtype)
    except TypeError:
        raise RequestError(f"{path} contains {array.dtype}, which no tensor can have; give its `dtype`") from None


def add_initializer(edited: EditedModel, tensor: ir.TensorProtocol, name: str, scope: str) -> ir.Value:
    """Add a constant to a graph; to a local function, which cannot have initializers, a Constant node.

    Raises `RequestError` for a name that is already used.
    """
    graph = edited.graph(scope)
    if name in edited.names():
        raise RequestError(f"the name {name!r} is already used; `set_initializer` sets the value of an initializer")
    edited.raise_ir_version(FIRST_WITH_FREE_INITIALIZERS)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()))
    if "::" in scope:
        put_constant(graph, value, tensor)
    else:
        value.const_value = tensor
        graph.register_initializer(value)
    return value


def connect_readers(edited: EditedModel, value: ir.Value, places: Sequence[str]) -> None:
    """Connect a value to inputs: `conv1.B` by the operator's name for the input, or `conv1.2` by index.

    Raises `RequestError` for an unknown node or input, and for a node that cannot read the value.
    """
    for place in places:
        name, dot, port = place.rpartition(".")
        if not dot:
            raise RequestError(
                f"connect: {place!r} is not an input; write `node.input`, such as `conv1.B` or `conv1.2`"
            )
        connect(edited, [edited.node(name)], int(port) if port.isdecimal() else port, value.name or "")


def initializer_tensor(
    operation: InitializerOperation, name: str, dtype: ir.DataType | None = None, shape: Sequence[int] | None = None
) -> ir.TensorProtocol:
    """Return the tensor that an operation describes; `dtype` and `shape` apply where it gives none.

    Raises `RequestError` for numbers that do not fit, and for generated numbers without a shape.
    """
    if operation.generate is None:
        return make_tensor(operation, name, dtype, shape)
    dtype = dtype if operation.dtype is None else parse_dtype(operation.dtype)
    shape = shape if operation.shape is None else operation.shape
    if shape is None:
        raise RequestError(f"`generate: {operation.generate}` needs a `shape`")
    return GeneratedTensor(operation.generate, dtype or ir.DataType.FLOAT, shape, name, operation.seed)


def find_initializer(edited: EditedModel, name: str, scope: str) -> ConstantTensor:
    """Return the initializer or Constant node of a name. Raises `RequestError` with the nearest name."""
    graph = edited.graph(scope)
    known = {held.name: held for held in constant_tensors(edited.model) if held.graph is graph}
    check_known([name], known, "there is no initializer", none="this graph has none")
    return known[name]


def replace_tensor(held: ConstantTensor, tensor: ir.TensorProtocol) -> None:
    """Replace the tensor of a constant; one in a data file stays in a data file."""
    if isinstance(tensor, GeneratedTensor):
        tensor.belongs_outside |= held.stored == "external"
    held.hold(tensor)


def select_held(model: ir.Model, select: TensorSelect, allow_empty: bool, nodes: bool = False) -> list[ConstantTensor]:
    """Return the selected initializers; with `nodes`, the selected Constant nodes, with or without `constants`.

    Raises `RequestError` if there are none, unless that is allowed.
    """
    selected = find_tensors(model, select, allow_empty, constants=nodes or None)
    selected = [constant for constant in selected if (constant.node is not None) == nodes]
    if not selected and not allow_empty:
        raise RequestError(f"no {'Constant node' if nodes else 'initializer'} is selected")
    return selected
