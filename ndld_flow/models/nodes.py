"""Nodes of a model: their addresses, names, selection, precision, and short texts about them.

Weights are never read; only scalars and short lists of integers are, because they describe what a node does.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import PreconditionError
from onnx_ir.passes.common import InlinePass, NameFixPass

from ndld_flow.base.errors import ModelError, UnknownNameError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.quantities import TIMES, count
from ndld_flow.models.element_types import GRAPHS, dtype_name, held_tensor, is_known_op, known_op_types
from ndld_flow.models.external_data import MissingTensor
from ndld_flow.records.layer_arithmetic import PRECISION_KEY


def scopes_of(model: ir.Model) -> dict[str, ir.Graph]:
    """Return address -> graph: the main graph, each subgraph after the graph that contains it, then local functions.

    `If_0/then_branch`, `loop/body/If_3/else_branch`, `domain::Name`, `domain::Name/If_0/then_branch`. The address of a
    node without a name is its first output; graphs in a list attribute are `branches0`, `branches1`; the second of
    equal addresses gets `#2`.
    """
    graphs: dict[str, ir.Graph] = {"": model.graph}
    _add_subgraphs(graphs, model.graph, "")
    for function in model.functions.values():
        address = function_address(function)
        graphs[address] = function.graph
        _add_subgraphs(graphs, function.graph, address)
    return graphs


def function_address(function: ir.Function) -> str:
    """Return `domain::Name`, with `:overload` if there is one."""
    overload = f":{function.overload}" if function.overload else ""
    return f"{function.domain}::{function.name}{overload}"


def own_subgraphs(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """Yield (attribute, graph) of a node's direct subgraphs."""
    for attribute in node.attributes.data.values():  # `data` is much faster, and this runs for every node
        if attribute.type not in GRAPHS or attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.name, attribute.as_graph()
        else:
            yield from ((f"{attribute.name}{number}", graph) for number, graph in enumerate(attribute.as_graphs()))


def inner_graphs(graph: ir.Graph) -> list[ir.Graph]:
    """Return all subgraphs of a graph, each before those inside it."""
    return [inner for node in graph for inner in _bodies(node)]


def values_of(graph: ir.Graph) -> list[ir.Value]:
    """Return a graph's own tensors: inputs, initializers, nodes' outputs; each once, in this order."""
    outputs = (value for node in graph for value in node.outputs)
    return list(dict.fromkeys([*graph.inputs, *graph.initializers.values(), *outputs]))


def add_initializer(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    """Add a tensor to a graph as an initializer of its name."""
    value = ir.Value(
        name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def put_first(graph: ir.Graph | ir.Function, node: ir.Node) -> None:
    """Insert a node at the front of a graph."""
    if len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)


def put_constant(graph: ir.Graph | ir.Function, value: ir.Value, tensor: ir.TensorProtocol) -> None:
    """Insert a Constant node with this output at the front of a graph."""
    put_first(graph, ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[value], name=value.name))


def is_used(value: ir.Value) -> bool:
    """Return whether a node reads the tensor, or a graph outputs it."""
    return bool(value.uses()) or value.is_graph_output()


def remove_node(node: ir.Node) -> None:
    """Remove an unused node and its subgraphs."""
    for _, body in own_subgraphs(node):
        body.outputs.clear()
        for inner in reversed(tuple(body)):
            remove_node(inner)
    assert node.graph is not None
    node.graph.remove(node, safe=True)


def graph_of(node: ir.Node) -> ir.Graph:
    """Return the graph of a node; in a function, its body."""
    assert isinstance(node.graph, ir.Graph)
    return node.graph


def inputs_given(node: ir.Node) -> tuple[ir.Value | None, ...]:
    """Return the inputs of a node without omitted optional inputs at the end."""
    inputs = tuple(node.inputs)
    while inputs and inputs[-1] is None:
        inputs = inputs[:-1]
    return inputs


def read_values(node: ir.Node) -> Iterator[ir.Value]:
    """Return the inputs of a node and the outer tensors that its subgraphs read, without omitted optional inputs."""
    yield from (value for value in node.inputs if value is not None)
    bodies = list(_bodies(node))
    if not bodies:
        return
    inside = {value for body in bodies for value in body.inputs}
    inside |= {value for body in bodies for value in body.initializers.values()}
    inside |= {value for body in bodies for inner in body for value in inner.outputs}
    for body in bodies:
        reads = (value for inner in body for value in inner.inputs if value is not None)
        yield from (value for value in (*reads, *body.outputs) if value not in inside)


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    for _, graph in own_subgraphs(node):
        yield graph
        for inner in graph:
            yield from _bodies(inner)


def captured_values(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    """Return the outer tensors that nodes and their subgraphs read, in the order of first use."""
    nodes = list(nodes)
    own = {value for node in nodes for value in node.outputs}
    return list(dict.fromkeys(value for node in nodes for value in read_values(node) if value not in own))


def captured_by(graph: ir.Graph) -> list[ir.Value]:
    """Return the tensors of enclosing graphs that a subgraph reads, in the order of first use."""
    own = {*graph.inputs, *graph.initializers.values()}
    return [value for value in captured_values(graph) if value not in own]


def node_label(node: ir.Node) -> str:
    """Return a node's name, or its first output if it has none."""
    return node.name or next((value.name for value in node.outputs if value.name), "") or node.op_type


def _add_subgraphs(graphs: dict[str, ir.Graph], graph: ir.Graph, address: str) -> None:
    for node in graph:
        for attribute, inner in own_subgraphs(node):
            wish = f"{address}/{node_label(node)}/{attribute}".lstrip("/")
            inner_address, number = wish, 1
            while inner_address in graphs:
                number += 1
                inner_address = f"{wish}#{number}"
            graphs[inner_address] = inner
            _add_subgraphs(graphs, inner, inner_address)


def op_name(node: ir.Node) -> str:
    """Return `Conv`, or `com.microsoft::FusedConv` for other domains."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def nodes_of_types(model: ir.Model, op_types: Sequence[str], setting: str) -> dict[str, list[ir.Node]]:
    """Return operator -> its nodes, in all subgraphs; empty for an ONNX operator that the model does not use.

    Raises `RequestError` for an operator that neither the model nor ONNX has.
    """
    nodes: dict[str, list[ir.Node]] = {}
    for node in model.graph.all_nodes():
        nodes.setdefault(op_name(node), []).append(node)
    for op_type in op_types:
        domain, _, name = op_type.rpartition("::")
        if op_type not in nodes and not is_known_op(name, domain):
            known = [*nodes, *known_op_types()]
            raise UnknownNameError(f"`{setting}`: there is no operator {op_type!r}", op_type, known)
    return {op_type: nodes.get(op_type, []) for op_type in op_types}


def nodes_named(model: ir.Model, patterns: Sequence[str], setting: str) -> dict[str, list[ir.Node]]:
    """Return pattern -> the nodes whose names it matches, in all subgraphs.

    `*` and `?` are wildcards; `/.../` is a regular expression, searched. Raises `RequestError` for a pattern that
    matches no node.
    """
    names: dict[str, list[ir.Node]] = {}
    for node in model.graph.all_nodes():
        if node.name:
            names.setdefault(node.name, []).append(node)
    selected: dict[str, list[ir.Node]] = {}
    for pattern in patterns:
        fits = name_matcher(pattern)
        selected[pattern] = [node for name, nodes in names.items() if fits(name) for node in nodes]
        if not selected[pattern]:
            raise UnknownNameError(f"`{setting}`: no node of this model has a name like {pattern!r}", pattern, names)
    return selected


_NOT_IN_IDENTIFIER = re.compile(r"[^A-Za-z0-9_]")


class UniqueNames:
    """Generates names for new values and nodes that are unique in all graphs of the model."""

    def __init__(self, model: ir.Model) -> None:
        self._values = {value.name or "" for graph in model.graphs() for value in values_of(graph)}
        self._nodes = {node.name or "" for graph in model.graphs() for node in graph}

    def value(self, wish: str) -> str:
        return free_name(wish, self._values)

    def node(self, wish: str) -> str:
        return free_name(wish, self._nodes)

    def rename_duplicates(self, model: ir.Model) -> int:
        """Rename nodes with an earlier node's name in one graph, which ONNX Runtime rejects; return their number."""
        renamed = 0
        for graph in model.graphs():
            seen: set[str] = set()
            for node in graph:
                if node.name and node.name in seen:
                    node.name = self.node(node.name)
                    renamed += 1
                seen.add(node.name or "")
        return renamed

    def name_all(self, model: ir.Model) -> int:
        """Name nodes without a unique name after their operator and output; return their number."""
        renamed = 0
        seen: set[str] = set()
        for graph in model.graphs():
            for node in graph:
                if not node.name or node.name in seen:
                    output = next((value.name for value in node.outputs if value.name), "")
                    node.name = self.node(node.name or f"{node.op_type}_{output}")
                    renamed += 1
                seen.add(node.name)
        return renamed


def identifier(wish: str) -> str:
    """Return a C90 identifier like `wish`: characters other than letters, digits and `_` become `_`."""
    text = _NOT_IN_IDENTIFIER.sub("_", wish) or "node"
    return f"_{text}" if text[0].isdigit() else text


def free_name(wish: str, taken: set[str], others: Container[str] = ()) -> str:
    """Return `wish`, or an unused one of `wish_2`, `wish_3`, ..., and add it to `taken`; `others` are used too.

    The number is found by bisection: thousands of nodes may have the same name.
    """

    def is_taken(name: str) -> bool:
        return name in taken or name in others

    name = wish
    if is_taken(wish):
        below, number = 1, 2
        while is_taken(f"{wish}_{number}"):
            below, number = number, 2 * number
        while number - below > 1:
            middle = (below + number) // 2
            below, number = (middle, number) if is_taken(f"{wish}_{middle}") else (below, middle)
        name = f"{wish}_{number}"
    taken.add(name)
    return name


FLOATING: dict[str, ir.DataType] = {
    "fp32": ir.DataType.FLOAT,
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
}
"""Precisions to which a Cast converts any other."""
NOT_FP16 = frozenset({"fp32", "bf16"})
"""Precisions that are requested for their range."""
QUANTIZED: dict[str, frozenset[ir.DataType]] = {
    "int8": frozenset({ir.DataType.INT8}),
    "fp8": frozenset({ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2}),
    "int4": frozenset({ir.DataType.INT4}),
}
"""Precisions that need scales: Q/DQ nodes."""
INTEGERS: dict[str, ir.DataType] = {
    "int64": ir.DataType.INT64,
    "int32": ir.DataType.INT32,
    "uint8": ir.DataType.UINT8,
    "bool": ir.DataType.BOOL,
}
"""Precisions that can only be asserted: converting to them would change the results."""


def precision_of(node: ir.Node) -> str:
    """Return the requested precision of a node; empty if there is none."""
    return node.metadata_props.get(PRECISION_KEY, "")


def precision_metadata(node: ir.Node) -> dict[str, str]:
    """Return the metadata for a node that replaces this one."""
    precision = precision_of(node)
    return {PRECISION_KEY: precision} if precision else {}


def constraints_of(model: ir.Model) -> dict[str, str]:
    """Return node -> its requested precision, subgraphs included."""
    return {n.name: precision for n in model.graph.all_nodes() if n.name and (precision := precision_of(n))}


def same_precision(*nodes: ir.Node) -> bool:
    """Return whether nodes may be merged: all have the same constraint, or none has any."""
    return len({precision_of(node) for node in nodes}) == 1


_MOST_DETAILS = 3
_SHORT = 6
"""Longest list of integers that is printed in full."""
_MOST_DIMS = 8
_INT64_MAX = 2**63 - 1
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Einsum", "PRelu")
"""Operators that are described by the shapes of their weights."""
_SECOND_INPUT = {
    "Expand": "to",
    "Gather": "index",
    "Pad": "pads",
    "Pow": "to the",
    "Reshape": "to",
    "Squeeze": "axes",
    "Tile": "by",
    "TopK": "k",
    "Unsqueeze": "axes",
}


def node_details(node: ir.Node) -> tuple[str, ...]:
    """Return at most three lines about a node."""
    lines = (_kernel(node), _slice(node) if node.op_type == "Slice" else _other_details(node), _weights(node))
    return tuple(line for line in lines if line)[:_MOST_DETAILS]


def is_constant(node: ir.Node) -> bool:
    """Return whether a node is a Constant of the default domain."""
    return node.op_type == "Constant" and not node.domain


def dims_text(texts: Sequence[str]) -> str:
    """Join dimensions by multiplication signs; at most the first eight."""
    shown = [*texts[:_MOST_DIMS], "…"] if len(texts) > _MOST_DIMS else texts
    return TIMES.join(shown) or "scalar"


def short_value(value: ir.Value) -> str:
    """Return a scalar or a short list of integers as text, `unknown` if its data are missing; empty for anything else,
    which is not read."""
    tensor = constant_tensor(value)
    if isinstance(tensor, MissingTensor):
        return "unknown" if _is_short(tensor) else ""
    return " ".join(_number(element) for element in _elements(value))


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer or of a Constant's output; None for anything else."""
    if value is None:
        return None
    node = value.producer()
    return value.const_value if node is None else constant_of(node)


def fixed_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of a constant, unless it is an input, whose value programs may replace."""
    return None if value is None or value.is_graph_input() else constant_tensor(value)


def constant_of(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the tensor of a Constant node in any of its forms; None for other nodes and other values."""
    attribute = next(iter(node.attributes.values()), None) if is_constant(node) else None
    if attribute is None or attribute.is_ref():
        return None
    if attribute.name == "value" and attribute.type == ir.AttributeType.TENSOR:
        return held_tensor(attribute)
    kind, name = attribute.name.removeprefix("value_").removesuffix("s"), node.outputs[0].name
    if kind == "string":
        texts = np.asarray(attribute.value, dtype=np.object_)
        return ir.StringTensor(np.vectorize(str.encode, otypes=[object])(texts), shape=ir.Shape(texts.shape), name=name)
    dtype = {"float": np.float32, "int": np.int64}.get(kind)
    return None if dtype is None else ir.tensor(np.asarray(attribute.value, dtype=dtype), name=name)


def _elements(value: ir.Value | None) -> list[int | float | bool]:
    tensor = constant_tensor(value)
    if tensor is None or isinstance(tensor, MissingTensor) or not _is_short(tensor):
        return []
    elements: list[int | float | bool] = tensor.numpy().flatten().tolist()
    return elements


def _is_short(tensor: ir.TensorProtocol) -> bool:
    """Return whether a tensor is a scalar or a short list of integers."""
    if tensor.dtype == ir.DataType.STRING or not 0 < tensor.size <= _SHORT:
        return False
    return tensor.size == 1 or tensor.dtype.is_integer()


def _number(value: float) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if abs(value) >= _INT64_MAX - 1:
        return "max" if value > 0 else "min"
    return str(value)


def _kernel(node: ir.Node) -> str:
    """Return `3x3, stride 2, group 32`."""
    kernel = _integers(node, "kernel_shape")
    parts = [TIMES.join(map(str, kernel))] if kernel else []
    for name, word in (("strides", "stride"), ("dilations", "dilation")):
        values = _integers(node, name)
        if set(values) - {1}:
            parts.append(f"{word} {TIMES.join(map(str, values)) if len(set(values)) > 1 else values[0]}")
    group = _integers(node, "group")
    if group and group[0] != 1:
        parts.append(f"group {group[0]}")
    return ", ".join(parts)


def _other_details(node: ir.Node) -> str:
    """Return the other details of a node: axes, target dtype, small constants."""
    parts = []
    for name in ("axis", "axes", "perm"):
        values = _integers(node, name)
        if values:
            parts.append(f"{name} {' '.join(map(str, values[:_SHORT]))}")
    if node.op_type == "Cast" and (to := _integers(node, "to")):
        parts.append(f"to {element_type_text(to[0])}")
    if node.op_type not in _WEIGHTED:
        values_of = [short_value(value) for value in node.inputs if value is not None]
        word = _SECOND_INPUT.get(node.op_type, "")
        parts += [f"{word} {text}".strip() for text in values_of if text]
    return ", ".join(parts)


def _slice(node: ir.Node) -> str:
    """Return `[0:129] of axis 1` if all operands are known."""
    starts, ends, axes, steps = (_elements(value) for value in (*node.inputs[1:5], *[None] * 4)[:4])
    starts, ends = starts or list(_integers(node, "starts")), ends or list(_integers(node, "ends"))
    axes = axes or list(_integers(node, "axes"))
    if len(starts) != 1 or len(ends) != 1:
        return ""
    start = "" if starts[0] == 0 or abs(starts[0]) >= _INT64_MAX - 1 else str(starts[0])
    end = "" if abs(ends[0]) >= 2**31 - 1 else str(ends[0])
    step = f":{steps[0]}" if steps and steps[0] != 1 else ""
    return f"[{start}:{end}{step}]" + (f" of axis {axes[0]}" if axes else "")


def _weights(node: ir.Node) -> str:
    if node.op_type not in _WEIGHTED:
        return ""
    for value in node.inputs:
        tensor = constant_tensor(value)
        if tensor is not None and tensor.size > 1:
            return f"weights {dims_text([str(dim) for dim in tensor.shape.numpy()])}"
    return ""


def _integers(node: ir.Node, name: str) -> Sequence[int]:
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref():
        return ()
    if attribute.type == ir.AttributeType.INT:
        return (attribute.as_int(),)
    return tuple(attribute.as_ints()) if attribute.type == ir.AttributeType.INTS else ()


def element_type_text(number: int) -> str:
    """Return the name of an element type by its number in ONNX; an unknown number is returned as text."""
    try:
        return dtype_name(ir.DataType(number))
    except ValueError:
        return str(number)


_MOST_CHARACTERS = 4000
"""Longest text of one value: a page has thousands of them."""


def attribute_text(attribute: ir.Attr) -> str:
    """Return `2`, `[1, 1]`, `"SAME_UPPER"`, `int64 tensor, 3`; `@name` for a reference to a function's attribute."""
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    text = _text(attribute)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}… ({count(len(text))} characters)"


def _text(attribute: ir.Attr) -> str:
    kind, value = attribute.type, attribute.value
    if kind == ir.AttributeType.TENSOR:
        tensor = held_tensor(attribute)
        return f"{dtype_name(tensor.dtype)} tensor, {dims_text([str(dim) for dim in tensor.shape.numpy()])}"
    if kind in GRAPHS:
        return "graph" if kind == ir.AttributeType.GRAPH else f"{count(len(value))} graphs"
    if isinstance(value, tuple | list):
        # A page shows only the beginning of a long list.
        return f"[{', '.join(scalar_text(element) for element in value[:_MOST_CHARACTERS])}]"
    return scalar_text(value)


def scalar_text(value: object) -> str:
    """Return a number with at most seven digits, or text in quotes."""
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)


def inline_functions(model: ir.Model, where: object) -> int:
    """Inline all local functions in place and return their number. Names stay unique in the model.

    Raises `ModelError` if that is impossible: they call each other in a cycle, need another opset than the model, or
    have graphs as attributes. `where` names the model in the message.
    """
    count = len(model.functions)
    if not count:
        return 0
    try:
        InlinePass()(model)
        NameFixPass()(model)
    except (ValueError, PreconditionError) as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise ModelError(f"{where}: its local functions cannot be inlined: {reason}") from None
    model.functions.clear()
    return count
