"""External data: checks of the files that a model refers to, and writing of weights without reading them."""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import onnx
import onnx_ir as ir

from ndld_flow.base.errors import MissingDataError, ModelError, OutputsError
from ndld_flow.base.text import short_name
from ndld_flow.models.element_types import functions_by_graph, held_tensor
from ndld_flow.models.external_files import DataFile, external_file
from ndld_flow.models.lazy_tensors import SparseInitializer, StreamedTensor, byte_pieces, on_disk, refuse_external
from ndld_flow.store.files import copy_file

INLINE_LIMIT_BYTES = 3 * 2**29
"""A protobuf message must stay under 2 GiB; 1.5 GiB leaves room for nodes and shapes."""
_SMALL_TENSOR_BYTES = 1024
"""Shapes and axes stay inline: shape inference needs them."""
ALIGNMENT = 4096
"""Offsets are multiples of a page, as mapping and block sharing require."""
_PLACEMENT = "ndld_flow.placement"
_LOCATION = "ndld_flow.location"
_WORTH_CLONING = 0.9
"""Copy a whole data file if at least this share of it is still in use."""
_PIECE_BYTES = 2**24


def tensors_of(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Yield every tensor of a model: initializers and attribute values, also of subgraphs and functions."""
    for graph in model.graphs():
        yield from (v.const_value for v in graph.initializers.values() if v.const_value is not None)
    for graph in (*model.graphs(), *functions_by_graph(model)):
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    yield held_tensor(attribute)
                elif attribute.type == ir.AttributeType.TENSORS:
                    yield from attribute.value


@contextlib.contextmanager
def replaced_initializers(
    model: ir.Model, replace: Callable[[ir.Value, ir.TensorProtocol], ir.TensorProtocol]
) -> Iterator[None]:
    """Replace the tensors of a model's initializers in the context."""
    values = [value for graph in model.graphs() for value in graph.initializers.values()]
    kept = [(value, value.const_value) for value in values if value.const_value is not None]
    try:
        for value, tensor in kept:
            value.const_value = replace(value, tensor)
        yield
    finally:
        for value, tensor in kept:
            value.const_value = tensor


def place_tensors(model: ir.Model, path: Path) -> None:
    """Set the folder of each external tensor, and check that all tensors may be read and are complete.

    Raises `ModelError` as `_check_tensor` does, for a location outside the model's folder and for a link, and
    `MissingDataError` for removed data, a missing file or one that is too short.
    """
    _replace_tensors(model, _Placing(path).place)


def place_existing_tensors(model: ir.Model, path: Path) -> None:
    """Do the same as `place_tensors`, but replace a tensor without data by a `MissingTensor`."""
    _replace_tensors(model, _Placing(path).place_or_replace)


def _replace_tensors(model: ir.Model, place: Callable[[ir.TensorProtocol], ir.TensorProtocol]) -> None:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = place(value.const_value)
    for node in (node for graph in (*model.graphs(), *functions_by_graph(model)) for node in graph):
        for name, attribute in tuple(node.attributes.items()):
            if attribute.is_ref() or attribute.type not in (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS):
                continue
            is_one = attribute.type == ir.AttributeType.TENSOR
            held = [attribute.value] if is_one else list(attribute.value)
            placed = [place(tensor) for tensor in held]
            if any(old is not new for old, new in zip(held, placed, strict=True)):
                contents = placed[0] if is_one else placed
                node.attributes[name] = ir.Attr(name, attribute.type, contents, doc_string=attribute.doc_string)


class _Placing:
    """Checks the tensors of the model at a path, and sets the files of external ones; each file is checked once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, DataFile] = {}

    def place(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """Return the tensor, or another one that reads its data from a cache. Raises as `place_tensors` does."""
        _check_tensor(self._path, tensor)
        if not isinstance(tensor, ir.ExternalTensor):
            return tensor
        location = str(tensor.location)
        if location not in self._files:
            self._files[location] = external_file(self._path, location)
        file = self._files[location]
        _check_extent(self._path, tensor, file.size_bytes)
        if file.in_cache:  # onnx_ir refuses to read through a link
            placed = _external(tensor, file.path, tensor.offset, tensor.length, tensor.name)
            placed.meta[_LOCATION] = location
            return placed
        tensor.base_dir = self._path.parent.resolve()
        return tensor

    def place_or_replace(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """Do the same, but return a `MissingTensor` for a dense tensor without data."""
        try:
            return self.place(tensor)
        except MissingDataError as error:
            if isinstance(tensor, SparseInitializer):
                raise
            return MissingTensor(tensor, error)


def _external(
    tensor: ir.TensorProtocol, file: Path, offset: int | None, length: int | None, name: str | None
) -> ir.ExternalTensor:
    """Return a tensor with its data in a file."""
    shape, doc = ir.Shape(tensor.shape.numpy()), tensor.doc_string
    return ir.ExternalTensor(
        file.name, offset, length, tensor.dtype, shape=shape, name=name or "", doc_string=doc, base_dir=file.parent
    )


def location_of(tensor: ir.ExternalTensor) -> str:
    """Return the name of a tensor's data file in the model."""
    return str(tensor.meta.get(_LOCATION, tensor.location))


class MissingTensor(ir.ExternalTensor):
    """A tensor without data: type and shape are known. Reading it raises the `MissingDataError` with the reason."""

    def __init__(self, tensor: ir.TensorProtocol, error: MissingDataError) -> None:
        self._error = error
        self.is_external = isinstance(tensor, ir.ExternalTensor)
        """True if the data should be in a data file, `location`."""
        super().__init__(
            tensor.location if isinstance(tensor, ir.ExternalTensor) else "",
            tensor.offset if isinstance(tensor, ir.ExternalTensor) else None,
            None,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or "",
            doc_string=tensor.doc_string,
        )

    @property
    def reason(self) -> str:
        """Return the reason in a few words, such as `model.data is missing`."""
        return self._error.reason

    @property
    def path(self) -> str:
        """Raise `MissingDataError`: whatever reads the tensor asks for its file first."""
        raise self._error


def stored_as(tensor: ir.TensorProtocol) -> Literal["inline", "external", "sparse"]:
    """Return where a tensor's data are: in the model, in a data file, or in the model as its nonzero values."""
    if isinstance(tensor, SparseInitializer):
        return "sparse"
    outside = tensor.is_external if isinstance(tensor, MissingTensor) else on_disk(tensor)
    return "external" if outside else "inline"


_COPIED_BYTES = 2**16
"""Access to raw data copies them: the length of more than this is derived from the size of the whole message."""
_FIELDS = {
    ir.DataType.FLOAT: "float_data",
    ir.DataType.COMPLEX64: "float_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.COMPLEX128: "double_data",
    ir.DataType.INT64: "int64_data",
    ir.DataType.UINT32: "uint64_data",
    ir.DataType.UINT64: "uint64_data",
    ir.DataType.STRING: "string_data",
}
"""Field of elements that are not raw data; other types use `int32_data`."""
_ADVICE = "The model is damaged: export or download it again."
_REMOVED = "its data were removed"


def _check_tensor(path: Path, tensor: ir.TensorProtocol) -> None:
    """Raise `ModelError` for a tensor without a type, with a negative dimension, or of another size than declared.

    Raises `MissingDataError` for one without any data.
    """
    where = f"{path}: tensor {short_name(tensor.name or '')!r}"
    _element_count(where, tensor.dtype, tuple(tensor.shape.numpy()))
    if isinstance(tensor, SparseInitializer):
        refuse_external(tensor.proto)
        for proto in (tensor.proto.values, tensor.proto.indices):
            _check_proto(where, proto)
    elif isinstance(tensor, ir.serde.TensorProtoTensor):
        _check_proto(where, tensor.raw)
    elif isinstance(tensor, ir.StringTensor) and len(tensor.raw) != tensor.size:
        raise ModelError(f"{where} has {len(tensor.raw)} strings, but its shape requires {tensor.size}. {_ADVICE}")


def _element_count(where: str, dtype: ir.DataType, dims: tuple[int, ...]) -> int:
    if dtype == ir.DataType.UNDEFINED:
        raise ModelError(f"{where} has no element type. {_ADVICE}")
    if any(dim < 0 for dim in dims):
        raise ModelError(f"{where} has a negative dimension. {_ADVICE}")
    return math.prod(dims)


def _check_proto(where: str, proto: onnx.TensorProto) -> None:
    dtype = ir.DataType(proto.data_type)
    count = _element_count(where, dtype, tuple(proto.dims))
    if proto.HasField("raw_data"):
        expected, unit = -(-count * dtype.bitwidth // 8), "bytes"
        held = _raw_length(proto, expected)
    else:
        each = 8 // dtype.bitwidth if dtype.bitwidth in (2, 4) else 1
        expected, unit = -(-count // each) * (2 if dtype.name.startswith("COMPLEX") else 1), "numbers"
        held = len(getattr(proto, _FIELDS.get(dtype, "int32_data")))
    if held == 0 != expected:
        error = MissingDataError(
            f"{where}: {_REMOVED}. Use the model that still has its weights: only `inspect`, `draw` and "
            "`diff` need none."
        )
        error.reason = _REMOVED
        raise error
    if held != expected:
        raise ModelError(f"{where} has {held} {unit}, but its type and shape require {expected}. {_ADVICE}")


def _raw_length(proto: onnx.TensorProto, expected: int) -> int:
    """Return the bytes of the raw data; if they are many, the excess may only be estimated."""
    whole = proto.ByteSize()
    if expected <= whole <= expected + _COPIED_BYTES and expected > _COPIED_BYTES:
        return expected
    return whole if whole > 2 * _COPIED_BYTES else len(proto.raw_data)


def _check_extent(path: Path, tensor: ir.ExternalTensor, size: int) -> None:
    where = (
        f"{path}: initializer {short_name(tensor.name or '')!r} in external data {short_name(str(tensor.location))!r}"
    )
    offset = tensor.offset or 0
    length = tensor.nbytes if tensor.length is None else tensor.length
    if offset < 0 or length not in (0, tensor.nbytes):
        raise ModelError(
            f"{where} declares {length} bytes at offset {offset}, but its type and shape require "
            f"{tensor.nbytes}. The model is damaged: export or download it again."
        )
    end = offset + tensor.nbytes
    if end > size or length != tensor.nbytes:
        held = f"the file has only {size}" if end > size else f"the model declares {length} bytes"
        error = MissingDataError(
            f"{where} needs bytes {offset} to {end}, but {held}. It is truncated: copy or download it again."
        )
        error.reason = f"{short_name(str(tensor.location))} is too short"
        raise error


@dataclass(frozen=True)
class Placement:
    """The requested location of an initializer; without one, it stays inline or external as it was."""

    file: str | None
    """Name of a data file in the model's folder, empty for the default one; None for the model file itself."""
    alignment: int = ALIGNMENT
    """The offset is a multiple of this many bytes."""


def place(value: ir.Value, placement: Placement) -> None:
    """Set where an initializer is written when its model is saved."""
    value.meta[_PLACEMENT] = placement


def placement_of(value: ir.Value) -> Placement | None:
    """Return where an initializer is to be written, or None if that was not set."""
    placement: Placement | None = value.meta.get(_PLACEMENT)
    return placement


@dataclass
class _Slot:
    """A tensor and its holder: a value, or an attribute of a node."""

    holder: ir.Value | ir.Attr
    tensor: ir.TensorProtocol
    placement: Placement | None
    node: ir.Node | None = None

    def put(self, tensor: ir.TensorProtocol) -> None:
        if isinstance(self.holder, ir.Value):
            self.holder.const_value = tensor
        elif self.node is not None:
            name, doc = self.holder.name, self.holder.doc_string
            self.node.attributes[name] = ir.AttrTensor(name, tensor, doc_string=doc)

    @property
    def file(self) -> str | None:
        """Name of the data file, empty for the default one; None for the model file."""
        return "" if self.placement is None else self.placement.file

    @property
    def is_aligned(self) -> bool:
        """True if its offset in the source file has the requested alignment."""
        offset = self.tensor.offset or 0 if isinstance(self.tensor, ir.ExternalTensor) else 0
        return self.placement is None or offset % self.placement.alignment == 0


@contextlib.contextmanager
def externalized(model: ir.Model, data_path: Path) -> Iterator[None]:
    """Write weights to `data_path`, or to files next to it, where needed; in the context, the tensors point there.

    Nothing is written for a small model without external data, unless its weights were placed. Tensors already on disk
    are copied by the kernel, sharing blocks with the old file if the file system supports it. The model is restored
    afterwards.
    """
    slots = _slots_to_move(model)
    targets = {slot.file: data_path.with_name(slot.file or data_path.name) for slot in slots if slot.file is not None}
    try:
        for file, target in targets.items():
            slots_of_file = [slot for slot in slots if slot.file == file]
            for slot, offset in zip(slots_of_file, _write_file(slots_of_file, target), strict=True):
                slot.put(_external(slot.tensor, target, offset, slot.tensor.nbytes, slot.holder.name))
        for slot in slots:
            if slot.file is None:
                slot.put(_in_memory(slot.tensor))
        yield
    finally:
        for slot in slots:
            slot.put(slot.tensor)


def _slots_to_move(model: ir.Model) -> list[_Slot]:
    """Return tensors on disk, placed tensors, and all large ones of a model too big for one message."""
    slots = [slot for slot in _initializer_slots(model) if slot.file is not None or on_disk(slot.tensor)]
    inside = [slot for slot in slots if slot.placement is None and not on_disk(slot.tensor)]
    if sum(slot.tensor.nbytes for slot in inside) > INLINE_LIMIT_BYTES:
        inside = [slot for slot in inside if slot.tensor.nbytes <= _SMALL_TENSOR_BYTES]
    stay = {id(slot) for slot in inside}
    return [*(slot for slot in slots if id(slot) not in stay), *_attribute_slots(model)]


def _initializer_slots(model: ir.Model) -> Iterator[_Slot]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or isinstance(tensor, SparseInitializer) or tensor.dtype == ir.DataType.STRING:
                continue
            yield _Slot(value, tensor, placement_of(value))


def _attribute_slots(model: ir.Model) -> Iterator[_Slot]:
    """Yield Constants whose data are on disk."""
    for graph in (*model.graphs(), *functions_by_graph(model)):
        for node in graph:
            for attribute in tuple(node.attributes.values()):
                if isinstance(attribute.value, ir.ExternalTensor):
                    yield _Slot(attribute, attribute.value, None, node)


def _in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a copy of a tensor in memory."""
    data = np.frombuffer(b"".join(byte_pieces(tensor, _PIECE_BYTES)), dtype=np.uint8)
    shape = tensor.shape.numpy()
    if tensor.dtype.bitwidth < 8:
        return ir.PackedTensor(data, tensor.dtype, shape=shape, name=tensor.name, doc_string=tensor.doc_string)
    elements = data.view(np.dtype(tensor.dtype.numpy()).newbyteorder("<")).reshape(shape)
    return ir.Tensor(elements, dtype=tensor.dtype, name=tensor.name, doc_string=tensor.doc_string)


def _write_file(slots: Sequence[_Slot], target: Path) -> list[int]:
    """Write a data file; return the slots' offsets in it."""
    temporary = target.with_name(f".{target.name}.part")
    try:
        offsets = _write(slots, temporary)
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputsError(
            f"{target}: cannot be written ({error.strerror or error}). "
            "Free some space or choose another outputs folder."
        ) from None
    return offsets


def _write(slots: Sequence[_Slot], temporary: Path) -> list[int]:
    """Write the slots' bytes to `temporary`; return their offsets."""
    cloned = _file_worth_cloning(slots)
    if cloned is not None:
        copy_file(cloned, temporary)
    written: dict[_FileRange, int] = {}
    with temporary.open("r+b" if cloned is not None else "wb") as file:
        offsets = []
        for slot in slots:
            place = _range_of(slot.tensor)
            if place is not None and Path(place.path) == cloned:
                offsets.append(place.offset)
                continue
            if place is None or place not in written:
                offset = _write_tensor(slot, file)
                if place is not None:
                    written[place] = offset
            offsets.append(offset if place is None else written[place])
        return offsets


@dataclass(frozen=True)
class _FileRange:
    """A tensor's range of bytes in a file."""

    path: str
    offset: int
    length: int


def _range_of(tensor: ir.TensorProtocol) -> _FileRange | None:
    if not isinstance(tensor, ir.ExternalTensor):
        return None
    return _FileRange(tensor.path, tensor.offset or 0, tensor.nbytes)


def _write_tensor(slot: _Slot, file: BinaryIO) -> int:
    """Append a tensor; return its offset."""
    alignment = ALIGNMENT if slot.placement is None else slot.placement.alignment
    offset = -(-file.seek(0, os.SEEK_END) // alignment) * alignment
    file.seek(offset)
    if isinstance(slot.tensor, ir.ExternalTensor | StreamedTensor):
        slot.tensor.tofile(file)
    else:
        file.write(slot.tensor.tobytes())
    return offset


def _file_worth_cloning(slots: Sequence[_Slot]) -> Path | None:
    """Return the data file of most tensors if copying it as a whole wastes little."""
    used: Counter[str] = Counter()
    for place in dict.fromkeys(place for slot in slots if (place := _range_of(slot.tensor)) is not None):
        used[place.path] += place.length
    if not used or not all(slot.is_aligned for slot in slots):
        return None
    path, count = used.most_common(1)[0]
    return Path(path) if count >= _WORTH_CLONING * Path(path).stat().st_size else None
