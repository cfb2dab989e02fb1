"""Capture of the tensors inside a model as arrays; its weights stay in place."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, tee
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from ndld_flow.base.errors import UnknownNameError
from ndld_flow.models.element_types import element_of, infer_types, subgraphs_of
from ndld_flow.models.files import load_model, read_proto
from ndld_flow.models.nodes import free_name
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.protocol import Session, SessionRequest

_SIZE_OPSET = 13
"""Opset of a model that imports no version of the default domain."""


def open_inside(path: Path, tensors: Sequence[str], settings: SessionRequest, changed: bytes | None = None) -> Session:
    """Open a model with these tensors of the main graph as its outputs.

    Nodes that they do not need are removed. `changed` is opened instead of the file, as by `open_changed`, which
    raises the same errors.
    """
    proto = read_proto(path) if changed is None else onnx.ModelProto.FromString(changed)
    outputs = {output.name: output for output in proto.graph.output}
    _set_outputs(proto, [outputs.get(name, onnx.ValueInfoProto(name=name)) for name in tensors])
    return settings.open_changed(path, proto.SerializeToString())


def count_elements(
    path: Path, tensors: Sequence[str], feeds: Mapping[str, Array], settings: SessionRequest
) -> dict[str, int]:
    """Run a model once and return how many elements these tensors have.

    No tensor is held longer than it is read.
    """
    proto = read_proto(path)
    taken = {name for node in proto.graph.node for name in node.output}
    counts = {free_name(f"{name}_size", taken): name for name in tensors}
    proto.graph.node.extend(helper.make_node("Size", [name], [count]) for count, name in counts.items())
    _set_outputs(proto, [helper.make_tensor_value_info(count, TensorProto.INT64, []) for count in counts])
    if not any(entry.domain in ("", "ai.onnx") for entry in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid("", _SIZE_OPSET))
    bound = settings.open_changed(path, proto.SerializeToString()).bind(feeds)
    bound.run()
    return {counts[name]: int(size) for name, size in bound.outputs().items() if size is not None}


def _set_outputs(proto: onnx.ModelProto, outputs: Sequence[onnx.ValueInfoProto]) -> None:
    """Replace a model's outputs and remove the nodes that they do not need. Nodes need not be sorted."""
    graph = proto.graph
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    needed: set[int] = set()
    waiting = [output.name for output in outputs]
    while waiting:
        index = makers.get(waiting.pop())
        if index is not None and index not in needed:
            needed.add(index)
            waiting += _read_by(graph.node[index])
    for index in reversed(range(len(graph.node))):
        if index not in needed:
            del graph.node[index]
    kept = list(outputs)
    del graph.output[:]
    graph.output.extend(kept)


def _read_by(node: onnx.NodeProto) -> list[str]:
    """Return the names that a node and the nodes of its bodies read; a body's own values may be among them."""
    read = list(node.input)
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            read += [name for inner in body.node for name in _read_by(inner)]
            read += [output.name for output in body.output]
    return read


_TEXT_BYTES = 64
"""Assumed bytes of a string."""


@dataclass(frozen=True)
class TensorPlace:
    """A tensor and the node that computes it."""

    name: str
    node: str
    """The node's name, which may be empty."""
    op_type: str
    position: int
    """Position of the node in the order of execution, from 0; nodes of a body come after the node that holds it."""
    in_body: bool
    """True if it is inside an If, Loop or Scan: it has no single value and cannot be captured."""
    type: str
    """Type in ONNX's notation: `tensor(float16)`, `seq(tensor(float))`; empty if it is not known."""
    reads: tuple[str, ...]
    """Names of the values that the node and its bodies read."""

    @property
    def can_be_captured(self) -> bool:
        """Return True for a tensor of the main graph; a value of unknown type counts as a tensor."""
        return not self.in_body and (not self.type or self.type.startswith("tensor("))


def tensors_of(path: Path) -> tuple[TensorPlace, ...]:
    """Return every tensor that a node computes, in the order of execution, without those inside local functions.

    Raises `ModelError` if the model cannot be read.
    """
    state = path.stat() if path.is_file() else None
    return _read_places(path, state and (state.st_mtime_ns, state.st_size, state.st_ino))


@lru_cache(maxsize=4)
def _read_places(path: Path, _state: tuple[int, int, int] | None) -> tuple[TensorPlace, ...]:
    """Read the tensors; cached because a comparison reads the same model several times."""
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
            reads=tuple(
                value.name
                for reader in (node, *(inner for body in subgraphs_of(node) for inner in body.all_nodes()))
                for value in reader.inputs
                if value is not None and value.name
            ),
        )
        for position, node in enumerate(model.graph.all_nodes())
        for value in node.outputs
        if value.name
    )


def tensor_bytes(
    path: Path, places: Sequence[TensorPlace], feeds: Mapping[str, Array], settings: SessionRequest
) -> dict[str, int]:
    """Return tensor -> bytes of its values for these feeds, by shape inference, else by a run."""
    counts = _inferred_counts(path, feeds)
    unknown = [place.name for place in places if place.name not in counts and place.type]
    if unknown:
        counts |= count_elements(path, unknown, feeds, settings.unfused())
    return {place.name: counts.get(place.name, 0) * _element_bytes(place.type) for place in places}


def _inferred_counts(path: Path, feeds: Mapping[str, Array]) -> dict[str, int]:
    model = load_model(path)
    for value in model.graph.inputs:
        fed = feeds.get(value.name or "")
        if fed is not None:
            value.shape = ir.Shape(fed.shape)
    computed = [value for node in model.graph for value in node.outputs]
    for value in computed:  # declared shapes are for all sizes, and shape inference would keep them
        value.shape = None
    infer_shapes(model)
    counts = {}
    for value in computed:
        dims = () if value.shape is None else tuple(value.shape)
        if value.name and value.shape is not None and all(isinstance(dim, int) for dim in dims):
            counts[value.name] = prod(dim for dim in dims if isinstance(dim, int))
    return counts


def _element_bytes(type_: str) -> int:
    element = element_of(type_)
    if element == "string":
        return _TEXT_BYTES
    return -(-ir.DataType[element.upper()].bitwidth // 8) if element else 4


def in_parts(sizes: Mapping[str, int], budget: int) -> list[list[str]]:
    """Split names, in their order, into groups within the budget of bytes; a larger tensor is a group of its own."""
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
    """Return chosen tensor -> the chosen tensors it is computed from directly, with no chosen tensor in between."""
    sources: dict[str, frozenset[str]] = {}
    nearest: dict[str, tuple[str, ...]] = {}
    for place in places:
        behind: frozenset[str] = frozenset().union(*(sources.get(name, frozenset()) for name in place.reads))
        if place.name in chosen:
            nearest[place.name] = tuple(sorted(behind))
        sources[place.name] = frozenset([place.name]) if place.name in chosen else behind
    return nearest


BUDGET_BYTES = 2**29
"""Maximum number of bytes of captured arrays held at once; more take several runs."""

Feeds = Mapping[str, Array]


def capture(
    path: Path,
    tensors: Sequence[str],
    samples: Iterable[Feeds],
    settings: SessionRequest,
    scratch: Path,
    budget: int = BUDGET_BYTES,
) -> Iterator[dict[str, Array]]:
    """Run a model on every sample and yield the values of these tensors, one dict per sample.

    If a sample's tensors exceed `budget` bytes, the model runs several times over all samples, and the arrays are
    mapped from files in `scratch`, which are deleted with the next sample. Tensors in bodies and non-tensors are
    skipped. ONNX Runtime reads external data from its original place; other runtimes get a copy. Raises `RequestError`
    for a name that no node of the model computes, `ModelError` and `BackendError` as `SessionRequest.open`.
    """
    places = chosen_places(path, tensors)
    return _captured(path, places, samples, settings, scratch, budget)


def capture_with_inputs(
    path: Path, tensors: Sequence[str], samples: Iterable[Feeds], settings: SessionRequest, scratch: Path
) -> Iterator[dict[str, Array]]:
    """Yield what `capture` yields, with the inputs of each sample."""
    waiting: deque[Feeds] = deque()  # `capture` may read all samples before it yields the first

    def fed() -> Iterator[Feeds]:
        for sample in samples:
            waiting.append(sample)
            yield sample

    for computed in capture(path, tensors, fed(), settings, scratch):
        yield {**waiting.popleft(), **computed}


def capture_in_parts(
    path: Path, tensors: Sequence[str], samples: Iterable[Feeds], settings: SessionRequest, budget: int = BUDGET_BYTES
) -> Iterator[tuple[int, dict[str, Array]]]:
    """Yield the number of a sample, from 1, with the values of its inputs and of these tensors, for statistics.

    If a sample's tensors exceed `budget` bytes, the model runs several times over all samples, each time for a part of
    the tensors. Nothing is stored: 32 samples of a detector had 60 GB of values. Raises as `capture`.
    """
    places = chosen_places(path, tensors)
    waiting = iter(samples)
    first = next(waiting, None)
    if first is None:
        return
    parts = _parts(path, places, first, settings, budget) or [[]]
    every = chain([first], waiting) if len(parts) == 1 else [first, *waiting]
    for index, part in enumerate(parts):
        fed, run = tee(every)
        captured = capture_part(path, part, run, settings) if part else ({} for _ in run)
        for number, (feeds, values) in enumerate(zip(fed, captured, strict=True), start=1):
            yield number, values if index else {**feeds, **values}


def chosen_places(path: Path, tensors: Sequence[str] | None) -> tuple[TensorPlace, ...]:
    """Return the tensors of these names (None: all but constants) that can be captured, in the order of execution.

    Raises `RequestError` for a name that no node of the model computes.
    """
    places = tensors_of(path)
    known = {place.name for place in places}
    for name in tensors or ():
        if name not in known:
            raise UnknownNameError(f'no node of {path} computes a tensor "{name}"', name, known)
    wanted = {place.name for place in places if place.op_type != "Constant"} if tensors is None else set(tensors)
    return tuple(place for place in places if place.name in wanted and place.can_be_captured)


def capture_part(
    path: Path, tensors: Sequence[str], samples: Iterable[Feeds], settings: SessionRequest, changed: bytes | None = None
) -> Iterator[dict[str, Array]]:
    """Yield the values of these tensors, all held at once, one dict per sample; non-tensors are left out.

    `changed` is run instead of the file, as by `open_changed`.
    """
    yield from run_each(open_inside(path, tensors, settings.brief(), changed), samples)


def run_each(session: Session, samples: Iterable[Feeds]) -> Iterator[dict[str, Array]]:
    """Run a model on every sample, and yield those of its outputs that are tensors."""
    for feeds in samples:
        bound = session.bind(feeds)
        bound.run()
        yield {name: array for name, array in bound.outputs().items() if array is not None}


def _captured(
    path: Path,
    places: Sequence[TensorPlace],
    samples: Iterable[Feeds],
    settings: SessionRequest,
    scratch: Path,
    budget: int,
) -> Iterator[dict[str, Array]]:
    waiting = iter(samples)
    first = next(waiting, None)
    if first is None or not places:
        yield from ({} for _ in chain(() if first is None else (first,), waiting))
        return
    parts = _parts(path, places, first, settings, budget)
    if len(parts) == 1:
        yield from capture_part(path, parts[0], chain([first], waiting), settings)
        return
    held = [first, *waiting]
    stored: list[dict[str, _Stored]] = [{} for _ in held]
    for number, part in enumerate(parts):
        for sample, arrays in enumerate(capture_part(path, part, held, settings)):
            for index, (name, array) in enumerate(arrays.items()):
                stored[sample][name] = _Stored(array, scratch / f"captured-{sample}-{number}-{index}")
    for tensors in stored:
        yield {name: stored_array.mapped() for name, stored_array in tensors.items()}
        for stored_array in tensors.values():
            stored_array.path.unlink(missing_ok=True)


def _parts(
    path: Path, places: Sequence[TensorPlace], first: Feeds, settings: SessionRequest, budget: int
) -> list[list[str]]:
    """Return the names of tensors in groups within a budget of bytes, by their sizes in the first sample."""
    # A single tensor is a part of its own whatever its size, which takes as long to infer as to run a small model.
    several = len(places) > 1
    sizes = tensor_bytes(path, places, first, settings.brief()) if several else {each.name: 0 for each in places}
    return in_parts(sizes, budget)


class _Stored:
    """An array in a file; empty arrays and strings stay in memory."""

    def __init__(self, array: Array, path: Path) -> None:
        self.path, self._shape, self._dtype = path, array.shape, array.dtype
        self._held = array if not array.size or array.dtype.kind == "O" else None
        if self._held is None:
            array.tofile(path)

    def mapped(self) -> Array:
        if self._held is not None:
            return self._held
        return np.memmap(self.path, self._dtype, "r", shape=self._shape)
