"""Conversion of constants, and of intermediate tensors by Casts, to another element type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.constant_tensors import ConstantTensor, constant_of
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.models.converted_tensors import ConvertedTensor, Lost, check_conversion, in_type
from ndld_flow.models.element_types import held_tensor
from ndld_flow.models.scopes import node_label
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.models.sparse_tensors import SparseInitializer
from ndld_flow.models.tensor_statistics import dtype_name
from ndld_flow.models.type_groups import Use, insert_after_producer


class DtypeConversion:
    """Converts tensors to one type and sums up the losses."""

    def __init__(self, edited: EditedModel, dtype: ir.DataType) -> None:
        self._edited = edited
        self._dtype = dtype
        self.lost = Lost()
        self.converted = 0
        """Number of converted tensors."""
        self.values = 0
        """Number of their elements."""

    def constants(self, held: Sequence[ConstantTensor], casts: bool) -> None:
        """Convert initializers and Constant nodes; with `casts` their readers get the previous type by a Cast.

        Raises `RequestError` for one that is also an input of the model, because programs feed its type.
        """
        for one in held:
            before = one.tensor.dtype
            if before == self._dtype:
                continue
            if one.value.is_graph_input():
                raise RequestError(
                    f"initializer {one.name!r} is also an input; change the type of the input by `set_dtypes` instead"
                )
            one.hold(self._tensor(one.tensor, one.name))
            if casts:
                uses = _uses(one.value)
                self._read_after(one.value, uses, self._cast(one.value, before, one.graph))

    def attributes(self, nodes: Sequence[ir.Node]) -> None:
        """Convert tensor attributes: `value` of ConstantOfShape, and lists of tensors."""
        for node in nodes:
            for name, attribute in tuple(node.attributes.items()):
                if attribute.is_ref():
                    continue
                where = f"{node_label(node)}.{name}"
                if attribute.type == ir.AttributeType.TENSOR:
                    node.attributes[name] = ir.AttrTensor(name, self._other(held_tensor(attribute), where))
                elif attribute.type == ir.AttributeType.TENSORS:
                    tensors = [self._other(tensor, where) for tensor in attribute.as_tensors()]
                    node.attributes[name] = ir.AttrTensors(name, tensors)
                elif constant_of(node) is not None:
                    node.attributes.pop(name)
                    tensor = constant_of(ir.Node("", "Constant", [], [attribute]))
                    assert tensor is not None
                    node.attributes["value"] = ir.AttrTensor("value", self._other(tensor, where))

    def between(self, values: Sequence[ir.Value]) -> None:
        """Round outputs of nodes to the type, by a Cast to it and a Cast back before all readers.

        Raises `RequestError` for a tensor of unknown type.
        """
        infer_shapes(self._edited.model)
        for value in values:
            if value.producer() is None or value.graph is None or value.type is None:
                raise RequestError(f"tensor {value.name!r} is no output of a node, or its type is unknown")
            before = value.type.dtype
            check_conversion(before, self._dtype)
            if before == self._dtype:
                continue
            uses = _uses(value)
            there = self._cast(value, self._dtype, value.graph)
            self._read_after(value, uses, self._cast(there, before, value.graph))
            self.converted += 1

    def _other(self, tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
        return tensor if tensor.dtype == self._dtype else self._tensor(tensor, name)

    def _tensor(self, tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
        """Return the tensor in the new type, and log its losses."""
        check_conversion(tensor.dtype, self._dtype)
        made: ir.TensorProtocol
        if isinstance(tensor, SparseInitializer):
            made, lost = _sparse_in_type(tensor, self._dtype)
        else:
            converted = ConvertedTensor(tensor, self._dtype, name)
            made, lost = converted, converted.lost()
        self.converted += 1
        self.values += tensor.size
        self.lost.add(lost)
        if words := lost.describe(tensor.size, self._dtype):
            self._edited.log.info("%s: %s", name, words)
        return made

    def _cast(self, value: ir.Value, dtype: ir.DataType, graph: ir.Graph) -> ir.Value:
        """Insert a Cast after a value and return its output."""
        made = ir.Value(
            name=self._edited.fresh_name(f"{value.name}_{dtype_name(dtype)}"),
            type=ir.TensorType(dtype),
            shape=value.shape,
        )
        attributes = [ir.AttrInt64("to", dtype.value)]
        name = self._edited.fresh_name(f"Cast_{value.name}_{dtype_name(dtype)}")
        node = ir.Node("", "Cast", [value], attributes, outputs=[made], name=name)
        insert_after_producer(value, node, graph)
        return made

    def _read_after(self, value: ir.Value, uses: Sequence[Use], made: ir.Value) -> None:
        """Connect the readers of `value` to `made`. An output of the graph keeps its name."""
        was_output = value.is_graph_output()
        for use in uses:
            use.read(made)
        if was_output and value.name:
            name = value.name
            value.name = self._edited.fresh_name(f"{name}_before")
            made.name = name


def _uses(value: ir.Value) -> list[Use]:
    """Return all uses of a value, including as an output of its graph."""
    outputs = value.graph.outputs if value.graph is not None else []
    places = [Use(value.graph, index) for index, one in enumerate(outputs) if one is value and value.graph is not None]
    return [*(Use(use.node, use.idx) for use in value.uses()), *places]


def _sparse_in_type(tensor: SparseInitializer, dtype: ir.DataType) -> tuple[SparseInitializer, Lost]:
    """Return a sparse initializer with its values in another type, and the losses."""
    proto = onnx.SparseTensorProto.FromString(tensor.proto.SerializeToString())
    values = numpy_helper.to_array(tensor.proto.values)
    plain = values.astype(np.int64 if values.dtype.kind in "bi" else np.float64) if values.dtype.kind != "u" else values
    converted, lost = in_type(plain, dtype)
    made = ir.Tensor(converted.astype(dtype.numpy()), dtype=dtype, name=tensor.name)
    proto.values.CopyFrom(ir.serde.serialize_tensor(made))
    return SparseInitializer(proto), lost
