"""Layouts of inputs and outputs, changed by a Transpose inside the model."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.surgeries.rewriting import Rewriting, read_instead
from ndld_flow.graph.edit.surgeries.transposes import push_transposes
from ndld_flow.models.input_shapes import real_inputs
from ndld_flow.models.input_shapes import show_shape as shape_text

_CHANNELS = "C"


def other_layout(layout: str) -> str:
    """Return `NHWC` for `NCHW` and vice versa."""
    rest = layout.replace(_CHANNELS, "").removeprefix("N")
    batch = "N" if layout.startswith("N") else ""
    last = layout.endswith(_CHANNELS)
    return f"{batch}{_CHANNELS}{rest}" if last else f"{batch}{rest}{_CHANNELS}"


def order(source: str, target: str) -> tuple[int, ...]:
    """Return the permutation from one layout to another: `NCHW` to `NHWC` is (0, 2, 3, 1)."""
    return tuple(source.index(axis) for axis in target)


def permuted(shape: ir.Shape, perm: Sequence[int]) -> ir.Shape:
    """Return a shape with permuted axes; names of dimensions stay."""
    return ir.Shape([shape[axis] for axis in perm])


def change_layouts(
    edited: EditedModel, inputs: Sequence[str], outputs: Sequence[str], layout: str, push: bool
) -> tuple[list[str], int]:
    """Change the layout of inputs and outputs; returns their names, and the number of Transposes that pushing removed.

    Raises `RequestError` for patterns that fit none, and tensors of another rank.
    """
    edits = Rewriting(edited)
    graph = edited.model.graph
    chosen_inputs = _chosen("input", real_inputs(edited.model), inputs)
    chosen_outputs = _chosen("output", list(dict.fromkeys(graph.outputs)), outputs)
    for value in (*chosen_inputs, *chosen_outputs):
        _check_rank(value, layout)
    inside = other_layout(layout)
    for value in chosen_inputs:
        if value.is_graph_output():
            raise RequestError(f"input {value.name} is also an output of the model: its layout cannot change alone")
        transpose_input(edits, value, layout, inside)
    for value in chosen_outputs:
        _transpose_output(edits, value, inside, layout)
    names = [value.name or "" for value in (*chosen_inputs, *chosen_outputs)]
    return names, push_transposes(edits) if push else 0


def transpose_input(edits: Rewriting, value: ir.Value, layout: str, inside: str) -> ir.Value:
    """Declare an input in another layout; returns the tensor that its readers read instead."""
    graph = edits.model.graph
    made = edits.put_first(
        graph, "Transpose", [value], {"perm": list(order(layout, inside))}, f"{value.name}_{inside.lower()}"
    )
    made.type, made.shape = value.type, value.shape
    if value.shape is not None:
        value.shape = permuted(value.shape, order(inside, layout))
    read_instead(value, made)
    return made


def _transpose_output(edits: Rewriting, value: ir.Value, inside: str, layout: str) -> None:
    graph = edits.model.graph
    name = value.name
    if value.is_graph_input():
        raise RequestError(f"output {name} is also an input of the model: its layout cannot change alone")
    perm = order(inside, layout)
    value.name = edits.new_name(f"{name}_{inside.lower()}")
    made = edits.put_last(graph, "Transpose", [value], {"perm": list(perm)}, f"{name}_{layout.lower()}")
    made.name, made.type = name, value.type
    made.shape = None if value.shape is None else permuted(value.shape, perm)
    graph.outputs[:] = [made if output is value else output for output in graph.outputs]


def _chosen(kind: str, values: Sequence[ir.Value], patterns: Sequence[str]) -> list[ir.Value]:
    found: dict[ir.Value, None] = {}
    for pattern in patterns:
        fits = name_matcher(pattern)
        fitting = [value for value in values if fits(value.name or "")]
        if not fitting:
            names = [value.name or "" for value in values]
            raise RequestError(f"the model has no {kind} {pattern!r}; {suggest(pattern, names)}")
        found.update(dict.fromkeys(fitting))
    return list(found)


def _check_rank(value: ir.Value, layout: str) -> None:
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        raise RequestError(f"{value.name} cannot become {layout}: it is a sequence or optional, not a tensor")
    if value.shape is None or len(value.shape) != len(layout):
        shape = "unknown" if value.shape is None else shape_text(value.shape)
        raise RequestError(
            f"{value.name} cannot become {layout}, which has {len(layout)} dimensions: its shape is {shape}"
        )
