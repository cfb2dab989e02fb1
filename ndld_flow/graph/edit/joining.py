"""Combination of the edited model with another one: appended, prepended, merged, or inserted.

onnx.compose is not used: it works on protobufs that hold all weights, supports neither folders of external data nor
symbolic dimensions, and renames nothing inside functions. Here weights on disk stay there until the result is written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.base.errors import RequestError, check_known
from ndld_flow.graph.edit.edited_model import FIRST_WITH_FREE_INITIALIZERS, EditedModel
from ndld_flow.graph.edit.function_making import make_function
from ndld_flow.graph.edit.functions import new_function_name
from ndld_flow.graph.edit.names import names_of
from ndld_flow.graph.edit.node_groups import Renaming, deep_nodes, read_in_nodes
from ndld_flow.graph.edit.opsets import convert_opset
from ndld_flow.models.element_types import dtype_name
from ndld_flow.models.files import all_graphs
from ndld_flow.models.input_shapes import real_inputs, show_shape
from ndld_flow.models.nodes import free_name, function_address, values_of

_WORD = re.compile(r"[A-Za-z_]\w*")
_Key = tuple[str, str, str]
"""Domain, name and overload of a function."""
Connections = Mapping[str, str]


def join_dims(model: ir.Model, added: ir.Model, connect: Mapping[ir.Value, ir.Value], prefix: str) -> None:
    """Rename dimensions of an added model to equal ones of the model; other names that the model uses get `prefix`.

    `connect`: tensor of the added model -> the model's tensor with which it is merged.
    """
    bound: dict[str, int | str | None] = {}
    for theirs, ours in connect.items():
        for dim, known in zip(theirs.shape or (), ours.shape or (), strict=False):
            name, ours_dim = _name(dim), known if isinstance(known, int) else _name(known)
            if name and ours_dim:
                bound.setdefault(name, ours_dim)
    taken = {name for value in _values(model) for dim in value.shape or () if (name := _name(dim))}
    for name in dict.fromkeys(name for value in _values(added) for dim in value.shape or () if (name := _name(dim))):
        if name not in bound and name in taken:
            bound[name] = free_name(f"{prefix}{name}", taken)
    changed = {name: dim for name, dim in bound.items() if name != dim}
    for value in _values(added):
        if value.shape is not None and any(_touches(dim, changed) for dim in value.shape):
            # An expression of changed names becomes unknown: shape inference computes it again.
            dims = [changed.get(_name(dim)) if _touches(dim, changed) else dim for dim in value.shape]
            value.shape = ir.Shape(dims)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in all_graphs(model):
        yield from values_of(graph)


def _name(dim: object) -> str:
    return (dim.value or "") if isinstance(dim, ir.SymbolicDim) else ""


def _touches(dim: object, changed: Mapping[str, object]) -> bool:
    name = _name(dim)
    return name in changed or any(word in changed for word in _WORD.findall(name))


def join_functions(model: ir.Model, added: ir.Model, name: str) -> None:
    """Add the functions of another model to a model.

    A function of the same name and body is not added again. One of the same name and another body is renamed, and so
    are the functions that call it.

    Raises `RequestError` if a function of one model is a custom operator of the other.
    """
    for owner, other in ((model, added), (added, model)):
        called = {node.op_identifier() for graph in all_graphs(other) for node in graph}
        for key, function in owner.functions.items():
            if key in called and key not in other.functions:
                whose = "this model" if owner is model else f"model {name!r}"
                raise RequestError(
                    f"{function_address(function)} is a local function of {whose} and a custom operator of the other, "
                    "which would then call the function: rename or inline the function first"
                )
    taken = {function.name for each in (model, added) for function in each.functions.values()}
    renamed = {key: free_name(key[1], taken) for key in _differing(model, added)}
    for key, new_name in renamed.items():
        function = added.functions.pop(key)
        function.name = new_name
        added.functions[function.identifier()] = function
    for graph in all_graphs(added):
        for node in graph:
            node.op_type = renamed.get(node.op_identifier(), node.op_type)
    for key, function in added.functions.items():
        model.functions.setdefault(key, function)


def _differing(model: ir.Model, added: ir.Model) -> list[_Key]:
    """Return the functions of the added model that differ from those of the same name, also by what they call."""
    shared = [key for key in added.functions if key in model.functions]
    different = {key for key in shared if _text(added.functions[key]) != _text(model.functions[key])}
    while True:
        callers = {
            key
            for key in shared
            if key not in different
            and any(node.op_identifier() in different for node in deep_nodes(added.functions[key].graph))
        }
        if not callers:
            return [key for key in shared if key in different]
        different |= callers


def _text(function: ir.Function) -> bytes:
    return bytes(ir.serde.serialize_function(function).SerializeToString(deterministic=True))


def join_opsets(edited: EditedModel, added: EditedModel, name: str) -> None:
    """Convert the model with the older default opset to the newer one, and import the domains of the added one.

    Raises `RequestError` if that cannot be, and for two versions of another domain that both models use.
    """
    ours, theirs = edited.model.opset_imports, added.model.opset_imports
    old, new = sorted([ours.get("", 0), theirs.get("", 0)])
    if old and old != new:
        older = edited if ours[""] == old else added
        try:
            convert_opset(older, new)
        except RequestError as error:
            raise RequestError(f"model {name!r} has opset {theirs['']}, this one {ours['']}; {error}") from None
        whose = "this model" if older is edited else f"model {name!r}"
        edited.note(f"{whose} was converted from opset {old} to {new}")
    for domain, version in theirs.items():
        own = ours.setdefault(domain, version)
        if own == version or not _uses(added.model, domain):
            continue
        if _uses(edited.model, domain):
            raise RequestError(
                f"this model uses version {own} of the operators of {domain!r}, model {name!r} version {version}; "
                "export one of them again, so that both use the same version"
            )
        ours[domain] = version


def _uses(model: ir.Model, domain: str) -> bool:
    return any(node.domain == domain for graph in all_graphs(model) for node in graph)


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
class AddedModel:
    """Another model, whose nodes are added to the edited one."""

    name: str
    """Its name in the recipe."""
    edited: EditedModel
    """The model, loaded for this purpose: its nodes move into the edited model."""

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
        return _lookup("input", name, self.inputs, self.name)

    def output(self, name: str) -> ir.Value:
        """Return an output. Raises `RequestError` with the nearest name."""
        return _lookup("output", name, self.outputs, self.name)


def load_added_model(edited: EditedModel, name: str) -> AddedModel:
    """Load another model of the recipe, and convert the model with the older opset.

    Each output gets a node of its own. Raises `RequestError` if the models cannot have one opset.
    """
    added = AddedModel(name, EditedModel(edited.other(name), edited.others[name], log=edited.log))
    join_opsets(edited, added.edited, name)
    make_outputs(added.model.graph, added.edited.names())
    return added


def join(
    edited: EditedModel,
    added: AddedModel,
    connect: Mapping[ir.Value, ir.Value],
    prefix: str | None = None,
    same: Mapping[ir.Value, ir.Value] | None = None,
) -> Joined:
    """Move the nodes, weights and functions of an added model into the model; `connect`: its input -> tensor to read.

    `same`: other tensors of the added model that are merged with a tensor of the model.

    All its names get `prefix`; without one, only names that are already used get the added model's name as a prefix.
    Functions of the same name and names of dimensions are reconciled. Raises `RequestError` for connected tensors of
    different dtypes or of shapes that cannot be equal.
    """
    if_taken = f"{added.name}_"
    for theirs, ours in connect.items():
        check_fits(theirs, ours)
    join_functions(edited.model, added.model, added.name)
    join_dims(edited.model, added.model, {**connect, **(same or {})}, prefix or if_taken)
    for key, text in added.model.metadata_props.items():
        if edited.model.metadata_props.setdefault(key, text) != text:  # both are kept, under two keys
            edited.model.metadata_props[f"{if_taken}{key}"] = text
    edited.model.ir_version = max(
        edited.model.ir_version or 0, added.model.ir_version or 0, FIRST_WITH_FREE_INITIALIZERS
    )
    return _move(edited.model, added, connect, prefix or "", if_taken)


def _lookup(kind: str, name: str, known: Mapping[str, ir.Value], model: str) -> ir.Value:
    check_known([name], known, f"model {model!r} has no {kind}")
    return known[name]


def make_outputs(graph: ir.Graph, taken: set[str]) -> None:
    """Add an Identity to an output that is also an input, a weight or another output."""
    seen: set[ir.Value] = set()
    for index, value in enumerate(graph.outputs):
        if value.producer() is None or value in seen:
            name = free_name(f"{value.name}_output", taken)
            node = ir.Node("", "Identity", [value], num_outputs=1, name=name)
            output = node.outputs[0]
            output.name, output.type, output.shape = name, value.type, value.shape
            graph.append(node)
            graph.outputs[index] = output
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
        isinstance(dim, int) and isinstance(other, int) and dim != other for dim, other in pairs
    ):
        raise RequestError(f"{where}: their shapes are {show_shape(ours.shape)} and {show_shape(theirs.shape)}")


def _move(
    model: ir.Model, added: AddedModel, connect: Mapping[ir.Value, ir.Value], prefix: str, if_taken: str
) -> Joined:
    graph, inputs, outputs = added.model.graph, added.inputs, added.outputs
    defaults = [value for value in graph.inputs if value.is_initializer()]
    keeps_defaults = (added.model.ir_version or 0) >= FIRST_WITH_FREE_INITIALIZERS
    nodes, initializers = list(graph), list(graph.initializers.values())
    graph.inputs.clear()
    graph.outputs.clear()
    graph.initializers.clear()
    read_in_nodes(nodes, dict(connect))
    graph.remove(nodes)
    free = [value for value in inputs.values() if value not in connect]
    renaming = Renaming(*names_of(list(all_graphs(model))), prefix, if_taken)
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


def append_model(
    edited: EditedModel, name: str, connect: Connections, keep_outputs: bool, prefix: str | None
) -> Joined:
    """Insert a model after this one. `connect` maps its inputs to tensors of this model.

    Without `connect`, its inputs read outputs of their names, or outputs in order if there are as many; inputs of the
    same name are merged, others become inputs. Its outputs follow those of this model. Connected outputs are removed,
    unless `keep_outputs`. Raises `RequestError`.
    """
    added = load_added_model(edited, name)
    graph = edited.model.graph
    own = {value.name or "": value for value in real_inputs(edited.model)}
    offered = [value.name or "" for value in graph.outputs]
    pairs = connect or _paired(list(added.inputs), offered, name)
    read = {added.input(theirs): edited.value(ours) for theirs, ours in pairs.items()}
    if not connect:
        read |= {value: own[theirs] for theirs, value in added.inputs.items() if theirs not in pairs and theirs in own}
    joined = join(edited, added, read, prefix)
    if not keep_outputs:
        graph.outputs[:] = [value for value in graph.outputs if value not in read.values()]
    graph.inputs.extend([*joined.inputs.values(), *joined.defaults])
    graph.outputs.extend(joined.outputs.values())
    return joined


def prepend_model(
    edited: EditedModel, name: str, connect: Connections, keep_outputs: bool, prefix: str | None
) -> Joined:
    """Insert a model before this one. `connect` maps inputs of this model to its outputs.

    Without `connect`, they are paired as in `append_model`. Its inputs come first. Its outputs become outputs too;
    connected ones only with `keep_outputs`. Raises `RequestError`.
    """
    added = load_added_model(edited, name)
    graph = edited.model.graph
    own = {value.name or "": value for value in real_inputs(edited.model)}
    pairs = connect or _paired(list(own), list(added.outputs), name)
    check_known(pairs, own, "this model has no input")
    fed = {own[ours]: added.output(theirs) for ours, theirs in pairs.items()}
    inputs = {} if connect else added.inputs
    shared = {inputs[ours]: value for ours, value in own.items() if ours not in pairs and ours in inputs}
    for ours_value, theirs_value in fed.items():
        check_fits(theirs_value, ours_value)
    nodes, first = list(graph), [shared.get(value, value) for value in added.inputs.values()]
    graph.inputs[:] = [value for value in graph.inputs if value not in fed]
    joined = join(edited, added, shared, prefix, same={theirs: ours for ours, theirs in fed.items()})
    read_in_nodes(nodes, fed)
    graph.inputs[:] = list(dict.fromkeys([*first, *graph.inputs, *joined.defaults]))
    graph.outputs[:] = [fed.get(value, value) for value in graph.outputs]
    given = [value for value in joined.outputs.values() if keep_outputs or value not in fed.values()]
    graph.outputs.extend(value for value in given if not value.is_graph_output())
    return joined


def merge_model(edited: EditedModel, name: str, share_inputs: Collection[str], prefix: str | None) -> Joined:
    """Merge a model side by side; common inputs in `share_inputs` become one. Raises `RequestError`."""
    added = load_added_model(edited, name)
    own = {value.name or "": value for value in real_inputs(edited.model)}
    check_known(share_inputs, own, "this model has no input")
    joined = join(edited, added, {added.input(shared): own[shared] for shared in share_inputs}, prefix)
    edited.model.graph.inputs.extend([*joined.inputs.values(), *joined.defaults])
    edited.model.graph.outputs.extend(joined.outputs.values())
    return joined


def import_model(
    edited: EditedModel, name: str, connect: Connections, outputs: Connections, prefix: str | None
) -> Joined:
    """Insert a model's nodes. `connect`: its input -> tensor of this model; `outputs`: its output -> new output.

    Inputs that are not connected become inputs; other outputs become tensors for later operations.
    Raises `RequestError`.
    """
    added = load_added_model(edited, name)
    read = {added.input(theirs): edited.value(ours) for theirs, ours in connect.items()}
    for theirs in outputs:
        added.output(theirs)
    joined = join(edited, added, read, prefix)
    edited.model.graph.inputs.extend([*joined.inputs.values(), *joined.defaults])
    for theirs, ours in outputs.items():
        value = joined.outputs[theirs]
        if value.name != ours:
            if ours in names_of(list(all_graphs(edited.model)))[1]:
                raise RequestError(f"there is already a tensor {ours!r}: choose another name for the output")
            value.name = ours
        edited.model.graph.outputs.append(value)
    return joined


def call_as_function(edited: EditedModel, joined: Joined, function: str) -> None:
    """Turn joined nodes into a local function with one call. Weights on disk stay initializers that the call passes.

    Raises `RequestError` for a name that cannot be one.
    """
    name = new_function_name(edited.model, function)
    graph = edited.model.graph
    hidden = [value for value in joined.outputs.values() if not value.is_graph_output()]
    graph.outputs.extend(hidden)  # a function returns only tensors that are read; later operations may read these
    names = {value.name for value in hidden}
    make_function(edited, joined.nodes, name, repeats=False, inside=True)
    graph.outputs[:] = [value for value in graph.outputs if value.name not in names]


def _paired(wanted: Sequence[str], offered: Sequence[str], name: str) -> dict[str, str]:
    """Return input of one model -> output of the other: those of the same name, or in order if the counts are equal.

    Raises `RequestError` if it is not clear.
    """
    by_name = {each: each for each in wanted if each in offered}
    if by_name:
        return by_name
    if len(wanted) == len(offered):
        return dict(zip(wanted, offered, strict=True))
    raise RequestError(
        f"the connection with model {name!r} is ambiguous: inputs {', '.join(wanted) or 'none'}; "
        f"outputs {', '.join(offered) or 'none'}. Give it with `connect`"
    )
