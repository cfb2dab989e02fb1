"""New nodes, and attributes of nodes, with the inputs and types that the operators require."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import onnx_ir as ir

from ndld_flow.base.errors import RequestError, check_known
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.constant_tensors import add_initializer, make_tensor
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.extracting import ConstantNodes, common_graph
from ndld_flow.graph.edit.graph_edits import errors_of, prune_values, put_outputs, replace_output
from ndld_flow.graph.edit.interface import infer_edges, parse_tensor_type
from ndld_flow.graph.edit.names import Nesting, names_around
from ndld_flow.graph.edit.node_groups import (
    Neighbourhood,
    Pieces,
    check_one_piece,
    deep_nodes,
    outermost,
    outputs_of,
    replace_uses,
)
from ndld_flow.graph.edit.schemas import (
    Schemas,
    check_attributes_complete,
    check_inputs,
    check_outputs,
    declared_attribute,
    port_index,
)
from ndld_flow.graph.edit.settings import TensorValue
from ndld_flow.graph.edit.value_grammar import Value, parse_dtype, parse_value, to_array
from ndld_flow.models.files import all_graphs
from ndld_flow.models.nodes import captured_values, node_label, remove_node
from ndld_flow.models.op_reference import OperatorVersion

Given: TypeAlias = "bool | int | float | str | Sequence[Any] | TensorValue"
"""A YAML value, text in the grammar of values, or a tensor."""

_ELEMENTS = {"int": ir.DataType.INT64, "float": ir.DataType.FLOAT, "string": ir.DataType.STRING}
_KINDS = {bool: "int", int: "int", float: "float", str: "string"}


def make_attributes(
    operator: OperatorVersion | None, given: Mapping[str, Given], present: Mapping[str, ir.Attr]
) -> list[ir.Attr]:
    """Return attributes for a node that already has those in `present`.

    Raises `RequestError` for a name or a type that the operator does not have. An attribute of an unknown operator has
    the type of the existing one, or the one that its value suggests.
    """
    attributes = []
    for name, value in given.items():
        try:
            kind = _kind(operator, name, value, present)
            attributes.append(_make(name, value, kind))
        except RequestError as error:
            raise RequestError(f"attribute `{name}`: {error}") from None
    return attributes


def _kind(operator: OperatorVersion | None, name: str, value: Given, present: Mapping[str, ir.Attr]) -> str:
    """Return the type of an attribute: `int`, `floats`, `tensor`, ..."""
    declared = "" if operator is None else declared_attribute(operator, name).type
    if declared not in ("", "undefined"):  # local functions may leave the type undefined
        return declared
    if name in present:
        return present[name].type.name.lower()
    return _suggested(_read(value))


def _suggested(value: Given) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        kinds = {_KINDS.get(type(element), "") for element in value}
        if kinds == {"int", "float"}:
            return "floats"
        if len(kinds) != 1 or kinds == {""}:
            raise RequestError(
                "its type is ambiguous; give a list of numbers or of strings, or a tensor as {value: ...}"
            )
        return f"{kinds.pop()}s"
    return _KINDS.get(type(value), "tensor")


def _read(value: Given) -> Given:
    """Return the value that a string denotes; an unquoted word is a string itself."""
    if not isinstance(value, str):
        return value
    try:
        return parse_value(value)
    except RequestError:
        if value[:1] in ("[", "'", '"'):
            raise
        return value


def _make(name: str, value: Given, kind: str) -> ir.Attr:
    element = kind.removesuffix("s")
    if kind == "tensor":
        tensor = value if isinstance(value, TensorValue) else TensorValue(value=_listed(value))
        return ir.AttrTensor(name, make_tensor(tensor, name))
    if element not in _ELEMENTS:
        raise RequestError(f"its type is {kind.replace('_', ' ')}, which settings cannot express")
    if isinstance(value, TensorValue):
        array = make_tensor(value, "", _ELEMENTS[element]).numpy()
    else:
        parsed = _parsed(value, element)
        array = to_array(_numbers(parsed) if element == "int" else parsed, _ELEMENTS[element])
    if array.ndim != (kind != element):
        expected = f"a list of {element}s" if kind != element else f"one {element}"
        raise RequestError(f"it is {expected}; the value has the shape {list(array.shape)}")
    return ir.Attr(name, ir.AttributeType[kind.upper()], tuple(array.tolist()) if array.ndim else array.item())


def _listed(value: Any) -> Any:  # noqa: ANN401 - YAML's value
    return list(value) if isinstance(value, tuple) else value


def _parsed(value: Any, element: str) -> Value:  # noqa: ANN401 - YAML's value
    if not isinstance(value, str):
        parsed: Value = _listed(value)
        return parsed
    if element == "string" and value[:1] not in ("[", "'", '"'):
        return value
    if element == "int":
        try:
            return int(parse_dtype(value))
        except RequestError:
            pass
    return parse_value(value)


def _numbers(value: Value) -> Value:
    """Return the value with true and false as 1 and 0, as ONNX stores them."""
    if isinstance(value, list):
        return [_numbers(element) for element in value]
    return int(value) if isinstance(value, bool) else value


TENSOR = "{tensor}"
"""Placeholder for the tensor after which a node is inserted."""


@dataclass(frozen=True)
class NewNode:
    """Settings of a new node."""

    op_type: str
    domain: str = ""
    attributes: Mapping[str, Given] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    """Names of tensors; empty for an omitted optional input."""
    outputs: Sequence[str] = ()
    """Names; generated if there are fewer than the operator requires."""
    name: str | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    """Output -> `float32[1, 3]`, for operators whose outputs cannot be inferred."""


class NodeMaker:
    """Creates nodes in a model."""

    def __init__(self, edited: EditedModel) -> None:
        self._edited = edited
        self._nesting = Nesting(edited.model)
        self._schemas = Schemas(edited.model)

    def add(self, new: NewNode, graph: ir.Graph) -> ir.Node:
        """Add a node to a graph, which is sorted later.

        Raises `RequestError` for an unknown operator, attribute or input, and for names that are already used.
        """
        return self._make(new, graph, [self._nesting.value(name, graph) if name else None for name in new.inputs])

    def insert_after(self, new: NewNode, tensor: ir.Value, readers: Collection[ir.Node] | None) -> tuple[ir.Node, int]:
        """Insert a node between a tensor and all or some of its readers.

        All readers include graph outputs, which keep their names. Returns the node and the number of its readers.
        """
        graph = tensor.graph
        assert graph is not None
        uses = [use for use in tensor.uses() if readers is None or use.node in readers]
        is_output = readers is None and tensor.is_graph_output()
        if not uses and not is_output:
            raise RequestError(f"none of these nodes reads {tensor.name!r}")
        node = self._insert(new, tensor, graph)
        for use in uses:
            use.node.replace_input_with(use.idx, node.outputs[0])
        if is_output:
            replace_output(self._edited, tensor, node.outputs[0])
        return node, len(uses) + is_output

    def insert_before(self, new: NewNode, reader: ir.Node, which: int | str) -> ir.Node:
        """Insert a node at an input of another node.

        Raises `RequestError` if that input is not connected.
        """
        with errors_of(reader):
            index = port_index(self._schemas.of(reader), which, len(reader.inputs) - 1)
            tensor = reader.inputs[index] if index < len(reader.inputs) else None
            if tensor is None:
                raise RequestError(f"its input {which!r} is not connected")
        assert isinstance(reader.graph, ir.Graph)
        node = self._insert(new, tensor, reader.graph)
        reader.replace_input_with(index, node.outputs[0])
        return node

    def replace_op(self, node: ir.Node, new: NewNode) -> list[str]:
        """Replace the operator of a node; its name, its tensors and the attributes that the new one also has are kept.

        Returns the names of the removed attributes. Raises `RequestError` if the new operator does not fit.
        """
        assert isinstance(node.graph, ir.Graph)
        operator = self._schemas.find(node.graph, new.op_type, new.domain, new.attributes)
        kept = _kept_attributes(node, operator)
        attributes = make_attributes(operator, new.attributes, kept)
        if operator is not None:
            check_attributes_complete(operator, {*kept, *new.attributes})
            check_inputs(operator, node.inputs)
            check_outputs(operator, len(node.outputs))
        self._schemas.import_domain(node.graph, new.domain)
        node.op_type, node.domain, node.overload, node.version = new.op_type, new.domain, "", None
        dropped = [name for name in node.attributes if name not in kept]
        for name in dropped:
            node.attributes.pop(name)
        for attribute in attributes:
            node.attributes.add(attribute)
        return [name for name in dropped if name not in new.attributes]

    def _insert(self, new: NewNode, tensor: ir.Value, graph: ir.Graph) -> ir.Node:
        """Create a node that reads the tensor in place of the placeholder."""
        if TENSOR not in new.inputs:
            raise RequestError(f"`inputs` must have `{TENSOR}` where the new node reads {tensor.name!r}")
        find = self._nesting.value
        inputs = [tensor if name == TENSOR else find(name, graph) if name else None for name in new.inputs]
        node = self._make(new, graph, inputs)
        if not node.outputs:
            raise RequestError(f"{new.op_type} has no output that others could read")
        return node

    def _make(self, new: NewNode, graph: ir.Graph, inputs: Sequence[ir.Value | None]) -> ir.Node:
        operator = self._schemas.find(graph, new.op_type, new.domain, new.attributes)
        attributes = make_attributes(operator, new.attributes, {})
        if operator is not None:
            check_attributes_complete(operator, new.attributes)
            check_inputs(operator, inputs)
        _check_free(self._edited, new, graph)
        name = new.name or self._edited.fresh_name(new.op_type)
        outputs = [ir.Value(name=output) for output in _output_names(self._edited, new, operator, name)]
        declare_outputs(outputs, new.types)
        self._schemas.import_domain(graph, new.domain)
        node = ir.Node(new.domain, new.op_type, inputs, attributes, outputs=outputs, name=name)
        graph.append(node)
        return node


def _kept_attributes(node: ir.Node, operator: OperatorVersion | None) -> dict[str, ir.Attr]:
    if operator is None:
        return dict(node.attributes)
    types = {known.name: known.type for known in operator.attributes}
    return {
        name: old for name, old in node.attributes.items() if types.get(name) in (old.type.name.lower(), "undefined")
    }


def _output_names(edited: EditedModel, new: NewNode, operator: OperatorVersion | None, name: str) -> list[str]:
    given = list(new.outputs)
    if operator is None:
        return given or [edited.fresh_name(f"{name}_output")]
    least = check_outputs(operator, max(len(given), 1))
    return given + [
        edited.fresh_name(f"{name}_{operator.outputs[min(number, len(operator.outputs) - 1)].name}")
        for number in range(len(given), least)
    ]


def _check_free(edited: EditedModel, new: NewNode, graph: ir.Graph) -> None:
    """Check that given names are unused: they are not changed to make them unique."""
    if new.name is None and not new.outputs:
        return
    nodes, tensors = names_around(edited.model, graph)
    if new.name in nodes:
        raise RequestError(f"there is already a node {new.name!r}; choose another name")
    for name in filter(None, new.outputs):
        if name in tensors:
            raise RequestError(f"there is already a tensor {name!r}, and a tensor has one source; choose another name")
        tensors.add(name)
    edited.names().update(name for name in (new.name, *new.outputs) if name)


def declare_outputs(outputs: Sequence[ir.Value], types: Mapping[str, str]) -> None:
    """Set the types and shapes of outputs by name. Raises `RequestError` for a name that none has."""
    known = {value.name or "": value for value in outputs}
    check_known(types, known, "`types`: the node has no output")
    for name, text in types.items():
        known[name].type, known[name].shape = parse_tensor_type(text)


@dataclass(frozen=True)
class Replacement:
    """The node that replaces others."""

    op_type: str
    domain: str
    attributes: Mapping[str, Given]
    inputs: Sequence[str] | None
    """None: the tensors that the nodes read, without constants."""
    outputs: Sequence[str] | None
    """None: the tensors that others read."""
    weights: Mapping[str, TensorValue]
    """Name -> the tensor of a new initializer."""
    types: Mapping[str, str]
    name: str | None


def replace_nodes(edited: EditedModel, nodes: Sequence[ir.Node], new: Replacement) -> ir.Node:
    """Replace nodes of one graph by a new one, and remove what nothing needs any longer.

    Raises `RequestError` for nodes of several graphs, for nodes between which another one is needed, for an output that
    is read and is left out, and for inputs, outputs and names that do not fit.
    """
    chosen = outermost(nodes)
    graph, around = common_graph(edited, chosen), Neighbourhood(edited.model)
    check_one_piece(Pieces(around, edited.model), chosen)
    read, members = captured_values(chosen), set(deep_nodes(chosen))
    kept = _kept_outputs(chosen, new, around)
    infer_edges([value for value in kept if value is not None and value.name not in new.types], edited.model)
    inputs = _inputs(edited, new, chosen)
    scope = next(address for address, known in edited.scopes().items() if known is graph)
    for name, weight in new.weights.items():
        add_initializer(edited, make_tensor(weight, name), name, scope)
    names = tuple(edited.fresh_name(f"{new.op_type}_output") for _ in kept)
    node = NodeMaker(edited).add(NewNode(new.op_type, new.domain, new.attributes, inputs, names), graph)
    for old, output in zip(kept, node.outputs, strict=False):
        if old is not None:
            replace_uses(old, output, members, all_graphs(edited.model))
    lost = [value for value in graph.outputs if value.producer() in members]
    if lost:  # only the removed nodes produce them: new tensors take their place
        edited.note(f"outputs removed with the nodes: {', '.join(value.name or '' for value in lost)}")
        put_outputs(graph, lost, [output for output, old in zip(node.outputs, kept, strict=False) if old is None])
    for gone in reversed(chosen):
        remove_node(gone)
    prune_values(read)
    _name_new_outputs(edited, node, new, kept)
    if new.name is not None:
        if any(other.name == new.name for graph in edited.graphs() for other in graph if other is not node):
            raise RequestError(f"there is already a node {new.name!r}; choose another name")
        node.name = new.name
    declare_outputs(node.outputs, new.types)
    return node


def _kept_outputs(chosen: Sequence[ir.Node], new: Replacement, around: Neighbourhood) -> list[ir.Value | None]:
    """Return the tensor that each output replaces; None for a new one."""
    read = outputs_of(chosen, around)
    if new.outputs is None:
        if not read:
            raise RequestError("nothing reads the outputs of the selected nodes: give `outputs`, with their `types`")
        return list(read)
    own = {value.name or "": value for node in chosen for value in node.outputs if value.name}
    kept = [own.get(name) for name in new.outputs]
    for name, value in zip(new.outputs, kept, strict=True):
        if value is None and name not in new.types:
            raise RequestError(
                f"{name!r} is no output of the selected nodes ({suggest(name, own)}); a new one needs its type: "
                f'`types: {{{name}: "float32[1, 100, 6]"}}`'
            )
    for value in read:
        readers = [reader for reader in around.readers(value) if reader not in set(deep_nodes(chosen))]
        if value not in kept and readers:
            raise RequestError(
                f"node {node_label(readers[0])!r} reads {value.name!r}, an output of the selected nodes: add it to "
                "`outputs`, or select that node too"
            )
    return kept


def _inputs(edited: EditedModel, new: Replacement, chosen: Sequence[ir.Node]) -> tuple[str, ...]:
    """Return the names of the inputs, the weights included."""
    read, own = captured_values(chosen), {value.name for node in chosen for value in node.outputs if value.name}
    if new.inputs is None:
        constants = ConstantNodes(edited.model)
        varying = (value for value in read if not value.is_initializer() and not constants.produces(value))
        inputs = tuple(value.name or "" for value in varying)
    else:
        inputs = tuple(new.inputs)
    for name in inputs:
        if name in own:
            raise RequestError(f"`inputs`: {name!r} is an output of the selected nodes, which are removed")
    return (*inputs, *(name for name in new.weights if name not in inputs))


def _name_new_outputs(edited: EditedModel, node: ir.Node, new: Replacement, kept: Sequence[ir.Value | None]) -> None:
    taken = edited.names()
    for name, value, output in zip(new.outputs or (), kept, node.outputs, strict=False):
        if value is None:
            if name in taken:
                raise RequestError(
                    f"there is already a tensor {name!r}, and a tensor has one source; choose another name"
                )
            output.name = name
