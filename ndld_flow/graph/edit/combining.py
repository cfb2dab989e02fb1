"""Combination of two models: one after the other, side by side, or one inside the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.function_making import make_function
from ndld_flow.graph.edit.function_names import new_function_name
from ndld_flow.graph.edit.joining import Joined, check_fits, hand_out, invite, join
from ndld_flow.graph.edit.node_pieces import read_in_nodes
from ndld_flow.models.input_shapes import real_inputs

Connections = Mapping[str, str]


def append_model(
    edited: EditedModel, name: str, connect: Connections, keep_outputs: bool, prefix: str | None
) -> Joined:
    """Append a model. `connect` maps its inputs to tensors of this model.

    Without `connect`, inputs read outputs of their names, or in order where there are as many; inputs that both models
    have become one, others are inputs. Its outputs come after those that stay: outputs that were connected go, unless
    `keep_outputs`. Raises `RequestError`.
    """
    guest = invite(edited, name)
    graph = edited.model.graph
    own = {value.name or "": value for value in real_inputs(edited.model)}
    offered = [value.name or "" for value in graph.outputs]
    found = connect or _paired(list(guest.inputs), offered, name)
    read = {guest.input(theirs): edited.value(ours) for theirs, ours in found.items()}
    if not connect:
        read |= {value: own[theirs] for theirs, value in guest.inputs.items() if theirs not in found and theirs in own}
    joined = join(edited, guest, read, prefix)
    if not keep_outputs:
        graph.outputs[:] = [value for value in graph.outputs if value not in read.values()]
    graph.inputs.extend([*joined.inputs.values(), *joined.defaults])
    graph.outputs.extend(joined.outputs.values())
    return joined


def prepend_model(
    edited: EditedModel, name: str, connect: Connections, keep_outputs: bool, prefix: str | None
) -> Joined:
    """Prepend a model. `connect` maps inputs of this model to its outputs.

    Without `connect`, as `append_model` does. Its inputs come first. Its outputs that were not connected are outputs,
    those that were only if `keep_outputs`. Raises `RequestError`.
    """
    guest = invite(edited, name)
    graph = edited.model.graph
    own = {value.name or "": value for value in real_inputs(edited.model)}
    found = connect or _paired(list(own), list(guest.outputs), name)
    for ours in found:
        if ours not in own:
            raise RequestError(f"this model has no input {ours!r}; {suggest(ours, own)}")
    fed = {own[ours]: guest.output(theirs) for ours, theirs in found.items()}
    inputs = {} if connect else guest.inputs
    shared = {inputs[ours]: value for ours, value in own.items() if ours not in found and ours in inputs}
    for ours_value, theirs_value in fed.items():
        check_fits(theirs_value, ours_value)
    nodes, first = list(graph), [shared.get(value, value) for value in guest.inputs.values()]
    graph.inputs[:] = [value for value in graph.inputs if value not in fed]
    joined = join(edited, guest, shared, prefix, same={theirs: ours for ours, theirs in fed.items()})
    read_in_nodes(nodes, fed)
    graph.inputs[:] = list(dict.fromkeys([*first, *graph.inputs, *joined.defaults]))
    graph.outputs[:] = [fed.get(value, value) for value in graph.outputs]
    given = [value for value in joined.outputs.values() if keep_outputs or value not in fed.values()]
    graph.outputs.extend(value for value in given if not value.is_graph_output())
    return joined


def merge_model(edited: EditedModel, name: str, share_inputs: Collection[str], prefix: str | None) -> Joined:
    """Merge a model side by side; common inputs in `share_inputs` become one. Raises `RequestError`."""
    guest = invite(edited, name)
    own = {value.name or "": value for value in real_inputs(edited.model)}
    for shared in share_inputs:
        if shared not in own:
            raise RequestError(f"this model has no input {shared!r}; {suggest(shared, own)}")
    joined = join(edited, guest, {guest.input(shared): own[shared] for shared in share_inputs}, prefix)
    edited.model.graph.inputs.extend([*joined.inputs.values(), *joined.defaults])
    edited.model.graph.outputs.extend(joined.outputs.values())
    return joined


def import_model(
    edited: EditedModel, name: str, connect: Connections, outputs: Connections, prefix: str | None
) -> Joined:
    """Insert a model's nodes. `connect`: its input -> tensor of this model; `outputs`: its output -> new output.

    Inputs that are not connected become inputs; outputs that are not handed out are tensors for later operations.
    Raises `RequestError`.
    """
    guest = invite(edited, name)
    read = {guest.input(theirs): edited.value(ours) for theirs, ours in connect.items()}
    for theirs in outputs:
        guest.output(theirs)
    joined = join(edited, guest, read, prefix)
    edited.model.graph.inputs.extend([*joined.inputs.values(), *joined.defaults])
    for theirs, ours in outputs.items():
        hand_out(edited.model, joined.outputs[theirs], ours)
    return joined


def call_as_function(edited: EditedModel, joined: Joined, function: str) -> None:
    """Turn joined nodes into a local function with one call. Weights on disk stay initializers that the call passes.

    Raises `RequestError` for a name that cannot be one.
    """
    name = new_function_name(edited.model, function)
    graph = edited.model.graph
    hidden = [value for value in joined.outputs.values() if not value.is_graph_output()]
    graph.outputs.extend(hidden)  # a function gives what is read, and these are there to be read by later operations
    names = {value.name for value in hidden}
    make_function(edited, joined.nodes, name, repeats=False, inside=True)
    graph.outputs[:] = [value for value in graph.outputs if value.name not in names]


def _paired(wanted: Sequence[str], offered: Sequence[str], name: str) -> dict[str, str]:
    """Return input of one model -> output of the other: those of the same name, or in order if the counts are equal.

    Raises `RequestError` when it is not clear.
    """
    by_name = {each: each for each in wanted if each in offered}
    if by_name:
        return by_name
    if len(wanted) == len(offered):
        return dict(zip(wanted, offered, strict=True))
    raise RequestError(
        f"the connection with model {name!r} is ambiguous: inputs {', '.join(wanted) or 'none'}; "
        f"outputs {', '.join(offered) or 'none'}. Give it by `connect`"
    )
