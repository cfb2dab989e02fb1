"""External data: refusing files a model must not name, and writing weights beside a model without reading them."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import onnx_ir as ir

from ndld_flow.backends.models.derived_tensors import DerivedTensor
from ndld_flow.backends.models.sparse_tensors import SparseInitializer
from ndld_flow.errors import ModelError, OutputsError

INLINE_LIMIT_BYTES = 3 * 2**29
"""A protobuf message must stay under 2 GiB; 1.5 GiB leaves room for nodes and shapes."""
_SMALL_TENSOR_BYTES = 1024
"""Shapes and axes stay inline: shape inference wants to see them."""
_ALIGNMENT = 4096
_WORTH_CLONING = 0.9
"""Copy a whole data file when at least this much of it is still in use."""
_FICLONE = 0x40049409
_PIECE_BYTES = 2**24


def tensors_of(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Every tensor of a model: initializers and attribute values, in subgraphs and functions too."""
    for graph in model.graphs():
        yield from (v.const_value for v in graph.initializers.values() if v.const_value is not None)
    for graph in (*model.graphs(), *_function_graphs(model)):
        for node in graph:
            yield from _attribute_tensors(node)


def _function_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    for function in model.functions.values():
        yield function.graph
        yield from function.subgraphs()


def _attribute_tensors(node: ir.Node) -> Iterator[ir.TensorProtocol]:
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            yield attribute.as_tensor()
        elif attribute.type == ir.AttributeType.TENSORS:
            yield from attribute.as_tensors()


def place_external(model: ir.Model, path: Path) -> None:
    """Tell each external tensor where its model lies, and check that it may be read and is complete.

    Raises `ModelError` for a location outside the model's folder, a link, a missing file or one that is too short.
    """
    sizes: dict[str, int] = {}
    folder = path.parent.resolve()
    for tensor in tensors_of(model):
        if isinstance(tensor, ir.ExternalTensor):
            location = str(tensor.location)
            if location not in sizes:
                sizes[location] = _checked_size(path, folder, location)
            _check_extent(path, tensor, sizes[location])
            tensor.base_dir = folder


def _checked_size(path: Path, folder: Path, location: str) -> int:
    """Size in bytes of a data file that may be read."""
    where = f"{path}: external data {location!r}"
    target = folder / location
    if not location or Path(location).is_absolute() or ".." in Path(location).parts:
        raise ModelError(
            f"{where} lies outside the model's folder, which is refused. "
            "Put the data file beside the model and save the model with a plain file name."
        )
    try:
        real = target.resolve(strict=True)
        status = real.stat()
    except (OSError, RuntimeError):
        raise ModelError(f"{where} is missing. Copy the data file into {folder} together with the model.") from None
    if not real.is_relative_to(folder):
        raise ModelError(f"{where} is a link out of the model's folder, which is refused. Copy the file there.")
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{where} is not a regular file.")
    if status.st_nlink > 1:
        raise ModelError(f"{where} has several hard links, which onnx refuses as unsafe. Copy the file instead.")
    return status.st_size


def _check_extent(path: Path, tensor: ir.ExternalTensor, size: int) -> None:
    where = f"{path}: initializer {tensor.name!r} in external data {str(tensor.location)!r}"
    offset = tensor.offset or 0
    length = tensor.nbytes if tensor.length is None else tensor.length
    if offset < 0 or length != tensor.nbytes:
        raise ModelError(
            f"{where} says {length} bytes at offset {offset}, but its type and shape need "
            f"{tensor.nbytes}. The model is damaged: export or download it again."
        )
    if offset + length > size:
        raise ModelError(
            f"{where} needs bytes {offset} to {offset + length}, but the file has only {size}. "
            "It is truncated: copy or download it again."
        )


def pieces_of(tensor: ir.TensorProtocol, size: int) -> Iterator[bytes]:
    """The tensor's bytes in pieces. A mapped file would count as memory of this process; reading it does not."""
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


@dataclass
class _Slot:
    """A tensor and the values it is the constant of."""

    value: ir.Value
    tensor: ir.TensorProtocol


@contextlib.contextmanager
def moved_out(model: ir.Model, data_path: Path) -> Iterator[None]:
    """Write weights to `data_path` where that is called for; inside, the initializers point there.

    Nothing is written for a model that is small and came without external data. Tensors already on disk are
    copied by the kernel, and shared with the old file where the file system can. The model is as before afterwards.
    """
    slots = _slots_to_move(model)
    if not slots:
        yield
        return
    aside = data_path.with_name(f".{data_path.name}.part")
    try:
        offsets = _write(slots, aside)
        aside.chmod(0o644)
        aside.replace(data_path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OutputsError(
            f"{data_path}: cannot be written ({error.strerror or error}). "
            "Free some space or choose another outputs folder."
        ) from None
    try:
        for slot, offset in zip(slots, offsets, strict=True):
            slot.value.const_value = _pointer(slot, data_path, offset)
        yield
    finally:
        for slot in slots:
            slot.value.const_value = slot.tensor


def _slots_to_move(model: ir.Model) -> list[_Slot]:
    """Which initializers go to the data file: those on disk, and all large ones of a model too big for one message."""
    slots = [
        _Slot(value, value.const_value)
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
        and not isinstance(value.const_value, SparseInitializer)
        and value.const_value.dtype != ir.DataType.STRING
    ]
    inline = sum(s.tensor.nbytes for s in slots if not _external(s))
    if inline > INLINE_LIMIT_BYTES:
        return [s for s in slots if _external(s) or s.tensor.nbytes > _SMALL_TENSOR_BYTES]
    return [s for s in slots if _external(s)]


def _external(slot: _Slot) -> bool:
    """Whether a tensor lies on disk, or is computed from one that does."""
    tensor = slot.tensor
    return isinstance(tensor, ir.ExternalTensor) or (isinstance(tensor, DerivedTensor) and tensor.on_disk)


def _pointer(slot: _Slot, data_path: Path, offset: int) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        data_path.name,
        offset,
        slot.tensor.nbytes,
        slot.tensor.dtype,
        shape=ir.Shape(slot.tensor.shape.numpy()),
        name=slot.value.name or "",
        doc_string=slot.tensor.doc_string,
        base_dir=data_path.parent,
    )


def _write(slots: Sequence[_Slot], aside: Path) -> list[int]:
    """Write the slots' bytes to `aside`; return their offsets."""
    whole = _file_worth_cloning(slots)
    if whole is not None:
        _clone(whole, aside)
    with aside.open("r+b" if whole is not None else "wb") as file:
        offsets = []
        for slot in slots:
            tensor = slot.tensor
            if isinstance(tensor, ir.ExternalTensor) and Path(tensor.path) == whole:
                offsets.append(tensor.offset or 0)
                continue
            offset = -(-file.seek(0, os.SEEK_END) // _ALIGNMENT) * _ALIGNMENT
            file.seek(offset)
            _write_tensor(tensor, file)
            offsets.append(offset)
        return offsets


def _write_tensor(tensor: ir.TensorProtocol, file: BinaryIO) -> None:
    if isinstance(tensor, ir.ExternalTensor):
        tensor.tofile(file)
    else:
        file.write(tensor.tobytes())


def _file_worth_cloning(slots: Sequence[_Slot]) -> Path | None:
    """The data file most tensors lie in, when copying it whole wastes little."""
    used: Counter[str] = Counter()
    seen: set[tuple[str, int | None]] = set()
    for slot in slots:
        tensor = slot.tensor
        if isinstance(tensor, ir.ExternalTensor) and (tensor.path, tensor.offset) not in seen:
            seen.add((tensor.path, tensor.offset))
            used[tensor.path] += tensor.nbytes
    if not used:
        return None
    path, count = used.most_common(1)[0]
    return Path(path) if count >= _WORTH_CLONING * Path(path).stat().st_size else None


def _clone(source: Path, target: Path) -> None:
    """Copy a file, sharing its blocks where the file system can."""
    with source.open("rb") as old, target.open("wb") as new:
        if not (_reflinked(old.fileno(), new.fileno()) or _copied_by_kernel(old.fileno(), new.fileno())):
            old.seek(0)
            new.truncate(0)
            shutil.copyfileobj(old, new, _PIECE_BYTES)


def _reflinked(old: int, new: int) -> bool:
    try:
        import fcntl  # not on Windows
    except ImportError:
        return False
    try:
        fcntl.ioctl(new, _FICLONE, old)
    except OSError:
        return False
    return True


def _copied_by_kernel(old: int, new: int) -> bool:
    """copy_file_range takes half the time of sendfile; only Linux has it."""
    copy_file_range = getattr(os, "copy_file_range", None)
    left = os.fstat(old).st_size
    try:
        while copy_file_range is not None and left > 0 and (count := copy_file_range(old, new, min(left, 2**30))):
            left -= count
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
    return left == 0
