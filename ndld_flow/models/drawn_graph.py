"""Models as graphs to draw: nodes with their important details, edges with dtype and shape."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import count
from ndld_flow.base.text import suggest
from ndld_flow.drawing.graph import DrawnEdge, DrawnGraph, DrawnNode, NodeKind, Reading, family_of
from ndld_flow.models.element_types import dtype_name, subgraphs_of
from ndld_flow.models.external_data import MissingTensor, tensors_of
from ndld_flow.models.files import load_structure
from ndld_flow.models.nodes import (
    captured_by,
    constant_tensor,
    dims_text,
    is_constant,
    node_details,
    op_name,
    own_subgraphs,
    precision_of,
    read_values,
    scopes_of,
    short_value,
)
from ndld_flow.models.shape_inference import infer_shapes, is_invented_name, name_computed_dims

_NAME = re.compile(r"[A-Za-z_][\w.:]*")
_FUNCTIONS = frozenset(("floor", "ceil", "ceiling", "Max", "Min", "Mod", "max", "min"))
_LONG = 8
_LONGEST = 16
_MOST_EXPLAINED = 4


@dataclass
class DimNames:
    """Abbreviates long names of dimensions as `d1`, `d2`, ... in order of use, so that a shape fits next to an edge."""

    short: dict[str, str] = field(default_factory=dict)

    def __call__(self, dim: str) -> str:
        """Return `floor(d1/2)` for `floor(p2o.DynamicDimension.1/2)`; a text that is still long is shortened in the
        middle."""
        text = _NAME.sub(lambda match: self._of(match[0]), dim[:1000])
        if len(text) <= _LONGEST:
            return text
        half = (_LONGEST - 1) // 2
        return f"{text[:half]}…{text[-half:]}"

    def _of(self, name: str) -> str:
        if len(name) <= _LONG or name in _FUNCTIONS:
            return name
        return self.short.setdefault(name, f"d{len(self.short) + 1}")

    @property
    def explained(self) -> str:
        """`d1 = p2o.DynamicDimension.0, ...`; empty if all names are short."""
        pairs = [f"{short} = {name[:30]}" for name, short in list(self.short.items())[:_MOST_EXPLAINED]]
        return ", ".join(pairs) + (", …" if len(self.short) > _MOST_EXPLAINED else "")


MOST_NODES = 100_000
"""Laying out this many takes ten seconds; nested functions that call others twice soon reach it."""


def read_graph(path: Path, reading: Reading) -> DrawnGraph:
    """Read a model for drawing; external data is not loaded.

    Raises `ModelError` if it is not ONNX, `RequestError` if it has no such subgraph or far too many nodes.
    """
    model = load_structure(path)
    if reading.shapes:
        infer_shapes(model)
        name_computed_dims(model)
    name, graph = chosen_body(model, reading.subgraph) if reading.subgraph else ("", model.graph)
    drawing = _Drawing(model, reading)
    drawing.draw(graph)
    title = reading.title or (f"{path.name}: {name}" if name else path.name)
    return DrawnGraph(tuple(drawing.nodes), tuple(drawing.edges), title, drawing.subtitle(graph))


def chosen_body(model: ir.Model, wanted: str) -> tuple[str, ir.Graph]:
    """Return the address and graph of a body; the end of an address is enough, as is the node if it has only one body.

    Raises `RequestError` if the name matches no body, or several.
    """
    bodies = {address: graph for address, graph in scopes_of(model).items() if address}
    fitting = [wanted] if wanted in bodies else []
    if not fitting:
        ends = {address: (f"/{address}", f"/{address.rpartition('/')[0]}") for address in bodies}
        fitting = [address for address, texts in ends.items() if any(text.endswith(f"/{wanted}") for text in texts)]
    if not fitting:
        raise RequestError(
            f"--subgraph {wanted!r}: the model has no such body. {suggest(wanted, bodies)}"
            if bodies
            else f"--subgraph {wanted!r}: the model has no control flow and no local functions, so it has no bodies."
        )
    if len(fitting) > 1:
        raise RequestError(f"--subgraph {wanted!r} is ambiguous: {', '.join(sorted(fitting)[:6])}.")
    return fitting[0], bodies[fitting[0]]


@dataclass
class _Drawing:
    """Builds the drawn graph node by node. A value becomes an edge from the drawn node of its producer."""

    model: ir.Model
    reading: Reading
    nodes: list[DrawnNode] = field(default_factory=list)
    edges: list[DrawnEdge] = field(default_factory=list)
    positions: dict[ir.Value, int] = field(default_factory=dict)
    """Value -> index of the drawn node that it leaves."""
    dims: DimNames = field(default_factory=DimNames)
    default_dtype: str = ""
    """The most common dtype, which edges do not show."""

    def draw(self, graph: ir.Graph) -> None:
        dtypes = Counter(type_text_of(value) for node in graph for value in node.outputs if not is_constant(node))
        dtypes.update(type_text_of(value) for value in graph.inputs)
        del dtypes[""]
        self.default_dtype = max(dtypes, key=lambda dtype: (dtypes[dtype], dtype), default="")
        inputs = [value for value in graph.inputs if value.name not in graph.initializers]
        outside = [value for value in captured_by(graph) if constant_tensor(value) is None]
        for value in [*inputs, *outside]:
            self._add(value.name or "", "input", value.name or "input", (), [value])
        self._graph(graph, self.reading.depth)
        for value in graph.outputs:
            position = self._add(value.name or "", "output", value.name or "output", (), [])
            self._edge(value, position)

    def subtitle(self, graph: ir.Graph) -> str:
        """Return a summary of the model in one line."""
        hidden = sum(is_constant(node) for node in graph) + len(graph.initializers)
        parts = [f"{count(len(graph))} nodes", f"opset {self.model.opset_imports.get('', '?')}"]
        if without := without_data(self.model):
            parts.append(without)
        if self.default_dtype and self.reading.shapes:
            parts.append(f"tensors without a dtype are {self.default_dtype}")
        if hidden and not self.reading.constants:
            parts.append(f"{count(hidden)} constants not drawn")
        if self.dims.explained:
            parts.append(self.dims.explained)
        return " · ".join(parts)

    def _graph(self, graph: ir.Graph, depth: int) -> None:
        if self.reading.constants:
            for value in graph.initializers.values():
                if value.uses():
                    self._constant(value.name or "", value, [value])
        for node in graph:
            if is_constant(node) and not self.reading.constants:
                continue
            if depth > 0 and self._is_composite(node):
                self._add_composite(node, depth)
            elif is_constant(node):
                self._constant(node.name or node.outputs[0].name or "", node.outputs[0], list(node.outputs))
            else:
                self._operator(node, read_values(node))

    def _operator(self, node: ir.Node, reads: Iterable[ir.Value]) -> int:
        composite = self._is_composite(node)
        operator, precision = op_name(node), precision_of(node)
        position = self._add(
            _tooltip(node),
            "composite" if composite else "operator",
            operator.rpartition("::")[2],
            (*(node_details(node) if self.reading.values else ()), *([f"requested {precision}"] if precision else [])),
            list(node.outputs),
            "control" if composite else family_of(operator),
        )
        for value in dict.fromkeys(reads):
            self._edge(value, position)
        return position

    def _add_composite(self, node: ir.Node, depth: int) -> None:
        """Add a node with its bodies: the node itself, the nodes inside, and an end node that joins the results."""
        head = self._operator(node, [value for value in node.inputs if value is not None])
        bodies = list(own_subgraphs(node)) or [("", self.model.functions[node.op_identifier()].graph)]
        for name, body in bodies:
            self.positions |= dict.fromkeys(body.inputs, head)
            first_node, first_edge = len(self.nodes), len(self.edges)
            self._graph(body, depth - 1)
            reached = {edge.target for edge in self.edges[first_edge:] if edge.source >= head}
            for position in range(first_node, len(self.nodes)):
                if position not in reached and self.nodes[position].kind != "constant":
                    self.edges.append(DrawnEdge(head, position, name, name))
        end = self._add(_tooltip(node), "composite", f"end of {node.op_type}", (), list(node.outputs), "control")
        results = [value for _, body in bodies for value in body.outputs]
        for value in results:
            self._edge(value, end)
        if not any(self.positions.get(value, -1) > head for value in results):
            self.edges.append(DrawnEdge(head, end))

    def _is_composite(self, node: ir.Node) -> bool:
        return node.op_identifier() in self.model.functions or next(subgraphs_of(node), None) is not None

    def _constant(self, name: str, value: ir.Value, outputs: list[ir.Value]) -> int:
        text = short_value(value) if self.reading.values else ""
        details = (text,) if text else ()
        return self._add(name, "constant", shape_text_of(value) or "constant", details, outputs)

    def _add(
        self,
        name: str,
        kind: NodeKind,
        label: str,
        details: tuple[str, ...],
        outputs: Iterable[ir.Value],
        family: str = "other",
    ) -> int:
        position = len(self.nodes)
        if position == MOST_NODES:
            raise too_many_nodes("give a lower --depth, or draw one body with --subgraph")
        self.nodes.append(DrawnNode(name, label, family, kind, details))
        self.positions |= dict.fromkeys(outputs, position)
        return position

    def _edge(self, value: ir.Value, target: int) -> None:
        source = self.positions.get(value)
        if source is not None:
            label = ""
            if self.reading.shapes and self.nodes[source].kind != "constant":
                dtype = type_text_of(value)
                parts = ("" if dtype == self.default_dtype else dtype, shape_text_of(value, self.dims))
                label = " ".join(filter(None, parts))
            self.edges.append(DrawnEdge(source, target, label, value.name or ""))


def without_data(model: ir.Model) -> str:
    """Return `12 weights without data (model.data is missing)`; empty if all have data."""
    missing = [tensor for tensor in tensors_of(model) if isinstance(tensor, MissingTensor)]
    reasons = dict.fromkeys(tensor.reason for tensor in missing)
    weights = "1 weight" if len(missing) == 1 else f"{count(len(missing))} weights"
    return f"{weights} without data ({', '.join([*reasons][:_MOST_EXPLAINED])})" if missing else ""


def too_many_nodes(advice: str) -> RequestError:
    """Return the error for a graph that is too large to view."""
    return RequestError(f"the graph has more than {count(MOST_NODES)} nodes, too many to view: {advice}.")


def _tooltip(node: ir.Node) -> str:
    return f"{node.name or '(no name)'} ({op_name(node)})"


def type_text_of(value: ir.Value) -> str:
    """Return `float32`, `seq(tensor(float))`; empty if unknown."""
    if isinstance(value.type, ir.TensorType):
        return "" if value.type.dtype == ir.DataType.UNDEFINED else dtype_name(value.type.dtype)
    return "" if value.type is None else str(value.type).lower()


def shape_text_of(value: ir.Value, short: Callable[[str], str] = str) -> str:
    """Return `1x64x56x56`; symbolic dimensions keep their names, unknown ones are `?`; empty for an unknown shape."""
    if value.shape is not None:
        names = (dim if isinstance(dim, int) or not is_invented_name(dim) else None for dim in value.shape)
        return dims_text([str(d) if isinstance(d, int) else short(d.value) if d and d.value else "?" for d in names])
    tensor = constant_tensor(value)
    return "" if tensor is None else dims_text([str(dim) for dim in tensor.shape.numpy()])
