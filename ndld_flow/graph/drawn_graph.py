"""Models as graphs to draw: as a picture, and as the document of their page, with all attributes and contents."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import ModelError, RequestError, UnknownNameError
from ndld_flow.base.quantities import count, counted, size
from ndld_flow.base.text import shortened
from ndld_flow.drawing.graph import (
    NONE,
    DrawnEdge,
    DrawnGraph,
    DrawnNode,
    HeldTensor,
    ModelAttribute,
    ModelDocument,
    ModelNode,
    ModelOperator,
    ModelScope,
    ModelTensor,
    NodeKind,
    Reading,
    TensorKind,
    family_of,
)
from ndld_flow.models.element_types import dtype_name, functions_by_graph, held_tensor, subgraphs_of
from ndld_flow.models.external_data import MissingTensor, location_of, tensors_of
from ndld_flow.models.files import load_structure
from ndld_flow.models.nodes import (
    attribute_text,
    captured_by,
    constant_of,
    constant_tensor,
    dims_text,
    is_constant,
    node_details,
    op_name,
    own_subgraphs,
    precision_of,
    read_values,
    scalar_text,
    scopes_of,
    short_value,
)
from ndld_flow.models.op_reference import DEFAULT_DOMAIN, attribute_defaults, operators
from ndld_flow.models.shape_inference import infer_shapes, is_invented_name, name_computed_dims
from ndld_flow.models.tensor_statistics import (
    DEFAULT_LIMIT_BYTES,
    TensorStatistics,
    first_values,
    tensor_bytes,
    tensor_statistics,
)

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
        none = "it has neither control flow nor local functions"
        raise UnknownNameError(f"--subgraph: the model has no body {wanted!r}", wanted, bodies, none)
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


_LIMIT_TOGETHER_BYTES = 512 * 2**20
_SHOWN, _SHOWN_OF_MANY = 64, 16
"""Number of elements shown per tensor: a page with many thousand tensors must still open quickly."""
_MANY = 1000
_LONGEST_ELEMENT = 80
"""Longest text of one element."""


class ContentsReader:
    """Reads the contents of tensors within limits, each tensor once, and numbers them."""

    def __init__(self, values: bool) -> None:
        self.found: list[HeldTensor] = []
        self._values = values
        self._left = _LIMIT_TOGETHER_BYTES
        self._indices: dict[int, int] = {}
        self._kept: list[ir.TensorProtocol] = []
        """Keeps all tensors alive: they are identified by their ids."""

    def index_of(self, tensor: ir.TensorProtocol) -> int:
        """Return the index of a tensor in `found`. Raises `ModelError` if its data cannot be read."""
        if id(tensor) not in self._indices:
            self._indices[id(tensor)] = len(self.found)
            self._kept.append(tensor)
            try:
                self.found.append(self._read(tensor))
            except OSError as error:
                raise ModelError(f"tensor {tensor.name!r} cannot be read: {error}") from None
        return self._indices[id(tensor)]

    def _read(self, tensor: ir.TensorProtocol) -> HeldTensor:
        contents = self._statistics(tensor)
        most = _SHOWN if len(self.found) < _MANY else _SHOWN_OF_MANY
        first = first_values(tensor, most) if self._values else ()
        return HeldTensor(
            contents.dtype,
            dims_text([str(dim) for dim in contents.shape]),
            contents.elements,
            contents.size_bytes,
            contents.numbers,
            contents.unread,
            tuple(shortened(scalar_text(element), _LONGEST_ELEMENT) for element in first),
            location_of(tensor) if isinstance(tensor, ir.ExternalTensor) else "",
        )

    def _statistics(self, tensor: ir.TensorProtocol) -> TensorStatistics:
        stored = tensor_bytes(tensor)
        if not self._values:
            return self._unread(tensor, "this page was written without values")
        if DEFAULT_LIMIT_BYTES >= stored > self._left:
            return self._unread(
                tensor, f"{size(_LIMIT_TOGETHER_BYTES)} of other weights were read first, which is the limit"
            )
        contents = tensor_statistics(tensor)
        self._left -= stored if contents.numbers else 0
        return contents

    def _unread(self, tensor: ir.TensorProtocol, reason: str) -> TensorStatistics:
        shape = tuple(int(dim) for dim in tensor.shape.numpy())
        return TensorStatistics(dtype_name(tensor.dtype), shape, tensor.size, tensor_bytes(tensor), None, reason)


_MOST_METADATA = 400
"""Longest text of one entry."""


def read_document(path: Path, reading: Reading, inputs: Mapping[str, Path] | None = None) -> ModelDocument:
    """Read a model for its page, with the values of these tensors' files at its inputs. Weights below a limit are read,
    in pieces.

    Raises `ModelError` if it is not ONNX, `RequestError` if it has far too many nodes or no body of that name.
    """
    model = load_structure(path)
    if reading.shapes:
        infer_shapes(model)
        name_computed_dims(model)
    reader = _Reader(model, reading, ContentsReader(reading.values), inputs or {})
    reader.read()
    shown = reader.scopes[chosen_body(model, reading.subgraph)[1]] if reading.subgraph else 0
    scopes = tuple(map(reader.scope, reader.scopes))
    constants = sum(map(len, reader.scopes)) - len(reader.nodes)
    return ModelDocument(
        reading.title or path.name,
        (
            *_facts(model),
            ("Constants", f"{counted(constants, 'more node')}, shown as weights" if constants else ""),
            ("Dimensions", reader.dims.explained),
        ),
        scopes,
        tuple(reader.nodes),
        tuple(reader.tensors),
        tuple(reader.held.found),
        tuple(_operators(model, reader.nodes)),
        shown,
        reading.values,
    )


@dataclass
class _Reader:
    """Builds the document graph by graph. Tensors and their contents are numbered in order of occurrence."""

    model: ir.Model
    reading: Reading
    held: ContentsReader
    inputs: Mapping[str, Path]
    scopes: dict[ir.Graph, int] = field(default_factory=dict)
    addresses: list[str] = field(default_factory=list)
    functions: dict[ir.Graph, ir.Function] = field(default_factory=dict)
    parents: dict[ir.Graph, int] = field(default_factory=dict)
    nodes: list[ModelNode] = field(default_factory=list)
    nodes_of: dict[ir.Graph, list[int]] = field(default_factory=dict)
    tensors: list[ModelTensor] = field(default_factory=list)
    indices: dict[ir.Value, int] = field(default_factory=dict)
    dims: DimNames = field(default_factory=DimNames)

    def read(self) -> None:
        graphs = scopes_of(self.model)
        self.scopes = {graph: index for index, graph in enumerate(graphs.values())}
        self.functions = functions_by_graph(self.model)
        self.addresses = list(graphs)
        for graph, index in self.scopes.items():
            for node in graph:
                self.parents |= {body: index for _, body in own_subgraphs(node)}
        if sum(map(len, self.scopes)) > MOST_NODES:
            raise too_many_nodes("extract a part of the model and draw that")
        for graph in self.scopes:
            self._graph(graph)

    def _graph(self, graph: ir.Graph) -> None:
        for value in graph.inputs:
            self._tensor(value, "initializer" if value.const_value is not None else "input")
        for value in graph.initializers.values():
            self._tensor(value, "initializer")
        function = self.functions.get(graph)
        opsets = dict((function and function.opset_imports) or self.model.opset_imports)
        self.nodes_of[graph] = []
        for node in graph:
            if is_constant(node) and not self.reading.constants:
                self._constant(node)
                continue
            self.nodes_of[graph].append(len(self.nodes))
            self.nodes.append(self._node(node, self.scopes[graph], opsets))

    def _node(self, node: ir.Node, scope: int, opsets: dict[str, int]) -> ModelNode:
        bodies = tuple(self.scopes[body] for _, body in own_subgraphs(node))
        function = self.model.functions.get(node.op_identifier())
        if function is not None:
            bodies = (self.scopes[function.graph],)
        kind: NodeKind = "composite" if bodies else "operator"
        if is_constant(node):
            kind = "constant"
            self._constant(node)
        return ModelNode(
            node.name or "",
            op_name(node),
            "control" if bodies else family_of(op_name(node)),
            kind,
            scope,
            ", ".join(node_details(node)) if self.reading.values else "",
            tuple(NONE if value is None else self._tensor(value) for value in node.inputs),
            tuple(self._tensor(value) for value in node.outputs),
            tuple(self._tensor(value) for value in dict.fromkeys(read_values(node)) if value not in node.inputs),
            () if kind == "constant" else tuple(self._attributes(node, opsets)),
            bodies,
            precision_of(node),
            tuple((name, value[:_MOST_METADATA]) for name, value in node.metadata_props.items()),
            node.doc_string or "",
        )

    def _attributes(self, node: ir.Node, opsets: dict[str, int]) -> Iterator[ModelAttribute]:
        for attribute in node.attributes.values():
            is_tensor = not attribute.is_ref() and attribute.type == ir.AttributeType.TENSOR
            held = self.held.index_of(held_tensor(attribute)) if is_tensor else NONE
            yield ModelAttribute(attribute.name, attribute.type.name.lower(), attribute_text(attribute), held=held)
        for name, default in attribute_defaults(node.op_type, node.domain, opsets.get(node.domain, 1)).items():
            if name not in node.attributes:
                text = (
                    f"[{', '.join(map(scalar_text, default))}]" if isinstance(default, tuple) else scalar_text(default)
                )
                yield ModelAttribute(name, "", text, is_default=True)

    def _constant(self, node: ir.Node) -> None:
        for value in node.outputs:
            self._tensor(value, "constant")

    def _tensor(self, value: ir.Value, kind: TensorKind = "computed") -> int:
        if value not in self.indices:
            self.indices[value] = len(self.tensors)
            self.tensors.append(self._tensor_record(value, kind))
        return self.indices[value]

    def _tensor_record(self, value: ir.Value, kind: TensorKind) -> ModelTensor:
        tensor = constant_tensor(value)
        if tensor is None and kind == "constant":
            node = value.producer()
            tensor = None if node is None else constant_of(node)
        file = self.inputs.get(value.name or "") if kind == "input" else None
        if file is not None:
            tensor = ir.serde.deserialize_tensor(onnx.load_tensor(file))
        if kind == "computed" and value.producer() is None and tensor is not None:
            kind = "initializer"
        held = NONE if tensor is None else self.held.index_of(tensor)
        contents = self.held.found[held] if held != NONE else None
        dtype = type_text_of(value) or (contents.dtype if contents else "")
        dims = shape_text_of(value) or (contents.dims if contents else "")
        return ModelTensor(value.name or "", dtype, dims, shape_text_of(value, self.dims) or dims, kind, held)

    def scope(self, graph: ir.Graph) -> ModelScope:
        """Return the record of a graph."""
        inputs = [value for value in graph.inputs if value.name not in graph.initializers]
        captured = captured_by(graph) if graph in self.parents else []
        outside = [value for value in captured if constant_tensor(value) is None]
        return ModelScope(
            self.addresses[self.scopes[graph]],
            self.parents.get(graph, NONE),
            self._indices_of(inputs),
            self._indices_of(outside),
            self._indices_of(graph.outputs),
            tuple(self.nodes_of[graph]),
            graph.doc_string or "",
        )

    def _indices_of(self, values: Iterable[ir.Value | None]) -> tuple[int, ...]:
        return tuple(self._tensor(value) for value in values if value is not None)


def _facts(model: ir.Model) -> Iterator[tuple[str, str]]:
    opsets = [f"{domain or DEFAULT_DOMAIN} {version}" for domain, version in model.opset_imports.items()]
    yield "Opsets", ", ".join(opsets)
    yield "IR version", str(model.ir_version)
    producer = (model.producer_name, model.producer_version)
    yield "Made by", " ".join(part for part in producer if part)
    yield "Domain", model.domain or ""
    yield "Version", "" if not model.model_version else str(model.model_version)
    yield "Graph", model.graph.name or ""
    yield "Functions", count(len(model.functions)) if model.functions else ""
    yield "Without data", without_data(model)
    yield "Doc", model.doc_string or ""
    for name, value in model.metadata_props.items():
        yield name, value[:_MOST_METADATA]


def _operators(model: ir.Model, nodes: list[ModelNode]) -> Iterator[ModelOperator]:
    families = {node.operator: node.family for node in nodes}
    local = {f"{function.domain}::{function.name}" for function in model.functions.values()}
    for name, uses in Counter(node.operator for node in nodes if node.kind != "constant").most_common():
        domain, _, short = name.rpartition("::")
        operator = operators().get((domain, short))
        version = operator.at(model.opset_imports.get(domain, 1)) if operator is not None else None
        if name in local:
            yield ModelOperator(name, families[name], uses, "a function of this model", "")
        elif version is None:
            yield ModelOperator(name, families[name], uses, "unknown operator", "")
        else:
            yield ModelOperator(name, families[name], uses, f"version {version.since_version}", version.summary)
