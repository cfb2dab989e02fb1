"""Convert the layers of an engine or a profile into a graph to draw, with edges by the names of their tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ndld_flow.base.quantities import TIMES, count
from ndld_flow.base.text import short_name
from ndld_flow.drawing.graph import DrawnEdge, DrawnGraph, DrawnNode, family_of_layer, layer_word
from ndld_flow.records.profile import Layer, Profile, TensorInfo


@dataclass(frozen=True, slots=True)
class LayerEdge:
    """A tensor between two nodes. Nodes are numbered: layers first, terminals after them."""

    source: int
    target: int
    tensor: str


@dataclass(frozen=True, slots=True)
class Terminal:
    """An input or an output of the model."""

    name: str
    is_input: bool


def edges_of(profile: Profile) -> tuple[tuple[LayerEdge, ...], tuple[Terminal, ...]]:
    """Return the edges and terminals of a profile. A layer reads the last tensor written under a name; a loop body may
    write one name repeatedly.
    """
    layers = profile.layers
    terminals: list[Terminal] = []
    writers: dict[str, int] = {}
    for tensor in profile.inputs:
        if tensor.name and tensor.name not in writers:
            writers[tensor.name] = len(layers) + len(terminals)
            terminals.append(Terminal(short_name(tensor.name), True))
    edges: list[LayerEdge] = []
    joined = bytearray(len(layers))
    for index, layer in enumerate(layers):
        for name in dict.fromkeys(tensor.name for tensor in layer.inputs):
            if name in writers:
                edges.append(LayerEdge(writers[name], index, name))
                joined[index] = 1
        writers |= {tensor.name: index for tensor in layer.outputs if tensor.name}
    edges.extend(_joins_by_order(layers, joined))
    for tensor in profile.outputs:
        if writers.get(tensor.name, len(layers)) < len(layers):
            edges.append(LayerEdge(writers[tensor.name], len(layers) + len(terminals), tensor.name))
            terminals.append(Terminal(short_name(tensor.name), False))
    return tuple(edges), tuple(terminals)


def _joins_by_order(layers: Sequence[Layer], joined: bytearray) -> Iterator[LayerEdge]:
    """Yield edges to layers whose inputs are not recorded: each follows the layer before it, unless it records outputs
    but no inputs.
    """
    for index in range(1, len(layers)):
        tensors = layers[index].inputs or layers[index].outputs
        if not joined[index] and not any(tensor.name for tensor in tensors):
            yield LayerEdge(index - 1, index, "")


def engine_graph(profile: Profile, title: str, shapes: bool) -> DrawnGraph:
    """Return a graph of layers, each with its precision and first ONNX node; with `shapes`, edges show dimensions."""
    edges, terminals = edges_of(profile)
    layers = profile.layers
    dtypes = Counter(tensor.dtype for layer in layers for tensor in layer.outputs)
    usual = max(dtypes, key=lambda dtype: (dtypes[dtype], dtype), default="")
    written = {tensor.name: tensor for layer in layers for tensor in layer.outputs}
    tensors = {tensor.name: tensor for tensor in profile.inputs} | written
    ends = [
        DrawnNode(terminal.name, terminal.name, kind="input" if terminal.is_input else "output")
        for terminal in terminals
    ]
    drawn = tuple(
        DrawnEdge(edge.source, edge.target, _label(tensors.get(edge.tensor), usual) if shapes else "", edge.tensor)
        for edge in edges
    )
    return DrawnGraph((*map(_node, layers), *ends), drawn, title, " · ".join(_subtitle(profile, usual)))


def _node(layer: Layer) -> DrawnNode:
    nodes = _computing_first(layer)
    tooltip = f"{layer.name}\n{layer.type} {layer.tactic}".strip() + ("\n" + ", ".join(nodes) if nodes else "")
    more = f" +{len(nodes) - 1}" if len(nodes) > 1 else ""
    kind = layer.type
    if layer.role == "quantize" and "quantize" not in kind.lower():  # engines run both as reformats
        kind = "Dequantize" if "float" in layer.output_precision else "Quantize"
    return DrawnNode(
        id=tooltip,
        label=layer_word(kind, layer.name) or "layer",
        family=family_of_layer(kind, layer.name),
        details=tuple(text for text in (short_name(nodes[0], 28) + more if nodes else "", _precision(layer)) if text),
    )


def _computing_first(layer: Layer) -> tuple[str, ...]:
    """Return the ONNX nodes of a layer, those that only quantize last: a quantized convolution is a convolution."""
    if layer.role == "quantize":
        return layer.onnx_nodes
    return tuple(sorted(layer.onnx_nodes, key=lambda name: "quantizelinear" in name.lower()))


def _precision(layer: Layer) -> str:
    """Return `float16 hwc8`, or `int8, writes float16 chw32` if the layer computes and writes different types."""
    layout = layer.outputs[0].format if layer.outputs else ""
    written = layer.output_precision
    if not written or layer.precision in (written, ""):
        return f"{layer.precision or (written and f'writes {written}')} {layout}".strip()
    return f"{layer.precision}, writes {written} {layout}".strip()


def _label(tensor: TensorInfo | None, usual: str) -> str:
    if tensor is None or not tensor.shape:
        return ""
    dims = TIMES.join("?" if dim < 0 else str(dim) for dim in tensor.shape)
    return dims if tensor.dtype == usual else f"{tensor.dtype} {dims}".strip()


def _subtitle(profile: Profile, usual: str) -> Iterator[str]:
    yield f"{count(len(profile.layers))} layers"
    for precision, times in Counter(layer.precision for layer in profile.layers).most_common(4):
        yield f"{count(times)} {precision or 'of unknown precision'}"
    purposes = Counter(layer.purpose for layer in profile.layers)
    yield from (f"{count(purposes[purpose])} {purpose}" for purpose in ("reformat", "quantize") if purposes[purpose])
    if usual:
        yield f"tensors without a dtype are {usual}"
