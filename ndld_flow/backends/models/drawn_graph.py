"""A model as the graph that is drawn: nodes with what matters about them, edges with dtype and shape.

Weights are never read; only scalars and short lists of integers are, because they say what a node does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from ndld_flow.backends.models.dim_names import DimNames
from ndld_flow.backends.models.element_types import held_tensor, subgraphs_of
from ndld_flow.backends.models.files import load_model
from ndld_flow.backends.models.node_selection import op_name
from ndld_flow.backends.models.shape_inference import infer_shapes, made_up
from ndld_flow.drawing.choices import Reading
from ndld_flow.drawing.families import family_of
from ndld_flow.drawing.graph import DrawnEdge, DrawnGraph, DrawnNode, NodeKind
from ndld_flow.errors import RequestError
from ndld_flow.nearest import say_nearest
from ndld_flow.quantities import TIMES, count

_MOST_DETAILS = 3
_SHORT = 6
"""Elements of a list of integers that is written out."""
_MOST_DIMS = 8
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Gather", "LSTM", "GRU", "RNN", "Einsum")
"""Operators whose weights' shapes say what they do."""
_Bindings = Mapping[ir.Value, ir.Value | None]


def read_graph(path: Path, reading: Reading) -> DrawnGraph:
    """Read a model for drawing; external data is not loaded.

    Raises `ModelError` when it is not ONNX, `RequestError` when it has no such subgraph.
    """
    model = load_model(path)
    if reading.shapes:
        infer_shapes(model)
    name, graph = _chosen(model, reading.subgraph) if reading.subgraph else ("", model.graph)
    drawing = _Drawing(model, reading)
    drawing.draw(graph)
    title = reading.title or (f"{path.name}: {name}" if name else path.name)
    return DrawnGraph(tuple(drawing.nodes), tuple(drawing.edges), title, drawing.subtitle(graph))


def _chosen(model: ir.Model, wanted: str) -> tuple[str, ir.Graph]:
    """The body a person named, and its full name."""
    bodies = dict(_bodies(model))
    fitting = [name for name in bodies if wanted in (name, name.rpartition("/")[0])]
    if not fitting:
        raise RequestError(
            f"--subgraph {wanted!r}: the model has no such body. {say_nearest(wanted, bodies)}"
            if bodies
            else f"--subgraph {wanted!r}: the model has no control flow and no local functions, so it has no bodies."
        )
    if len(fitting) > 1:
        raise RequestError(f"--subgraph {wanted!r} may be one of several: {', '.join(sorted(fitting)[:6])}.")
    return fitting[0], bodies[fitting[0]]


def _bodies(model: ir.Model) -> Iterator[tuple[str, ir.Graph]]:
    """`node/attribute` or a function's name -> its graph."""
    for function in model.functions.values():
        yield f"{function.domain}::{function.name}", function.graph
        yield from _bodies_in(function.graph)
    yield from _bodies_in(model.graph)


def _bodies_in(graph: ir.Graph) -> Iterator[tuple[str, ir.Graph]]:
    waiting = [graph]
    while waiting:
        for node in waiting.pop():
            for name, body in _named_bodies(node):
                yield f"{node.name or node.op_type}/{name}", body
                waiting.append(body)


def _named_bodies(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    for attribute in node.attributes.values():
        if attribute.is_ref() or attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            continue
        graphs = [attribute.as_graph()] if attribute.type == ir.AttributeType.GRAPH else attribute.as_graphs()
        for number, body in enumerate(graphs):
            yield attribute.name if len(graphs) == 1 else f"{attribute.name}{number}", body


@dataclass
class _Drawing:
    """Grows node by node. A value is drawn as an edge from whatever stands for its producer."""

    model: ir.Model
    reading: Reading
    nodes: list[DrawnNode] = field(default_factory=list)
    edges: list[DrawnEdge] = field(default_factory=list)
    places: dict[ir.Value, int] = field(default_factory=dict)
    """Value -> the node it leaves."""
    dims: DimNames = field(default_factory=DimNames)
    usual: str = ""
    """The dtype that most tensors have; it is not written at edges."""

    def draw(self, graph: ir.Graph) -> None:
        self.usual = self._usual_dtype(graph)
        for value in graph.inputs:
            if value.name not in graph.initializers:
                self._add(value.name or "", "input", value.name or "input", (), [value])
        self._graph(graph, {}, self.reading.depth)
        for value in graph.outputs:
            place = self._add(value.name or "", "output", value.name or "output", (), [])
            self._edge(value, place)

    def subtitle(self, graph: ir.Graph) -> str:
        """The model in one line."""
        hidden = sum(_is_constant(node) for node in graph) + len(graph.initializers)
        said = [f"{count(len(graph))} nodes", f"opset {self.model.opset_imports.get('', '?')}"]
        if self.usual and self.reading.shapes:
            said.append(f"tensors are {self.usual} where no dtype is written")
        if hidden and not self.reading.constants:
            said.append(f"{count(hidden)} constants not drawn")
        if self.dims.explained:
            said.append(self.dims.explained)
        return " · ".join(said)

    def _graph(self, graph: ir.Graph, bindings: dict[ir.Value, ir.Value | None], depth: int) -> None:
        if self.reading.constants:
            for value in graph.initializers.values():
                if value.uses():
                    self._constant(value.name or "", value, [value])
        for node in graph:
            if _is_constant(node) and not self.reading.constants:
                continue
            if depth > 0 and self._is_composite(node):
                self._opened(node, depth)
            else:
                self._node(node)

    def _node(self, node: ir.Node) -> int:
        if _is_constant(node):
            return self._constant(node.name or "", node.outputs[0], list(node.outputs))
        composite = self._is_composite(node)
        operator = op_name(node)
        place = self._add(
            _tooltip(node),
            "composite" if composite else "operator",
            operator.rpartition("::")[2],
            tuple(_details(node)),
            list(node.outputs),
            "control" if composite else family_of(operator),
        )
        for value in dict.fromkeys([*node.inputs, *_captured(node)]):
            if value is not None:
                self._edge(value, place)
        return place

    def _opened(self, node: ir.Node, depth: int) -> None:
        """A node with its bodies below it: the node itself, what is inside, and where the results come together."""
        head = self._node(node)
        inside = [body for _, body in _named_bodies(node)] or [self.model.functions[node.op_identifier()].graph]
        for body in inside:
            for value in body.inputs:
                self.places[value] = head
            self._graph(body, {}, depth - 1)
        end = self._add(node.name or "", "composite", f"end of {node.op_type}", (), list(node.outputs), "control")
        for value in (value for body in inside for value in body.outputs):
            self._edge(value, end)

    def _is_composite(self, node: ir.Node) -> bool:
        return node.op_identifier() in self.model.functions or next(subgraphs_of(node), None) is not None

    def _constant(self, name: str, value: ir.Value, outputs: list[ir.Value]) -> int:
        text = _short_value(value)
        details = (text,) if text else ()
        return self._add(name, "constant", _shape_text(value) or "constant", details, outputs)

    def _add(
        self,
        name: str,
        kind: NodeKind,
        label: str,
        details: tuple[str, ...],
        outputs: Iterable[ir.Value],
        family: str = "other",
    ) -> int:
        place = len(self.nodes)
        self.nodes.append(DrawnNode(name, label, family, kind, details))
        self.places |= dict.fromkeys(outputs, place)
        return place

    def _edge(self, value: ir.Value, target: int) -> None:
        source = self.places.get(value)
        if source is not None:
            drawn_shape = self.reading.shapes and self.nodes[source].kind != "constant"
            self.edges.append(DrawnEdge(source, target, self._label(value) if drawn_shape else "", value.name or ""))

    def _label(self, value: ir.Value) -> str:
        dtype = _dtype_text(value)
        return " ".join(part for part in ("" if dtype == self.usual else dtype, _shape_text(value, self.dims)) if part)

    def _usual_dtype(self, graph: ir.Graph) -> str:
        dtypes = Counter(_dtype_text(value) for node in graph for value in node.outputs if not _is_constant(node))
        dtypes.update(_dtype_text(value) for value in graph.inputs)
        del dtypes[""]
        return max(dtypes, key=lambda dtype: (dtypes[dtype], dtype), default="")


def _is_constant(node: ir.Node) -> bool:
    return node.op_type == "Constant" and node.domain in ("", "ai.onnx")


def _captured(node: ir.Node) -> list[ir.Value]:
    """Values of enclosing graphs that a node's bodies read."""
    inside: dict[ir.Value, None] = {}
    made: set[ir.Value] = set()
    waiting = list(subgraphs_of(node))
    while waiting:
        body = waiting.pop()
        made |= {*body.inputs, *body.initializers.values()}
        inside |= dict.fromkeys(value for value in body.outputs if value is not None)
        for one in body:
            made |= set(one.outputs)
            inside |= dict.fromkeys(value for value in one.inputs if value is not None)
            waiting.extend(subgraphs_of(one))
    return [value for value in inside if value not in made]


def _tooltip(node: ir.Node) -> str:
    return f"{node.name or '(no name)'} ({op_name(node)})"


def _dtype_text(value: ir.Value) -> str:
    if not isinstance(value.type, ir.TensorType):
        return "" if value.type is None else str(value.type).lower()
    dtype = value.type.dtype
    if dtype == ir.DataType.UNDEFINED:
        return ""
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(dtype.name, dtype.name.lower())


def _shape_text(value: ir.Value, dims: Callable[[str], str] = str) -> str:
    """`1x64x56x56` with real multiplication signs; symbolic dimensions keep their names, unknown ones are `?`."""
    shape = value.shape
    if shape is None and value.const_value is not None:
        shape = value.const_value.shape  # type: ignore[assignment]
    if shape is None:
        return ""
    texts = ["?" if made_up(dim) else _dim_text(dim, dims) for dim in shape]
    if len(texts) > _MOST_DIMS:
        texts = [*texts[:_MOST_DIMS], "…"]
    return TIMES.join(texts) or "scalar"


def _dim_text(dim: int | ir.SymbolicDim, short: Callable[[str], str]) -> str:
    return str(dim) if isinstance(dim, int) else short(dim.value) if dim.value else "?"


def _details(node: ir.Node) -> Iterator[str]:
    found = [text for text in (_kernel(node), _own(node), _weights(node)) if text]
    yield from found[:_MOST_DETAILS]


def _kernel(node: ir.Node) -> str:
    """`3x3, stride 2, group 32`."""
    kernel = _integers(node, "kernel_shape")
    said = [TIMES.join(map(str, kernel))] if kernel else []
    for name, word in (("strides", "stride"), ("dilations", "dilation")):
        values = _integers(node, name)
        if set(values) - {1}:
            said.append(f"{word} {TIMES.join(map(str, values)) if len(set(values)) > 1 else values[0]}")
    group = _integers(node, "group")
    if group and group[0] != 1:
        said.append(f"group {group[0]}")
    return ", ".join(said)


def _own(node: ir.Node) -> str:
    """What else says what the node does: axes, target dtype, constants it works with."""
    said = []
    for name in ("axis", "axes", "perm"):
        values = _integers(node, name)
        if values:
            said.append(f"{name} {' '.join(map(str, values[:_SHORT]))}")
    if node.op_type == "Cast" and (to := _integers(node, "to")):
        said.append(f"to {_dtype_name(to[0])}")
    for value in node.inputs[1:] if len(node.inputs) > 1 else ():
        text = "" if value is None or not _is_hidden_constant(value) else _short_value(value)
        if text:
            said.append(text)
    return ", ".join(said)


def _weights(node: ir.Node) -> str:
    if node.op_type not in _WEIGHTED:
        return ""
    for value in node.inputs:
        if value is not None and _is_hidden_constant(value) and not _short_value(value):
            return f"weights {_shape_text(value)}"
    return ""


def _is_hidden_constant(value: ir.Value) -> bool:
    node = value.producer()
    return value.is_initializer() or (node is not None and _is_constant(node))


def _integers(node: ir.Node, name: str) -> Sequence[int]:
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref():
        return ()
    if attribute.type == ir.AttributeType.INT:
        return (attribute.as_int(),)
    return tuple(attribute.as_ints()) if attribute.type == ir.AttributeType.INTS else ()


def _dtype_name(number: int) -> str:
    try:
        name = ir.DataType(number).name.lower()
    except ValueError:
        return str(number)
    return {"float": "float32", "double": "float64"}.get(name, name)


def _short_value(value: ir.Value) -> str:
    """A scalar or a short list of integers, written out; empty for all else, which is not read."""
    tensor = _constant_tensor(value)
    if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.size > _SHORT or not tensor.size:
        return ""
    if tensor.size > 1 and not tensor.dtype.is_integer():
        return ""
    return " ".join(f"{one:.4g}" if isinstance(one, float) else str(one) for one in tensor.numpy().flatten().tolist())


def _constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    if node is None or not _is_constant(node):
        return None
    attribute = node.attributes.get("value")
    if attribute is not None and attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
        return held_tensor(attribute)
    return None
