"""Regions of a model: a layer with the operators that a target computes in integers together with it.

Each region is written as two models of its own, in floats and with Q/DQ pairs of the whole model's ranges. Regions with
equal operators, attributes and shapes are of one kind, which is measured once: latency does not depend on the values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ndld_flow.accuracy.inside.capture import capture
from ndld_flow.base.errors import NdldFlowError
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.extracting import keep_only, part_of_nodes
from ndld_flow.models.files import load_model, model_inputs, save_model
from ndld_flow.models.tensors import Array
from ndld_flow.profiles.read.layer_work import Shape, count_macs
from ndld_flow.quantize.calibration import Ranges
from ndld_flow.quantize.prepared_model import PreparedModel, QuantizableNode, intensity, prepare_model
from ndld_flow.quantize.quantize_file import Workspace, write_quantized
from ndld_flow.quantize.settings import Exclude, QuantizeSettings
from ndld_flow.runtimes.protocol import SessionRequest


@dataclass(frozen=True)
class Region:
    """A layer and the operators after it."""

    layer: QuantizableNode
    followers: tuple[QuantizableNode, ...]
    """Operators that read only the output of the one before them, which nothing else reads."""
    kind: int
    macs: int | None
    intensity: float
    """Multiply-accumulates per element that the layer reads and writes."""

    @property
    def nodes(self) -> tuple[QuantizableNode, ...]:
        return (self.layer, *self.followers)


@dataclass(frozen=True)
class RegionModels:
    """A region as models of its own."""

    floats: Path
    quantized: Path
    values: Mapping[str, Array]
    """Values of the inputs, as in a run of the whole model."""


def find_regions(prepared: PreparedModel, exclude: Collection[str], values: Mapping[str, Array]) -> tuple[Region, ...]:
    """Return the regions of the layers that can be quantized, in the order of execution.

    `values` are the tensors that nodes to quantize read and write, of one sample.
    """
    by_name = {node.name: node for node in load_model(prepared.saved()).graph}
    chosen = prepared.chosen(exclude)
    readers = {node.name: node for node in chosen if node.follows}
    kinds: dict[object, int] = {}
    regions = []
    for layer in chosen:
        if not layer.follows:
            followers = tuple(_followers(by_name[layer.name], readers))
            described = [_describe(by_name[node.name], values) for node in (layer, *followers)]
            kind = kinds.setdefault(tuple(described), len(kinds))
            node = by_name[layer.name]
            attributes = {name: attribute.value for name, attribute in node.attributes.items()}
            inputs, outputs = ([_shape(value, values) for value in side] for side in (node.inputs, node.outputs))
            regions.append(
                Region(layer, followers, kind, count_macs(node.op_type, inputs, outputs, attributes), intensity(node))
            )
    return tuple(regions)


def captured_values(
    prepared: PreparedModel, feeds: Mapping[str, Array], session: SessionRequest, scratch: Path
) -> dict[str, Array]:
    """Return the tensors that nodes to quantize read and write, in a run of one sample."""
    tensors = dict.fromkeys(name for node in prepared.chosen() for name in (*node.reads, *node.makes))
    inside = [name for name in tensors if name not in prepared.inputs]
    (computed,) = capture(prepared.saved(), inside, [feeds], session.unfused(), scratch)
    return {**feeds, **computed}


def _followers(node: ir.Node, readers: Mapping[str, QuantizableNode]) -> Iterator[QuantizableNode]:
    """Yield the operators after a layer that nothing else comes between."""
    output = node.outputs[0]
    while not output.is_graph_output() and len(output.uses()) == 1:
        reader = next(iter(output.uses())).node
        follower = readers.get(reader.name or "")
        if follower is None or follower.reads != (output.name,):
            return
        yield follower
        output = reader.outputs[0]


def _describe(node: ir.Node, values: Mapping[str, Array]) -> object:
    """Return everything on which the latency of a node depends: its operator, attributes, types and shapes."""
    attributes = sorted((name, str(attribute.value)) for name, attribute in node.attributes.items())
    return node.op_type, tuple(attributes), tuple((_shape(v, values), str(v and v.dtype)) for v in node.inputs)


def _shape(value: ir.Value | None, values: Mapping[str, Array]) -> Shape | None:
    if value is None:
        return None
    if value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    array = values.get(value.name or "")
    return None if array is None else tuple(array.shape)


class RegionWriter:
    """Writes regions of a prepared model as models of their own."""

    def __init__(
        self, prepared: PreparedModel, ranges: Ranges, settings: QuantizeSettings, values: Mapping[str, Array]
    ) -> None:
        self._prepared, self._ranges, self._values = prepared, ranges, values
        self._settings = settings.model_copy(update={"exclude": Exclude(), "min_intensity": 0.0, "allow_empty": True})

    def write(self, region: Region, folder: Path) -> RegionModels | None:
        """Write a region to an empty folder; return None if it cannot be a model of its own."""
        try:
            floats, quantized = folder / "float.onnx", folder / "quantized.onnx"
            edited = EditedModel(load_model(self._prepared.saved()), self._prepared.saved())
            names = {node.name for node in region.nodes}
            part = part_of_nodes(edited, [node for node in edited.model.graph if node.name in names])
            edges = [value.name or "" for value in (*part.inputs, *part.outputs)]
            if not self._values.keys() >= set(edges):  # they are no tensors on the host
                return None
            keep_only(edited, part, {name: self._type(name) for name in edges})
            save_model(edited.model, floats)
            prepared = prepare_model(floats, folder / "prepared.onnx", self._settings)
            written = write_quantized(prepared, quantized, self._ranges, self._settings, {}, Workspace(folder))
            if {node.name for node in written.nodes} != names:
                return None
            return RegionModels(
                floats, quantized, {spec.name: self._values[spec.name] for spec in model_inputs(floats)}
            )
        except NdldFlowError:
            return None

    def _type(self, name: str) -> str:
        array = self._values[name]
        return f"{array.dtype.name}[{', '.join(map(str, array.shape))}]"


def connected(nodes: Sequence[QuantizableNode]) -> list[frozenset[str]]:
    """Return the layers among quantized nodes, by their first outputs, in groups that share integers.

    Two nodes are in one group if one reads what the other writes, or both read the same tensor: between groups, values
    are floats.
    """
    groups: dict[str, set[str]] = {}
    for node in nodes:
        tensors = {*node.reads, *node.makes}
        joined = tensors.union(*(groups[tensor] for tensor in tensors if tensor in groups))
        groups.update(dict.fromkeys(joined, joined))
    layers: dict[int, set[str]] = {}
    for node in nodes:
        if not node.follows:
            layers.setdefault(id(groups[node.makes[0]]), set()).add(node.output)
    return [frozenset(members) for members in layers.values()]
