"""Edges between the layers of a profile or an engine, by the names of their tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ndld_flow.base.text import short_name
from ndld_flow.records.profile import Layer, Profile


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
    for place, layer in enumerate(layers):
        for name in dict.fromkeys(tensor.name for tensor in layer.inputs):
            if name in writers:
                edges.append(LayerEdge(writers[name], place, name))
                joined[place] = 1
        writers |= {tensor.name: place for tensor in layer.outputs if tensor.name}
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
    for place in range(1, len(layers)):
        tensors = layers[place].inputs or layers[place].outputs
        if not joined[place] and not any(tensor.name for tensor in tensors):
            yield LayerEdge(place - 1, place, "")
