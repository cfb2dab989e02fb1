"""Operations on shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ndld_flow.base.errors import ModelError, RequestError, check_known
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import short_name
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import DimName, Dims, NewName, Patterns
from ndld_flow.inputs import Dimension

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import EditedModel


class SetShapes(Operation):
    """Set the shapes of inputs and infer all shapes that depend on them.

        set_shapes: {shapes: {x: [1, 3, height, null]}}
        set_shapes: {dims: {batch: 1}, all: 640}

    Without settings the shapes of the recipe's `inputs:` are used. A number for a named dimension holds wherever the
    name is used.
    """

    shapes: dict[str, Dims] = Field(default={})
    """Input -> its shape: a number, a name or null (dynamic and unnamed) for each dimension."""
    dims: dict[str, Dimension] = Field(default={})
    """Named dimension -> its size, in all inputs."""
    all: Dimension | None = None
    """Size of all dynamic dimensions that `shapes` and `dims` do not set."""

    @property
    def uses_inputs(self) -> bool:
        return not self.shapes and not self.dims and self.all is None

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import change_shapes, show_inputs
        from ndld_flow.models.input_shapes import check_shapes, dims_from_shapes

        shapes: Mapping[str, Dims] = self.shapes
        if self.uses_inputs:
            shapes = {name: spec.run_shape for name, spec in edited.inputs.items() if spec.run_shape is not None}
            if not shapes:
                raise RequestError(
                    "no shapes to set: give `shapes`, `dims` or `all`, or shapes in the recipe's `inputs:`"
                )
        if shapes:
            check_shapes(edited.model, shapes, "shapes")
            numbers = {name: tuple(d if isinstance(d, int) else -1 for d in dims) for name, dims in shapes.items()}
            sizes = dims_from_shapes(edited.model, numbers, {}, "shapes")
            change_shapes(edited, shapes, {name: size for name, size in sizes.items() if size >= 0})
        if self.dims or self.all is not None:
            self._fix_dims(edited)
        return show_inputs(edited.model)

    def _fix_dims(self, edited: EditedModel) -> None:
        """Set dimensions of inputs to sizes by name, and all other dynamic ones to `all`."""
        from ndld_flow.graph.edit.interface import change_shapes
        from ndld_flow.models.input_shapes import check_dims, dim_names, real_inputs

        model, rest = edited.model, self.all
        check_dims(model, self.dims)
        if rest is None:
            change_shapes(edited, {}, self.dims)
            return
        sizes = {**dict.fromkeys(dim_names(model), rest), **self.dims}
        shapes = {
            value.name or "": [dim if isinstance(dim, int) else sizes.get(str(dim.value), rest) for dim in value.shape]
            for value in real_inputs(model)
            if value.shape is not None
        }
        change_shapes(edited, shapes, sizes)


class RemoveShapes(Operation):
    """Remove the shapes and types of intermediate tensors from the model, subgraphs included.

    Inputs and outputs keep theirs, and so do tensors that later operations add. `infer_shapes` reverses it.

        remove_shapes: {}
    """

    keeps_outputs = True

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import discard_shapes

        values = discard_shapes(edited.model)
        edited.bare.update(values)
        return f"{len(values)} tensors are written without shape and type"


class InferShapes(Operation):
    """Discard the recorded shapes and infer the shape and type of every tensor again.

    Static dimensions are written as numbers, dynamic ones by name or formula (`2*seq + 1`). Outputs of ONNX Runtime's
    operators and of common TensorRT plugins are inferred too; recorded shapes of other custom operators' outputs are
    kept.

        infer_shapes: {strict: true}
    """

    keeps_outputs = True

    strict: bool = False
    """Reject a model with inconsistent shapes; by default nodes whose shapes cannot be inferred are skipped."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import discard_shapes
        from ndld_flow.models.input_shapes import Snapshot, drop_all_invented_names
        from ndld_flow.models.shape_inference import infer_shapes, name_computed_dims

        model = edited.model
        snapshot = Snapshot(model)
        discard_shapes(model)
        try:
            infer_shapes(model, self.strict)
        except ModelError:
            snapshot.restore()
            raise
        edited.bare.clear()
        drop_all_invented_names(model)
        name_computed_dims(model)
        snapshot.fill_open_outputs(model)
        values = [value for graph in edited.graphs() for node in graph for value in node.outputs]
        known = sum(value.type is not None and value.shape is not None for value in values)
        return f"{known} of {len(values)} tensors have a type and a shape"


_NAME = re.compile(r"[A-Za-z_][\w.:]*")


class RenameDims(Operation):
    """Rename dimensions everywhere, also in subgraphs and expressions.

    Two names may become one, which declares the dimensions equal.

        rename_dims: {names: {"p2o.DynamicDimension.0": batch}}
    """

    names: dict[str, DimName] = Field(min_length=1)
    """Old name -> new name."""

    def apply(self, edited: EditedModel) -> str:
        import onnx_ir as ir

        from ndld_flow.models.input_shapes import declared_values

        shaped = [value for value in declared_values(edited.model) if value.shape is not None]
        dims = (dim for value in shaped for dim in value.shape or () if not isinstance(dim, int))
        known = {str(dim.value) for dim in dims if dim.value}
        check_known(self.names, known, "the model has no dimension", none="it has no named dimensions")
        changed = 0
        for value in shaped:
            assert value.shape is not None
            old = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
            new = [self._renamed(dim) for dim in old]
            if new != old:
                value.shape = ir.Shape(new)
                changed += 1
        return f"dimensions renamed on {counted(changed, 'tensor')}"

    def _renamed(self, dim: int | str | None) -> int | str | None:
        """Return the dimension by its new name, also inside an expression such as `floor(batch/2)`."""
        if not isinstance(dim, str) or dim in self.names:
            return self.names.get(dim, dim) if isinstance(dim, str) else dim
        return _NAME.sub(lambda match: self.names.get(match[0], match[0]), dim)


class FreeDims(Operation):
    """Make dimensions of inputs dynamic, named or unnamed.

    An output that stays static is reported with the node that makes it static, such as a Reshape to a constant shape.

        free_dims: {axes: {0: batch, 2: height, 3: width}, select: image}
    """

    axes: dict[int, DimName | None] = Field(min_length=1)
    """Axis -> name of the dimension; null leaves it unnamed. Axes count from 0, or from the end by -1, -2, ..."""
    select: Patterns = ("*",)
    """Inputs to change, by names, globs or `/regex/`; all by default."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import change_shapes, pick, show_inputs
        from ndld_flow.models.input_shapes import real_inputs, show_shape

        model = edited.model
        inputs = pick(real_inputs(model), self.select, "input")
        change_shapes(edited, {value.name or "": self._freed(value) for value in inputs}, {})
        if static := [value for value in model.graph.outputs if not _is_free(value)]:
            where = _where_fixed(model)
            for value in static:
                edited.note(f"output {value.name} is still {show_shape(value.shape)}{where}")
        return show_inputs(model)

    def _freed(self, value: ir.Value) -> list[int | str | None]:
        """Return the new shape of an input. Raises `RequestError` for an axis that it does not have."""
        if value.shape is None:
            raise RequestError(f"the shape of input {value.name!r} is unknown; set it with `set_shapes`")
        dims: list[int | str | None] = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        for axis, name in self.axes.items():
            if not -len(dims) <= axis < len(dims):
                raise RequestError(
                    f"input {value.name!r} has {len(dims)} dimensions and no axis {axis}; restrict the inputs by "
                    "`select`"
                )
            dims[axis] = name
        return dims


def _where_fixed(model: ir.Model) -> str:
    """Return a description of the first node with dynamic inputs and static outputs."""
    from ndld_flow.models.input_shapes import show_shape
    from ndld_flow.models.nodes import node_label

    for node in model.graph:
        if any(value is not None and _is_free(value) for value in node.inputs) and not any(map(_is_free, node.outputs)):
            label = f"{node.op_type} {short_name(node_label(node))!r}"
            return f": {label} produces {show_shape(node.outputs[0].shape)} for any input"
    return ""


def _is_free(value: ir.Value) -> bool:
    return value.shape is None or any(not isinstance(dim, int) for dim in value.shape)


class MakeBatchDynamic(Operation):
    """Make the batch dimension of a model that was exported for a fixed batch dynamic.

    Inputs and outputs get a named dimension. Reshape and Expand with the batch in their shape copy it, Resize computes
    it, and constants that are concatenated with the data or start an LSTM, GRU or RNN are repeated for each item. Nodes
    that do not support another batch are listed, and so are outputs that do not depend on it. For the original batch
    all results are exactly the same; a larger batch is tested.

        make_batch_dynamic: {axes: {state: 1}}
    """

    select: Patterns = ()
    """Inputs with a batch dimension; by default all whose first dimension equals that of the first input, or is
    dynamic."""
    axes: dict[str, Annotated[int, Field(ge=0)]] = Field(default={})
    """Input -> its batch axis, if that is not the first; these inputs are selected too."""
    name: NewName = "batch"
    """Name of the dimension; a dimension that is dynamic already keeps its name."""
    try_it: bool = True
    """Run the result on the CPU and reject it unless a batch of three gives the same results as its items one by one.
    The recipe's `inputs` set the sizes of other dynamic dimensions. Models over 1.5 GiB are not tested."""

    @property
    def uses_inputs(self) -> bool:
        return True

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.free_batch import free_batch, try_batch

        freed = free_batch(edited, self.select, self.axes, self.name)
        if self.try_it:
            try_batch(edited, freed)
        names = ", ".join((*freed.batch.axes, *freed.outputs))
        return f"dynamic batch in {names}; {counted(len(freed.changed), 'node')} with a fixed batch changed"
