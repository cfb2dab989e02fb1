"""What is known of a model's tensors before it runs: dtypes, sizes, where their channels are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from ndld_flow.accuracy.activations.choosing import Choice
from ndld_flow.accuracy.activations.layouts import channel_places
from ndld_flow.accuracy.activations.saturation import Bounds, activation_bounds
from ndld_flow.accuracy.inside.capture import TensorPlace, tensors_of
from ndld_flow.models.files import load_model
from ndld_flow.models.input_shapes import put_shapes, real_inputs
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.samples.generated_values import is_float


class ModelView:
    """A model as it is before it runs, its inputs of these shapes."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        model = load_model(path)
        put_shapes(model, shapes, {})
        infer_shapes(model)
        graph = model.graph
        made = [value for node in graph for value in node.outputs if value.name]
        self._values = {value.name or "": value for value in (*graph.inputs, *made)}
        self._channels = channel_places(graph)
        self.inputs = tuple(value.name or "" for value in real_inputs(model))
        self.outputs = tuple(value.name or "" for value in graph.outputs)
        self.places: Mapping[str, TensorPlace] = {place.name: place for place in tensors_of(path)}

    def __contains__(self, name: str) -> bool:
        return name in self.inputs or (name in self.places and not self.places[name].in_body)

    def dtype(self, name: str) -> str:
        """numpy's or ml_dtypes' name; empty where it is not known before the model runs."""
        value = self._values.get(name)
        if value is None or not isinstance(value.type, ir.TensorType):
            return ""
        dtype = value.type.dtype
        known = dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING)
        return str(dtype.numpy().name) if known else dtype.name.lower()

    def channels(self, name: str) -> str:
        """`first`, `last`, `transposed` or nothing; a picture that is fed has its channels first."""
        return self._channels.get(name, "")

    def bounds(self, name: str) -> Bounds:
        """Values at which the activation that makes a tensor ends."""
        value = self._values.get(name)
        return activation_bounds(None if value is None else value.producer())

    def choice(self, beside: ModelView | None) -> Choice:
        """What can be chosen from; `beside` is a model that should have it too."""
        sizes = {name: size for name, value in self._values.items() if (size := _size(value))}
        shared = frozenset(name for name in self.places if beside is None or name in beside)
        return Choice(tuple(self.places.values()), self.inputs, frozenset(self.outputs), self._is_float, sizes, shared)

    def _is_float(self, name: str) -> bool:
        value = self._values.get(name)
        if value is None or value.type is None:
            return True  # behind operators that nobody knows; what is no tensor is not captured
        if not isinstance(value.type, ir.TensorType) or value.dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING):
            return False
        return value.dtype is not None and is_float(value.dtype.numpy())


def _size(value: ir.Value) -> tuple[int, ...] | None:
    dims = () if value.shape is None else tuple(value.shape)[2:]
    numbers = tuple(dim for dim in dims if isinstance(dim, int))
    return numbers if numbers and len(numbers) == len(dims) else None
