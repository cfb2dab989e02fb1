"""Who reads whom among the layers of a profile or an engine: by the names of their tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ndld_flow.base.text import short_name
from ndld_flow.records.profile import Layer, Profile


@dataclass(frozen=True, slots=True)
class LayerEdge:
    """A tensor between two nodes. Nodes are layers by position; terminals are counted on after them."""

    source: int
    target: int
    tensor: str


@dataclass(frozen=True, slots=True)
class Terminal:
    """An input or an output of the model."""

    name: str
    is_input: bool


def edges_of(profile: Profile) -> tuple[tuple[LayerEdge, ...], tuple[Terminal, ...]]:
    """A layer reads what the last layer before it wrote under that name; a body may write one name again and again."""
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
    """Layers that do not say what they read follow the layer before them; one without inputs that says what it writes
    reads nothing."""
    for place in range(1, len(layers)):
        tensors = layers[place].inputs or layers[place].outputs
        if not joined[place] and not any(tensor.name for tensor in tensors):
            yield LayerEdge(place - 1, place, "")
