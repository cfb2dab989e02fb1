"""Shapes of inputs, named dimensions, and inference of all other shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.text import short_name, suggest
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.sanitize.edits import is_standard
from ndld_flow.models.files import all_graphs
from ndld_flow.models.input_shapes import (
    check_channels,
    check_dims,
    check_shapes,
    dim_names,
    dims_from_shapes,
    drop_all_invented_names,
    dynamic_values,
    forget_computed_shapes,
    real_inputs,
    set_shapes_of_inputs,
    show_shape,
)
from ndld_flow.models.scopes import node_label
from ndld_flow.models.shape_inference import infer_shapes

Dims = Sequence[int | str | None]
_NAME = re.compile(r"[A-Za-z_][\w.:]*")


class Snapshot:
    """The recorded shapes and types of a model, to restore them."""

    def __init__(self, model: ir.Model) -> None:
        self._kept = [(value, value.shape, value.type) for value in _values(model)]

    def put_back(self) -> None:
        for value, shape, type_ in self._kept:
            value.shape, value.type = shape, type_

    def infer_again(self, edited: EditedModel, trouble: str, types: bool = False) -> None:
        """Infer all shapes from the declarations made since this snapshot was taken.

        Raises `ModelError` with the prefix `trouble`, after restoring the snapshot, when the declarations make a
        consistent model inconsistent.
        """
        model = edited.model
        declared = Snapshot(model)
        try:
            _infer_strictly(model, types)
        except ModelError as error:
            if not self._was_contradictory(model):
                self.put_back()
                raise ModelError(f"{trouble}: {error}") from None
            declared.put_back()
            _forget(model, types)
            infer_shapes(model)
            edited.note(f"strict shape inference refuses the original model: {error}")
        drop_all_invented_names(model)
        declared.fill_open_outputs(model)

    def _was_contradictory(self, model: ir.Model) -> bool:
        self.put_back()
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
        for value in _computed(graph):
            if not value.is_graph_output():
                value.type = None


def _computed(graph: ir.Graph) -> list[ir.Value]:
    """Return outputs of the nodes of the default domain; those of custom operators cannot be inferred."""
    return [value for node in graph if is_standard(node) for value in node.outputs]


def _values(model: ir.Model) -> list[ir.Value]:
    graphs = list(all_graphs(model))
    made = [value for graph in graphs for node in graph for value in node.outputs]
    return [*(value for graph in graphs for value in graph.inputs), *made]


# --- shapes and sizes ------------------------------------------------------------------------------------------------


def set_shapes(edited: EditedModel, shapes: Mapping[str, Dims]) -> None:
    """Set shapes of inputs and infer all others; a number for a named dimension holds wherever the name is used.

    Raises `RequestError` for an unknown input or another rank, `ModelError` when the model does not support the shapes.
    """
    model = edited.model
    check_shapes(model, shapes, "shapes")
    numbers = {name: tuple(dim if isinstance(dim, int) else -1 for dim in shape) for name, shape in shapes.items()}
    _put(edited, shapes, _sizes(model, numbers))


def _sizes(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    sizes = dims_from_shapes(model, shapes, {}, "shapes")
    return {name: size for name, size in sizes.items() if size >= 0}


def _put(edited: EditedModel, shapes: Mapping[str, Dims], sizes: Mapping[str, int]) -> None:
    snapshot = Snapshot(edited.model)
    set_shapes_of_inputs(edited.model, shapes, sizes)
    shown = ", ".join(f"{value.name}: {show_shape(value.shape)}" for value in real_inputs(edited.model))
    snapshot.infer_again(edited, f"the model does not support these input shapes ({shown})")


def fix_dims(edited: EditedModel, sizes: Mapping[str, int], rest: int | None) -> None:
    """Set dimensions to sizes by name, and all other dynamic dimensions of inputs to `rest`.

    Raises like `set_shapes`.
    """
    model = edited.model
    check_dims(model, sizes, "dims")
    wanted = {} if rest is None else dict.fromkeys(dim_names(model), rest)
    wanted |= sizes
    _put(edited, {} if rest is None else _filled(real_inputs(model), wanted, rest), wanted)


def _filled(inputs: Sequence[ir.Value], sizes: Mapping[str, int], rest: int) -> dict[str, Dims]:
    """Return shapes without dynamic dimensions, for inputs of known rank."""
    return {
        value.name or "": [dim if isinstance(dim, int) else sizes.get(str(dim.value), rest) for dim in value.shape]
        for value in inputs
        if value.shape is not None
    }


def show_inputs(model: ir.Model) -> str:
    """Return `x [1, 3, 640, 640], mask [1]; still dynamic: y`."""
    inputs = ", ".join(f"{value.name} {show_shape(value.shape)}" for value in real_inputs(model))
    dynamic = ", ".join(str(value.name) for value in dynamic_values(model))
    return f"{inputs}; still dynamic: {dynamic}" if dynamic else inputs


def free_dims(edited: EditedModel, axes: Mapping[int, str | None], inputs: Sequence[ir.Value]) -> None:
    """Make dimensions of inputs dynamic, named or unnamed, and infer all shapes.

    Notes outputs that stay static because of a constant inside the model. Raises `RequestError` for an axis that an
    input does not have.
    """
    shapes: dict[str, Dims] = {}
    for value in inputs:
        if value.shape is None:
            raise RequestError(f"the shape of input {value.name!r} is unknown; set it by `set_shapes`")
        dims: list[int | str | None] = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        for axis, name in axes.items():
            if not -len(dims) <= axis < len(dims):
                raise RequestError(
                    f"input {value.name!r} has {len(dims)} dimensions and no axis {axis}; restrict the inputs by "
                    "`select`"
                )
            dims[axis] = name
        shapes[value.name or ""] = dims
    _put(edited, shapes, {})
    fixed = [value for value in edited.model.graph.outputs if value not in dynamic_values(edited.model)]
    for value in fixed:
        edited.note(f"output {value.name} is still {show_shape(value.shape)}{_where_fixed(edited.model)}")


def _where_fixed(model: ir.Model) -> str:
    """Return a description of the first node with dynamic inputs and static outputs."""
    for node in model.graph:
        if any(value is not None and _is_free(value) for value in node.inputs) and not any(map(_is_free, node.outputs)):
            label = f"{node.op_type} {short_name(node_label(node))!r}"
            return f": {label} produces {show_shape(node.outputs[0].shape)} for any input"
    return ""


def _is_free(value: ir.Value) -> bool:
    return value.shape is None or any(not isinstance(dim, int) for dim in value.shape)


# --- names -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Renaming:
    names: Mapping[str, str]

    def of(self, dim: int | ir.SymbolicDim) -> int | str | None:
        """Return the dimension by its new name, also inside an expression such as `floor(batch/2)`."""
        if isinstance(dim, int) or dim.value is None:
            return dim if isinstance(dim, int) else None
        text = str(dim.value)
        if text in self.names:
            return self.names[text]
        return _NAME.sub(lambda found: self.names.get(found[0], found[0]), text)


def rename_dims(model: ir.Model, names: Mapping[str, str]) -> int:
    """Rename dimensions everywhere and return the number of changed tensors.

    Raises `RequestError` for a name that no tensor has.
    """
    shaped = [value for value in _values(model) if value.shape is not None]
    known = {str(dim.value) for value in shaped for dim in value.shape or () if not isinstance(dim, int) and dim.value}
    for name in names:
        if name not in known:
            nearest = suggest(name, known) or "it has no named dimensions"
            raise RequestError(f"the model has no dimension {short_name(name)!r}; {nearest}")
    renaming = _Renaming(names)
    changed = 0
    for value in shaped:
        assert value.shape is not None
        old = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        new = [renaming.of(dim) for dim in value.shape]
        if new != old:
            value.shape = ir.Shape(new)
            changed += 1
    return changed


# --- recorded shapes ------------------------------------------------------------------------------------------


def infer_all(edited: EditedModel, strict: bool) -> str:
    """Discard recorded shapes and types of computed tensors and infer them again. Returns a summary.

    With `strict`, raises `ModelError` for an inconsistent model after restoring it.
    """
    model = edited.model
    snapshot = Snapshot(model)
    _forget_noted(model)
    try:
        infer_shapes(model, strict)
    except ModelError:
        snapshot.put_back()
        raise
    edited.bare.clear()
    drop_all_invented_names(model)
    snapshot.fill_open_outputs(model)
    values = [value for graph in all_graphs(model) for node in graph for value in node.outputs]
    known = sum(value.type is not None and value.shape is not None for value in values)
    return f"{known} of {len(values)} tensors have a type and a shape"


def remove_shapes(edited: EditedModel) -> int:
    """Omit shapes and types of computed tensors from the file, except of outputs. Returns the number of tensors."""
    bare = _forget_noted(edited.model)
    edited.bare.update(bare)
    return len(bare)


def _forget_noted(model: ir.Model) -> list[ir.Value]:
    """Discard shapes and types of computed tensors; returns these."""
    made = [value for graph in all_graphs(model) for value in _computed(graph) if not value.is_graph_output()]
    for value in made:
        value.shape = value.type = None
    return made
