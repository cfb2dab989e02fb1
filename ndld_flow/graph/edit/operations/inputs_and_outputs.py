"""Operations on the inputs and outputs of the model."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, JsonValue, model_validator

from ndld_flow.base.errors import RequestError, check_known
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import first_of, short_name
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Dims, NewName, Patterns, TensorDeclaration, TensorValue
from ndld_flow.step import DataFile

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import EditedModel


class AddInputs(Operation):
    """Add inputs, which operations that follow can connect.

    add_inputs: {inputs: {mask: {dtype: bool, shape: [batch, 1]}}}
    """

    keeps_outputs = True

    inputs: dict[NewName, TensorDeclaration] = Field(min_length=1)
    """Name -> type and shape. New inputs are appended to the existing ones."""

    def apply(self, edited: EditedModel) -> str:
        import onnx_ir as ir

        from ndld_flow.graph.edit.interface import Declared

        for name, setting in self.inputs.items():
            from ndld_flow.models.nodes import values_of

            for address, graph in edited.scopes().items():
                if any(value.name == name for value in values_of(graph)):
                    where = f" in {short_name(address)}" if address else ""
                    raise RequestError(f"there is already a tensor {short_name(name)!r}{where}; choose another name")
            declared = Declared(setting.dtype, setting.shape)
            edited.model.graph.inputs.append(ir.Value(name=name, type=declared.type, shape=declared.dims))
        return f"inputs added: {', '.join(self.inputs)}"


class AddOutputs(Operation):
    """Make tensors of the main graph outputs of the model.

    add_outputs: {select: ["/backbone/*/Relu_output_0", features]}
    """

    keeps_outputs = True

    select: Patterns
    """Names, globs or `/regex/` of node outputs; inputs and initializers by their exact names. New outputs are
    appended to the existing ones."""
    dtype: str | None = None
    """Element type of tensors whose type cannot be inferred, such as outputs of custom operators."""
    shape: Dims | None = None
    """Shape of tensors whose shape cannot be inferred."""
    allow_empty: bool = False
    """Succeed when all of them are outputs already."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.models.input_shapes import show_tensors
        from ndld_flow.models.nodes import values_of

        graph = edited.model.graph
        computed = [value for node in graph for value in node.outputs if value.name]
        named = [value for value in values_of(graph) if value.name in self.select]
        chosen: dict[ir.Value, None] = {}
        for pattern in self.select:
            fits = name_matcher(pattern)
            matching = [value for value in named if value.name == pattern]
            matching = matching or [value for value in computed if fits(value.name or "")]
            if not matching:
                raise RequestError(_why_no_output(edited, pattern))
            chosen |= dict.fromkeys(matching)
        new = [value for value in chosen if not value.is_graph_output()]
        if not new and not self.allow_empty:
            raise RequestError("all of them are outputs already; `allow_empty: true` accepts that")
        self._declare(edited.model, new)
        graph.outputs.extend(new)
        return f"{counted(len(new), 'output')} added: {show_tensors(new)}"

    def _declare(self, model: ir.Model, values: Sequence[ir.Value]) -> None:
        """Set the type and rank of outputs, which ONNX requires. Raises `RequestError` for unknown ones."""
        import onnx_ir as ir

        from ndld_flow.graph.edit.interface import Declared
        from ndld_flow.models.element_types import dtype_of, infer_types
        from ndld_flow.models.shape_inference import infer_shapes

        given = Declared(self.dtype, self.shape)
        if any(value.type is None or value.shape is None for value in values):
            infer_shapes(model)
        types = infer_types(model) if any(value.type is None for value in values) and not model.functions else {}
        for value in values:
            inferred = types.get(value, "")
            if value.type is None:
                value.type = given.type
            if value.type is None and inferred.startswith("tensor("):
                value.type = ir.TensorType(dtype_of(inferred))
            if value.type is None:
                raise RequestError(f"the type of {value.name!r} cannot be inferred; give it with `dtype`")
            if value.shape is None and isinstance(value.type, ir.TensorType):
                value.shape = given.dims
                if value.shape is None:
                    raise RequestError(f"the shape of {value.name!r} cannot be inferred; give it with `shape`")


def _why_no_output(edited: EditedModel, pattern: str) -> str:
    from ndld_flow.models.input_shapes import suggest_tensor
    from ndld_flow.models.nodes import values_of

    fits = name_matcher(pattern)
    for address, graph in edited.scopes().items():
        inside = next((value.name for value in values_of(graph) if fits(value.name or "")), None)
        if address and inside is not None:
            return (
                f"{short_name(inside)!r} is in {short_name(address)}, which may run any number of times, while a model "
                "has one value for each output. Make it an output of the subgraph first, or move the nodes out"
            )
    nearest = suggest_tensor(pattern, values_of(edited.model.graph))
    return f"no tensor has a name like {short_name(pattern)!r}; {nearest}"


class RemoveInputs(Operation):
    """Remove unused inputs, or replace inputs by constants.

    An input with a default value (an initializer) becomes that constant.

        remove_inputs: {select: [training], replace_by: false}
    """

    select: Patterns
    """Inputs to remove, by names, globs or `/regex/`."""
    replace_by: JsonValue = None
    """The constant that replaces them: a number for every element, or lists in the input's shape."""
    replace_by_file: Annotated[Path | None, DataFile()] = None
    """The constant in a `.npy` file."""
    allow_empty: bool = False
    """Succeed when no name matches."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.edited_model import FIRST_WITH_FREE_INITIALIZERS
        from ndld_flow.graph.edit.graph_edits import prune_values
        from ndld_flow.graph.edit.interface import pick
        from ndld_flow.models.input_shapes import show_tensors
        from ndld_flow.models.nodes import is_used, node_label

        values = pick(edited.model.graph.inputs, self.select, "input", self.allow_empty)
        for value in values:
            if self.replace_by is not None or self.replace_by_file is not None:
                _replace(edited, value, self._constant(value))
                continue
            if is_used(value) and not value.is_initializer():
                nodes = [f"{node.op_type} {short_name(node_label(node))!r}" for node in value.consumers()]
                raise RequestError(
                    f"input {value.name!r} is read by {first_of(nodes, 3) or 'an output'}; give a constant with "
                    "`replace_by`, or remove its readers first"
                )
            edited.model.graph.inputs.remove(value)
            if value.is_initializer():  # its default value becomes a constant
                edited.raise_ir_version(FIRST_WITH_FREE_INITIALIZERS)
            prune_values([value])
        return f"{counted(len(values), 'input')} removed: {show_tensors(values)}"

    def _constant(self, value: ir.Value) -> ir.TensorProtocol:
        """Return the constant, of the input's type; a single number fills the input's shape.

        Raises `RequestError` for a value of another type, and for a single number if the shape is dynamic.
        """
        from ndld_flow.graph.edit.constant_tensors import make_tensor

        if value.dtype is None:
            raise RequestError(f"the type of input {value.name!r} is unknown; set it with `set_dtypes` first")
        written, name = TensorValue(value=self.replace_by, file=self.replace_by_file), value.name or ""
        tensor = make_tensor(written, name, value.dtype)
        if value.shape is None or len(tensor.shape) or not len(value.shape):
            return tensor
        if not value.shape.is_static():
            raise RequestError(
                f"input {value.name!r} has dynamic dimensions, so one number does not determine its shape; fix them "
                "by `set_shapes` first, or give lists"
            )
        return make_tensor(written, name, value.dtype, tuple(value.shape.numpy()))


def _replace(edited: EditedModel, value: ir.Value, tensor: ir.TensorProtocol) -> None:
    """Replace an input by a constant. Raises `RequestError` for a constant of another type or shape."""
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import FIRST_WITH_FREE_INITIALIZERS
    from ndld_flow.models.input_shapes import show_shape

    if value.dtype not in (None, tensor.dtype):
        raise RequestError(f"input {value.name!r} is {value.dtype}, but the value is {tensor.dtype}")
    dims = tuple(tensor.shape.numpy())
    own = value.shape
    pairs = zip(own or (), dims, strict=False)
    if own is not None and (len(own) != len(dims) or any(isinstance(dim, int) and dim != new for dim, new in pairs)):
        raise RequestError(f"input {value.name!r} has the shape {show_shape(own)}, but the value has {list(dims)}")
    edited.raise_ir_version(FIRST_WITH_FREE_INITIALIZERS)
    graph = edited.model.graph
    graph.inputs.remove(value)
    value.const_value = tensor
    value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(dims)
    if not value.is_initializer():
        graph.register_initializer(value)


class RemoveOutputs(Operation):
    """Remove outputs, and the nodes that only they depend on.

    remove_outputs: {select: aux_*}
    """

    keeps_outputs = True

    select: Patterns
    """Outputs to remove, by names, globs or `/regex/`."""
    prune: bool = True
    """Remove nodes and weights that no output depends on any more. Those that were unused before stay."""
    allow_empty: bool = False
    """Succeed when no name matches."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.graph_edits import prune_values
        from ndld_flow.graph.edit.interface import pick
        from ndld_flow.models.input_shapes import show_tensors
        from ndld_flow.models.nodes import is_used

        graph = edited.model.graph
        values = pick(graph.outputs, self.select, "output", self.allow_empty)
        kept = [value for value in graph.outputs if value not in values]
        if values and not kept:
            raise RequestError("no output would be left; add others first with `add_outputs`")
        inputs = [value for value in graph.inputs if value.uses()]
        graph.outputs[:] = kept
        removed = prune_values(values) if self.prune else []
        idle = [value.name for value in inputs if not is_used(value)]
        if idle:
            edited.note(f"nothing reads {', '.join(map(short_name, filter(None, idle)))} any more; see `remove_inputs`")
        return f"outputs removed: {show_tensors(values)}; {counted(len(removed), 'node')} with them"


class Reorder(Operation):
    """Reorder the inputs and outputs of the model.

    reorder: {inputs: [mask, x, "*"], outputs: [boxes, scores]}
    """

    keeps_outputs = True

    inputs: tuple[str, ...] = ()
    """Inputs in the new order; `*` means all that are not listed, in their current order."""
    outputs: tuple[str, ...] = ()
    """Outputs in the new order, in the same way."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not self.inputs and not self.outputs:
            raise ValueError("give the order of `inputs`, `outputs`, or both")
        return self

    def apply(self, edited: EditedModel) -> str:
        graph, changes = edited.model.graph, []
        for kind, values, order in (("input", graph.inputs, self.inputs), ("output", graph.outputs, self.outputs)):
            if order:
                _reorder(values, order, kind)
                changes.append(f"{kind}s are now {', '.join(str(value.name) for value in values)}")
        return "; ".join(changes)


_REST = "*"
"""In an order: all that are not listed, in their current order."""


def _reorder(values: MutableSequence[ir.Value], order: Sequence[str], what: str) -> None:
    """Reorder inputs or outputs by name; `*` means all others.

    Raises `RequestError` for an unknown name, for one that is listed twice, and for one that is missing without `*`.
    """
    known = {value.name or "": value for value in values}
    check_known([name for name in order if name != _REST], known, f"the model has no {what}")
    for name in order:
        if order.count(name) > 1:
            raise RequestError(f"{name!r} is listed twice in the order")
    if len(known) < len(values):
        raise RequestError(f"one {what} of the model is listed twice; remove it first")
    rest = [value for name, value in known.items() if name not in order]
    if rest and _REST not in order:
        left = ", ".join(short_name(value.name or "") for value in rest)
        raise RequestError(f"the order does not list {left}; `*` means all others")
    sorted_values = [value for name in order for value in (rest if name == _REST else [known[name]])]
    values[:] = sorted_values


class SetDtypes(Operation):
    """Set the element types of inputs and outputs.

    By default a Cast at each input or output keeps the types inside the model; without it only the declaration changes,
    and shape inference must accept it.

        set_dtypes: {dtypes: {image: uint8, scores: float16}}
    """

    dtypes: dict[str, str] = Field(min_length=1)
    """Input or output -> new element type: `float32`, `float16`, `int64`, `uint8`, ..."""
    cast: bool = True
    """Insert a Cast between the input or output and the rest of the model."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import cast_edges, retype_edges

        if self.cast:
            return f"{cast_edges(edited, self.dtypes)} inputs and outputs cast"
        return f"{retype_edges(edited, self.dtypes)} inputs and outputs redeclared"
