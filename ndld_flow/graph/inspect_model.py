"""Answers to queries about a model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx_ir as ir

from ndld_flow.base.errors import RequestError, UnknownNameError, explaining_file
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.graph.edit.constant_tensors import ConstantTensor, constant_tensors, find_tensors
from ndld_flow.graph.edit.edited_model import find_nodes
from ndld_flow.graph.edit.settings import NodeSelect, TensorSelect
from ndld_flow.models.element_types import GRAPHS, dtype_name, value_dtype
from ndld_flow.models.external_data import MissingTensor, location_of
from ndld_flow.models.files import load_structure, summarize_model
from ndld_flow.models.input_shapes import suggest_tensor
from ndld_flow.models.lazy_tensors import SparseInitializer, byte_pieces
from ndld_flow.models.nodes import (
    attribute_text,
    function_address,
    node_label,
    op_name,
    own_subgraphs,
    precision_of,
    scopes_of,
    values_of,
)
from ndld_flow.models.shape_inference import infer_shapes, name_computed_dims, recorded_dims
from ndld_flow.models.tensor_statistics import first_values, tensor_bytes, tensor_statistics
from ndld_flow.records.inspection import (
    DataFileEntry,
    InspectedNode,
    InspectedTensor,
    Inspection,
    ModelSummary,
    NodeGroup,
    Port,
    Role,
    WeightGroup,
)
from ndld_flow.store.files import writing_atomically

_NO_LIMIT = 2**62


class Views:
    """Creates records of a model's parts, with the address of each one's graph."""

    def __init__(self, model: ir.Model) -> None:
        self._scopes = scopes_of(model)
        self._addresses = {graph: address for address, graph in self._scopes.items()}
        self._held = {item.value: item for item in constant_tensors(model)}

    @property
    def held(self) -> list[ConstantTensor]:
        """Initializers and Constant nodes."""
        return list(self._held.values())

    def node(self, node: ir.Node) -> InspectedNode:
        return InspectedNode(
            scope=self._address(node),
            name=node_label(node),
            op_type=op_name(node),
            attributes={
                name: attribute_text(attribute)
                for name, attribute in node.attributes.items()
                if attribute.is_ref() or attribute.type not in GRAPHS
            },
            inputs=tuple(self.port(value) for value in node.inputs),
            outputs=tuple(self.port(value) for value in node.outputs),
            precision=precision_of(node),
            subgraphs=tuple(self._addresses[graph] for _, graph in own_subgraphs(node)),
        )

    def port(self, value: ir.Value | None) -> Port:
        if value is None or not value.name:
            return Port(name="")
        maker, origin = value.producer(), "initializer" if value.is_initializer() else "input"
        readers = dict.fromkeys(self._name_from(value, use.node) for use in value.uses())
        return Port(
            name=value.name,
            dtype=value_dtype(value),
            shape=recorded_dims(value.shape),
            made_by=origin if maker is None else self._name_from(value, maker),
            read_by=(*readers, "output") if value.is_graph_output() else tuple(readers),
        )

    def tensor(self, value: ir.Value) -> InspectedTensor:
        """Return the record of a tensor without statistics."""
        held = self._held.get(value)
        port = self.port(value)
        scope = self._addresses.get(value.graph, "") if isinstance(value.graph, ir.Graph) else ""
        if held is None:
            role: Role = "input" if value.is_graph_input() else "output" if value.is_graph_output() else "tensor"
            return InspectedTensor(**dict(port), scope=scope, role=role)
        data = held.tensor
        missing = data if isinstance(data, MissingTensor) else None
        external = data if isinstance(data, ir.ExternalTensor) and (missing is None or missing.is_external) else None
        known = dict(port) | {"dtype": dtype_name(data.dtype), "shape": tuple(int(dim) for dim in data.shape.numpy())}
        return InspectedTensor(
            **known,
            scope=scope,
            role="initializer" if held.node is None else "constant",
            elements=data.size,
            size_bytes=tensor_bytes(data),
            stored=held.stored,
            file="" if external is None else location_of(external),
            offset=None if external is None else external.offset or 0,
            no_data="" if missing is None else missing.reason,
        )

    def with_numbers(self, value: ir.Value, first: int) -> InspectedTensor:
        """Return the record of a tensor, with statistics and first values if the model stores it."""
        view, held = self.tensor(value), self._held.get(value)
        if held is None:
            return view
        statistics = tensor_statistics(held.tensor, _NO_LIMIT)
        shown = first_values(held.tensor, first) if first else ()
        return view.model_copy(update={"numbers": statistics.numbers, "unread": statistics.unread, "first": shown})

    def values(self) -> Iterator[ir.Value]:
        """Yield every tensor of every graph, each once."""
        for graph in self._scopes.values():
            yield from values_of(graph)

    def _address(self, node: ir.Node) -> str:
        return self._addresses.get(node.graph, "") if isinstance(node.graph, ir.Graph) else ""

    def _name_from(self, value: ir.Value, node: ir.Node) -> str:
        """Return a node's name, with its graph's address if that differs from the tensor's."""
        scope = self._address(node)
        here = self._addresses.get(value.graph, "") if isinstance(value.graph, ir.Graph) else ""
        return node_label(node) if scope == here else f"{scope}: {node_label(node)}"


GroupBy = Literal["op_type", "domain", "precision", "scope", "dtype"]
FIRST_VALUES = 24
_LARGEST = 8
_PIECE_BYTES = 2**22


@dataclass(frozen=True)
class Query:
    """A query; the first field that is set is answered, or a summary if none is."""

    node: str | None = None
    """Describe the node of this name, or the producer of the tensor of this name."""
    tensor: str | None = None
    """Describe the tensor of this name, with statistics."""
    group_by: GroupBy | None = None
    """Count the nodes that `nodes` selects, or all; `dtype` counts weights."""
    nodes: NodeSelect | None = None
    tensors: tuple[str, ...] = ()
    """Patterns of names."""
    initializers: TensorSelect | None = None
    by_size: bool = False
    """Sort initializers, the largest first."""
    statistics: bool = False
    """Read the initializers and add statistics."""


def inspect_model(path: Path, query: Query) -> Inspection:
    """Answer a query. Raises `ModelError` as `load_structure` does, `RequestError` if nothing matches."""
    model = load_structure(path)
    infer_shapes(model)
    name_computed_dims(model)
    views = Views(model)
    name = str(path)
    if query.node is not None:
        return Inspection(model=name, nodes=_nodes_named(model, views, query.node))
    if query.tensor is not None:
        named = _tensors_named(views, query.tensor)
        return Inspection(model=name, tensors=tuple(views.with_numbers(value, FIRST_VALUES) for value in named))
    if query.group_by == "dtype":
        return Inspection(model=name, weights=_weights(views.held))
    if query.group_by is not None:
        return Inspection(model=name, groups=_groups(_nodes(model, views, query), query.group_by))
    if query.nodes is not None:
        return Inspection(model=name, nodes=_nodes(model, views, query))
    if query.initializers is not None:
        return Inspection(model=name, tensors=_initializers(model, views, query.initializers, query))
    if query.tensors:
        return Inspection(model=name, tensors=_tensors_matching(views, query.tensors))
    return Inspection(model=name, summary=_summary(model, views))


def export_tensor(path: Path, name: str, target: Path) -> None:
    """Write an initializer or constant to a `.npy` file; types of whole bytes are written in pieces.

    Raises `RequestError` for any other tensor, `OutputsError` if the file cannot be written.
    """
    views = Views(load_structure(path))
    held = {item.value: item for item in views.held}
    tensors = [held[value] for value in _tensors_named(views, name) if value in held]
    if not tensors:
        raise RequestError(f"{name!r} is computed by the model: only initializers and constants can be exported")
    tensor = tensors[0].tensor
    if tensor.dtype == ir.DataType.STRING:
        raise RequestError(f"{name!r} contains strings, which .npy files cannot store safely")
    with explaining_file(target), writing_atomically(target) as file:
        dtype = np.dtype(tensor.dtype.numpy())
        if dtype.kind not in "biufc" or isinstance(tensor, SparseInitializer):
            np.save(file, tensor.numpy())
            return
        head = {"descr": dtype.newbyteorder("<").str, "fortran_order": False, "shape": tuple(tensor.shape.numpy())}
        np.lib.format.write_array_header_1_0(file, head)
        for piece in byte_pieces(tensor, _PIECE_BYTES):
            file.write(piece)


def _nodes(model: ir.Model, views: Views, query: Query) -> tuple[InspectedNode, ...]:
    if query.nodes is None:
        return tuple(views.node(node) for graph in scopes_of(model).values() for node in graph)
    return tuple(views.node(node) for node in find_nodes(model, query.nodes))


def _nodes_named(model: ir.Model, views: Views, name: str) -> tuple[InspectedNode, ...]:
    nodes = [node for graph in scopes_of(model).values() for node in graph]
    named = [node for node in nodes if node.name == name]
    named = named or [node for node in nodes if any(value.name == name for value in node.outputs)]
    if not named:
        raise UnknownNameError(f"there is no node {name!r}", name, (n.name for n in nodes if n.name))
    return tuple(map(views.node, named))


def _tensors_named(views: Views, name: str) -> list[ir.Value]:
    values = list(views.values())
    named = [value for value in values if value.name == name]
    if not named:
        raise RequestError(f"there is no tensor {name!r}; {suggest_tensor(name, values)}")
    return named


def _tensors_matching(views: Views, patterns: Sequence[str]) -> tuple[InspectedTensor, ...]:
    matchers = [name_matcher(pattern) for pattern in patterns]
    values = [value for value in views.values() if value.name]
    matching = [value for value in values if any(fits(value.name or "") for fits in matchers)]
    if not matching:
        raise RequestError(f"no tensor has a name like {patterns[0]!r}; {suggest_tensor(patterns[0], values)}")
    return tuple(map(views.tensor, matching))


def _initializers(model: ir.Model, views: Views, select: TensorSelect, query: Query) -> tuple[InspectedTensor, ...]:
    held = find_tensors(model, select)
    if query.by_size:
        held.sort(key=lambda item: -tensor_bytes(item.tensor))
    if query.statistics:
        return tuple(views.with_numbers(item.value, 0) for item in held)
    return tuple(views.tensor(item.value) for item in held)


def _groups(nodes: Iterable[InspectedNode], by: GroupBy) -> tuple[NodeGroup, ...]:
    grouped: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for node in nodes:
        domain = node.op_type.rpartition("::")[0] or "ai.onnx"
        keys = {"op_type": node.op_type, "precision": node.precision or "none", "scope": node.scope, "domain": domain}
        grouped[keys[by]][node.op_type] += 1
    ordered = sorted(grouped.items(), key=lambda item: (-item[1].total(), item[0]))
    return tuple(NodeGroup(value=value, count=types.total(), op_types=_most_first(types)) for value, types in ordered)


def _most_first(counted: Counter[str]) -> dict[str, int]:
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def _weights(held: Iterable[ConstantTensor]) -> dict[str, WeightGroup]:
    return _grouped((dtype_name(item.tensor.dtype), item.tensor) for item in held)


def _grouped(tensors_by_name: Iterable[tuple[str, ir.TensorProtocol]]) -> dict[str, WeightGroup]:
    """Return name -> group of its tensors, the largest first."""
    grouped: defaultdict[str, list[ir.TensorProtocol]] = defaultdict(list)
    for name, tensor in tensors_by_name:
        grouped[name].append(tensor)
    groups = {
        name: WeightGroup(
            count=len(tensors),
            elements=sum(tensor.size for tensor in tensors),
            size_bytes=sum(map(tensor_bytes, tensors)),
        )
        for name, tensors in grouped.items()
    }
    return dict(sorted(groups.items(), key=lambda item: (-item[1].size_bytes, item[0])))


def _summary(model: ir.Model, views: Views) -> ModelSummary:
    counted = summarize_model(model)
    largest = sorted(views.held, key=lambda item: (-tensor_bytes(item.tensor), item.name))[:_LARGEST]
    graph = model.graph
    scopes = scopes_of(model)
    addresses = [address for address in scopes if address]
    functions = {function_address(function) for function in model.functions.values()}
    nodes = [node for inner in scopes.values() for node in inner]
    files: defaultdict[str, list[ir.ExternalTensor]] = defaultdict(list)
    for item in views.held:
        if isinstance(item.tensor, ir.ExternalTensor) and item.stored == "external":
            files[location_of(item.tensor)].append(item.tensor)
    return ModelSummary(
        ir_version=model.ir_version or 0,
        opsets={domain or "ai.onnx": version for domain, version in model.opset_imports.items()},
        producer=" ".join(filter(None, (model.producer_name, model.producer_version))),
        graph_name=graph.name or "",
        metadata=dict(model.metadata_props),
        inputs=tuple(views.port(value) for value in graph.inputs if not value.is_initializer()),
        outputs=tuple(map(views.port, graph.outputs)),
        node_count=counted.node_count,
        nodes_by_type=counted.nodes_by_type,
        weights_by_dtype=_weights(views.held),
        largest=tuple(views.tensor(item.value) for item in largest),
        subgraphs=tuple(address for address in addresses if address not in functions),
        functions=tuple(address for address in addresses if address in functions),
        nodes_by_graph={address: len(scopes[address]) for address in addresses},
        precisions=_most_first(Counter(precision for node in nodes if (precision := precision_of(node)))),
        files=tuple(
            DataFileEntry(location=location, size_bytes=_file_size(tensors), tensors=len(tensors))
            for location, tensors in sorted(files.items())
        ),
        without_data=_grouped(
            (item.tensor.reason, item.tensor) for item in views.held if isinstance(item.tensor, MissingTensor)
        ),
    )


def _file_size(tensors: Iterable[ir.ExternalTensor]) -> int | None:
    """Return the size of the data file of these tensors; None if none of them has data in it."""
    complete = next((tensor for tensor in tensors if not isinstance(tensor, MissingTensor)), None)
    return None if complete is None else Path(complete.path).stat().st_size
