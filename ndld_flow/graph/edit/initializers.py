"""Adding, connecting, filling, converting and removing initializers."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.constant_tensors import ConstantTensor, constant_tensors, find_tensors, make_tensor
from ndld_flow.graph.edit.edited_model import FIRST_WITH_FREE_INITIALIZERS, EditedModel
from ndld_flow.graph.edit.graph_edits import some_of
from ndld_flow.graph.edit.operation import InitializerOperation
from ndld_flow.graph.edit.schemas import Schemas, port_at
from ndld_flow.graph.edit.settings import TensorSelect
from ndld_flow.graph.edit.value_grammar import parse_dtype
from ndld_flow.graph.edit.wiring import connect
from ndld_flow.graph.sanitize.cleanup import share_equal_initializers
from ndld_flow.graph.sanitize.edits import Edits
from ndld_flow.models.derived_tensors import GeneratedTensor
from ndld_flow.models.scopes import node_label
from ndld_flow.models.sparse_tensors import SparseInitializer


def add_initializer(edited: EditedModel, tensor: ir.TensorProtocol, name: str, scope: str) -> ir.Value:
    """Add a constant to a graph; to a local function, which cannot have initializers, a Constant node.

    Raises `RequestError` for a name that is already used.
    """
    graph = edited.graph(scope)
    if name in edited.names():
        raise RequestError(f"the name {name!r} is already used; `set_initializer` sets the value of an initializer")
    edited.raise_ir_version(FIRST_WITH_FREE_INITIALIZERS)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()))
    if "::" in scope:
        put_constant(graph, value, tensor)
    else:
        value.const_value = tensor
        graph.register_initializer(value)
    return value


def put_constant(graph: ir.Graph, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Node:
    """Add a Constant node with this output at the front of a graph."""
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[value], name=value.name)
    if len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)
    return node


def connect_readers(edited: EditedModel, value: ir.Value, places: Sequence[str]) -> None:
    """Connect a value to inputs: `conv1.B` by the operator's name for the input, or `conv1.2` by index.

    Raises `RequestError` for an unknown node or input, and for a node that cannot read the value.
    """
    for place in places:
        name, dot, port = place.rpartition(".")
        if not dot:
            raise RequestError(
                f"connect: {place!r} is not an input; write `node.input`, such as `conv1.B` or `conv1.2`"
            )
        connect(edited, [edited.node(name)], int(port) if port.isdecimal() else port, value.name or "")


def initializer_tensor(
    operation: InitializerOperation, name: str, dtype: ir.DataType | None = None, shape: Sequence[int] | None = None
) -> ir.TensorProtocol:
    """Return the tensor that an operation describes; `dtype` and `shape` apply where it gives none.

    Raises `RequestError` for numbers that do not fit, and for generated numbers without a shape.
    """
    if operation.generate is None:
        return make_tensor(operation, name, dtype, shape)
    dtype = dtype if operation.dtype is None else parse_dtype(operation.dtype)
    shape = shape if operation.shape is None else operation.shape
    if shape is None:
        raise RequestError(f"`generate: {operation.generate}` needs a `shape`")
    return GeneratedTensor(operation.generate, dtype or ir.DataType.FLOAT, shape, name, operation.seed)


def find_initializer(edited: EditedModel, name: str, scope: str) -> ConstantTensor:
    """Return the initializer or Constant node of a name. Raises `RequestError` with the nearest name."""
    graph = edited.graph(scope)
    known = {held.name: held for held in constant_tensors(edited.model) if held.graph is graph}
    if name not in known:
        nearest = suggest(name, known) or "this graph has none"
        raise RequestError(f"there is no initializer {name!r}; {nearest}")
    return known[name]


def generate(held: Sequence[ConstantTensor], kind: str, seed: int) -> None:
    """Fill tensors with generated numbers. Raises `RequestError` for a type that cannot hold them."""
    for constant in held:
        shape = [int(dim) for dim in constant.tensor.shape.numpy()]
        name = f"{constant.scope}/{constant.name}" if constant.scope else constant.name
        replace_tensor(constant, GeneratedTensor(kind, constant.tensor.dtype, shape, name, seed))


def share_initializers(edited: EditedModel, up_to: int, allow_empty: bool) -> int:
    """Deduplicate initializers and return how many were removed. Raises `RequestError` for none, unless allowed."""
    edits = Edits(edited.model, up_to)
    share_equal_initializers(edits)
    shared = edits.done["equal initializers shared"]
    if not shared and not allow_empty:
        raise RequestError("no two initializers of one graph are equal")
    return shared


def replace_tensor(held: ConstantTensor, tensor: ir.TensorProtocol) -> None:
    """Replace the tensor of a constant; one in a data file stays in a data file."""
    if isinstance(tensor, GeneratedTensor):
        tensor.belongs_outside |= held.stored == "external"
    held.hold(tensor)


def unused_initializers(model: ir.Model) -> list[ConstantTensor]:
    """Return the initializers that nothing reads and that are neither inputs nor outputs."""
    initializers = constant_tensors(model, constants=False)
    return [held for held in initializers if not held.value.uses() and not _is_interface(held.value)]


def _is_interface(value: ir.Value) -> bool:
    return value.is_graph_input() or value.is_graph_output()


def remove_initializer(edited: EditedModel, held: ConstantTensor, force: bool) -> None:
    """Remove an initializer; with `force`, disconnect it from optional inputs first.

    Raises `RequestError` when it is used, or is an input or output of its graph.
    """
    value = held.value
    if _is_interface(value):
        which = "output" if value.is_graph_output() else "input"
        raise RequestError(f"initializer {held.name!r} is also an {which} of its graph; remove that first")
    readers = sorted({node_label(use.node) for use in value.uses()})
    if readers and not force:
        shown = some_of(list(map(repr, readers)))
        raise RequestError(f"initializer {held.name!r} is read by {shown}; connect these to another tensor first")
    schemas = Schemas(edited.model)
    for use in tuple(value.uses()):
        operator = schemas.of(use.node)
        known = operator is not None and use.idx < len(operator.inputs)
        if operator is None or not known or port_at(operator, use.idx).kind != "optional":
            raise RequestError(f"node {node_label(use.node)!r} requires input {use.idx}, which is {held.name!r}")
    for node, index in tuple(value.uses()):
        node.replace_input_with(index, None)
        while node.inputs and node.inputs[-1] is None:
            node.resize_inputs(len(node.inputs) - 1)
    del held.graph.initializers[held.name]


def select_initializers(edited: EditedModel, select: TensorSelect, allow_empty: bool) -> list[ConstantTensor]:
    """Return the selected initializers. Raises `RequestError` when there are none, unless that is allowed."""
    return _only(edited, select, allow_empty, "initializer")


def select_constants(edited: EditedModel, select: TensorSelect, allow_empty: bool) -> list[ConstantTensor]:
    """Return the selected Constant nodes, with or without `constants`. Raises `RequestError` as for initializers."""
    return _only(edited, select, allow_empty, "Constant node")


def _only(edited: EditedModel, select: TensorSelect, allow_empty: bool, kind: str) -> list[ConstantTensor]:
    wants_nodes = kind == "Constant node"
    selected = find_tensors(edited.model, select, allow_empty, constants=wants_nodes or None)
    selected = [constant for constant in selected if (constant.node is not None) == wants_nodes]
    if not selected and not allow_empty:
        raise RequestError(f"no {kind} is selected")
    return selected


def to_initializers(edited: EditedModel, held: Sequence[ConstantTensor]) -> int:
    """Turn Constant nodes into initializers and return how many. Those of local functions stay."""
    moved = 0
    for constant in held:
        node = constant.node
        if node is None or "::" in constant.scope or constant.value.is_graph_output():
            continue
        tensor = constant.tensor
        shape = ir.Shape(tensor.shape.numpy())
        value = ir.Value(name=constant.name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
        constant.value.replace_all_uses_with(value)
        constant.graph.remove(node, safe=True)
        constant.graph.register_initializer(value)
        moved += 1
    if moved:
        edited.raise_ir_version(FIRST_WITH_FREE_INITIALIZERS)
    return moved


def to_constants(held: Sequence[ConstantTensor]) -> None:
    """Turn initializers into Constant nodes whose outputs have the same names.

    Raises `RequestError` for one that is also an input, is sparse, or is in a data file.
    """
    for constant in held:
        if constant.value.is_graph_input():
            raise RequestError(f"initializer {constant.name!r} is also an input; use `remove_initializer_inputs` first")
        if isinstance(constant.tensor, SparseInitializer):
            raise RequestError(f"initializer {constant.name!r} is sparse; use `make_dense` first")
        if constant.stored == "external":
            raise RequestError(
                f"initializer {constant.name!r} is in a data file, which few tools support for Constant nodes"
            )
    for constant in held:
        value = ir.Value(name=constant.name, type=ir.TensorType(constant.tensor.dtype), shape=constant.value.shape)
        del constant.graph.initializers[constant.name]
        constant.value.replace_all_uses_with(value, replace_graph_outputs=True)
        put_constant(constant.graph, value, constant.tensor)


def to_inputs(held: Sequence[ConstantTensor], keep_values: bool) -> None:
    """Append initializers of the main graph to its inputs; their values are kept as defaults or removed.

    Raises `RequestError` for a sparse one, and for one of a subgraph.
    """
    for constant in held:
        if constant.scope:
            raise RequestError(
                f"initializer {constant.name!r} is in {constant.scope!r}; only inputs of the main graph can be fed"
            )
        if isinstance(constant.tensor, SparseInitializer):
            raise RequestError(f"initializer {constant.name!r} is sparse; use `make_dense` first")
    for constant in held:
        value = constant.value
        value.type = ir.TensorType(constant.tensor.dtype)
        value.shape = ir.Shape(constant.tensor.shape.numpy())
        if not value.is_graph_input():
            constant.graph.inputs.append(value)
        if not keep_values:
            del constant.graph.initializers[constant.name]
            value.const_value = None


def remove_from_inputs(edited: EditedModel, held: Sequence[ConstantTensor], allow_empty: bool) -> int:
    """Remove initializers from the inputs and return how many were inputs.

    Raises `RequestError` when none was, unless that is allowed.
    """
    dropped = 0
    for constant in held:
        if constant.value.is_graph_input():
            constant.graph.inputs.remove(constant.value)
            dropped += 1
    if not dropped and not allow_empty:
        raise RequestError("no selected initializer is an input")
    if dropped:
        edited.raise_ir_version(FIRST_WITH_FREE_INITIALIZERS)
    return dropped
