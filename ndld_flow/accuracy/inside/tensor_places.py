"""Which tensors there are inside a model, and how large they become."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from pathlib import Path

import onnx_ir as ir

from ndld_flow.accuracy.inside.inside import count_elements
from ndld_flow.models.element_types import element_of, infer_types, subgraphs_of
from ndld_flow.models.files import load_model
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings

_TEXT_BYTES = 64
"""What a string is taken for."""


@dataclass(frozen=True)
class TensorPlace:
    """A tensor and the node that makes it."""

    name: str
    node: str
    """The node's name, which may be empty."""
    op_type: str
    position: int
    """Of the node in the order of execution, from 0; nodes of bodies are counted behind the node they stand in."""
    in_body: bool
    """Inside an If, Loop or Scan: it has no one value, and cannot be captured."""
    type: str
    """As ONNX writes it: `tensor(float16)`, `seq(tensor(float))`; empty where it is not known."""
    reads: tuple[str, ...]
    """Names of what the node reads, and what is read in its bodies."""

    @property
    def can_be_captured(self) -> bool:
        """Whether it is a tensor of the main graph. What nothing is known about is taken for one."""
        return not self.in_body and (not self.type or self.type.startswith("tensor("))


def tensors_of(path: Path) -> tuple[TensorPlace, ...]:
    """Every tensor that a node makes, in the order of execution; local functions are looked into no further.

    Raises `ModelError` when the model cannot be read.
    """
    state = path.stat() if path.is_file() else None
    return _read_places(path, state and (state.st_mtime_ns, state.st_size, state.st_ino))


@lru_cache(maxsize=4)
def _read_places(path: Path, _state: tuple[int, int, int] | None) -> tuple[TensorPlace, ...]:
    """The same model is asked for several times in one comparison."""
    model = load_model(path)
    types = infer_types(model)
    return tuple(
        TensorPlace(
            name=value.name,
            node=node.name or "",
            op_type=node.op_type,
            position=position,
            in_body=node.graph is not model.graph,
            type=types.get(value, ""),
            reads=tuple(_read_by(node)),
        )
        for position, node in enumerate(model.graph.all_nodes())
        for value in node.outputs
        if value.name
    )


def _read_by(node: ir.Node) -> Iterator[str]:
    bodies = (body for graph in subgraphs_of(node) for body in graph.all_nodes())
    for reader in (node, *bodies):
        yield from (value.name for value in reader.inputs if value is not None and value.name)


def tensor_bytes(
    path: Path, places: Sequence[TensorPlace], feeds: Mapping[str, Array], settings: SessionSettings
) -> dict[str, int]:
    """Tensor -> the bytes of its values for these feeds: by shape inference, and by a run for what that cannot tell."""
    counts = _inferred_counts(path, feeds)
    unknown = [place.name for place in places if place.name not in counts and place.type]
    if unknown:
        counts |= count_elements(path, unknown, feeds, replace(settings, optimization="disabled"))
    return {place.name: counts.get(place.name, 0) * _element_bytes(place.type) for place in places}


def _inferred_counts(path: Path, feeds: Mapping[str, Array]) -> dict[str, int]:
    model = load_model(path)
    for value in model.graph.inputs:
        fed = feeds.get(value.name or "")
        if fed is not None:
            value.shape = ir.Shape(fed.shape)
    made = [value for node in model.graph for value in node.outputs]
    for value in made:  # what the model says holds for all sizes, and would be kept
        value.shape = None
    infer_shapes(model)
    return {value.name: prod(sizes) for value in made if value.name and (sizes := _sizes(value.shape)) is not None}


def _sizes(shape: ir.Shape | None) -> tuple[int, ...] | None:
    dims = None if shape is None else tuple(shape)
    return None if dims is None or not all(isinstance(dim, int) for dim in dims) else dims  # type: ignore[return-value]


def _element_bytes(type_: str) -> int:
    element = element_of(type_)
    if element == "string":
        return _TEXT_BYTES
    return -(-ir.DataType[element.upper()].bitwidth // 8) if element else 4


def in_parts(sizes: Mapping[str, int], budget: int) -> list[list[str]]:
    """Names in their order, in runs of no more bytes than the budget; one that is larger is alone."""
    parts: list[list[str]] = []
    held = 0
    for name, size in sizes.items():
        if not parts or (parts[-1] and held + size > budget):
            parts.append([])
            held = 0
        parts[-1].append(name)
        held += size
    return parts


def nearest_before(places: Iterable[TensorPlace], chosen: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """Chosen tensor -> the chosen tensors it is computed from, with none of the chosen between."""
    sources: dict[str, frozenset[str]] = {}
    found: dict[str, tuple[str, ...]] = {}
    for place in places:
        behind: frozenset[str] = frozenset().union(*(sources.get(name, frozenset()) for name in place.reads))
        if place.name in chosen:
            found[place.name] = tuple(sorted(behind))
        sources[place.name] = frozenset([place.name]) if place.name in chosen else behind
    return found
