"""Add, connect, replace and remove initializers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.format_version import FREE_INITIALIZERS, raise_ir_version
from ndld_flow.graph.edit.schemas import Schemas, port_at
from ndld_flow.graph.edit.tensor_criteria import TensorCriteria
from ndld_flow.graph.edit.tensor_selecting import ConstantTensor, constant_tensors, fitting_tensors
from ndld_flow.graph.edit.tensor_sources import ValueSettings, Wanted, make_tensor
from ndld_flow.graph.edit.wiring import connect
from ndld_flow.graph.sanitize.duplicates import share_equal_initializers
from ndld_flow.graph.sanitize.edits import Edits
from ndld_flow.models.generated_tensors import GeneratedTensor
from ndld_flow.models.scopes import node_label


def add_initializer(edited: EditedModel, tensor: ir.TensorProtocol, name: str, scope: str) -> ir.Value:
    """A new constant of a graph; in a local function, which holds no initializers, a Constant node.

    Raises `RequestError` when a tensor of this name can be seen from there already.
    """
    graph = edited.graph(scope)
    if name in edited.names():
        raise RequestError(f"the name {name!r} is taken; set_initializer gives an initializer another value")
    raise_ir_version(edited, FREE_INITIALIZERS)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()))
    if "::" in scope:
        put_constant(graph, value, tensor)
    else:
        value.const_value = tensor
        graph.register_initializer(value)
    return value


def put_constant(graph: ir.Graph, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Node:
    """A Constant node that makes a value, at the front of a graph."""
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[value], name=value.name)
    if len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)
    return node


def connect_readers(edited: EditedModel, value: ir.Value, places: Sequence[str]) -> None:
    """Let nodes read a value: `conv1.B` or `conv1.2` is an input by its operator's word for it, or its number.

    Raises `RequestError` for a node or an input that is not there, and for a node that cannot see or take the value.
    """
    for place in places:
        name, dot, port = place.rpartition(".")
        if not dot:
            raise RequestError(f"connect: {place!r} is no input; write `node.input`, such as `conv1.B` or `conv1.2`")
        connect(edited, [edited.node(name)], int(port) if port.isdecimal() else port, value.name or "")


class ReplacementSettings(ValueSettings, Protocol):
    """What `set_initializer` says."""

    @property
    def name(self) -> str: ...
    @property
    def scope(self) -> str: ...
    @property
    def reshape(self) -> bool: ...


def replace_value(edited: EditedModel, said: ReplacementSettings) -> ConstantTensor:
    """Give an initializer or a Constant node the value that settings say; returns it as it was.

    Raises `RequestError` when there is none of the name, and for another shape unless that is allowed.
    """
    graph = edited.graph(said.scope)
    every = {one.name: one for one in constant_tensors(edited.model) if one.graph is graph}
    if said.name not in every:
        known = suggest(said.name, every) or "this graph has none"
        raise RequestError(f"there is no initializer {said.name!r}; {known}")
    held = every[said.name]
    shape = tuple(int(dim) for dim in held.tensor.shape.numpy())
    same_shape = said.shape is None and not said.reshape
    wanted = Wanted(held.name, held.tensor.dtype, shape if same_shape or said.generate else None)
    tensor = make_tensor(said, wanted)
    if not said.reshape and tuple(tensor.shape.numpy()) != shape:
        raise RequestError(f"{held.name!r} has the shape {list(shape)}; `reshape: true` allows another")
    replace_tensor(held, tensor)
    return held


def generate(held: Sequence[ConstantTensor], kind: str, seed: int) -> None:
    """Fill tensors with made-up numbers. Raises `RequestError` for a type that cannot hold them."""
    for one in held:
        shape = [int(dim) for dim in one.tensor.shape.numpy()]
        name = f"{one.scope}/{one.name}" if one.scope else one.name
        replace_tensor(one, GeneratedTensor(kind, one.tensor.dtype, shape, name, seed))


def share_initializers(edited: EditedModel, up_to: int, allow_empty: bool) -> int:
    """Keep equal initializers once; returns how many went. Raises `RequestError` when none and that is not allowed."""
    edits = Edits(edited.model, up_to)
    share_equal_initializers(edits)
    shared = edits.done["equal initializers shared"]
    if not shared and not allow_empty:
        raise RequestError("no two initializers of one graph are equal")
    return shared


def replace_tensor(held: ConstantTensor, tensor: ir.TensorProtocol) -> None:
    """Hold another tensor instead; what was in a data file stays in one."""
    if isinstance(tensor, GeneratedTensor):
        tensor.belongs_outside |= held.stored == "external"
    held.hold(tensor)


class RemovalSettings(Protocol):
    """What `remove_initializers` says."""

    @property
    def select(self) -> TensorCriteria | None: ...
    @property
    def force(self) -> bool: ...
    @property
    def allow_empty(self) -> bool: ...


def remove_initializers(edited: EditedModel, said: RemovalSettings) -> int:
    """Remove what is selected, or all that nothing reads; returns how many.

    Raises `RequestError` when there are none and that is not allowed, and for one that must stay.
    """
    if said.select is None:
        held = [one for one in constant_tensors(edited.model, constants=False) if _is_unused(one.value)]
        if not held and not said.allow_empty:
            raise RequestError("every initializer is read by something")
    else:
        held = fitting_tensors(edited.model, said.select, said.allow_empty, constants=False)
    for one in held:
        remove_initializer(edited, one, said.force)
    return len(held)


def _is_unused(value: ir.Value) -> bool:
    return not value.uses() and not _is_interface(value)


def _is_interface(value: ir.Value) -> bool:
    return value.is_graph_input() or value.is_graph_output()


def remove_initializer(edited: EditedModel, held: ConstantTensor, force: bool) -> None:
    """Take an initializer out; with `force`, out of optional inputs of its readers too.

    Raises `RequestError` when it is read or is an input or output of its graph.
    """
    value = held.value
    if _is_interface(value):
        which = "output" if value.is_graph_output() else "input"
        raise RequestError(f"initializer {held.name!r} is an {which} of its graph too; change that first")
    readers = sorted({node_label(use.node) for use in value.uses()})
    if readers and not force:
        raise RequestError(f"initializer {held.name!r} is read by {_some(readers)}; connect something else first")
    for use in tuple(value.uses()):
        if not _is_optional(edited, use.node, use.idx):
            raise RequestError(f"node {node_label(use.node)!r} needs input {use.idx}, which is {held.name!r}")
    for node, index in tuple(value.uses()):
        node.replace_input_with(index, None)
        while node.inputs and node.inputs[-1] is None:
            node.resize_inputs(len(node.inputs) - 1)
    del held.graph.initializers[held.name]


def _is_optional(edited: EditedModel, node: ir.Node, index: int) -> bool:
    operator = Schemas(edited.model).of(node)
    return operator is not None and index < len(operator.inputs) and port_at(operator, index).kind == "optional"


def _some(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(map(repr, names[:most]))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
