"""New shapes for a model's inputs, with checks that the model supports them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from ndld_flow.base.errors import ModelError, RequestError, check_known
from ndld_flow.base.text import short_name, suggest
from ndld_flow.models.changed_model import check_changed_model
from ndld_flow.models.files import all_graphs, load_model, repairs_of, save_model, summarize_model
from ndld_flow.models.foreign_shapes import can_infer
from ndld_flow.models.shape_inference import drop_invented_names, infer_shapes
from ndld_flow.records.model_diff import GraphChange

Shapes = Mapping[str, tuple[int, ...]]
FreeShapes = Mapping[str, Sequence[int | str | None]]


def real_inputs(model: ir.Model) -> list[ir.Value]:
    """Return the inputs that must be fed: those without an initializer as default."""
    return [value for value in model.graph.inputs if not value.is_initializer()]


def check_shapes(model: ir.Model, shapes: FreeShapes, where: str) -> None:
    """Raise `RequestError` for an unknown input, or a shape of another rank than the model's."""
    inputs = {value.name or "": value for value in real_inputs(model)}
    check_known(shapes, inputs, f"{where}: the model has no input")
    for name, shape in shapes.items():
        own = inputs[name].shape
        if own is not None and len(own) != len(shape):
            raise RequestError(
                f"{where}: {name} has {len(own)} dimensions in the model ({show_shape(own)}), "
                f"but the given shape has {len(shape)} ({show_shape(shape)})"
            )


def dim_names(model: ir.Model) -> list[str]:
    """Return the names of the dimensions of inputs, in order of appearance."""
    dims = [dim for value in real_inputs(model) for dim in value.shape or ()]
    return list(dict.fromkeys(dim.value for dim in dims if isinstance(dim, ir.SymbolicDim) and dim.value))


def check_dims(model: ir.Model, dims: Mapping[str, int]) -> None:
    """Raise `RequestError` for a name that no dimension of an input has."""
    known, none = dim_names(model), "its inputs have no named dimensions"
    check_known(dims, known, "dims: the model has no dimension", none=none)


def show_shape(shape: ir.Shape | Sequence[int | str | None] | None) -> str:
    """Return `[batch, 3, ?, 640]`."""
    if shape is None:
        return "[?]"
    dims = (dim.value if isinstance(dim, ir.SymbolicDim) else dim for dim in shape)
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in dims) + "]"


def show_tensors(values: Iterable[ir.Value]) -> str:
    """Return `x: [batch, 3, ?, 640], mask: [1]`; only the name of a tensor whose shape is unknown."""
    shapes = ((value.name or "", _short_shape(value)) for value in values)
    return ", ".join(f"{short_name(name)}: {shape}" if shape else short_name(name) for name, shape in shapes)


def suggest_tensor(name: str, values: Iterable[ir.Value]) -> str:
    """Return the nearest of the tensors' names with its shape, or a list of them, as `suggest` does."""
    shapes = {value.name: _short_shape(value) for value in values if value.name}
    return suggest(name, shapes, facts={known: shape for known, shape in shapes.items() if shape})


def _short_shape(value: ir.Value) -> str:
    """Return the shape with names of at most 24 characters, as exporters write formulas; empty if it is unknown."""
    if value.shape is None:
        return ""
    return show_shape([dim if isinstance(dim, int) else dim.value and short_name(dim.value, 24) for dim in value.shape])


def dims_from_shapes(model: ir.Model, shapes: Shapes, dims: Mapping[str, int], where: str) -> dict[str, int]:
    """Return the named dimensions that shapes fix. Raises `RequestError` if one name would get two sizes."""
    fixed = dict(dims)
    for value in real_inputs(model):
        for dim, size in zip(value.shape or (), shapes.get(value.name or "", ()), strict=False):
            name = dim.value if isinstance(dim, ir.SymbolicDim) else None
            if name and fixed.setdefault(name, size) != size:
                raise RequestError(
                    f"{where}: dimension {name!r} would be both {fixed[name]} and {size} (input {value.name}); "
                    "dimensions of one name must be equal"
                )
    return fixed


def set_shapes_of_inputs(model: ir.Model, shapes: FreeShapes, dims: Mapping[str, int]) -> None:
    """Set the shapes of inputs, and sizes for named dimensions everywhere, subgraphs included."""
    for graph in all_graphs(model):
        for value in (*graph.inputs, *(out for node in graph for out in node.outputs)):
            if value.shape is not None and any(_name(dim) in dims for dim in value.shape):
                value.shape = ir.Shape([dims.get(_name(dim), dim) for dim in value.shape])
    for value in real_inputs(model):
        if (shape := shapes.get(value.name or "")) is not None:
            value.shape = ir.Shape(shape)


def _name(dim: int | ir.SymbolicDim) -> str:
    return "" if isinstance(dim, int) else dim.value or ""


def fix_shapes_file(
    source: Path, target: Path, shapes: Shapes, dims: Mapping[str, int], log: logging.Logger | None = None
) -> tuple[GraphChange, ir.Model]:
    """Write the model with fixed inputs and all other shapes inferred again; return it as written.

    Raises `RequestError` for inputs, dimensions and ranks that the model does not have, and `ModelError` if inference
    shows that the shapes are impossible.
    """
    model = load_model(source)
    before = summarize_model(model)
    check_shapes(model, shapes, "shapes")
    check_dims(model, dims)
    notes, snapshot = repairs_of(model), Snapshot(model)
    set_shapes_of_inputs(model, shapes, dims_from_shapes(model, shapes, dims, "shapes"))
    wanted = {value: value.shape for value in model.graph.outputs}
    given = ", ".join(f"{value.name}: {show_shape(value.shape)}" for value in real_inputs(model))
    snapshot.infer_again(model, notes.append, f"the model cannot have these input shapes ({given})")
    for value in model.graph.outputs:
        value.shape = merged_shape(value.shape, wanted[value])
    drop_all_invented_names(model)
    save_model(model, target)
    check_changed_model(source, target, log or logging.getLogger(__name__), model)
    written = load_model(target)
    return GraphChange(before=before, after=summarize_model(written), notes=tuple(notes)), written


class Snapshot:
    """The recorded shapes and types of a model, to restore them."""

    def __init__(self, model: ir.Model) -> None:
        self._kept = [(value, value.shape, value.type) for value in declared_values(model)]

    def restore(self) -> None:
        for value, shape, type_ in self._kept:
            value.shape, value.type = shape, type_

    def infer_again(self, model: ir.Model, note: Callable[[str], None], trouble: str, types: bool = False) -> None:
        """Infer all shapes from the declarations made since this snapshot was taken.

        Raises `ModelError` with the prefix `trouble`, after restoring the snapshot, if the declarations make a
        consistent model inconsistent. One that was inconsistent already gets a note: runtimes accept it anyway.
        """
        declared = Snapshot(model)
        try:
            _infer_strictly(model, types)
        except ModelError as error:
            if not self._was_contradictory(model):
                self.restore()
                raise ModelError(f"{trouble}: {error}") from None
            declared.restore()
            _forget(model, types)
            infer_shapes(model)
            note(f"strict shape inference rejects the original model: {error}")
        drop_all_invented_names(model)
        declared.fill_open_outputs(model)

    def _was_contradictory(self, model: ir.Model) -> bool:
        self.restore()
        try:
            _infer_strictly(model, types=False)
        except ModelError:
            return True
        return False

    def fill_open_outputs(self, model: ir.Model) -> None:
        """Give outputs without an inferred shape as many unknown dimensions as they had."""
        shapes = {value: shape for value, shape, _ in self._kept}
        for value in model.graph.outputs:
            before = shapes.get(value)
            if value.shape is None and before is not None:
                value.shape = ir.Shape([None] * len(before))


def _infer_strictly(model: ir.Model, types: bool) -> None:
    _forget(model, types)
    infer_shapes(model, strict=True)
    check_channels(model)


def _forget(model: ir.Model, types: bool) -> None:
    forget_computed_shapes(model)
    for graph in all_graphs(model) if types else ():
        for value in computed_values(graph):
            if not value.is_graph_output():
                value.type = None


def computed_values(graph: ir.Graph) -> list[ir.Value]:
    """Return outputs of nodes, except of custom operators, which cannot be inferred."""
    return [value for node in graph if can_infer(node) for value in node.outputs]


def declared_values(model: ir.Model) -> list[ir.Value]:
    """Return the inputs of all graphs, and the outputs of all nodes."""
    graphs = list(all_graphs(model))
    outputs = [value for graph in graphs for node in graph for value in node.outputs]
    return [*(value for graph in graphs for value in graph.inputs), *outputs]


def check_channels(model: ir.Model) -> None:
    """Check the number of channels of each Conv against its weight, which onnx's inference does not check."""
    for graph in all_graphs(model):
        for node in graph:
            if node.op_type != "Conv" or node.domain:
                continue
            given, weight = (value.shape if value is not None else None for value in node.inputs[:2])
            group = node.attributes.get("group")
            if given is None or weight is None or len(given) < 2 or (group is not None and group.is_ref()):
                continue
            groups = group.as_int() if group is not None else 1
            if isinstance(given[1], int) and isinstance(weight[1], int) and given[1] != weight[1] * groups:
                raise ModelError(
                    f"(op_type:Conv, node name: {node.name}): the input has {given[1]} channels, "
                    f"the weight requires {weight[1] * groups}"
                )


def forget_computed_shapes(model: ir.Model) -> None:
    """Clear the shapes of computed values, except outputs of custom operators, which cannot be inferred again."""
    for graph in model.graphs():
        for value in computed_values(graph):
            value.shape = None


def merged_shape(inferred: ir.Shape | None, declared: ir.Shape | None) -> ir.Shape | None:
    """Return inferred sizes if there are any, and declared names elsewhere."""
    if inferred is None or declared is None or len(inferred) != len(declared):
        return inferred if inferred is not None else declared
    return ir.Shape([f if isinstance(f, int) else d for f, d in zip(inferred, declared, strict=True)])


def dynamic_values(model: ir.Model) -> list[ir.Value]:
    """Return the inputs and outputs that still have a dimension without a size."""
    values = [*real_inputs(model), *model.graph.outputs]
    return [value for value in values if value.shape is None or any(not isinstance(dim, int) for dim in value.shape)]


def drop_all_invented_names(model: ir.Model) -> None:
    """Clear dimensions that inference only numbered, in every graph."""
    for graph in model.graphs():
        for node in graph:
            for value in node.outputs:
                drop_invented_names(value)
