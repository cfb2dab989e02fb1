"""What a program does to an output after the model, done inside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.dtype_words import dtype_of_word, word_of_dtype
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.surgeries.rewriting import Rewriting
from ndld_flow.graph.sanitize.edits import FLOATS
from ndld_flow.models.input_shapes import show_shape

_FIRST_OPSET_OF_TOP_K = 10
_FIRST_OPSET_OF_SOFTMAX_AXIS = 13
"""Before, all axes from `axis` on count as one."""
_UNORDERED = frozenset((ir.DataType.STRING, ir.DataType.BOOL, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128))


@dataclass(frozen=True)
class Wanted:
    """What is done to an output, in this order."""

    activation: str | None = None
    """`Softmax` or `Sigmoid`."""
    argmax: bool = False
    top_k: int | None = None
    axis: int = -1
    cast: str | None = None
    keep: bool = False
    """Whether the output as it was stays an output too."""


def add_postprocessing_to(edited: EditedModel, name: str | None, wanted: Wanted) -> tuple[str, ...]:
    """Put nodes after an output; returns the names of what the model puts out in its place.

    Raises `RequestError` for an output that is not there, and axes and opsets that cannot be.
    """
    edits = Rewriting(edited)
    output = _output(edited.model, name)
    axis = _axis(output, wanted.axis)
    if output.is_graph_input():
        raise RequestError(f"output {output.name} is an input of the model itself: nothing is computed there")
    _check_type(output, wanted)
    results = _computed(edits, output, wanted, axis)
    if wanted.cast is not None:
        results = [_cast(edits, value, wanted.cast) for value in results]
    return _put_out(edits, output, results, wanted.keep)


def _output(model: ir.Model, name: str | None) -> ir.Value:
    outputs = {value.name or "": value for value in model.graph.outputs}
    if name is None and len(outputs) == 1:
        return next(iter(outputs.values()))
    if name is None:
        raise RequestError(f"say which `output`: the model has {len(outputs)} ({', '.join(outputs)})")
    if name not in outputs:
        raise RequestError(f"the model has no output {name!r}; {suggest(name, outputs)}")
    return outputs[name]


def _check_type(output: ir.Value, wanted: Wanted) -> None:
    if output.type is None:
        return
    if not isinstance(output.type, ir.TensorType):
        raise RequestError(f"output {output.name} is no tensor, but a sequence or an optional one: nothing follows it")
    dtype, word = output.type.dtype, word_of_dtype(output.type.dtype)
    if wanted.activation is not None and dtype not in FLOATS:
        raise RequestError(f"output {output.name} is {word}; `activation` takes floats: put a Cast before it")
    if (wanted.argmax or wanted.top_k is not None) and dtype in _UNORDERED:
        raise RequestError(f"output {output.name} is {word}, of which none is the largest")


def _axis(output: ir.Value, axis: int) -> int:
    if output.shape is None:
        return axis
    rank = len(output.shape)
    if not -rank <= axis < rank:
        raise RequestError(f"output {output.name} has no axis {axis}: its shape is {show_shape(output.shape)}")
    return axis % rank


def _computed(edits: Rewriting, output: ir.Value, wanted: Wanted, axis: int) -> list[ir.Value]:
    value = output
    if wanted.activation == "Softmax":
        _check_softmax(edits, output, axis)
        value = _put(edits, "Softmax", [value], output, axis=axis)
    elif wanted.activation is not None:
        value = _put(edits, wanted.activation, [value], output)
    if wanted.argmax:
        found = _put(edits, "ArgMax", [value], output, axis=axis, keepdims=0)
        found.type, found.shape = ir.TensorType(ir.DataType.INT64), _shape_with(output, axis, ())
        return [found]
    return _top_k(edits, value, output, wanted.top_k, axis) if wanted.top_k is not None else [value]


def _top_k(edits: Rewriting, value: ir.Value, output: ir.Value, count: int, axis: int) -> list[ir.Value]:
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
    for made, what in zip(node.outputs, ("values", "indices"), strict=True):
        made.name = edits.new_name(f"{output.name}_{what}")
        made.shape = _shape_with(output, axis, (count,))
    node.outputs[0].type, node.outputs[1].type = output.type, ir.TensorType(ir.DataType.INT64)
    return list(node.outputs)


def _check_softmax(edits: Rewriting, output: ir.Value, axis: int) -> None:
    opset = edits.opset(edits.model.graph)
    last = output.shape is not None and axis == len(output.shape) - 1
    if opset < _FIRST_OPSET_OF_SOFTMAX_AXIS and not last:
        raise RequestError(
            f"before opset {_FIRST_OPSET_OF_SOFTMAX_AXIS} Softmax takes all axes from {axis} on together; "
            f"the model has opset {opset}: convert it first"
        )


def _put(edits: Rewriting, op_type: str, inputs: Sequence[ir.Value], output: ir.Value, **attributes: int) -> ir.Value:
    value = edits.put_last(edits.model.graph, op_type, inputs, attributes, f"{output.name}_{op_type.lower()}")
    value.type, value.shape = output.type, output.shape
    return value


def _cast(edits: Rewriting, value: ir.Value, dtype: str) -> ir.Value:
    made = _put(edits, "Cast", [value], value, to=int(dtype_of_word(dtype)))
    made.type = ir.TensorType(dtype_of_word(dtype))
    return made


def _shape_with(output: ir.Value, axis: int, dims: tuple[int, ...]) -> ir.Shape | None:
    if output.shape is None:
        return None
    return ir.Shape([*output.shape[:axis], *dims, *output.shape[axis + 1 :]])


def _put_out(edits: Rewriting, output: ir.Value, results: Sequence[ir.Value], keep: bool) -> tuple[str, ...]:
    graph = edits.model.graph
    kept = [output] if keep else []
    place = list(graph.outputs).index(output)
    rest = [value for value in graph.outputs if value is not output]
    graph.outputs[:] = [*rest[:place], *kept, *results, *rest[place:]]
    if not keep and len(results) == 1:
        name = output.name
        output.name = edits.new_name(f"{name}_raw")
        results[0].name = name
    return tuple(value.name or "" for value in results)
