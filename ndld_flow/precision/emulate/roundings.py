"""Casts to the stored type and back to fp32, behind every node that computes a stored tensor."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from ndld_flow.models.control_flow_ties import CONTROL_FLOW
from ndld_flow.models.float_tensors import FORMATS
from ndld_flow.models.op_signatures import is_op
from ndld_flow.models.type_groups import MOVES
from ndld_flow.models.unique_names import UniqueNames
from ndld_flow.models.value_uses import insert_behind
from ndld_flow.precision.fp16.constants import graph_of

EXACT = MOVES | {
    "Abs",
    "Ceil",
    "Constant",
    "ConstantOfShape",
    "Floor",
    "GlobalMaxPool",
    "Hardmax",
    "Max",
    "MaxPool",
    "MaxUnpool",
    "Min",
    "Neg",
    "ReduceMax",
    "ReduceMin",
    "Relu",
    "Round",
    "Sign",
    "ThresholdedRelu",
    "TopK",
}
"""Operators that make, of numbers that a format holds, numbers that it holds."""
_CAST_OPSET, _CAST_IR_VERSION = 13, 7


class Rounder:
    """Puts the Casts in, in place, once. Expects the stored values to have been retyped."""

    def __init__(self, model: ir.Model, stored: Mapping[ir.Value, ir.DataType], native: Collection[ir.Node]) -> None:
        self.roundings = 0
        self._model = model
        self._stored = stored
        self._native = native
        self._names = UniqueNames(model)
        self._inputs = [value for value in model.graph.inputs if value in stored and not value.is_initializer()]
        self._wishes = [
            (node, index, stored[value])
            for node in native
            for index, value in enumerate(node.inputs)
            if value is not None and value in stored
        ]
        """A native node, which of its inputs, and what it reads there."""
        self._narrowed: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def round_all(self) -> None:
        """Change the model."""
        nodes = list(self._model.graph.all_nodes())
        for value in self._inputs:
            self._let_read(value, [ir.DataType.FLOAT], value.name or "")
        for node in nodes:
            for value in node.outputs:
                if value in self._stored:
                    self._round(node, value)
        for node, index, dtype in self._wishes:
            widened = node.inputs[index]
            if widened is not None:
                node.replace_input_with(index, self._narrow(widened, dtype))
        if "" not in self._model.opset_imports:
            self._model.opset_imports[""] = _CAST_OPSET
            self._model.ir_version = max(self._model.ir_version or 0, _CAST_IR_VERSION)

    def _round(self, node: ir.Node, value: ir.Value) -> None:
        if is_op(node, *EXACT, *CONTROL_FLOW) and node not in self._native:
            return
        stays = node in self._native or is_op(node, "Cast")
        dtypes = [ir.DataType.FLOAT] if stays else [self._stored[value], ir.DataType.FLOAT]
        name = value.name or ""
        value.name = self._names.value(f"{name}_unrounded")
        value.type = ir.TensorType(self._stored[value] if stays else ir.DataType.FLOAT)
        self._let_read(value, dtypes, value.name).name = name
        self.roundings += 1

    def _let_read(self, value: ir.Value, dtypes: Sequence[ir.DataType], wish: str) -> ir.Value:
        """Put Casts behind a value and let all its readers read the last one's output; returns that."""
        readers = list(value.uses())
        behind = value
        for dtype in dtypes:
            behind = self._cast(behind, dtype, wish)
        for reader, index in readers:
            reader.replace_input_with(index, behind)
        if value.producer() is not None and value.is_graph_output():
            outputs = graph_of(value).outputs
            outputs[outputs.index(value)] = behind
        return behind

    def _cast(self, value: ir.Value, dtype: ir.DataType, wish: str) -> ir.Value:
        name = self._names.value(f"{wish}_{FORMATS[dtype].precision}")
        cast = ir.Value(name=name, shape=value.shape, type=ir.TensorType(dtype))
        attribute = ir.AttrInt64("to", dtype.value)
        node = ir.Node("", "Cast", [value], [attribute], outputs=[cast], name=self._names.node(f"{name}_cast"))
        insert_behind(value, node, graph_of(value))
        return cast

    def _narrow(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """What a native node is to read, made of what has been widened."""
        if (value, dtype) not in self._narrowed:
            self._narrowed[value, dtype] = self._cast(value, dtype, value.name or "")
        return self._narrowed[value, dtype]
