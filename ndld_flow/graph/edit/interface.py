"""Types and shapes of inputs and outputs, the inference of all others, and conversions of constants to other types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ndld_flow.base.errors import ModelError, RequestError, UnknownNameError, check_known
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.text import short_name
from ndld_flow.graph.edit.constant_tensors import ConstantTensor
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.graph_edits import known_shapes
from ndld_flow.graph.edit.value_grammar import parse_dtype
from ndld_flow.models.element_types import (
    Types,
    dtype_name,
    dtype_of,
    held_tensor,
    infer_types,
    signature_of,
    tensor_of,
)
from ndld_flow.models.files import all_graphs
from ndld_flow.models.input_shapes import (
    Snapshot,
    computed_values,
    dynamic_values,
    real_inputs,
    set_shapes_of_inputs,
    show_shape,
    show_tensors,
    suggest_tensor,
)
from ndld_flow.models.lazy_tensors import ConvertedTensor, Lost, SparseInitializer, check_conversion, in_type
from ndld_flow.models.nodes import constant_of, node_label, put_first
from ndld_flow.models.shape_inference import infer_shapes, is_invented_name
from ndld_flow.precision.type_groups import Use, insert_cast

Dims = Sequence[int | str | None]
_TYPE = re.compile(r"\s*([A-Za-z0-9_]+)\s*\[([^\[\]]*)\]\s*")


@dataclass(frozen=True)
class Declared:
    """Type and shape from settings."""

    dtype: str | None = None
    shape: Dims | None = None

    @property
    def type(self) -> ir.TensorType | None:
        """Return the element type. Raises `RequestError` for an unknown name."""
        return None if self.dtype is None else ir.TensorType(parse_dtype(self.dtype))

    @property
    def dims(self) -> ir.Shape | None:
        return None if self.shape is None else ir.Shape(self.shape)


def pick(values: Iterable[ir.Value], patterns: Sequence[str], what: str, allow_empty: bool = False) -> list[ir.Value]:
    """Return inputs or outputs whose names match one of the patterns, in their order, each once.

    `what` is `input` or `output`. Raises `RequestError` for a pattern that fits none, unless that is allowed.
    """
    known = {value.name or "": value for value in values}
    chosen: set[str] = set()
    for pattern in patterns:
        matching = set(filter(name_matcher(pattern), known))
        if not matching and not allow_empty:
            raise UnknownNameError(f"the model has no {what} {short_name(pattern)!r}", pattern, known)
        chosen |= matching
    return [value for name, value in known.items() if name in chosen]


def find_output(model: ir.Model, name: str | None, advice: str = "") -> ir.Value:
    """Return the output of a name, or the only one without a name. Raises `RequestError` if there is none."""
    outputs = {value.name or "": value for value in model.graph.outputs}
    if name is None and len(outputs) == 1:
        name = next(iter(outputs))
    if name is None:
        shown = show_tensors(model.graph.outputs)
        raise RequestError(f"the model has {len(outputs)} outputs ({shown}): give `output`{advice}")
    if name not in outputs:
        raise RequestError(f"the model has no output {name!r}; {suggest_tensor(name, model.graph.outputs)}")
    return outputs[name]


def change_shapes(edited: EditedModel, shapes: Mapping[str, Dims], sizes: Mapping[str, int]) -> None:
    """Set shapes of inputs and sizes of named dimensions, and infer all other shapes.

    Raises `ModelError` if the model does not support the shapes.
    """
    snapshot = Snapshot(edited.model)
    set_shapes_of_inputs(edited.model, shapes, sizes)
    shown = ", ".join(f"{value.name}: {show_shape(value.shape)}" for value in real_inputs(edited.model))
    snapshot.infer_again(edited.model, edited.note, f"the model does not support these input shapes ({shown})")


def show_inputs(model: ir.Model) -> str:
    """Return `x: [1, 3, 640, 640], mask: [1]; still dynamic: y`."""
    inputs = show_tensors(real_inputs(model))
    dynamic = ", ".join(str(value.name) for value in dynamic_values(model))
    return f"{inputs}; still dynamic: {dynamic}" if dynamic else inputs


def show_interface(model: ir.Model) -> str:
    """Return `x: [1, 3, 640, 640] -> p3: [1, 64, 80, 80], p4: [1, 128, 40, 40]`."""
    return f"{show_tensors(real_inputs(model))} -> {show_tensors(model.graph.outputs)}"


def discard_shapes(model: ir.Model) -> list[ir.Value]:
    """Discard shapes and types of computed tensors; returns these."""
    values = [value for graph in all_graphs(model) for value in computed_values(graph) if not value.is_graph_output()]
    for value in values:
        value.shape = value.type = None
    return values


def parse_tensor_type(text: str) -> tuple[ir.TensorType, ir.Shape]:
    """Parse `float32[1, 3, H, ?]`: numbers, names, `?` for an unknown dimension; `int64[]` is a scalar.

    Raises `RequestError`.
    """
    match = _TYPE.fullmatch(text)
    if match is None:
        raise RequestError(f"{text!r} is not a tensor type: write a dtype and a shape, such as `float32[1, 3, H, ?]`")
    words = [word.strip() for word in match[2].split(",")] if match[2].strip() else []
    dims = [None if word == "?" else int(word) if word.isascii() and word.isdigit() else word for word in words]
    return ir.TensorType(parse_dtype(match[1])), ir.Shape(dims)


def type_edges(model: ir.Model, edges: Iterable[ir.Value], given: Mapping[str, str]) -> None:
    """Set type and shape of tensors that become inputs or outputs: as given, as inferred, or as recorded.

    Raises `RequestError` for an unknown name, and for a tensor whose dtype or number of dimensions is unknown.
    """
    edges = list(edges)
    known = {value.name or "" for value in edges}
    check_known(given, known, "`types`:", " becomes neither input nor output")
    for value in edges:
        if value.name in given:
            value.type, value.shape = parse_tensor_type(given[value.name or ""])
    infer_edges([value for value in edges if value.name not in given], model)
    # Where shape inference stops, operators' signatures give the types.
    untyped = [edge for edge in edges if edge.type is None]
    types = types_by_signatures(model) if untyped else {}
    for edge in untyped:
        if types.get(edge, "").startswith("tensor("):
            edge.type = ir.TensorType(dtype_of(types[edge]))
    _check_known(edges)


def infer_edges(edges: Iterable[ir.Value], model: ir.Model) -> None:
    """Set inferred types and shapes on some tensors of a model; recorded ones complete them, as the model may have
    changed since they were recorded."""
    edges = list(edges)
    if not edges:
        return
    with known_shapes(model):
        inferred = {value: (value.shape, value.type) for value in edges}
    for value, (shape, type_) in inferred.items():
        value.type = type_ or value.type
        value.shape = more_exact(shape, value.shape)  # a new object: shapes that an operation sets are valid


def more_exact(inferred: ir.Shape | None, recorded: ir.Shape | None) -> ir.Shape | None:
    """Return inferred dimensions, or else the recorded ones."""
    if inferred is None:
        return None if recorded is None else recorded.copy()
    if recorded is None or len(recorded) != len(inferred):
        return ir.Shape([None if is_invented_name(dim) else dim for dim in inferred])
    return ir.Shape([dim if isinstance(dim, int) else known for dim, known in zip(inferred, recorded, strict=True)])


def _check_known(edges: Iterable[ir.Value]) -> None:
    # sequences and optionals have no shape
    unknown = [v for v in edges if v.type is None or (isinstance(v.type, ir.TensorType) and v.shape is None)]
    if unknown:
        first = unknown[0]
        word = "float32" if first.type is None else dtype_name(first.type.dtype)
        what = "the dtype" if first.type is None else "the number of dimensions"
        raise RequestError(
            f"{what} of {first.name!r} is not recorded in the model and cannot be inferred; "
            f'give it: `types: {{"{first.name}": "{word}[1, ?, 8]"}}`'
            + (f" (likewise for {', '.join(repr(value.name) for value in unknown[1:])})" if unknown[1:] else "")
        )


def types_by_signatures(model: ir.Model) -> Types:
    """Return types from operators' signatures; none in a model with local functions."""
    try:
        return {} if model.functions else infer_types(model)
    except ModelError:
        return {}


_STRING_TARGETS = 6
"""Before this opset, the target of Cast was a string."""


class DtypeConversion:
    """Converts tensors to one type and sums up the losses."""

    def __init__(self, edited: EditedModel, dtype: ir.DataType) -> None:
        self._edited = edited
        self._dtype = dtype
        self.lost = Lost()
        self.converted = 0
        """Number of converted tensors."""
        self.values = 0
        """Number of their elements."""

    def constants(self, held: Sequence[ConstantTensor], casts: bool) -> None:
        """Convert initializers and Constant nodes; with `casts` their readers get the previous type by a Cast.

        Raises `RequestError` for one that is also an input of the model, because programs feed its type.
        """
        for constant in held:
            before, name = constant.tensor.dtype, constant.name
            if before == self._dtype:
                continue
            if constant.value.is_graph_input():
                raise RequestError(
                    f"initializer {name!r} is also an input; change the type of the input with `set_dtypes` instead"
                )
            constant.hold(self._tensor(constant.tensor, name))
            if casts:
                uses = _uses(constant.value)
                self._read_after(constant.value, uses, self._cast(constant.value, before))

    def attributes(self, nodes: Sequence[ir.Node]) -> None:
        """Convert tensor attributes: `value` of ConstantOfShape, and lists of tensors."""
        for node in nodes:
            for name, attribute in tuple(node.attributes.items()):
                if attribute.is_ref():
                    continue
                where = f"{node_label(node)}.{name}"
                if attribute.type == ir.AttributeType.TENSOR:
                    node.attributes[name] = ir.AttrTensor(name, self._other(held_tensor(attribute), where))
                elif attribute.type == ir.AttributeType.TENSORS:
                    tensors = [self._other(tensor, where) for tensor in attribute.as_tensors()]
                    node.attributes[name] = ir.AttrTensors(name, tensors)
                elif constant_of(node) is not None:
                    node.attributes.pop(name)
                    tensor = constant_of(ir.Node("", "Constant", [], [attribute]))
                    assert tensor is not None
                    node.attributes["value"] = ir.AttrTensor("value", self._other(tensor, where))

    def between(self, values: Sequence[ir.Value]) -> None:
        """Round outputs of nodes to the type, by a Cast to it and a Cast back before all readers.

        Raises `RequestError` for a tensor of unknown type.
        """
        infer_shapes(self._edited.model)
        for value in values:
            if value.producer() is None or value.graph is None or value.type is None:
                raise RequestError(f"tensor {value.name!r} is not an output of a node, or its type is unknown")
            before = value.type.dtype
            check_conversion(before, self._dtype)
            if before == self._dtype:
                continue
            uses = _uses(value)
            there = self._cast(value, self._dtype)
            self._read_after(value, uses, self._cast(there, before))
            self.converted += 1

    def _other(self, tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
        return tensor if tensor.dtype == self._dtype else self._tensor(tensor, name)

    def _tensor(self, tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
        """Return the tensor in the new type, and log its losses."""
        check_conversion(tensor.dtype, self._dtype)
        converted: ir.TensorProtocol
        if isinstance(tensor, SparseInitializer):
            converted, lost = _sparse_in_type(tensor, self._dtype)
        else:
            converted = dense = ConvertedTensor(tensor, self._dtype, name)
            lost = dense.lost()
        self.converted += 1
        self.values += tensor.size
        self.lost.add(lost)
        if words := lost.describe(tensor.size, self._dtype):
            self._edited.log.info("%s: %s", name, words)
        return converted

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Insert a Cast after a value and return its output."""
        name = self._edited.fresh_name(f"{value.name}_{dtype_name(dtype)}")
        return insert_cast(value, dtype, name, self._edited.fresh_name(f"Cast_{value.name}_{dtype_name(dtype)}"))

    def _read_after(self, value: ir.Value, uses: Sequence[Use], new: ir.Value) -> None:
        """Replace `value` by `new` for its readers. An output of the graph keeps its name."""
        was_output = value.is_graph_output()
        for use in uses:
            use.read(new)
        if was_output and value.name:
            name = value.name
            value.name = self._edited.fresh_name(f"{name}_before")
            new.name = name


def _uses(value: ir.Value) -> list[Use]:
    """Return all uses of a value, including as an output of its graph."""
    graph = value.graph
    places = [] if graph is None else [Use(graph, i) for i, output in enumerate(graph.outputs) if output is value]
    return [*(Use(use.node, use.idx) for use in value.uses()), *places]


def _sparse_in_type(tensor: SparseInitializer, dtype: ir.DataType) -> tuple[SparseInitializer, Lost]:
    """Return a sparse initializer with its values in another type, and the losses."""
    proto = onnx.SparseTensorProto.FromString(tensor.proto.SerializeToString())
    values = numpy_helper.to_array(tensor.proto.values)
    plain = values.astype(np.int64 if values.dtype.kind in "bi" else np.float64) if values.dtype.kind != "u" else values
    converted, lost = in_type(plain, dtype)
    proto.values.CopyFrom(
        ir.serde.serialize_tensor(ir.Tensor(converted.astype(dtype.numpy()), dtype=dtype, name=tensor.name))
    )
    return SparseInitializer(proto), lost


def find_edges(edited: EditedModel, names: Sequence[str]) -> list[ir.Value]:
    """Return inputs and outputs by name. Raises `RequestError` for one that is unknown, both, or no tensor."""
    graph = edited.model.graph
    known = {value.name or "": value for value in (*graph.inputs, *graph.outputs)}
    check_known(names, known, "the model has no input or output")
    for name in names:
        value = known[name]
        if value.is_graph_input() and value.is_graph_output():
            raise RequestError(f"{name!r} is an input and an output at once; put an Identity between them first")
        if not isinstance(value.type, ir.TensorType):
            raise RequestError(f"{name!r} is not a tensor of known type: {value.type}")
    return [known[name] for name in names]


def cast_edges(edited: EditedModel, dtypes: Mapping[str, str]) -> int:
    """Change types of inputs and outputs by Casts that keep the types inside. Returns the number of Casts.

    Raises `RequestError` if the Cast of the model's opset does not support a type.
    """
    count = 0
    for value in find_edges(edited, tuple(dtypes)):
        dtype = parse_dtype(dtypes[value.name or ""])
        if dtype == value.dtype:
            continue
        _cast_input(edited, value, dtype) if value.is_graph_input() else _cast_output(edited, value, dtype)
        count += 1
    return count


def _cast_input(edited: EditedModel, value: ir.Value, dtype: ir.DataType) -> None:
    if value.is_initializer():
        raise RequestError(f"input {value.name!r} has a default value; give that another type, or remove it, first")
    inside = value.dtype
    assert inside is not None
    value.type = ir.TensorType(dtype)
    cast = _cast(edited, value, inside)
    output = cast.outputs[0]
    output.name, output.shape = edited.fresh_name(f"{value.name}_{dtype_name(inside)}"), value.shape
    for node, index in tuple(value.uses()):
        if node is not cast:
            node.replace_input_with(index, output)
    put_first(edited.model.graph, cast)


def _cast_output(edited: EditedModel, value: ir.Value, dtype: ir.DataType) -> None:
    cast = _cast(edited, value, dtype)
    output = cast.outputs[0]
    name = value.name
    value.name = edited.fresh_name(f"{name}_{dtype_name(value.dtype or ir.DataType.UNDEFINED)}")
    output.name, output.shape = name, value.shape
    output.metadata_props.update(value.metadata_props)
    graph = edited.model.graph
    graph.outputs[graph.outputs.index(value)] = output
    graph.append(cast)


def _cast(edited: EditedModel, value: ir.Value, to: ir.DataType) -> ir.Node:
    """Return a new Cast. Raises `RequestError` if the operator does not support one of the types."""
    opset = edited.model.opset_imports.get("", 1)
    target = ir.AttrString("to", to.name) if opset < _STRING_TARGETS else ir.AttrInt64("to", to)
    name = edited.fresh_name(f"{value.name}_cast")
    node = ir.Node("", "Cast", [value], [target], name=name)
    node.outputs[0].type = ir.TensorType(to)
    signature = signature_of(node, {"": opset})
    ports = zip((value.dtype, to), (*signature.inputs, *signature.outputs), strict=True) if signature else ()
    for dtype, variable in ports:
        if signature and dtype is not None and not signature.admits(variable, tensor_of(dtype)):
            node.replace_input_with(0, None)
            raise RequestError(f"Cast of opset {opset} does not support {dtype_name(dtype)} ({value.name!r})")
    return node


def retype_edges(edited: EditedModel, dtypes: Mapping[str, str]) -> int:
    """Declare other types of inputs and outputs and infer those of all other tensors.

    Returns the number of changed declarations. Raises `ModelError` if a consistent model does not support them.
    """
    values = find_edges(edited, tuple(dtypes))
    snapshot = Snapshot(edited.model)
    changed = 0
    for value in values:
        dtype = parse_dtype(dtypes[value.name or ""])
        changed += dtype != value.dtype
        value.type = ir.TensorType(dtype)
    declared = ", ".join(f"{name}: {dtype}" for name, dtype in dtypes.items())
    snapshot.infer_again(edited.model, edited.note, f"the model cannot have these types ({declared})", types=True)
    return changed
