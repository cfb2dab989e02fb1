"""Groups of places in a model that must have the same floating-point type.

A place is an input or output of a node or of the graph. A group is a set of places that an operator's signature (or a
loop, a branch, a sequence) ties together. Changing precision means choosing a type for each group, and a Cast between
two groups with different types. Two kinds of places belong to no group: constants, which are available in any
precision, and inputs of operators that accept any type (`Shape`, the input of `Cast`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import UnknownNameError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.text import short_name
from ndld_flow.models.element_types import (
    TYPE_ATTRIBUTES,
    TYPE_FROM_INPUT,
    Signature,
    Types,
    carried_into_bodies,
    element_of,
    has_subgraphs,
    is_op,
    signature_of,
    subgraphs_of,
    with_element,
)
from ndld_flow.models.lazy_tensors import FORMATS
from ndld_flow.models.nodes import put_first


@dataclass(frozen=True)
class Use:
    """A place where a value is read: input `index` of a node, or output `index` of a graph."""

    reader: ir.Node | ir.Graph
    index: int

    @property
    def value(self) -> ir.Value | None:
        reader = self.reader
        return reader.inputs[self.index] if isinstance(reader, ir.Node) else reader.outputs[self.index]

    def read(self, value: ir.Value) -> None:
        """Read another value instead."""
        if isinstance(self.reader, ir.Node):
            self.reader.replace_input_with(self.index, value)
        else:
            self.reader.outputs[self.index] = value


def insert_cast(value: ir.Value, dtype: ir.DataType, name: str, node_name: str) -> ir.Value:
    """Insert a Cast after the producer of a value, or at the start of its graph, and return its output."""
    output = ir.Value(name=name, type=ir.TensorType(dtype), shape=value.shape)
    attributes = [ir.AttrInt64("to", dtype.value)]
    node = ir.Node("", "Cast", [value], attributes, outputs=[output], name=node_name)
    producer, graph = value.producer(), value.graph
    if graph is None:
        raise ValueError(f"{value.name!r} belongs to no graph")
    if producer is not None:
        graph.insert_after(producer, node)
    else:
        put_first(graph, node)
    return output


@dataclass(frozen=True)
class Tie:
    """Places inside and around a control-flow node that have the same value at different times."""

    uses: tuple[Use, ...]
    values: tuple[ir.Value, ...]


def _if_ties(node: ir.Node) -> Iterator[Tie]:
    branches = list(subgraphs_of(node))
    for index, value in enumerate(node.outputs):
        yield Tie(tuple(Use(branch, index) for branch in branches), (value,))


def _loop_ties(node: ir.Node) -> Iterator[Tie]:
    """Tie the places of each loop-carried value: the node's input, the body's input and output, the node's output."""
    body = node.attributes["body"].as_graph()
    inner = [value for value, _ in carried_into_bodies(node)]
    for index in range(len(body.outputs) - 1):
        around = (Use(node, 2 + index),) if index < len(inner) else ()
        yield Tie((*around, Use(body, 1 + index)), (*node.outputs[index : index + 1], *inner[index : index + 1]))


def _scan_ties(node: ir.Node) -> Iterator[Tie]:
    body = node.attributes["body"].as_graph()
    first = len(node.inputs) - len(body.inputs)
    states = len(body.inputs) - node.attributes["num_scan_inputs"].as_int()
    for index in range(len(body.outputs)):
        around = (Use(node, first + index),) if index < states else ()
        inner = tuple(body.inputs[index : index + 1]) if index < states else ()
        yield Tie((*around, Use(body, index)), (*node.outputs[index : index + 1], *inner))
    for index in range(states, len(body.inputs)):
        yield Tie((Use(node, first + index),), (body.inputs[index],))


def _sequence_map_ties(node: ir.Node) -> Iterator[Tie]:
    body = node.attributes["body"].as_graph()
    for index, value in enumerate(body.inputs):
        yield Tie((Use(node, index),), (value,))
    for index, value in enumerate(node.outputs):
        yield Tie((Use(body, index),), (value,))


CONTROL_FLOW: Mapping[str, Callable[[ir.Node], Iterator[Tie]]] = {
    "If": _if_ties,
    "Loop": _loop_ties,
    "Scan": _scan_ties,
    "SequenceMap": _sequence_map_ties,
}
"""Operator -> function that yields the ties of a node."""


_HALF_TENSOR = "tensor(float16)"
FP32_ALONE = frozenset({"float"})
ALL_FLOATS = frozenset({"float", "float16", "bfloat16", "double"})
_FIRST_OPSET_OF_BF16_CASTS = 13


@dataclass(eq=False)
class Group:
    """Places that have the same type in the original model."""

    uses: list[Use] = field(default_factory=list)
    values: list[ir.Value] = field(default_factory=list)
    nodes: list[ir.Node] = field(default_factory=list)
    follows: bool = False
    """It computes nothing that depends on precision, so it may take that of its neighbours."""
    kept: str = ""
    """Why its type must not change; empty if it may."""
    halved: bool = False
    """It must become fp16 regardless of its neighbours."""


class Groups:
    """All groups of a model, with the producing and reading groups of each value."""

    def __init__(self, groups: Iterable[Group]) -> None:
        self.all = list(groups)
        self.maker: dict[ir.Value, Group] = {v: group for group in self.all for v in group.values}
        self.readers: dict[ir.Value, list[Group]] = {}
        for group in self.all:
            for use in group.uses:
                if use.value is not None:
                    self.readers.setdefault(use.value, []).append(group)

    def of_node(self) -> dict[ir.Node, list[Group]]:
        """Return node -> the groups that it belongs to."""
        groups: dict[ir.Node, list[Group]] = {}
        for group in self.all:
            for node in group.nodes:
                groups.setdefault(node, []).append(group)
        return groups


def is_constant(value: ir.Value) -> bool:
    """Return whether a value is a weight or a Constant's output, which is available in any precision without a Cast."""
    producer = value.producer()
    if producer is not None:
        return is_op(producer, "Constant")
    return value.is_initializer() and not value.is_graph_input()


TargetType = Callable[[ir.Node], ir.DataType | None]
"""Returns the target type of a node's places; None if they stay as they are."""


def group_places(
    model: ir.Model,
    types: Types,
    keep_io: bool | Sequence[str],
    target_type: TargetType = lambda node: ir.DataType.FLOAT16,
    elements: frozenset[str] = FP32_ALONE,
) -> Groups:
    """Group every place of a model with such elements; by default, fp32 places that will become fp16.

    `keep_io` selects the inputs and outputs of the model that stay as they are: all, none, or those with names that
    match a pattern. Raises `RequestError` for a pattern that matches none.
    """
    maker = _GroupMaker(types, model.opset_imports, target_type, elements)
    groups = list(maker.interface(model.graph, keep_io))
    for graph in model.graphs():
        for node in graph:
            groups += maker.node(node)
    return Groups(_tie_containers(groups, types))


_INDIFFERENT = ("Cast", "CastLike", "Shape", "Size", "SequenceLength", "OptionalHasElement")
"""Operators to which the precision of their first input means nothing."""

# Their signatures have several variables, but all ports have the same element type.
_ONE_TYPE = frozenset({
    "ConcatFromSequence", "Optional", "OptionalGetElement", "SequenceAt", "SequenceConstruct", "SequenceInsert",
    "SplitToSequence",
})  # fmt: skip

MOVES = frozenset({
    "Compress", "Concat", "ConcatFromSequence", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather",
    "GatherElements", "GatherND", "Identity", "Optional", "OptionalGetElement", "Pad", "Reshape", "ReverseSequence",
    "SequenceAt", "SequenceConstruct", "SequenceErase", "SequenceInsert", "Slice", "SpaceToDepth", "Split",
    "SplitToSequence", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
})  # fmt: skip
"""Operators whose outputs contain values of their inputs, rearranged."""


class _GroupMaker:
    def __init__(
        self, types: Types, opsets: Mapping[str, int], target_type: TargetType, elements: frozenset[str]
    ) -> None:
        self.types = types
        self.opsets = opsets
        self.target_type = target_type
        self.elements = elements

    def interface(self, graph: ir.Graph, keep_io: bool | Sequence[str]) -> Iterator[Group]:
        """Yield the groups of the main graph's inputs and outputs, one each."""
        names = [value.name or "" for value in (*graph.inputs, *graph.outputs)]
        kept = set(names if keep_io is True else _names_matching(keep_io or (), names, "keep_io"))
        for value in filter(self._is_float, graph.inputs):
            # An initializer that is also an input is a weight: in IR 3 all of them are.
            weight = value.is_initializer()
            why = "keep_io" if value.name in kept and not weight else ""
            yield Group(values=[value], kept=why, halved=not (why or weight), follows=weight)
        for index, value in enumerate(graph.outputs):
            if self._is_float(value):
                why = "keep_io" if value.name in kept else ""
                yield Group(uses=[Use(graph, index)], kept=why, halved=not why)

    def node(self, node: ir.Node) -> list[Group]:
        """Return the groups of one node; those of a control-flow node include places in its bodies."""
        if is_op(node, "Constant"):
            return []
        if is_op(node, *CONTROL_FLOW):
            return [self._tied(node, tie) for tie in CONTROL_FLOW[node.op_type](node) if self._has_floats(tie)]
        signature = signature_of(node, self.opsets)
        if signature is None or has_subgraphs(node):
            return self._unknown(node)
        return self._by_variable(node, signature)

    def _tied(self, node: ir.Node, tie: Tie) -> Group:
        return Group(uses=list(tie.uses), values=list(tie.values), nodes=[node], follows=True)

    def _has_floats(self, tie: Tie) -> bool:
        return any(self._is_float(v) for v in chain(tie.values, (use.value for use in tie.uses)))

    def _unknown(self, node: ir.Node) -> list[Group]:
        places = self._places(node, Signature(("T",) * len(node.inputs), ("T",) * len(node.outputs)))
        name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        bodies = [Tie(tuple(Use(b, i) for i in range(len(b.outputs))), tuple(b.inputs)) for b in subgraphs_of(node)]
        groups = [*places.values(), *(self._tied(node, tie) for tie in bodies if self._has_floats(tie))]
        for group in groups:
            group.kept = f"operator {name} is unknown"
        return groups

    def _by_variable(self, node: ir.Node, signature: Signature) -> list[Group]:
        if not node.domain and node.op_type in _ONE_TYPE:
            signature = _with_one_variable(signature)
        if is_op(node, *TYPE_FROM_INPUT) and TYPE_ATTRIBUTES[node.op_type] not in node.attributes:
            signature = _with_one_variable(signature)
        if not node.domain and node.op_type not in TYPE_ATTRIBUTES:
            signature = self._with_sources(node, signature)
        places = self._places(node, signature)
        for variable, group in places.items():
            group.kept = self._why_fixed(node, signature, variable, group)
            if not node.domain:
                self._describe(node, group)
        return list(places.values())

    def _with_sources(self, node: ir.Node, signature: Signature) -> Signature:
        """Give an output whose variable no given input has the variable of the first float input."""
        given = zip(node.inputs, signature.inputs, strict=False)
        known = [variable for value, variable in given if self._is_float(value)]
        if not known:
            return signature
        outputs = (v if v in known or not signature.admits(v, _HALF_TENSOR) else known[0] for v in signature.outputs)
        return Signature(signature.inputs, tuple(outputs), signature.allowed)

    def _places(self, node: ir.Node, signature: Signature) -> dict[str, Group]:
        """Return type variable -> the group of a node's floating-point ports with that variable."""
        groups: dict[str, Group] = {}
        indifferent = is_op(node, *_INDIFFERENT)
        for index, (value, variable) in enumerate(zip(node.inputs, signature.inputs, strict=False)):
            if self._is_float(value) and not (index == 0 and indifferent):
                groups.setdefault(variable, Group(nodes=[node])).uses.append(Use(node, index))
        for value, variable in zip(node.outputs, signature.outputs, strict=False):
            if self._is_float(value):
                groups.setdefault(variable, Group(nodes=[node])).values.append(value)
        return groups

    def _why_fixed(self, node: ir.Node, signature: Signature, variable: str, group: Group) -> str:
        dtype = self.target_type(node)
        if dtype is None:
            return ""
        if node.domain == "ai.onnx.ml" or is_op(node, "BitCast"):
            return f"{node.op_type} requires fp32 input"
        opset = self.opsets.get("", _FIRST_OPSET_OF_BF16_CASTS)
        if dtype == ir.DataType.BFLOAT16 and opset < _FIRST_OPSET_OF_BF16_CASTS:
            return f"Cast has no bf16 at opset {opset}"
        if is_op(node, "MelWeightMatrix"):
            return "shape inference supports MelWeightMatrix in fp32 only"
        ports = [*group.values, *(use.value for use in group.uses if use.value is not None)]
        wanted = {with_element(self.types[value], dtype) for value in ports}
        if not all(signature.admits(variable, type_) for type_ in wanted):
            version = self.opsets.get(node.domain)
            first = None
            if dtype == ir.DataType.BFLOAT16:  # many operators of real models got it with opset 22
                first = self._first_opset(node, lambda later: all(later.admits(variable, type_) for type_ in wanted))
            hint = f", which it has from opset {first}: `edit` with `set_opset: {{to: {first}}}`" if first else ""
            return f"{node.op_type} has no {FORMATS[dtype].precision} at opset {version}{hint}"
        return ""

    def _first_opset(self, node: ir.Node, admits: Callable[[Signature], bool]) -> int | None:
        """Return the first later opset of ONNX whose signature of a node's operator fits."""
        if node.domain:
            return None
        newest = onnx.defs.onnx_opset_version()
        later = range(self.opsets.get("", newest) + 1, newest + 1)
        found = ((opset, signature_of(node, {**self.opsets, "": opset})) for opset in later)
        return next((opset for opset, signature in found if signature is not None and admits(signature)), None)

    def _describe(self, node: ir.Node, group: Group) -> None:
        """Set whether a group follows its neighbours, and keep Casts of text as they are."""
        computes = any(self._is_float(value) for value in node.outputs)
        by_attribute = not group.uses and node.op_type in TYPE_ATTRIBUTES
        group.follows = not computes or by_attribute or node.op_type in MOVES
        if not group.uses and not by_attribute:
            group.kept = group.kept or f"{node.op_type} always outputs fp32"
        if node.op_type == "Cast" and node.inputs[0] is not None:
            from_text = self.types.get(node.inputs[0]) == "tensor(string)"
            group.kept = group.kept or ("it reads strings" if from_text else "")

    def _is_float(self, value: ir.Value | None) -> bool:
        return value is not None and element_of(self.types.get(value, "")) in self.elements


def _names_matching(patterns: Sequence[str], names: Sequence[str], setting: str) -> Iterator[str]:
    """Yield the names that match a pattern. Raises `RequestError` for a pattern that matches none."""
    for pattern in patterns:
        matching = list(filter(name_matcher(pattern), names))
        if not matching:
            raise UnknownNameError(
                f"{setting}: the model has no input or output {short_name(pattern)!r}", pattern, names
            )
        yield from matching


def _with_one_variable(signature: Signature) -> Signature:
    """Return a signature with one variable for all ports that allows the types of any of them."""
    allowed = frozenset(chain.from_iterable(signature.allowed.values()))
    return Signature(("T",) * len(signature.inputs), ("T",) * len(signature.outputs), {"T": allowed})


def _tie_containers(groups: list[Group], types: Types) -> list[Group]:
    """Merge the producer and the readers of each sequence or optional: no Cast can convert those."""
    groups_of_container: dict[ir.Value, list[Group]] = {}
    for group in groups:
        for value in (*group.values, *(use.value for use in group.uses if use.value is not None)):
            if not types.get(value, "").startswith("tensor"):
                groups_of_container.setdefault(value, []).append(group)
    merged: dict[Group, Group] = {}
    for first, *others in groups_of_container.values():
        for other in others:
            _merge(_root(first, merged), _root(other, merged), merged)
    return [group for group in groups if group not in merged]


def _root(group: Group, merged: Mapping[Group, Group]) -> Group:
    while group in merged:
        group = merged[group]
    return group


def _merge(into: Group, other: Group, merged: dict[Group, Group]) -> None:
    if into is other:
        return
    into.uses += other.uses
    into.values += other.values
    into.nodes += other.nodes
    into.kept = into.kept or other.kept
    into.halved = into.halved or other.halved
    into.follows = into.follows and other.follows
    merged[other] = into
