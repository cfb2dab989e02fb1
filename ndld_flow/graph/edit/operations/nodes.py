"""Operations on nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import first_of
from ndld_flow.graph.edit.operation import NodeOperation, Operation
from ndld_flow.graph.edit.settings import (
    AllowEmpty,
    Anchors,
    NameTemplate,
    NewName,
    Select,
    TensorValue,
    as_names,
    fill_template,
    groups_of,
    stem_of,
)

if TYPE_CHECKING:
    import onnx_ir as ir
    from onnx_ir import Value

    from ndld_flow.graph.edit.edited_model import EditedModel
    from ndld_flow.graph.edit.nodes import NewNode


class RenameNodes(Operation):
    """Rename nodes. Names are unique among a graph and its subgraphs.

        rename_nodes: {select: {op_type: Conv}, to: "conv_{index}"}
        rename_nodes: {select: "/layers[.]([0-9]+)[.](.*)/", to: "block{1}_{2}"}
        rename_nodes: {names: {Conv_0: stem, Gemm_12: head}}

    If several nodes would get the same name, all but the first get a number: `conv`, `conv_2`, `conv_3`.
    """

    keeps_outputs = True

    select: Select | None = None
    """Nodes to rename; with `to`."""
    to: NameTemplate | None = None
    """The new name. `{name}` is the old one, `{stem}` its part after the last `/` or `.`, `{op_type}` the operator,
    `{output}` the first output, `{index}` the number of the selected node from 0 (`{index:03}` with leading zeros),
    `{1}` the first group of the regular expression in `select`."""
    names: dict[str, NewName] = Field(default={})
    """Old name -> new name, instead of `select` and `to`. Names may be swapped."""
    allow_empty: AllowEmpty = False

    @model_validator(mode="after")
    def _check_one_way(self) -> Self:
        if (self.select is None) != (self.to is None) or (self.select is None) == (not self.names):
            raise ValueError("give either `select` and `to`, or `names`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.names import nodes_to_rename, rename_nodes

        wishes = nodes_to_rename(edited.model, self.names)
        if self.select is not None and self.to is not None:
            for index, node in enumerate(edited.select_nodes(self.select, self.allow_empty)):
                output = next((value.name for value in node.outputs if value.name), "")
                name = node.name or output
                facts = {"name": name, "stem": stem_of(name), "op_type": node.op_type, "output": output}
                groups = groups_of(self.select.name, node.name or "")
                wishes[node] = fill_template(self.to, {**facts, **groups, "index": str(index)})
        return f"{counted(rename_nodes(edited.model, wishes), 'node')} renamed"


class NameAll(Operation):
    """Name all unnamed nodes, and optionally make all names C identifiers.

        name_all: {c_identifiers: true, keep_io: true}

    An unnamed node is named after its operator and output, such as `Conv_features`. Of nodes with the same name, which
    ONNX Runtime refuses, all but the first get a number.
    """

    keeps_outputs = True

    c_identifiers: bool = False
    """Make every name of a node or tensor a C90 identifier: letters, digits and `_`, not starting with a digit."""
    keep_io: bool = False
    """Keep the names of the model's inputs and outputs."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.names import names_for_all, rename_nodes, rename_values

        nodes, values = names_for_all(edited.model, self.c_identifiers)
        for value in (*edited.model.graph.inputs, *edited.model.graph.outputs) if self.keep_io else ():
            values.pop(value, None)
        named, renamed = rename_nodes(edited.model, nodes), rename_values(edited.model, values)
        tensors = f" and {counted(renamed, 'tensor')}" if renamed else ""
        return f"{counted(named, 'node')}{tensors} named"


class AddNode(NodeOperation):
    """Add a node; operations that follow can connect its outputs or make them outputs of the model.

        add_node: {op_type: Clip, inputs: [logits, "", six], outputs: [capped], name: cap}
        add_node: {op_type: Fused, domain: com.acme, inputs: [x], outputs: [y], types: {y: "float32[1, 64]"}}

    The operator's inputs and attributes are checked. TensorRT looks for a plugin where ONNX has no operator: a name in
    `_TRT`, or an attribute `plugin_version`, marks a node as one. Names that are not given are generated: unique C90
    identifiers, the same in every run.
    """

    keeps_outputs = True

    inputs: tuple[str, ...] = ()
    """Names of the input tensors, in order; `""` omits an optional input."""
    outputs: tuple[str, ...] = ()
    """Names of the output tensors; generated for required outputs that are not given."""
    name: str | None = Field(default=None, min_length=1)
    """Name of the node."""
    scope: str = ""
    """The graph to add it to: `If_0/then_branch` is a subgraph, `domain::Name` a local function."""
    types: dict[str, str] = Field(default={})
    """Output -> `float32[1, 3, H, ?]`, for custom operators."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.nodes import NewNode, NodeMaker

        new = NewNode(self.op_type, self.own_domain, self.attributes, self.inputs, self.outputs, self.name, self.types)
        node = NodeMaker(edited).add(new, edited.graph(self.scope))
        outputs = ", ".join(value.name for value in node.outputs if value.name)
        return f"node {node.name} added" + (f" with outputs {outputs}" if outputs else "")


class InsertNode(NodeOperation):
    """Insert a node between a tensor and its readers.

        insert_node: {op_type: Relu, after: features}
        insert_node: {op_type: Mul, inputs: ["{tensor}", scale], after: features, readers: {op_type: Conv}}
        insert_node: {op_type: Cast, attributes: {to: float32}, before: softmax, input: 0}

    `after` a tensor, the node is inserted before all of its readers or before some; a graph output keeps its name.
    After several tensors, one node is inserted for each.
    `before` a node, it is inserted at one input of that node only.
    """

    after: Anchors | None = None
    """The tensor to insert the node after, or several tensors."""
    readers: Select | None = None
    """With `after`: only these readers; by default all, and the graph output if the tensor is one."""
    before: Select | None = None
    """Nodes to insert a node before, one for each."""
    input: int | str = 0
    """With `before`: the input, by index or by the operator's name for it."""
    inputs: tuple[str, ...] = ("{tensor}",)
    """Inputs of the new node, in order; `{tensor}` is the tensor that it is inserted at."""
    output: str | None = Field(default=None, min_length=1)
    """With `after` one tensor: name of the output."""
    name: str | None = Field(default=None, min_length=1)
    """With `after` one tensor: name of the node."""
    scope: str = ""
    """With `after`: the graph of the tensor."""

    @model_validator(mode="after")
    def _check_one_place(self) -> Self:
        if (self.after is None) == (self.before is None):
            raise ValueError("give either `after` or `before`")
        stray = ("readers", "output", "name", "scope") if self.after is None else ("input",)
        for setting in stray:
            if getattr(self, setting) != type(self).model_fields[setting].default:
                raise ValueError(f"`{setting}` goes with `{'after' if self.after is None else 'before'}`")
        if isinstance(self.after, tuple) and len(self.after) > 1 and (self.name or self.output):
            raise ValueError("`name` and `output` go with one tensor in `after`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.nodes import NodeMaker

        maker = NodeMaker(edited)
        if self.before is not None:
            readers = edited.select_nodes(self.before)
            for reader in readers:
                maker.insert_before(self._new_node(), reader, self.input)
            return f"{self.op_type} inserted before {counted(len(readers), 'node')}"
        chosen = None if self.readers is None else set(edited.select_nodes(self.readers))
        tensors = [edited.value(name, self.scope) for name in as_names(self.after or "")]
        inserted = [maker.insert_after(self._new_node(), tensor, chosen) for tensor in dict.fromkeys(tensors)]
        nodes, counts = zip(*inserted, strict=True)
        names = ", ".join(node.name for node in nodes)
        return f"node {names} inserted after {', '.join(as_names(self.after or ''))}, before {sum(counts)} readers"

    def _new_node(self) -> NewNode:
        from ndld_flow.graph.edit.nodes import NewNode

        outputs = () if self.output is None else (self.output,)
        return NewNode(self.op_type, self.own_domain, self.attributes, self.inputs, outputs, self.name)


class CopyNodes(Operation):
    """Copy nodes within their graphs. Copies are connected to each other like the originals and share their inputs.

        copy_nodes: {select: {between: [stem, head]}, prefix: twin_}

    Outputs of the copies are unused until they are connected. Weights are shared.
    """

    keeps_outputs = True

    select: Select
    """Nodes to copy."""
    prefix: str = Field(default="copy_", min_length=1)
    """Prefix for the names of the copies and their outputs; names that are already used get a number."""
    allow_empty: AllowEmpty = False

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.names import names_around
        from ndld_flow.graph.edit.node_groups import Renaming, copy_nodes, outermost

        nodes = outermost(edited.select_nodes(self.select, self.allow_empty))
        read: dict[Value, Value | None] = {}
        for graph in dict.fromkeys(node.graph for node in nodes):
            assert graph is not None
            copies = copy_nodes([node for node in nodes if node.graph is graph], read)
            Renaming(*names_around(edited.model, graph), prefix=self.prefix).rename(copies.nodes)
            read |= copies.values
            graph.extend(copies.nodes)
        return f"{counted(len(nodes), 'node')} copied"


class ReplaceOp(NodeOperation):
    """Replace the operator of nodes; their names and connections stay.

        replace_op: {select: {op_type: Relu}, op_type: LeakyRelu, attributes: {alpha: 0.1}}

    Attributes that the new operator also has are kept; the others are removed and listed in the record.
    """

    select: Select
    """Nodes to change."""
    allow_empty: AllowEmpty = False

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.graph_edits import errors_of
        from ndld_flow.graph.edit.nodes import NewNode, NodeMaker

        nodes = edited.select_nodes(self.select, self.allow_empty)
        maker, new = NodeMaker(edited), NewNode(self.op_type, self.own_domain, self.attributes)
        dropped: set[str] = set()
        for node in nodes:
            with errors_of(node):
                dropped.update(maker.replace_op(node, new))
        if dropped:
            edited.note(f"{self.op_type} has no attribute {', '.join(sorted(dropped))}: removed")
        return f"{len(nodes)} nodes are now {self.op_type}"


Weight = TensorValue | Annotated[str, AfterValidator(lambda path: TensorValue(file=Path(path)))]


class ReplaceNodes(NodeOperation):
    """Replace the selected nodes by one node, such as a plugin, with attributes and weights of its own.

        replace_nodes: {select: {between: [norm_first, norm_last]}, op_type: MyNorm, domain: com.acme,
                        attributes: {epsilon: 1.0e-5}, weights: {gamma: gamma.npy}}
        replace_nodes: {select: {after: [boxes, scores]}, op_type: MyNms, domain: com.acme, inputs: [boxes, scores],
                        outputs: [detections], types: {detections: "float32[1, 100, 6]"}}

    Outputs that other nodes or the model's user read keep their names, types and shapes. Nodes, constants and weights
    that nothing needs any longer are removed.
    """

    select: Select
    """Nodes of one graph; their subgraphs are included."""
    inputs: tuple[str, ...] | None = None
    """Names of the input tensors, in order: tensors of the graph, or names in `weights`; `""` omits an optional input.
    By default the tensors that the nodes read from other nodes and inputs of the graph, without constants."""
    outputs: tuple[NewName, ...] | None = None
    """Names of the output tensors, in order: outputs of the nodes, or new names, which need `types`. By default the
    tensors that others read. The model's outputs that are left out are replaced by the new names."""
    weights: dict[NewName, Weight] = Field(default={})
    """Name of a new initializer -> a `.npy` file, or `{value: ..., dtype: ...}`; read after the `inputs`, unless these
    name it."""
    types: dict[str, str] = Field(default={})
    """Output -> `float32[1, 3, H, ?]`, where it differs from that of the replaced nodes."""
    name: str | None = Field(default=None, min_length=1)
    """Name of the new node."""
    allow_empty: AllowEmpty = False

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.nodes import Replacement, replace_nodes
        from ndld_flow.models.input_shapes import show_tensors

        nodes = edited.select_nodes(self.select, self.allow_empty)
        if not nodes:
            return "nothing selected"
        weights = {name: weight for name, weight in self.weights.items() if isinstance(weight, TensorValue)}
        new = Replacement(
            self.op_type, self.own_domain, self.attributes, self.inputs, self.outputs, weights, self.types, self.name
        )
        node = replace_nodes(edited, nodes, new)
        replaced = f"{counted(len(nodes), 'node')} replaced by {node.name} ({self.op_type})"
        inputs = show_tensors(value for value in node.inputs if value is not None)
        return f"{replaced}: {inputs} -> {show_tensors(node.outputs)}"


class RemoveNodes(Operation):
    """Remove nodes, with their subgraphs.

        remove_nodes: {select: {op_type: [Dropout, Identity]}, bridge: true}

    Without `bridge`, their outputs must be unused: neither read by other nodes nor outputs of the model. Weights that
    become unused stay.
    """

    select: Select
    """Nodes to remove."""
    bridge: bool = False
    """Connect the readers of a node's output to its input: the first that is not a constant and has the type and shape
    of the output, or else the most similar one. Outputs of the model keep their names."""
    through: int | str | None = None
    """With `bridge`: the input, by index or by the operator's name for it."""
    allow_empty: AllowEmpty = False

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.graph_edits import drop_nodes
        from ndld_flow.graph.edit.node_groups import deep_nodes, outermost

        selected = edited.select_nodes(self.select, self.allow_empty)
        if self.bridge:
            _bridge(edited, selected, self.through)
        nodes = outermost(selected)
        removed = set(deep_nodes(nodes))
        for node in nodes:
            for value in node.outputs:
                _check_unused(node, value, removed)
        for graph in dict.fromkeys(node.graph for node in nodes):
            drop_nodes([node for node in nodes if node.graph is graph])
        return f"{counted(len(selected), 'node')} removed"


def _bridge(edited: EditedModel, selected: Sequence[ir.Node], through: int | str | None) -> None:
    """Connect all readers of a node's output to one of its inputs; graph outputs keep their names.

    `through` is the index or name of this input. By default it is the first that has the output's dtype, is not a
    constant, and has the output's shape, or the one closest to that. Raises `RequestError` for a node without inputs.
    """
    from ndld_flow.graph.edit.graph_edits import replace_output
    from ndld_flow.graph.edit.node_groups import outermost
    from ndld_flow.graph.edit.schemas import Schemas, port_index
    from ndld_flow.models.nodes import is_used, node_label, own_subgraphs

    schemas = Schemas(edited.model)
    for node in outermost(selected):
        used = next(filter(is_used, node.outputs), None)
        if used is None:
            continue
        source = _most_similar_input(node, used)
        if through is None and any(own_subgraphs(node)):
            raise RequestError(
                f"node {node_label(node)!r} has subgraphs: give with `through` the input that replaces it"
            )
        if through is not None:
            index = port_index(schemas.of(node), through, len(node.inputs) - 1)
            source = node.inputs[index] if index < len(node.inputs) else None
        if source is None:
            raise RequestError(f"node {node_label(node)!r} has no input to reconnect to {used.name!r}")
        for use in used.uses():
            use.node.replace_input_with(use.idx, source)
        if used.is_graph_output():
            replace_output(edited, used, source)


def _most_similar_input(node: ir.Node, output: ir.Value) -> ir.Value | None:
    """Return the input most similar to the output, by these criteria in order: type, not constant, shape."""
    from ndld_flow.models.nodes import is_constant

    def unlikeness(value: ir.Value) -> tuple[bool, bool, bool]:
        other_dtype = None not in (value.dtype, output.dtype) and value.dtype != output.dtype
        other_shape = None not in (value.shape, output.shape) and value.shape != output.shape
        producer = value.producer()
        constant = value.is_initializer() and not value.is_graph_input()
        return other_dtype, constant or (producer is not None and is_constant(producer)), other_shape

    return min((value for value in node.inputs if value is not None), key=unlikeness, default=None)


def _check_unused(node: ir.Node, value: ir.Value, gone: set[ir.Node]) -> None:
    """Raise `RequestError` for an output that other nodes read, or that is an output of the model."""
    from ndld_flow.models.nodes import node_label

    readers = [node_label(reader) for reader in value.consumers() if reader not in gone]
    if readers:
        shown = first_of([repr(reader) for reader in readers], 3)
        raise RequestError(
            f"{value.name!r}, an output of {node_label(node)!r}, is read by {shown}; remove its readers too, "
            "or set `bridge: true` to connect them to the node's input"
        )
    if value.is_graph_output():
        raise RequestError(
            f"output {value.name!r} of the model is produced by {node_label(node)!r}; remove the output first, "
            "or set `bridge: true` to connect it to the node's input"
        )


_OP_TYPES: dict[str, tuple[str, ...]] = {
    "identity": ("Identity",),
    "dropout": ("Dropout",),
    "cast": ("Cast",),
    "reshape": ("Reshape", "Flatten", "Squeeze", "Unsqueeze"),
    "expand": ("Expand", "Tile"),
    "transpose": ("Transpose",),
    "pad": ("Pad",),
    "slice": ("Slice",),
    "concat": ("Concat", "Sum", "Max", "Min", "Mean"),
    "arithmetic": ("Add", "Sub", "Mul", "Div"),
}
Kind = Literal["identity", "dropout", "cast", "reshape", "expand", "transpose", "pad", "slice", "concat", "arithmetic"]


class RemoveNoops(Operation):
    """Remove nodes that have no effect; all results are exactly the same.

    remove_noops: {kinds: [identity, dropout]}
    """

    keeps_outputs = True

    kinds: tuple[Kind, ...] = ()
    """Kinds to remove; all by default. `identity`: Identity; `dropout`: Dropout in inference; `cast`: Cast to the same
    type; `reshape`: Reshape, Flatten, Squeeze, Unsqueeze to the same shape; `expand`: Expand and Tile to the same
    shape; `transpose`: Transpose to the same order; `pad`: Pad by zero; `slice`: Slice of everything; `concat`: Concat,
    Sum, Max, Min, Mean of one tensor; `arithmetic`: plus 0, minus 0, times 1, divided by 1."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.graph_edits import OperationEdits, known_shapes
        from ndld_flow.graph.sanitize.simplify import remove_noops

        op_types = {op_type for kind in self.kinds or _OP_TYPES for op_type in _OP_TYPES[kind]}
        edits = OperationEdits(edited)
        with known_shapes(edited.model):
            before = -1
            while edits.done.total() != before:
                before = edits.done.total()
                remove_noops(edits, op_types)
        if not before:
            asked = f" of the kinds {', '.join(self.kinds)}" if self.kinds else ""
            edited.note(f"the model has no node{asked} without effect")
            return "nothing to do"
        counts = sorted((name.removesuffix(" removed"), count) for name, count in edits.done.items())
        listed = ", ".join(f"{count} {op_type}" for op_type, count in counts)
        return f"{counted(before, 'node')} without effect removed: {listed}"
