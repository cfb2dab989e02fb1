"""Convert the layers of an engine or a profile into a graph to draw, and fold large graphs into blocks.

Edges connect layers by the names of their tensors. Blocks are the modules of the exporting framework or, where names do
not show these, each convolution or matrix product with the small operators around it. A block is never on a cycle of
blocks, so that the folded graph has the direction of the whole one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from ndld_flow.base.quantities import TIMES, count
from ndld_flow.base.text import short_name
from ndld_flow.drawing.graph import DrawnEdge, DrawnGraph, DrawnNode, Family, family_of_layer, layer_word
from ndld_flow.records.profile import Layer, Profile, TensorInfo


@dataclass(frozen=True, slots=True)
class Terminal:
    """An input or an output of the model."""

    name: str
    is_input: bool


def edges_of(profile: Profile) -> tuple[tuple[DrawnEdge, ...], tuple[Terminal, ...]]:
    """Return the edges and terminals of a profile. Edges number nodes: layers first, terminals after them.

    A layer reads the last tensor written under a name; a loop body may write one name repeatedly.
    """
    layers = profile.layers
    terminals: list[Terminal] = []
    writers: dict[str, int] = {}
    for tensor in profile.inputs:
        if tensor.name and tensor.name not in writers:
            writers[tensor.name] = len(layers) + len(terminals)
            terminals.append(Terminal(short_name(tensor.name), True))
    edges: list[DrawnEdge] = []
    joined = bytearray(len(layers))
    for index, layer in enumerate(layers):
        for name in dict.fromkeys(tensor.name for tensor in layer.inputs):
            if name in writers:
                edges.append(DrawnEdge(writers[name], index, tensor=name))
                joined[index] = 1
        writers |= {tensor.name: index for tensor in layer.outputs if tensor.name}
    edges.extend(_joins_by_order(layers, joined))
    for tensor in profile.outputs:
        if writers.get(tensor.name, len(layers)) < len(layers):
            edges.append(DrawnEdge(writers[tensor.name], len(layers) + len(terminals), tensor=tensor.name))
            terminals.append(Terminal(short_name(tensor.name), False))
    return tuple(edges), tuple(terminals)


def _joins_by_order(layers: Sequence[Layer], joined: bytearray) -> Iterator[DrawnEdge]:
    """Yield edges to layers whose inputs are not recorded: each follows the layer before it, unless it records outputs
    but no inputs.
    """
    for index in range(1, len(layers)):
        tensors = layers[index].inputs or layers[index].outputs
        if not joined[index] and not any(tensor.name for tensor in tensors):
            yield DrawnEdge(index - 1, index)


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
    drawn = tuple(replace(edge, label=_label(tensors.get(edge.tensor), usual) if shapes else "") for edge in edges)
    return DrawnGraph((*map(_node, layers), *ends), drawn, title, " · ".join(_subtitle(profile, usual)))


def _node(layer: Layer) -> DrawnNode:
    nodes = layer.onnx_nodes
    if layer.role != "quantize":  # those that only quantize last: a quantized convolution is a convolution
        nodes = tuple(sorted(nodes, key=lambda name: "quantizelinear" in name.lower()))
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


FEWEST = 60
"""A graph of fewer nodes is readable without blocks."""
_MOST_IN_CHAINS = 3000
"""A graph of more nodes has too many blocks to be read if names do not show its modules."""
_MOST_BLOCKS = 200
"""Blocks of modules: the deepest level of names with at most this many."""
_LARGE = 24
"""Blocks of more nodes than this have blocks themselves."""
_LEAST_GAIN = 0.6
"""Blocks are worth it if there are at most this many for each node."""
_NAMED = 0.8
"""Part of the nodes whose names must show their module."""
HEADS: frozenset[Family] = frozenset({"convolution", "matmul", "control"})
"""Families that start a block; other nodes join the block that they read."""

Edge = tuple[int, int]


def find_blocks(names: Sequence[str], families: Sequence[Family], edges: Sequence[Edge]) -> tuple[int, ...] | None:
    """Return the number of the block of each node, in the order of their first nodes; None if blocks would not help.

    `edges` are (source, target) positions among the nodes.
    """
    count = len(names)
    if count < FEWEST:
        return None
    candidates: list[Sequence[Hashable]] = [level for level in _modules(names) if len(set(level)) <= _MOST_BLOCKS]
    if count <= _MOST_IN_CHAINS:
        candidates.append(_chains(families, edges))
    for numbered in map(_numbered, candidates):
        if 1 < max(numbered) + 1 <= _LEAST_GAIN * count and _is_acyclic(numbered, edges):
            return numbered
    return None


def find_inner_blocks(names: Sequence[str], edges: Sequence[Edge], outer: Sequence[int]) -> tuple[int, ...] | None:
    """Return the blocks inside large blocks: modules of a deeper level. None if names show no such level."""
    blocks = max(outer) + 1
    if len(names) < _LARGE * blocks:
        return None
    for numbered in map(_numbered, _modules(names)):
        if 1.5 * blocks < max(numbered) + 1 <= _LEAST_GAIN * len(names) and _is_acyclic(numbered, edges):
            return numbered
    return None


def block_titles(blocks: Sequence[Sequence[str]]) -> list[str]:
    """Return the module of each block's nodes, without the modules around it; empty if it is that of several blocks."""
    modules: list[tuple[str, ...]] = []
    for names in blocks:
        paths = [_path(name) for name in names]
        shared = 0
        while all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
            shared += 1
        modules.append(tuple(paths[0][:shared]))
    times = Counter(modules)
    return [module[-1] if module and times[module] == 1 else "" for module in modules]


def _modules(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the modules of all nodes by their names, deepest level first."""
    paths = [_path(name) for name in names]
    if sum(map(bool, paths)) < _NAMED * len(paths):
        return
    for depth in range(min(max(map(len, paths)), 12), 0, -1):
        yield ["/".join(path[:depth]) for path in paths]


def _path(name: str) -> list[str]:
    """Return the modules in a node's name: `/encoder/layer.0/MatMul` and `encoder.layer.0.MatMul` are in `encoder` and
    `layer.0`."""
    text = name if "/" in name else re.sub(r"\.(?!\d+(\.|$))", "/", name)
    return [part for part in text.split("/") if part][:-1]


def _chains(families: Sequence[Family], edges: Sequence[Edge]) -> list[int]:
    """Return the block of each node: that of all nodes that it reads, or its own.

    A node that reads two blocks starts a block, since with it either would be on a cycle with the other.
    """
    read: list[set[int]] = [set() for _ in families]
    for source, target in edges:
        read[target].add(source)
    blocks = list(range(len(families)))
    try:  # each node after what it reads; in the given order where there are cycles
        order: Sequence[int] = list(TopologicalSorter(dict(enumerate(read))).static_order())
    except CycleError:
        order = range(len(families))
    for node in order:
        around = {blocks[source] for source in read[node]}
        if len(around) == 1 and families[node] not in HEADS and node not in read[node]:
            blocks[node] = around.pop()
    return blocks


def _numbered(blocks: Sequence[Hashable]) -> tuple[int, ...]:
    numbers: dict[Hashable, int] = {}
    return tuple([numbers.setdefault(block, len(numbers)) for block in blocks])


def _is_acyclic(blocks: Sequence[int], edges: Sequence[Edge]) -> bool:
    read: dict[int, set[int]] = {}
    for source, target in edges:
        if blocks[source] != blocks[target]:
            read.setdefault(blocks[target], set()).add(blocks[source])
    try:
        TopologicalSorter(read).prepare()
    except CycleError:
        return False
    return True
