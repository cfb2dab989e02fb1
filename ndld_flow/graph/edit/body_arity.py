"""What If, Loop and Scan want of their bodies."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.dtype_words import word_of_dtype
from ndld_flow.models.element_types import Types, dtype_of
from ndld_flow.models.scopes import node_label

_BODIES = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",), "SequenceMap": ("body",)}


@dataclass(frozen=True)
class _Wanted:
    """How many tensors a body takes and gives, of which dtypes as far as they are known, in words too."""

    inputs: list[ir.DataType | None]
    outputs: list[ir.DataType | None]
    taken: str
    given: str


def check_body(node: ir.Node, attribute: str, graph: ir.Graph, types: Types) -> None:
    """Raises `RequestError` for an attribute that is no body of this operator, and for a body that does not fit it.

    `types`: of tensors whose type is not noted.
    """
    names = _BODIES.get(node.op_type) if node.domain == "" else None
    if names is None:
        return
    where = f"{node.op_type} {node_label(node)!r}"
    if attribute not in names:
        raise RequestError(f"{where} has no body {attribute!r}; it has {' and '.join(names)}")
    wanted = _wanted(node, types)
    if len(graph.inputs) != len(wanted.inputs):
        raise RequestError(f"{where} gives its {attribute} {wanted.taken}; this one takes {len(graph.inputs)}")
    if len(graph.outputs) != len(wanted.outputs):
        raise RequestError(f"{where} wants of its {attribute} {wanted.given}; this one gives {len(graph.outputs)}")
    for values, dtypes in ((graph.inputs, wanted.inputs), (graph.outputs, wanted.outputs)):
        for value, dtype in zip(values, dtypes, strict=True):
            if dtype is not None and value.dtype is not None and value.dtype != dtype:
                raise RequestError(
                    f"{where} wants {word_of_dtype(dtype)} for {value.name!r} of its {attribute}, which is "
                    f"{word_of_dtype(value.dtype)}: put a Cast there"
                )


def _wanted(node: ir.Node, types: Types) -> _Wanted:
    outputs = [_dtype(value, types) for value in node.outputs]
    inputs = [None if value is None else _dtype(value, types) for value in node.inputs]
    if node.op_type == "If":
        return _Wanted([], outputs, "no inputs", f"{len(outputs)} outputs")
    if node.op_type == "Loop":
        carried = len(inputs) - 2
        return _Wanted(
            [ir.DataType.INT64, ir.DataType.BOOL, *inputs[2:]],
            [ir.DataType.BOOL, *outputs],
            f"{len(inputs)} inputs (iteration number, condition, {carried} carried)",
            f"{len(outputs) + 1} outputs (condition, {carried} carried, {len(outputs) - carried} collected)",
        )
    # What Scan and SequenceMap take apart and put together has the same elements inside.
    return _Wanted(inputs, outputs, f"{len(inputs)} inputs", f"{len(outputs)} outputs")


def _dtype(value: ir.Value, types: Types) -> ir.DataType | None:
    if value.dtype is None and types.get(value, "").startswith("tensor("):
        return dtype_of(types[value])
    return value.dtype
