"""Operations on the connections of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import (
    AllowEmpty,
    NameTemplate,
    NewName,
    Patterns,
    Select,
    fill_template,
    groups_of,
    stem_of,
)

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class Connect(Operation):
    """Connect an input of nodes to a tensor.

        connect: {select: conv_1, input: B, tensor: bias}
        connect: {select: concat, input: inputs, tensor: more}

    The tensor replaces what the input read before. Optional inputs are added as needed; the name of a variadic input
    appends a tensor. A tensor that depends on the node is refused.
    """

    select: Select
    """Nodes to connect."""
    input: int | str
    """The input, by index or by the operator's name for it."""
    tensor: str
    """The tensor to read, of the same graph or of an enclosing one."""
    allow_empty: AllowEmpty = False

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.graph_edits import connect

        nodes = edited.select_nodes(self.select, self.allow_empty)
        return f"input {self.input} of {connect(edited, nodes, self.input, self.tensor)} nodes reads {self.tensor}"


class Disconnect(Operation):
    """Disconnect an optional input of nodes.

        disconnect: {select: {op_type: Conv}, input: B}

    An input that the operator requires is refused; `connect` gives it another tensor. A tensor of a variadic input is
    removed, and those after it move up.
    """

    select: Select
    """Nodes to disconnect."""
    input: int | str
    """The input, by index or by the operator's name for it; the name of a variadic input means its last tensor."""
    allow_empty: AllowEmpty = False

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.graph_edits import errors_of, set_inputs
        from ndld_flow.graph.edit.schemas import Schemas, check_inputs, port_at, port_index

        schemas = Schemas(edited.model)
        changed = 0
        for node in edited.select_nodes(self.select, self.allow_empty):
            with errors_of(node):
                operator = schemas.of(node)
                index = port_index(operator, self.input, len(node.inputs) - 1)
                if index >= len(node.inputs) or node.inputs[index] is None:
                    continue
                inputs = list(node.inputs)
                inputs[index] = None
                if operator is not None and port_at(operator, index).kind == "variadic":
                    del inputs[index]
                while inputs and inputs[-1] is None:
                    inputs.pop()
                if operator is not None:
                    check_inputs(operator, inputs)
                set_inputs(node, inputs)
                changed += 1
        return f"input {self.input} of {counted(changed, 'node')} disconnected"


class Rewire(Operation):
    """Connect all readers of a tensor to another tensor.

        rewire: {tensor: features, read: features_scaled, outputs: true}

    Nodes that the other tensor depends on still read the first: otherwise the graph would have a cycle.
    """

    tensor: str
    """The tensor that is read now."""
    read: str
    """The tensor to read instead."""
    readers: Select | None = None
    """Only these nodes."""
    outputs: bool = False
    """Replace graph outputs too; they keep their names."""
    scope: str = ""
    """The graph in which the two names are looked up; its subgraphs are changed too."""
    allow_empty: bool = False
    """Succeed when nothing reads the tensor."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.graph_edits import ancestors, replace_output
        from ndld_flow.graph.edit.names import Nesting
        from ndld_flow.models.nodes import node_label

        nesting, graph = Nesting(edited.model), edited.graph(self.scope)
        old, new = nesting.value(self.tensor, graph), nesting.value(self.read, graph)
        readers = None if self.readers is None else set(edited.select_nodes(self.readers, self.allow_empty))
        if old is new:
            raise RequestError(f"{old.name!r} cannot replace itself")
        before = ancestors(edited.model, new)
        changed = left = 0
        for use in tuple(old.uses()):
            reader = use.node
            if readers is not None and reader not in readers:
                continue
            if any(node in before for node in (reader, *nesting.owners(reader.graph))):
                left += 1
                continue
            if not nesting.sees(reader.graph, new):
                raise RequestError(f"node {node_label(reader)!r} reads {old.name!r} and cannot see {new.name!r}")
            reader.replace_input_with(use.idx, new)
            changed += 1
        if self.outputs and old.is_graph_output():
            replace_output(edited, old, new)
            changed += 1
        if not changed and not self.allow_empty:
            raise RequestError(f"nothing that may be changed reads {self.tensor!r}; see `readers` and `outputs`")
        unchanged = f"; {left} readers are unchanged, because {self.read} depends on them" if left else ""
        return f"{changed} readers of {self.tensor} read {self.read}{unchanged}"


class RenameTensors(Operation):
    """Rename tensors: inputs and outputs of the model, initializers, and outputs of nodes.

        rename_tensors: {names: {input.1: image, "495": logits}}
        rename_tensors: {select: "/^onnx::(.*)/", to: "t_{1}", keep_io: true}

    Names are unique among a graph and its subgraphs: if several tensors would get the same name, all but the first get
    a number.
    """

    keeps_outputs = True

    select: Patterns = ()
    """Tensors to rename, by name; with `to`."""
    to: NameTemplate | None = None
    """The new name. `{name}` is the old one, `{stem}` its part after the last `/` or `.`, `{op_type}` the operator that
    produces it (`input` or `initializer` if none does), `{index}` the number of the selected tensor from 0
    (`{index:03}` with leading zeros), `{1}` the first group of the regular expression in `select`."""
    names: dict[str, NewName] = Field(default={})
    """Old name -> new name, instead of `select` and `to`. Names may be swapped; a new name that is already used is
    refused. A name that several graphs have means the tensor of the main graph."""
    scope: str | None = None
    """With `select`: only in this graph; `""` is the main graph, `If_0/then_branch` a subgraph."""
    keep_io: bool = False
    """Keep the names of the model's inputs and outputs."""
    allow_empty: AllowEmpty = False

    @model_validator(mode="after")
    def _check_one_way(self) -> Self:
        if bool(self.select) != (self.to is not None) or bool(self.select) == bool(self.names):
            raise ValueError("give either `select` and `to`, or `names`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.names import rename_values, values_to_rename

        wishes = values_to_rename(edited.model, self.names)
        chosen = edited.select_values(self.select, self.allow_empty, self.scope)
        if self.keep_io:
            edges = {*edited.model.graph.inputs, *edited.model.graph.outputs}
            chosen = [value for value in chosen if value not in edges]
            wishes = {value: name for value, name in wishes.items() if value not in edges}
        for index, value in enumerate(chosen):
            name, producer = value.name or "", value.producer()
            source = producer.op_type if producer is not None else "input" if value.is_graph_input() else "initializer"
            facts = {"name": name, "stem": stem_of(name), "op_type": source, "output": name}
            wishes[value] = fill_template(self.to or "", {**facts, **groups_of(self.select, name), "index": str(index)})
        return f"{counted(rename_values(edited.model, wishes), 'tensor')} renamed"
