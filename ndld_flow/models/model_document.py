"""Models read for their page: graphs, nodes with all attributes, tensors and their contents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.base.quantities import count, counted, size
from ndld_flow.base.text import shortened
from ndld_flow.drawing.graph import (
    NONE,
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
from ndld_flow.models.drawn_graph import (
    MOST_NODES,
    DimNames,
    chosen_body,
    shape_text_of,
    too_many_nodes,
    type_text_of,
    without_data,
)
from ndld_flow.models.element_types import dtype_name, functions_by_graph, held_tensor
from ndld_flow.models.external_data import location_of
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
)
from ndld_flow.models.op_reference import DEFAULT_DOMAIN, attribute_defaults, operators
from ndld_flow.models.shape_inference import infer_shapes, name_computed_dims
from ndld_flow.models.tensor_statistics import (
    DEFAULT_LIMIT_BYTES,
    TensorStatistics,
    first_values,
    tensor_bytes,
    tensor_statistics,
)

_LIMIT_TOGETHER_BYTES = 512 * 2**20
_SHOWN, _SHOWN_OF_MANY = 64, 16
"""Number of elements shown per tensor: a page with many thousand tensors must still open quickly."""
_MANY = 1000
_LONGEST = 80
"""Longest text of one element."""


class ContentsReader:
    """Reads the contents of tensors within limits, each tensor once, and numbers them."""

    def __init__(self, values: bool) -> None:
        self.found: list[HeldTensor] = []
        self._values = values
        self._left = _LIMIT_TOGETHER_BYTES
        self._places: dict[int, int] = {}
        self._kept: list[ir.TensorProtocol] = []
        """Keeps all tensors alive: they are identified by their ids."""

    def place(self, tensor: ir.TensorProtocol) -> int:
        """Return the index of a tensor in `found`. Raises `ModelError` if its data cannot be read."""
        if id(tensor) not in self._places:
            self._places[id(tensor)] = len(self.found)
            self._kept.append(tensor)
            try:
                self.found.append(self._read(tensor))
            except OSError as error:
                raise ModelError(f"tensor {tensor.name!r} cannot be read: {error}") from None
        return self._places[id(tensor)]

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
            tuple(shortened(scalar_text(element), _LONGEST) for element in first),
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
    places: dict[ir.Value, int] = field(default_factory=dict)
    dims: DimNames = field(default_factory=DimNames)

    def read(self) -> None:
        graphs = scopes_of(self.model)
        self.scopes = {graph: place for place, graph in enumerate(graphs.values())}
        self.functions = functions_by_graph(self.model)
        self.addresses = list(graphs)
        for graph, place in self.scopes.items():
            for node in graph:
                self.parents |= {body: place for _, body in own_subgraphs(node)}
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
            held = self.held.place(held_tensor(attribute)) if is_tensor else NONE
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
        if value not in self.places:
            self.places[value] = len(self.tensors)
            self.tensors.append(self._tensor_record(value, kind))
        return self.places[value]

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
        held = NONE if tensor is None else self.held.place(tensor)
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
            self._places(inputs),
            self._places(outside),
            self._places(graph.outputs),
            tuple(self.nodes_of[graph]),
            graph.doc_string or "",
        )

    def _places(self, values: Iterable[ir.Value | None]) -> tuple[int, ...]:
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
