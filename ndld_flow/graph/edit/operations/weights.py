"""Operations on weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, WithJsonSchema, model_validator

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import Bytes, counted
from ndld_flow.graph.edit.operation import InitializerOperation, Operation
from ndld_flow.graph.edit.settings import AllowEmpty, Patterns, RandomKind, Select, SelectTensors
from ndld_flow.step import DataFile

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.constant_tensors import ConstantTensor
    from ndld_flow.graph.edit.edited_model import EditedModel


class AddInitializer(InitializerOperation):
    """Add an initializer and connect it to inputs of nodes.

        add_initializer: {name: scale, value: [0.5, 2], dtype: float32, connect: [mul_1.B]}

    In a local function, which cannot have initializers, a Constant node is added instead.
    """

    name: str
    """Name of the initializer; must be unique among tensors and nodes."""
    scope: str = ""
    """The graph to add it to: `""` is the main graph, `If_0/then_branch` a subgraph."""
    connect: tuple[str, ...] = ()
    """Inputs that read it: `conv1.B` by the operator's name for the input, or `conv1.2` by index, from 0."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import add_initializer, connect_readers, initializer_tensor

        value = add_initializer(edited, initializer_tensor(self, self.name), self.name, self.scope)
        connect_readers(edited, value, self.connect)
        return f"initializer {self.name} added, {len(self.connect)} inputs read it"


class SetInitializer(InitializerOperation):
    """Set the value of an initializer or Constant node.

        set_initializer: {name: bias, value: [0, 0, 1]}

    A single number fills the whole tensor.
    """

    name: str
    """Name of the initializer, or of a Constant node's output."""
    scope: str = ""
    """Its graph: `""` is the main graph."""
    reshape: bool = False
    """Allow the new value to have another shape."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import find_initializer, initializer_tensor, replace_tensor

        held = find_initializer(edited, self.name, self.scope)
        shape = tuple(int(dim) for dim in held.tensor.shape.numpy())
        same_shape = self.shape is None and not self.reshape
        known_shape = shape if same_shape or self.generate else None
        tensor = initializer_tensor(self, held.name, held.tensor.dtype, known_shape)
        if not self.reshape and tuple(tensor.shape.numpy()) != shape:
            raise RequestError(f"{held.name!r} has the shape {list(shape)}; `reshape: true` allows another")
        replace_tensor(held, tensor)
        return f"value of initializer {held.name} set"


class GenerateInitializers(Operation):
    """Fill initializers with generated numbers, different ones in each.

        generate_initializers: {select: "layers.*.weight", kind: normal, seed: 7}

    The same seed generates the same numbers on every machine.
    """

    select: SelectTensors
    """Initializers to fill."""
    kind: RandomKind
    """`normal` (mean 0, standard deviation 1; rounded for integers), `zeros`, `ones`, `uniform_positive` (above 0, at
    most 1; for integers 1 to the type's largest value), or `uniform_negative` (the same below 0)."""
    seed: int = Field(default=0, ge=0)
    """Seed of the random numbers."""
    allow_empty: AllowEmpty = False

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import find_tensors, replace_tensor
        from ndld_flow.models.lazy_tensors import GeneratedTensor

        constants = find_tensors(edited.model, self.select, self.allow_empty)
        for constant in constants:
            shape = [int(dim) for dim in constant.tensor.shape.numpy()]
            name = f"{constant.scope}/{constant.name}" if constant.scope else constant.name
            replace_tensor(constant, GeneratedTensor(self.kind, constant.tensor.dtype, shape, name, self.seed))
        return f"{len(constants)} initializers filled with {self.kind}"


class ImportWeights(Operation):
    """Replace weights by those of a file, such as a state dict that was trained, by name and shape.

        import_weights: {weights_from: trained.safetensors, names: names.json}

    Every tensor without a counterpart, of the file or of the model, and every other shape or type is an error that
    names it, and so are NaN and infinity that the model does not have. Floats are converted to the model's type.
    """

    libraries: ClassVar[tuple[str, ...]] = ("safetensors",)

    weights_from: Annotated[
        tuple[Path, ...],
        Field(min_length=1),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
        DataFile(),
    ]
    """A `.safetensors` file, or a folder of `.npy` files that are named after their tensors. A `.pt` file is read by
    PyTorch's loader of weights only, which runs no code of the file; other pickles are never loaded."""
    names: Annotated[Path | None, DataFile()] = None
    """`names.json` of `export_pytorch`, if keys of the state dict differ from names of the model."""
    tensors: tuple[str, ...] = ()
    """Names of the tensors in several `.npy` files, in order; by default those of the files."""
    partial: bool = False
    """Accept tensors without a counterpart on either side; they are named in the step's log and record."""

    @model_validator(mode="before")
    @classmethod
    def _list_files(cls, given: Any) -> Any:  # noqa: ANN401  anything that a recipe may contain
        """List the files of a folder, with their names as a setting: a key has contents of files, not their names."""
        named = given.get("weights_from") if isinstance(given, dict) else None
        files: list[str | Path] = list(named) if isinstance(named, list | tuple) else []
        if isinstance(named, str | Path):
            kind, path = type(named), Path(named)  # JSON has texts where Python has paths
            files = [kind(file) for file in sorted(path.glob("*.npy"))] if path.is_dir() else [named]
            if not files:
                raise ValueError(f"the folder {path} has no .npy files")
        if not all(isinstance(file, str | Path) for file in files) or not files:
            return given
        paths = [Path(file) for file in files]
        stems = [path.stem for path in paths] if all(path.suffix == ".npy" for path in paths) else []
        return {**given, "weights_from": tuple(files), "tensors": tuple(given.get("tensors") or stems)}

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.weight_import import import_weights, read_names, read_weights

        weights = read_weights(self.weights_from, self.tensors)
        return import_weights(edited, weights, read_names(self.names), self.partial)


class ConvertDtype(Operation):
    """Convert initializers, Constant nodes and tensor attributes to another element type.

        convert_dtype: {select: {dtype: float32, larger_than: 1 KiB}, to: float16, casts: true}

    Values are rounded to the nearest representable value and clamped to the range of the type; conversion to integers
    truncates. Losses are counted and logged for each tensor. Without `casts` the readers see the new type: make sure
    that all inputs of a node have the types it needs.
    """

    to: str
    """The new element type, such as `float16`, `int32`, `int4`."""
    select: SelectTensors | None = None
    """Initializers to convert; with `constants: true` Constant nodes too."""
    attributes: Select | None = None
    """Nodes whose tensor attributes are converted, such as ConstantOfShape."""
    between: Patterns = ()
    """Outputs of nodes that are rounded to the type: a Cast to it and a Cast back are inserted."""
    casts: bool = False
    """Insert a Cast after each converted constant, so that its readers get the previous type."""
    allow_empty: AllowEmpty = False

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if self.select is None and self.attributes is None and not self.between:
            raise ValueError("select what to convert with `select`, `attributes` or `between`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import find_tensors
        from ndld_flow.graph.edit.interface import DtypeConversion
        from ndld_flow.graph.edit.value_grammar import parse_dtype
        from ndld_flow.models.element_types import dtype_name

        dtype = parse_dtype(self.to)
        conversion = DtypeConversion(edited, dtype)
        if self.select is not None:
            conversion.constants(find_tensors(edited.model, self.select, self.allow_empty), self.casts)
        if self.attributes is not None:
            conversion.attributes(edited.select_nodes(self.attributes, self.allow_empty))
        if self.between:
            conversion.between(edited.select_values(self.between, self.allow_empty))
        lost = conversion.lost.describe(conversion.values, dtype)
        if conversion.lost.beyond or conversion.lost.vanished:
            edited.note(f"converted to {dtype_name(dtype)}: {lost}")
        converted = counted(conversion.converted, "tensor")
        return f"{converted} converted to {dtype_name(dtype)}" + (f"; {lost}" if lost else "")


class ShareInitializers(Operation):
    """Deduplicate initializers of the same graph with equal type, shape and bytes.

        share_initializers: {up_to: 64 MiB}

    Readers of the duplicates read the first of them.
    """

    keeps_outputs = True

    up_to: Bytes = 2**40
    """Larger ones are not compared; they are shared only when they are the same range of a data file."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.sanitize.edits import Edits, share_equal_initializers

        edits = Edits(edited.model, self.up_to)
        share_equal_initializers(edits)
        shared = edits.done["duplicate initializers merged"]
        if not shared:
            edited.note("no two initializers of one graph are equal")
            return "nothing to do"
        return f"{shared} duplicate initializers removed"


class RemoveInitializers(Operation):
    """Remove unused initializers.

        remove_initializers: {select: "debug_*"}

    An initializer that is used is refused, unless `force` disconnects it from optional inputs.
    """

    select: SelectTensors | None = None
    """Initializers to remove; all unused ones by default."""
    force: bool = False
    """Disconnect optional inputs that read it."""
    allow_empty: bool = False
    """Succeed when `select` selects nothing."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import constant_tensors, find_tensors

        if self.select is None:
            initializers = constant_tensors(edited.model, constants=False)
            unused = [each for each in initializers if not each.value.uses() and not _is_interface(each.value)]
            if not unused:
                edited.note("all initializers are used")
                return "nothing to do"
            chosen = unused
        else:
            chosen = find_tensors(edited.model, self.select, self.allow_empty, constants=False)
        for initializer in chosen:
            self._remove(edited, initializer)
        return f"{len(chosen)} initializers removed"

    def _remove(self, edited: EditedModel, initializer: ConstantTensor) -> None:
        """Remove an initializer; with `force`, disconnect it from optional inputs first.

        Raises `RequestError` if it is used, or is an input or output of its graph.
        """
        from ndld_flow.graph.edit.graph_edits import some_of
        from ndld_flow.graph.edit.schemas import Schemas, port_at
        from ndld_flow.models.nodes import node_label

        value, name = initializer.value, initializer.name
        if _is_interface(value):
            which = "output" if value.is_graph_output() else "input"
            raise RequestError(f"initializer {name!r} is also an {which} of its graph; remove that first")
        readers = sorted({node_label(use.node) for use in value.uses()})
        if readers and not self.force:
            shown = some_of(list(map(repr, readers)))
            raise RequestError(f"initializer {name!r} is read by {shown}; connect these to another tensor first")
        schemas = Schemas(edited.model)
        for use in tuple(value.uses()):
            operator = schemas.of(use.node)
            known = operator is not None and use.idx < len(operator.inputs)
            if operator is None or not known or port_at(operator, use.idx).kind != "optional":
                raise RequestError(f"node {node_label(use.node)!r} requires {name!r}, its input {use.idx}")
        for node, index in tuple(value.uses()):
            node.replace_input_with(index, None)
            while node.inputs and node.inputs[-1] is None:
                node.resize_inputs(len(node.inputs) - 1)
        del initializer.graph.initializers[name]


def _is_interface(value: ir.Value) -> bool:
    return value.is_graph_input() or value.is_graph_output()
