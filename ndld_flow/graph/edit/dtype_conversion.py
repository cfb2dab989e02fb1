"""Give constants another element type, and tensors between nodes where Casts are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.dtype_words import dtype_of_word, word_of_dtype
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.selection_criteria import NodeCriteria
from ndld_flow.graph.edit.tensor_criteria import TensorCriteria
from ndld_flow.graph.edit.tensor_selecting import ConstantTensor, constant_of, fitting_tensors
from ndld_flow.models.converted_tensors import ConvertedTensor, Lost, check_conversion, in_type
from ndld_flow.models.element_types import held_tensor
from ndld_flow.models.scopes import node_label
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.models.sparse_tensors import SparseInitializer
from ndld_flow.models.type_groups import Use, insert_after_producer


class ConversionSettings(Protocol):
    """What `convert_dtype` says."""

    @property
    def to(self) -> str: ...
    @property
    def select(self) -> TensorCriteria | None: ...
    @property
    def attributes(self) -> NodeCriteria | None: ...
    @property
    def between(self) -> tuple[str, ...]: ...
    @property
    def casts(self) -> bool: ...
    @property
    def allow_empty(self) -> bool: ...


def convert_dtype(edited: EditedModel, said: ConversionSettings) -> str:
    """Convert all that settings select; returns what was done. Raises `RequestError` for what cannot be."""
    dtype = dtype_of_word(said.to)
    conversion = DtypeConversion(edited, dtype)
    if said.select is not None:
        conversion.constants(fitting_tensors(edited.model, said.select, said.allow_empty), said.casts)
    if said.attributes is not None:
        conversion.attributes(edited.select_nodes(said.attributes, said.allow_empty))
    if said.between:
        conversion.between(edited.select_values(said.between, said.allow_empty))
    lost = conversion.lost.describe(conversion.values, dtype)
    if conversion.lost.beyond or conversion.lost.vanished:
        edited.note(f"converted to {word_of_dtype(dtype)}: {lost}")
    return f"{conversion.converted} tensors converted to {word_of_dtype(dtype)}" + (f"; {lost}" if lost else "")


class DtypeConversion:
    """Converts to one type, and adds up what is lost."""

    def __init__(self, edited: EditedModel, dtype: ir.DataType) -> None:
        self._edited = edited
        self._dtype = dtype
        self.lost = Lost()
        self.converted = 0
        """Tensors that have another type now."""
        self.values = 0
        """Elements of them."""

    def constants(self, held: Sequence[ConstantTensor], casts: bool) -> None:
        """Initializers and Constant nodes; with `casts` their readers get the old type by a Cast.

        Raises `RequestError` for one that is an input of the model too, whose type its callers know.
        """
        for one in held:
            before = one.tensor.dtype
            if before == self._dtype:
                continue
            if one.value.is_graph_input():
                raise RequestError(f"initializer {one.name!r} is an input too; change the type of the input instead")
            one.hold(self._tensor(one.tensor, one.name))
            if casts:
                uses = _uses(one.value)
                self._read_after(one.value, uses, self._cast(one.value, before, one.graph))

    def attributes(self, nodes: Sequence[ir.Node]) -> None:
        """Tensors in attributes: `value` of ConstantOfShape, and lists of tensors."""
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
        """Tensors that nodes make go through this type: a Cast there, a Cast back, and all readers after them.

        Raises `RequestError` for a tensor whose type nobody knows.
        """
        infer_shapes(self._edited.model)
        for value in values:
            if value.producer() is None or value.graph is None or value.type is None:
                raise RequestError(f"tensor {value.name!r} is made by no node, or its type is not known")
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
        """The tensor in the other type; what it loses is logged."""
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
        """What a new Cast makes of a value, in its graph."""
        made = ir.Value(
            name=self._edited.fresh_name(f"{value.name}_{word_of_dtype(dtype)}"),
            type=ir.TensorType(dtype),
            shape=value.shape,
        )
        attributes = [ir.AttrInt64("to", dtype.value)]
        name = self._edited.fresh_name(f"Cast_{value.name}_{word_of_dtype(dtype)}")
        node = ir.Node("", "Cast", [value], attributes, outputs=[made], name=name)
        insert_after_producer(value, node, graph)
        return made

    def _read_after(self, value: ir.Value, uses: Sequence[Use], made: ir.Value) -> None:
        """Let what read `value` read `made`. An output of the graph keeps its name."""
        was_output = value.is_graph_output()
        for use in uses:
            use.read(made)
        if was_output and value.name:
            name = value.name
            value.name = self._edited.fresh_name(f"{name}_before")
            made.name = name


def _uses(value: ir.Value) -> list[Use]:
    """All places where a value is read, outputs of its graph too."""
    outputs = value.graph.outputs if value.graph is not None else []
    places = [Use(value.graph, index) for index, one in enumerate(outputs) if one is value and value.graph is not None]
    return [*(Use(use.node, use.idx) for use in value.uses()), *places]


def _sparse_in_type(tensor: SparseInitializer, dtype: ir.DataType) -> tuple[SparseInitializer, Lost]:
    """A sparse initializer whose values have another type; positions stay."""
    proto = onnx.SparseTensorProto.FromString(tensor.proto.SerializeToString())
    values = numpy_helper.to_array(tensor.proto.values)
    plain = values.astype(np.int64 if values.dtype.kind in "bi" else np.float64) if values.dtype.kind != "u" else values
    converted, lost = in_type(plain, dtype)
    made = ir.Tensor(converted.astype(dtype.numpy()), dtype=dtype, name=tensor.name)
    proto.values.CopyFrom(ir.serde.serialize_tensor(made))
    return SparseInitializer(proto), lost
