"""Changes of element types: of constants, between nodes, and at inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name, suggest
from ndld_flow.graph.edit.constant_tensors import ConstantTensor
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.value_grammar import parse_dtype
from ndld_flow.models.derived_tensors import ConvertedTensor, Lost, check_conversion, in_type
from ndld_flow.models.element_types import dtype_name, held_tensor, signature_of, tensor_of
from ndld_flow.models.input_shapes import Snapshot
from ndld_flow.models.nodes import constant_of, node_label, put_first
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.models.sparse_tensors import SparseInitializer
from ndld_flow.models.type_groups import Use, insert_cast

_STRING_TARGETS = 6
"""Before this opset, the target of Cast was a string."""


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
        for constant in held:
            before, name = constant.tensor.dtype, constant.name
            if before == self._dtype:
                continue
            if constant.value.is_graph_input():
                raise RequestError(
                    f"initializer {name!r} is also an input; change the type of the input with `set_dtypes` instead"
                )
            constant.hold(self._tensor(constant.tensor, name))
            if casts:
                uses = _uses(constant.value)
                self._read_after(constant.value, uses, self._cast(constant.value, before))

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
                raise RequestError(f"tensor {value.name!r} is not an output of a node, or its type is unknown")
            before = value.type.dtype
            check_conversion(before, self._dtype)
            if before == self._dtype:
                continue
            uses = _uses(value)
            there = self._cast(value, self._dtype)
            self._read_after(value, uses, self._cast(there, before))
            self.converted += 1

    def _other(self, tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
        return tensor if tensor.dtype == self._dtype else self._tensor(tensor, name)

    def _tensor(self, tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
        """Return the tensor in the new type, and log its losses."""
        check_conversion(tensor.dtype, self._dtype)
        converted: ir.TensorProtocol
        if isinstance(tensor, SparseInitializer):
            converted, lost = _sparse_in_type(tensor, self._dtype)
        else:
            converted = dense = ConvertedTensor(tensor, self._dtype, name)
            lost = dense.lost()
        self.converted += 1
        self.values += tensor.size
        self.lost.add(lost)
        if words := lost.describe(tensor.size, self._dtype):
            self._edited.log.info("%s: %s", name, words)
        return converted

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Insert a Cast after a value and return its output."""
        name = self._edited.fresh_name(f"{value.name}_{dtype_name(dtype)}")
        return insert_cast(value, dtype, name, self._edited.fresh_name(f"Cast_{value.name}_{dtype_name(dtype)}"))

    def _read_after(self, value: ir.Value, uses: Sequence[Use], new: ir.Value) -> None:
        """Replace `value` by `new` for its readers. An output of the graph keeps its name."""
        was_output = value.is_graph_output()
        for use in uses:
            use.read(new)
        if was_output and value.name:
            name = value.name
            value.name = self._edited.fresh_name(f"{name}_before")
            new.name = name


def _uses(value: ir.Value) -> list[Use]:
    """Return all uses of a value, including as an output of its graph."""
    graph = value.graph
    places = [] if graph is None else [Use(graph, i) for i, output in enumerate(graph.outputs) if output is value]
    return [*(Use(use.node, use.idx) for use in value.uses()), *places]


def _sparse_in_type(tensor: SparseInitializer, dtype: ir.DataType) -> tuple[SparseInitializer, Lost]:
    """Return a sparse initializer with its values in another type, and the losses."""
    proto = onnx.SparseTensorProto.FromString(tensor.proto.SerializeToString())
    values = numpy_helper.to_array(tensor.proto.values)
    plain = values.astype(np.int64 if values.dtype.kind in "bi" else np.float64) if values.dtype.kind != "u" else values
    converted, lost = in_type(plain, dtype)
    proto.values.CopyFrom(
        ir.serde.serialize_tensor(ir.Tensor(converted.astype(dtype.numpy()), dtype=dtype, name=tensor.name))
    )
    return SparseInitializer(proto), lost


def find_edges(edited: EditedModel, names: Sequence[str]) -> list[ir.Value]:
    """Return inputs and outputs by name. Raises `RequestError` for one that is unknown, both, or no tensor."""
    graph = edited.model.graph
    known = {value.name or "": value for value in (*graph.inputs, *graph.outputs)}
    for name in names:
        value = known.get(name)
        if value is None:
            raise RequestError(f"the model has no input or output {short_name(name)!r}; {suggest(name, known)}")
        if value.is_graph_input() and value.is_graph_output():
            raise RequestError(f"{name!r} is an input and an output at once; put an Identity between them first")
        if not isinstance(value.type, ir.TensorType):
            raise RequestError(f"{name!r} is not a tensor of known type: {value.type}")
    return [known[name] for name in names]


def cast_edges(edited: EditedModel, dtypes: Mapping[str, str]) -> int:
    """Change types of inputs and outputs by Casts that keep the types inside. Returns the number of Casts.

    Raises `RequestError` if the Cast of the model's opset does not support a type.
    """
    count = 0
    for value in find_edges(edited, tuple(dtypes)):
        dtype = parse_dtype(dtypes[value.name or ""])
        if dtype == value.dtype:
            continue
        _cast_input(edited, value, dtype) if value.is_graph_input() else _cast_output(edited, value, dtype)
        count += 1
    return count


def _cast_input(edited: EditedModel, value: ir.Value, dtype: ir.DataType) -> None:
    if value.is_initializer():
        raise RequestError(f"input {value.name!r} has a default value; give that another type, or remove it, first")
    inside = value.dtype
    assert inside is not None
    value.type = ir.TensorType(dtype)
    cast = _cast(edited, value, inside)
    output = cast.outputs[0]
    output.name, output.shape = edited.fresh_name(f"{value.name}_{dtype_name(inside)}"), value.shape
    for node, index in tuple(value.uses()):
        if node is not cast:
            node.replace_input_with(index, output)
    put_first(edited.model.graph, cast)


def _cast_output(edited: EditedModel, value: ir.Value, dtype: ir.DataType) -> None:
    cast = _cast(edited, value, dtype)
    output = cast.outputs[0]
    name = value.name
    value.name = edited.fresh_name(f"{name}_{dtype_name(value.dtype or ir.DataType.UNDEFINED)}")
    output.name, output.shape = name, value.shape
    output.metadata_props.update(value.metadata_props)
    graph = edited.model.graph
    graph.outputs[graph.outputs.index(value)] = output
    graph.append(cast)


def _cast(edited: EditedModel, value: ir.Value, to: ir.DataType) -> ir.Node:
    """Return a new Cast. Raises `RequestError` if the operator does not support one of the types."""
    opset = edited.model.opset_imports.get("", 1)
    target = ir.AttrString("to", to.name) if opset < _STRING_TARGETS else ir.AttrInt64("to", to)
    name = edited.fresh_name(f"{value.name}_cast")
    node = ir.Node("", "Cast", [value], [target], name=name)
    node.outputs[0].type = ir.TensorType(to)
    signature = signature_of(node, {"": opset})
    ports = zip((value.dtype, to), (*signature.inputs, *signature.outputs), strict=True) if signature else ()
    for dtype, variable in ports:
        if signature and dtype is not None and not signature.admits(variable, tensor_of(dtype)):
            node.replace_input_with(0, None)
            raise RequestError(f"Cast of opset {opset} does not support {dtype_name(dtype)} ({value.name!r})")
    return node


def retype_edges(edited: EditedModel, dtypes: Mapping[str, str]) -> int:
    """Declare other types of inputs and outputs and infer those of all other tensors.

    Returns the number of changed declarations. Raises `ModelError` if a consistent model does not support them.
    """
    values = find_edges(edited, tuple(dtypes))
    snapshot = Snapshot(edited.model)
    changed = 0
    for value in values:
        dtype = parse_dtype(dtypes[value.name or ""])
        changed += dtype != value.dtype
        value.type = ir.TensorType(dtype)
    declared = ", ".join(f"{name}: {dtype}" for name, dtype in dtypes.items())
    snapshot.infer_again(edited.model, edited.note, f"the model cannot have these types ({declared})", types=True)
    return changed
