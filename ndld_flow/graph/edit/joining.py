"""Insertion of another model's nodes into the edited model.

onnx.compose would do some of it, but it works on protobufs that hold all weights, knows neither the folders of external
data nor symbolic dimensions, and renames nothing inside functions. Here weights on disk stay there until the result is
written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.cloning import Renaming
from ndld_flow.graph.edit.dims_joining import join_dims
from ndld_flow.graph.edit.edited_model import EditedModel, values_of
from ndld_flow.graph.edit.extracting import FIRST_IR_WITH_HIDDEN_WEIGHTS
from ndld_flow.graph.edit.function_joining import join_functions
from ndld_flow.graph.edit.node_pieces import read_in_nodes
from ndld_flow.graph.edit.opset_joining import join_opsets
from ndld_flow.models.files import all_graphs
from ndld_flow.models.input_shapes import real_inputs, show_shape
from ndld_flow.models.tensor_statistics import dtype_name
from ndld_flow.models.unique_names import free_name


@dataclass(frozen=True)
class Joined:
    """The result of a join, whose nodes are in the main graph."""

    nodes: list[ir.Node]
    inputs: dict[str, ir.Value]
    """Name there -> tensor here, for inputs that were not connected. They are not inputs of a graph yet."""
    defaults: list[ir.Value]
    """Weights that are also inputs, so that they can be overridden."""
    outputs: dict[str, ir.Value]
    """Name there -> tensor here. They are not outputs of a graph yet."""


@dataclass(frozen=True)
class Guest:
    """Another model that is being inserted."""

    name: str
    """Its name in the recipe."""
    edited: EditedModel
    """The model, loaded for this purpose; it is taken apart."""

    @property
    def model(self) -> ir.Model:
        return self.edited.model

    @property
    def inputs(self) -> dict[str, ir.Value]:
        """Name -> input without a default value."""
        return {value.name or "": value for value in real_inputs(self.model)}

    @property
    def outputs(self) -> dict[str, ir.Value]:
        return {value.name or "": value for value in self.model.graph.outputs}

    def input(self, name: str) -> ir.Value:
        """Return an input. Raises `RequestError` with the nearest name."""
        return _found("input", name, self.inputs, self.name)

    def output(self, name: str) -> ir.Value:
        """Return an output. Raises `RequestError` with the nearest name."""
        return _found("output", name, self.outputs, self.name)


def invite(edited: EditedModel, name: str) -> Guest:
    """Load another model of the recipe, and convert the one with the older opset.

    Each of its outputs is made by a node of its own. Raises `RequestError` where the opsets cannot be made one.
    """
    guest = Guest(name, EditedModel(edited.other(name), edited.others[name], log=edited.log))
    join_opsets(edited, guest.edited, name)
    make_outputs(guest.model.graph, guest.edited.names())
    return guest


def join(
    edited: EditedModel,
    guest: Guest,
    connect: Mapping[ir.Value, ir.Value],
    prefix: str | None = None,
    same: Mapping[ir.Value, ir.Value] | None = None,
) -> Joined:
    """Move a guest's nodes, weights and functions into the model; `connect`: its input -> tensor to read instead.

    `same`: other tensors of it that will be one with a tensor here.

    All its names get `prefix`; without one, only those that are taken get the guest's name before them. Functions
    of one name and names of dimensions are brought into line. What one model is to read of the other must be
    of one dtype and can be of one shape. Raises `RequestError` where that is not so.
    """
    if_taken = f"{guest.name}_"
    for theirs, ours in connect.items():
        check_fits(theirs, ours)
    join_functions(edited.model, guest.model, guest.name)
    join_dims(edited.model, guest.model, {**connect, **(same or {})}, prefix or if_taken)
    _join_metadata(edited.model, guest.model, if_taken)
    return _move(edited.model, guest, connect, prefix or "", if_taken)


def hand_out(model: ir.Model, value: ir.Value, name: str) -> None:
    """Make a tensor an output under a name. Raises `RequestError` when another tensor has the name."""
    if value.name != name:
        if name in names_in(model)[1]:
            raise RequestError(f"there is a tensor {name!r} already: choose another name for the output")
        value.name = name
    model.graph.outputs.append(value)


def _found(kind: str, name: str, known: Mapping[str, ir.Value], model: str) -> ir.Value:
    if name not in known:
        raise RequestError(f"model {model!r} has no {kind} {name!r}; {suggest(name, known) or 'it has none'}")
    return known[name]


def make_outputs(graph: ir.Graph, taken: set[str]) -> None:
    """Add an Identity to an output that is also an input, a weight or another output."""
    seen: set[ir.Value] = set()
    for index, value in enumerate(graph.outputs):
        if value.producer() is None or value in seen:
            name = free_name(f"{value.name}_output", taken)
            node = ir.Node("", "Identity", [value], num_outputs=1, name=name)
            made = node.outputs[0]
            made.name, made.type, made.shape = name, value.type, value.shape
            graph.append(node)
            graph.outputs[index] = made
        seen.add(graph.outputs[index])


def check_fits(theirs: ir.Value, ours: ir.Value) -> None:
    """Raise `RequestError` for two tensors of different types, or of shapes that cannot be equal."""
    where = f"{ours.name!r} and {theirs.name!r} cannot be one tensor"
    if theirs.dtype is not None and ours.dtype is not None and theirs.dtype != ours.dtype:
        raise RequestError(
            f"{where}: one is {dtype_name(ours.dtype)}, the other {dtype_name(theirs.dtype)}. Insert a Cast"
        )
    if theirs.shape is None or ours.shape is None:
        return
    pairs = list(zip(theirs.shape, ours.shape, strict=False))
    if len(theirs.shape) != len(ours.shape) or any(
        isinstance(one, int) and isinstance(other, int) and one != other for one, other in pairs
    ):
        raise RequestError(f"{where}: their shapes are {show_shape(ours.shape)} and {show_shape(theirs.shape)}")


def _join_metadata(model: ir.Model, guest: ir.Model, if_taken: str) -> None:
    """Merge metadata; different values of a key are kept under two keys."""
    for key, text in guest.metadata_props.items():
        if model.metadata_props.setdefault(key, text) != text:
            model.metadata_props[f"{if_taken}{key}"] = text
    model.ir_version = max(model.ir_version or 0, guest.ir_version or 0, FIRST_IR_WITH_HIDDEN_WEIGHTS)


def _move(model: ir.Model, guest: Guest, connect: Mapping[ir.Value, ir.Value], prefix: str, if_taken: str) -> Joined:
    graph, inputs, outputs = guest.model.graph, guest.inputs, guest.outputs
    defaults = [value for value in graph.inputs if value.is_initializer()]
    keeps_defaults = (guest.model.ir_version or 0) >= FIRST_IR_WITH_HIDDEN_WEIGHTS
    nodes, initializers = list(graph), list(graph.initializers.values())
    graph.inputs.clear()
    graph.outputs.clear()
    graph.initializers.clear()
    read_in_nodes(nodes, dict(connect))
    graph.remove(nodes)
    free = [value for value in inputs.values() if value not in connect]
    renaming = Renaming(*names_in(model), prefix, if_taken)
    renaming.rename_values([*free, *initializers])
    renaming.rename(nodes)
    for value in initializers:
        model.graph.initializers.add(value)
    model.graph.extend(nodes)
    return Joined(
        nodes,
        {name: value for name, value in inputs.items() if value in free},
        defaults if keeps_defaults else [],
        outputs,
    )


def names_in(model: ir.Model) -> tuple[set[str], set[str]]:
    """Return the names of nodes, and of tensors."""
    graphs = list(all_graphs(model))
    return (
        {node.name for graph in graphs for node in graph if node.name},
        {value.name for graph in graphs for value in values_of(graph) if value.name},
    )
