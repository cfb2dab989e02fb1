"""x"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.base.text import one_paragraph
from ndld_flow.models.files import MAX_IR_VERSION

MOST_ELEMENTS = 100_000
"""In all values of a model together. Those of shapes are a few for each node."""
_SHAPE_ELEMENTS = 16
"""More dimensions than a shape has."""
_PROPAGATES = frozenset(("Add", "Cast", "Gather", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"))
"""Operators that onnx propagates data through, and that make no more than they read; Concat makes the sum of it."""


def is_little(graph: onnx.GraphProto) -> bool:
    """Whether data propagation holds at most `MOST_ELEMENTS` more than the model itself."""
    lengths = {
        one.name: math.prod(one.dims) for one in graph.initializer if one.data_location != onnx.TensorProto.EXTERNAL
    }
    held = 0
    for node in graph.node:
        length = _length(node, lengths)
        if node.op_type == "Concat":
            held += length
        if held > MOST_ELEMENTS:
            return False
        lengths.update(dict.fromkeys(node.output, length))
        if not all(is_little(attribute.g) for attribute in node.attribute if attribute.HasField("g")):
            return False
    return True


def _length(node: onnx.NodeProto, lengths: dict[str, int]) -> int:
    """Elements that are known of a node's output; none where nothing is propagated."""
    if node.op_type == "Shape":
        return _SHAPE_ELEMENTS
    if node.op_type == "Constant":
        return max((math.prod(one.t.dims) for one in node.attribute if one.HasField("t")), default=1)
    read = [lengths.get(name, 0) for name in node.input]
    if node.op_type == "Concat":
        return sum(read)
    return max(read, default=0) if node.op_type in _PROPAGATES else 0


_READ_BYTES = 1024
"""Shapes and axes are small; larger initializers are told by type and shape only."""

_REFUSALS = (
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
    ValueError,
    RuntimeError,
    MemoryError,
)


def infer_shapes(model: ir.Model, strict: bool = False) -> None:
    """Write inferred shapes and dtypes on every value, those of subgraphs too; what does not follow stays as it is.

    Raises `ModelError` when `strict` and the model contradicts itself, otherwise such nodes are passed over; and when
    it holds what no file can.
    """
    proto = _light_proto(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(
            proto, check_type=strict, strict_mode=strict, data_prop=is_little(proto.graph)
        )
    except _REFUSALS as error:
        if strict:
            raise ModelError(f"shape inference says it is impossible: {one_paragraph(error)}") from None
        return
    _write_back(model.graph, inferred.graph)


def _light_proto(model: ir.Model) -> onnx.ModelProto:
    kept_ir_version = model.ir_version
    model.ir_version = min(model.ir_version or MAX_IR_VERSION, MAX_IR_VERSION)
    try:
        with _large_tensors_aside(model):
            return ir.serde.serialize_model(model)
    except ir.serde.SerdeError as error:
        raise ModelError(f"the model cannot be written: {_reason(error)}") from None
    finally:
        model.ir_version = kept_ir_version


def _reason(error: BaseException) -> str:
    """What is at the bottom of a chain of errors that tell of larger and larger parts."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_paragraph(error)


@contextlib.contextmanager
def _large_tensors_aside(model: ir.Model) -> Iterator[None]:
    """Large initializers become external tensors of nowhere, small external ones are read."""
    kept: list[tuple[ir.Value, ir.TensorProtocol]] = []
    try:
        for graph in model.graphs():
            for value in graph.initializers.values():
                tensor = value.const_value
                if tensor is None or (tensor.nbytes <= _READ_BYTES and not isinstance(tensor, ir.ExternalTensor)):
                    continue
                kept.append((value, tensor))
                value.const_value = _light_tensor(tensor, value.name or "")
        yield
    finally:
        for value, tensor in kept:
            value.const_value = tensor


def _light_tensor(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    if tensor.nbytes <= _READ_BYTES and tensor.dtype != ir.DataType.STRING:
        return ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=name)
    return ir.ExternalTensor("", None, None, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)


def _write_back(graph: ir.Graph, inferred: onnx.GraphProto) -> None:
    found = {info.name: info.type for info in (*inferred.value_info, *inferred.output) if info.HasField("type")}
    for node, proto in zip(graph, inferred.node, strict=True):
        for value in node.outputs:
            if value.name in found:
                _write_type(value, found[value.name])
        for attribute in proto.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _write_back(node.attributes[attribute.name].as_graph(), attribute.g)


def _write_type(value: ir.Value, found: onnx.TypeProto) -> None:
    if not found.HasField("tensor_type"):
        if found.WhichOneof("value") in ("sequence_type", "optional_type"):
            value.type = ir.serde.deserialize_type_proto_for_type(found)
        return
    tensor_type = found.tensor_type
    if tensor_type.elem_type:
        value.type = ir.TensorType(ir.DataType(tensor_type.elem_type))
    if tensor_type.HasField("shape"):
        value.shape = ir.Shape([_dim(dim) for dim in tensor_type.shape.dim])


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return dim.dim_param or None


def made_up(dim: object) -> bool:
    """`unk__7` is inference's own name for a dimension it does not know."""
    return isinstance(dim, ir.SymbolicDim) and str(dim.value).startswith("unk__")


def drop_made_up_names(value: ir.Value) -> None:
    """Leave dimensions open that inference only gave a number."""
    if value.shape is not None and any(made_up(dim) for dim in value.shape):
        value.shape = ir.Shape([None if made_up(dim) else dim for dim in value.shape])
