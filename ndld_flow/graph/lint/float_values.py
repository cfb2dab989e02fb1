"""Values of initializers and Constants, read in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ndld_flow.graph.lint.check import Subject
from ndld_flow.models.derived_tensors import byte_pieces
from ndld_flow.models.external_data import tensors_of
from ndld_flow.models.sparse_tensors import SparseInitializer

_PIECE_BYTES = 2**24
_FLOATS: dict[ir.DataType, str] = {
    ir.DataType.FLOAT: "<f4",
    ir.DataType.DOUBLE: "<f8",
    ir.DataType.FLOAT16: "<f2",
}


def float_tensors(subject: Subject) -> Iterator[tuple[str, ir.TensorProtocol]]:
    """Yield every dense float initializer and Constant of a model that can be loaded, with a label for messages.

    Attributes of other nodes are theirs: NaN separates the sets of a TreeEnsemble.
    """
    assert subject.model is not None
    attributes = {id(tensor) for node in subject.model.graph.all_nodes() for tensor in _attributes_of(node)}
    for tensor in tensors_of(subject.model):
        if tensor.dtype in _FLOATS and not isinstance(tensor, SparseInitializer) and id(tensor) not in attributes:
            yield f"initializer {tensor.name!r}" if tensor.name else "a Constant", tensor


def _attributes_of(node: ir.Node) -> Iterator[ir.TensorProtocol]:
    """Yield the tensors of a node other than Constant."""
    if node.op_type != "Constant":
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                yield attribute.as_tensor()


def pieces_of(tensor: ir.TensorProtocol) -> Iterator[npt.NDArray[Any]]:
    """Yield the values of a float tensor, flat and in order."""
    for piece in byte_pieces(tensor, _PIECE_BYTES):
        yield np.frombuffer(piece, dtype=_FLOATS[tensor.dtype])
