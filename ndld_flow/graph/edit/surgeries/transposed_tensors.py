"""Transposed constants; one on disk is read when the model is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from ndld_flow.models.derived_tensors import StreamedTensor
from ndld_flow.models.generated_tensors import element_bytes


def transposed(tensor: ir.TensorProtocol, perm: Sequence[int]) -> ir.TensorProtocol:
    """Return the transposed tensor."""
    if isinstance(tensor, ir.ExternalTensor | StreamedTensor):
        return _TransposedTensor(tensor, perm)
    return ir.Tensor(np.ascontiguousarray(tensor.numpy().transpose(perm)), dtype=tensor.dtype)


class _TransposedTensor(StreamedTensor):
    """A transposed tensor that is read while it is written, one at a time."""

    def __init__(self, source: ir.ExternalTensor | StreamedTensor, perm: Sequence[int]) -> None:
        self.source = source
        self.perm = tuple(perm)
        shape = source.shape.numpy()
        super().__init__(source.dtype, [int(shape[axis]) for axis in perm], source.name or "")

    @property
    def on_disk(self) -> bool:
        return isinstance(self.source, ir.ExternalTensor) or self.source.on_disk

    def pieces(self) -> Iterator[bytes]:
        yield element_bytes(np.ascontiguousarray(self.source.numpy().transpose(self.perm)), self.dtype)
