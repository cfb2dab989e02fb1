"""What the tensors of a model's file hold, read for a page: within limits, each tensor once."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.base.quantities import size
from ndld_flow.base.text import shortened
from ndld_flow.drawing.model_document import HeldNumbers, HeldTensor
from ndld_flow.models.attribute_text import scalar_text
from ndld_flow.models.node_details import dims_text, dtype_text
from ndld_flow.models.tensor_statistics import (
    DEFAULT_LIMIT_BYTES,
    TensorStatistics,
    first_values,
    tensor_bytes,
    tensor_statistics,
)

_LIMIT_TOGETHER_BYTES = 512 * 2**20
_SHOWN, _SHOWN_OF_MANY = 64, 16
"""Elements of a tensor that are shown: a page of many thousand tensors must open quickly."""
_MANY = 1000
_LONGEST = 80
"""Letters of one that is text."""


class HeldReader:
    """Reads tensors and numbers them."""

    def __init__(self, values: bool) -> None:
        self.found: list[HeldTensor] = []
        self._values = values
        self._left = _LIMIT_TOGETHER_BYTES
        self._places: dict[int, int] = {}
        self._kept: list[ir.TensorProtocol] = []
        """Tensors are told apart by their ids: none of them may go."""

    def place(self, tensor: ir.TensorProtocol) -> int:
        """The position of a tensor in `found`. Raises `ModelError` where its data cannot be read."""
        if id(tensor) not in self._places:
            self._places[id(tensor)] = len(self.found)
            self._kept.append(tensor)
            try:
                self.found.append(self._read(tensor))
            except OSError as error:
                raise ModelError(f"tensor {tensor.name!r} cannot be read: {error}") from None
        return self._places[id(tensor)]

    def of_constant(self, value: ir.Value) -> ir.TensorProtocol | None:
        """What a Constant of numbers or texts holds, where it is not a tensor: `value_float`, `value_ints`."""
        node = value.producer()
        attributes = [] if node is None else [one for one in node.attributes.values() if not one.is_ref()]
        kinds = {
            "value_float": np.float32,
            "value_floats": np.float32,
            "value_int": np.int64,
            "value_ints": np.int64,
        }
        for attribute in attributes:
            if attribute.name in kinds:
                return ir.Tensor(np.array(attribute.value, dtype=kinds[attribute.name]))
            if attribute.name in ("value_string", "value_strings"):
                given = [attribute.value] if isinstance(attribute.value, str) else attribute.value
                texts = np.array([str(one).encode() for one in given], dtype=object)
                return ir.StringTensor(texts.reshape(()) if attribute.name == "value_string" else texts)
        return None

    def _read(self, tensor: ir.TensorProtocol) -> HeldTensor:
        told = self._statistics(tensor)
        numbers = None if told.numbers is None else HeldNumbers(**vars(told.numbers))
        most = _SHOWN if len(self.found) < _MANY else _SHOWN_OF_MANY
        first = first_values(tensor, most) if self._values else ()
        return HeldTensor(
            dtype_text(tensor.dtype) or told.dtype,
            dims_text([str(dim) for dim in told.shape]),
            told.elements,
            told.size_bytes,
            numbers,
            told.unread,
            tuple(shortened(scalar_text(one), _LONGEST) for one in first),
            str(tensor.location) if isinstance(tensor, ir.ExternalTensor) else "",
        )

    def _statistics(self, tensor: ir.TensorProtocol) -> TensorStatistics:
        stored = tensor_bytes(tensor)
        if not self._values:
            return self._unread(tensor, "values were left out of this page")
        if DEFAULT_LIMIT_BYTES >= stored > self._left:
            return self._unread(tensor, f"{size(_LIMIT_TOGETHER_BYTES)} of weights were read before it, the most here")
        told = tensor_statistics(tensor)
        self._left -= stored if told.numbers else 0
        return told

    def _unread(self, tensor: ir.TensorProtocol, reason: str) -> TensorStatistics:
        shape = tuple(int(dim) for dim in tensor.shape.numpy())
        return TensorStatistics("", shape, tensor.size, tensor_bytes(tensor), None, reason)
