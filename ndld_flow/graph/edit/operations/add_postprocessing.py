"""Add post-processing to an output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import EditedModel
    from ndld_flow.graph.edit.graph_edits import OperationEdits


Cast = Literal["float16", "float32", "float64", "int32", "int64", "uint8"]


class AddPostprocessing(Operation):
    """Add Softmax, ArgMax, TopK or a Cast to an output.

    The result replaces the output under its name; TopK has two results, `<output>_values` and `<output>_indices`.

        add_postprocessing: {output: logits, activation: softmax, top_k: 5}
    """

    heading = "transformations"

    output: str | None = None
    """The output; optional when there is only one."""
    activation: Literal["softmax", "sigmoid"] | None = None
    """The activation, applied first."""
    argmax: bool = False
    """Output the index of the largest value along `axis`, which is removed."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """Output this many of the largest values along `axis`, and their indices."""
    axis: int = -1
    """The axis of classes."""
    cast: Cast | None = None
    """Element type of the result, converted last."""
    keep: bool = False
    """Keep the original output too, under its name."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if self.argmax and self.top_k is not None:
            raise ValueError("`argmax` and `top_k` exclude each other")
        if not (self.activation or self.argmax or self.top_k or self.cast):
            raise ValueError("give `activation`, `argmax`, `top_k` or `cast`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.graph_edits import OperationEdits
        from ndld_flow.graph.edit.interface import find_output

        edits = OperationEdits(edited)
        output = find_output(edited.model, self.output)
        axis = _normalized_axis(output, self.axis)
        if output.is_graph_input():
            raise RequestError(f"output {output.name} is also an input of the model: nothing is computed there")
        self._check_type(output)
        results = self._add_nodes(edits, output, axis)
        if self.cast is not None:
            results = [_put_cast(edits, value, self.cast) for value in results]
        return f"outputs added: {', '.join(_replace_output(edits, output, results, self.keep))}"

    def _check_type(self, output: ir.Value) -> None:
        import onnx_ir as ir

        from ndld_flow.graph.sanitize.edits import FLOATS
        from ndld_flow.models.element_types import dtype_name

        if output.type is None:
            return
        if not isinstance(output.type, ir.TensorType):
            raise RequestError(f"output {output.name} is a sequence or optional, not a tensor: nothing can follow it")
        dtype, name = output.type.dtype, dtype_name(output.type.dtype)
        if self.activation is not None and dtype not in FLOATS:
            raise RequestError(f"output {output.name} is {name}; `activation` requires floats: insert a Cast before it")
        unordered = (ir.DataType.STRING, ir.DataType.BOOL, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)
        if (self.argmax or self.top_k is not None) and dtype in unordered:
            raise RequestError(f"output {output.name} is {name}, which has no order: it has no largest value")

    def _add_nodes(self, edits: OperationEdits, output: ir.Value, axis: int) -> list[ir.Value]:
        import onnx_ir as ir

        value = output
        if self.activation == "softmax":
            _check_softmax(edits, output, axis)
            value = _put_node(edits, "Softmax", [value], output, axis=axis)
        elif self.activation is not None:
            value = _put_node(edits, self.activation.capitalize(), [value], output)
        if self.argmax:
            index = _put_node(edits, "ArgMax", [value], output, axis=axis, keepdims=0)
            index.type, index.shape = ir.TensorType(ir.DataType.INT64), _shape_with(output, axis, ())
            return [index]
        return _put_top_k(edits, value, output, self.top_k, axis) if self.top_k is not None else [value]


_FIRST_OPSET_OF_TOP_K = 10
_FIRST_OPSET_OF_SOFTMAX_AXIS = 13
"""Before, Softmax normalizes over all axes from `axis` on."""


def _normalized_axis(output: ir.Value, axis: int) -> int:
    from ndld_flow.models.input_shapes import show_shape

    if output.shape is None:
        return axis
    rank = len(output.shape)
    if not -rank <= axis < rank:
        raise RequestError(f"output {output.name} has no axis {axis}: its shape is {show_shape(output.shape)}")
    return axis % rank


def _put_top_k(edits: OperationEdits, value: ir.Value, output: ir.Value, count: int, axis: int) -> list[ir.Value]:
    import numpy as np
    import onnx_ir as ir

    graph = edits.model.graph
    opset = edits.opset(graph)
    if opset < _FIRST_OPSET_OF_TOP_K:
        raise RequestError(f"`top_k` needs opset {_FIRST_OPSET_OF_TOP_K}; the model has {opset}: convert it first")
    size = output.shape[axis] if output.shape is not None else None
    if isinstance(size, int) and count > size:
        raise RequestError(f"`top_k` is {count}, but axis {axis} of output {output.name} has only {size}")
    number = edits.add_initializer(graph, np.array([count], np.int64), f"{output.name}_k")
    node = ir.node("TopK", [value, number], {"axis": axis}, num_outputs=2, name=edits.new_name(f"{output.name}_top_k"))
    graph.append(node)
    for result, kind in zip(node.outputs, ("values", "indices"), strict=True):
        result.name = edits.new_name(f"{output.name}_{kind}")
        result.shape = _shape_with(output, axis, (count,))
    node.outputs[0].type, node.outputs[1].type = output.type, ir.TensorType(ir.DataType.INT64)
    return list(node.outputs)


def _check_softmax(edits: OperationEdits, output: ir.Value, axis: int) -> None:
    opset = edits.opset(edits.model.graph)
    last = output.shape is not None and axis == len(output.shape) - 1
    if opset < _FIRST_OPSET_OF_SOFTMAX_AXIS and not last:
        raise RequestError(
            f"before opset {_FIRST_OPSET_OF_SOFTMAX_AXIS} Softmax normalizes over all axes from {axis} on; "
            f"the model has opset {opset}: convert it first"
        )


def _put_node(
    edits: OperationEdits, op_type: str, inputs: Sequence[ir.Value], output: ir.Value, **attributes: int
) -> ir.Value:
    value = edits.put_last(edits.model.graph, op_type, inputs, attributes, f"{output.name}_{op_type.lower()}")
    value.type, value.shape = output.type, output.shape
    return value


def _put_cast(edits: OperationEdits, value: ir.Value, dtype: str) -> ir.Value:
    import onnx_ir as ir

    from ndld_flow.graph.edit.value_grammar import parse_dtype

    cast = _put_node(edits, "Cast", [value], value, to=int(parse_dtype(dtype)))
    cast.type = ir.TensorType(parse_dtype(dtype))
    return cast


def _shape_with(output: ir.Value, axis: int, dims: tuple[int, ...]) -> ir.Shape | None:
    import onnx_ir as ir

    if output.shape is None:
        return None
    return ir.Shape([*output.shape[:axis], *dims, *output.shape[axis + 1 :]])


def _replace_output(
    edits: OperationEdits, output: ir.Value, results: Sequence[ir.Value], keep: bool
) -> tuple[str, ...]:
    from ndld_flow.graph.edit.graph_edits import put_outputs

    put_outputs(edits.model.graph, [output], [output, *results] if keep else results)
    if not keep and len(results) == 1:
        name = output.name
        output.name = edits.new_name(f"{name}_raw")
        results[0].name = name
    return tuple(value.name or "" for value in results)
