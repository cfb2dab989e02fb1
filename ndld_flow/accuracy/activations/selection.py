"""Selection of the tensors of a model to capture, and their properties before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import onnx_ir as ir

from ndld_flow.accuracy.activations.tensor_meter import Bounds, activation_bounds, channel_places
from ndld_flow.accuracy.inside.capture import TensorPlace, tensors_of
from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.base.name_patterns import is_plain, name_matcher
from ndld_flow.models.files import load_model
from ndld_flow.models.input_shapes import real_inputs, set_shapes_of_inputs
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.samples.generated_values import is_float

MOST_BY_DEFAULT = 32
_HEAVY = {
    "Attention",
    "BatchNormalization",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "Einsum",
    "Gemm",
    "GRU",
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "LSTM",
    "MatMul",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
    "RMSNormalization",
    "RNN",
    "SkipLayerNormalization",
}
"""Operators that compute layers: their outputs represent a layer."""


@dataclass(frozen=True)
class TensorSelection:
    """Tensors as a recipe selects them. Without any setting, tensors are selected over the whole model."""

    patterns: Sequence[str] = ()
    """Names of tensors, nodes or inputs: literal, as globs, or as `/.../` for a regular expression of RE2."""
    op_types: Sequence[str] = ()
    every: int = 0
    """Select every N-th float tensor; 0 selects none."""

    @property
    def is_empty(self) -> bool:
        return not (self.patterns or self.op_types or self.every)


def choose(view: ModelView, selection: TensorSelection, reference: ModelView | None = None) -> list[str]:
    """Return the names of the selected tensors, inputs first, then in the order of execution.

    Tensors that `reference` has too are preferred if nothing is selected. Raises `RequestError` for a pattern or
    operator that matches nothing, with the nearest name.
    """
    if selection.is_empty:
        return [*filter(view.is_float, view.inputs), *_spread(view, reference)]
    chosen = {place.name for place in view.floats[selection.every - 1 :: selection.every]} if selection.every else set()
    for pattern in selection.patterns:
        chosen |= _matching(view, pattern)
    for op_type in selection.op_types:
        names = {place.name for place in view.places.values() if place.op_type == op_type and not place.in_body}
        if not names:
            known = [place.op_type for place in view.places.values()]
            raise UnknownNameError(f'op_types: the model has no node of type "{op_type}"', op_type, known)
        chosen |= names
    return [name for name in (*view.inputs, *(place.name for place in view.places.values())) if name in chosen]


def _matching(view: ModelView, pattern: str) -> set[str]:
    matches = name_matcher(pattern)
    matching = [place for place in view.places.values() if matches(place.name) or (place.node and matches(place.node))]
    # Constants are selected only by their literal name: half of the tensors that a glob matches may be weights.
    computed = matching if is_plain(pattern) else [place for place in matching if place.op_type != "Constant"]
    chosen = {place.name for place in computed if not place.in_body} | set(filter(matches, view.inputs))
    if chosen:
        return chosen
    if matching:
        why = (
            "only constants"
            if not computed
            else "only tensors inside bodies of If, Loop or Scan, which have no single value"
        )
        raise RequestError(
            f'tensors: "{pattern}" matches {why} ({matching[0].name}). Name an output of a node that reads it.'
        )
    names = [name for place in view.places.values() for name in (place.name, place.node) if name]
    raise UnknownNameError(f'tensors: the model has no tensor and no node "{pattern}"', pattern, [*view.inputs, *names])


def _spread(view: ModelView, reference: ModelView | None) -> list[str]:
    """Return outputs, the last layer before each change of resolution, and evenly spaced layers in between.

    Tensors with one number per channel, such as the gates of squeeze and excitation, are skipped: they give no image.
    """
    sizes = view.sizes
    floats = [place for place in view.floats if reference is None or place.name in reference] or view.floats
    floats = [place for place in floats if set(sizes.get(place.name, ())) != {1}] or floats
    layers = [place.name for place in floats if place.op_type in _HEAVY] or [place.name for place in floats]
    outputs = [place.name for place in view.places.values() if place.name in view.outputs]
    room = max(MOST_BY_DEFAULT - len(outputs), 0)
    known = ((name, sizes.get(name), sizes.get(behind)) for name, behind in pairwise(layers))
    ends = [name for name, before, after in known if before is not None and after is not None and before != after]
    kept = {*outputs, *_evenly(ends, room)}
    kept |= set(_evenly([name for name in layers if name not in kept], MOST_BY_DEFAULT - len(kept)))
    return [place.name for place in view.places.values() if place.name in kept]


def _evenly(names: Sequence[str], count: int) -> list[str]:
    if len(names) <= count:
        return list(names)
    return [names[(2 * i + 1) * len(names) // (2 * count)] for i in range(count)]


class ModelView:
    """A model with inputs of given shapes, before it runs."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        model = load_model(path)
        set_shapes_of_inputs(model, shapes, {})
        infer_shapes(model)
        graph = model.graph
        computed = [value for node in graph for value in node.outputs if value.name]
        self._values = {value.name or "": value for value in (*graph.inputs, *computed)}
        self._channels = channel_places(graph)
        self.inputs = tuple(value.name or "" for value in real_inputs(model))
        self.outputs = tuple(value.name or "" for value in graph.outputs)
        self.places: Mapping[str, TensorPlace] = {place.name: place for place in tensors_of(path)}

    def __contains__(self, name: str) -> bool:
        return name in self.inputs or (name in self.places and not self.places[name].in_body)

    def dtype(self, name: str) -> str:
        """Return the name in numpy or ml_dtypes; empty if it is not known before the model runs."""
        value = self._values.get(name)
        if value is None or not isinstance(value.type, ir.TensorType):
            return ""
        dtype = value.type.dtype
        known = dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING)
        return str(dtype.numpy().name) if known else dtype.name.lower()

    def channels(self, name: str) -> str:
        """Return the place of a tensor's channels: `first`, `last`, `transposed` or empty."""
        return self._channels.get(name, "")

    def bounds(self, name: str) -> Bounds:
        """Return the values at which the activation function that computes a tensor saturates."""
        value = self._values.get(name)
        return activation_bounds(None if value is None else value.producer())

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Return tensor -> height and width, or its other dimensions after the channels, if known."""
        return {name: size for name, value in self._values.items() if (size := _size(value))}

    @property
    def floats(self) -> list[TensorPlace]:
        """Return the float tensors computed by nodes of the main graph, except constants."""
        computed = (place for place in self.places.values() if not place.in_body and place.op_type != "Constant")
        return [place for place in computed if self.is_float(place.name)]

    def is_float(self, name: str) -> bool:
        """Return whether a tensor is float, or may be."""
        value = self._values.get(name)
        if value is None or value.type is None:
            return True  # unknown after unknown operators; non-tensors are never captured
        if not isinstance(value.type, ir.TensorType) or value.dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING):
            return False
        return value.dtype is not None and is_float(value.dtype.numpy())


def _size(value: ir.Value) -> tuple[int, ...] | None:
    dims = () if value.shape is None else tuple(value.shape)[2:]
    numbers = tuple(dim for dim in dims if isinstance(dim, int))
    return numbers if numbers and len(numbers) == len(dims) else None
