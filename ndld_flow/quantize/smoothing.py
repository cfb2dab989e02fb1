"""SmoothQuant: channels of activations that are far larger than the others become smaller, and rows of weights larger.

A matrix product X W equals (X / s)(s W) with a factor s for each channel that is summed over. All of X shares one scale
in INT8, so a few large channels leave the others few steps; W has a scale for each column, and can take the difference.
The factors are s = max|X|^alpha / max|W|^(1 - alpha), by channel: equation 4 of Xiao et al., "SmoothQuant: Accurate and
Efficient Post-Training Quantization for Large Language Models", ICML 2023.

The noise of INT8 is estimated as in signal processing, a variance of step^2 / 12 for each rounded value: it chooses
alpha for each activation, and those that gain little stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ndld_flow.accuracy.inside.capture import capture_in_parts
from ndld_flow.models.changed_model import check_changed_model
from ndld_flow.models.element_types import is_op
from ndld_flow.models.files import load_model, save_model, summarize_model
from ndld_flow.models.input_shapes import real_inputs
from ndld_flow.models.nodes import UniqueNames, add_initializer
from ndld_flow.models.streaming_statistics import SliceMoments
from ndld_flow.models.tensors import Array
from ndld_flow.precision.fp16.convert import prepare
from ndld_flow.quantize.calibration import Workspace
from ndld_flow.quantize.weight_tensors import ChannelScaledTensor, channel_pieces
from ndld_flow.records.model_diff import GraphChange
from ndld_flow.runtimes.protocol import SessionRequest

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""The values that are compared if none is given."""
_WORTHWHILE = 0.8
"""Smoothing is kept if at most this share of the estimated noise remains: a product more costs time."""
_LEVELS = 255.0
_WEIGHT_LEVELS = 127.0
_LARGEST_FACTOR = 2.0**16
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclass(frozen=True)
class SmoothedActivation:
    """An activation that several layers read, and what smoothing does to it."""

    name: str
    layers: tuple[str, ...]
    """The MatMul and Gemm nodes that read it."""
    alpha: float
    """0 if it stays as it was."""
    noise_ratio: float
    """Estimated variance of the INT8 error in the layers' outputs, relative to that without smoothing."""


@dataclass(frozen=True)
class Smoothing:
    """The result of smoothing a model."""

    change: GraphChange
    activations: tuple[SmoothedActivation, ...]
    """All that were examined, in the order of execution."""


@dataclass
class _Group:
    """An activation with the layers that read it."""

    value: ir.Value
    layers: list[ir.Node] = field(default_factory=list)
    moments: SliceMoments = field(default_factory=lambda: SliceMoments(-1))


@dataclass(frozen=True)
class _Chosen:
    alpha: float
    factors: Array
    """[channels]: what a channel of the activation is divided by."""
    noise_ratio: float


def smooth_file(
    source: Path,
    target: Path,
    alpha: float | None,
    samples: Iterable[Mapping[str, Array]],
    runtime: SessionRequest,
    workspace: Workspace,
) -> Smoothing:
    """Write `source` to `target` with smoothed inputs of its MatMul and Gemm nodes; it computes the same function.

    `alpha` is that of the formula for all activations; None chooses it for each, and leaves out those that gain little.
    Raises `ModelError` for a model that cannot be read or run.
    """
    model = load_model(source)
    before = summarize_model(model)
    notes = prepare(model, source)
    UniqueNames(model).name_all(model)
    groups = _groups(model)
    _measure(groups, model, samples, runtime, workspace)
    writer, smoothed = _Writer(model), []
    for group in groups:
        chosen = _choose(group, ALPHAS if alpha is None else (alpha,), at_most=_WORTHWHILE if alpha is None else np.inf)
        if chosen.alpha:
            writer.smooth(group, chosen.factors)
        layers = tuple(layer.name or "" for layer in group.layers)
        smoothed.append(SmoothedActivation(group.value.name or "", layers, chosen.alpha, chosen.noise_ratio))
    model.graph.sort()
    save_model(model, target)
    check_changed_model(source, target, workspace.log)
    change = GraphChange(before=before, after=summarize_model(load_model(target)), notes=tuple(notes))
    return Smoothing(change, tuple(smoothed))


def _measure(
    groups: Sequence[_Group],
    model: ir.Model,
    samples: Iterable[Mapping[str, Array]],
    runtime: SessionRequest,
    workspace: Workspace,
) -> None:
    """Run the model on the samples, and add the channels of each activation to its moments."""
    if not groups:
        return
    prepared = workspace.scratch / "prepared.onnx"
    save_model(model, prepared)
    names = [group.value.name or "" for group in groups]
    inputs = {value.name for value in real_inputs(model)}
    inside = [name for name in names if name not in inputs]
    for number, tensors in capture_in_parts(prepared, inside, samples, runtime.unfused()):
        workspace.progress(number, 0, "measuring channels")
        for name, group in zip(names, groups, strict=True):
            if name in tensors:
                group.moments.add(tensors[name])


def _groups(model: ir.Model) -> list[_Group]:
    """Return the activations that layers with a constant matrix read, in the order of execution."""
    groups: dict[ir.Value, _Group] = {}
    for node in model.graph:
        value, weight = (node.inputs[0], node.inputs[1]) if is_op(node, "MatMul", "Gemm") else (None, None)
        if value is None or weight is None or weight.const_value is None or value.const_value is not None:
            continue
        tensor = weight.const_value
        is_fed = weight.is_graph_input() or (is_op(node, "Gemm") and node.attributes.get_int("transA", 0) != 0)
        if is_fed or len(tensor.shape) != 2 or tensor.dtype not in _FLOATS or not tensor.size:
            continue
        groups.setdefault(value, _Group(value)).layers.append(node)
    return list(groups.values())


def _summed_axis(layer: ir.Node) -> int:
    """Return the axis of a layer's weight that is summed over."""
    return 1 if is_op(layer, "Gemm") and layer.attributes.get_int("transB", 0) != 0 else 0


def _weight(layer: ir.Node) -> ir.TensorProtocol:
    assert layer.inputs[1] is not None and layer.inputs[1].const_value is not None
    return layer.inputs[1].const_value


def _choose(group: _Group, alphas: Sequence[float], at_most: float) -> _Chosen:
    """Return the factors with the least estimated noise; an alpha of 0 if more than `at_most` of the noise remains."""
    moments = group.moments
    largest = np.maximum(np.abs(moments.low), np.abs(moments.high))
    magnitudes = [_channel_magnitudes(layer) for layer in group.layers]
    rows = np.max(magnitudes, axis=0)
    is_used = (largest > 0) & (rows > 0)
    unchanged = np.ones_like(largest)
    plain = _noise(group, unchanged)
    found = _Chosen(0.0, unchanged, 1.0)
    for alpha in alphas if is_used.any() and plain > 0 else ():
        factors = np.where(is_used, largest, 1.0) ** alpha / np.where(is_used, rows, 1.0) ** (1 - alpha)
        factors /= np.exp(np.log(factors[is_used]).mean())  # around 1, so that values keep their magnitude
        factors = np.where(is_used, np.clip(factors, 1 / _LARGEST_FACTOR, _LARGEST_FACTOR), 1.0)
        ratio = _noise(group, factors) / plain
        if ratio <= at_most and (not found.alpha or ratio < found.noise_ratio):
            found = _Chosen(alpha, factors, ratio)
    return found


def _channel_magnitudes(layer: ir.Node) -> Array:
    """Return the largest absolute weight of each channel that is summed over. Shape: [channels]."""
    largest = np.zeros(_weight(layer).shape.numpy()[_summed_axis(layer)])
    for first, values in channel_pieces(_weight(layer), _summed_axis(layer)):
        part = slice(first, first + values.shape[1])
        largest[part] = np.maximum(largest[part], np.abs(values).max(axis=(0, 2)))
    return largest


def _noise(group: _Group, factors: Array) -> float:
    """Return the variance of the layers' outputs that rounding to INT8 adds, summed over their columns, times 12.

    A column's output has the variances step_x^2 W^2 and step_w^2 E[x^2], summed over its channels.
    """
    moments = group.moments
    span = max((moments.high / factors).max(), 0.0) - min((moments.low / factors).min(), 0.0)
    energy = float(((moments.variance + moments.mean**2) / factors**2).sum())
    total = 0.0
    for layer in group.layers:
        energies, steps = 0.0, None
        for first, values in channel_pieces(_weight(layer), _summed_axis(layer)):
            part = factors[first : first + values.shape[1]].reshape(1, -1, 1)
            scaled = np.abs(values.astype(np.float64) * part)
            energies += float((scaled**2).sum())
            # A piece has whole columns or whole channels: [columns, channels, 1] or [1, channels, columns].
            columns = scaled.max(axis=1).ravel()
            if _summed_axis(layer):
                steps = np.concatenate([steps, columns]) if steps is not None else columns
            else:
                steps = np.maximum(steps, columns) if steps is not None else columns
        assert steps is not None  # a weight has elements
        total += (span / _LEVELS) ** 2 * energies + energy * float(((steps / _WEIGHT_LEVELS) ** 2).sum())
    return total


@dataclass
class _Writer:
    """Changes activations and weights of a model."""

    model: ir.Model
    names: UniqueNames = field(init=False)

    def __post_init__(self) -> None:
        self.names = UniqueNames(self.model)

    def smooth(self, group: _Group, factors: Array) -> None:
        """Divide an activation by the factors, and multiply the weights of its layers by them."""
        divided = self._fold(group, factors) or self._divide(group, factors)
        done: dict[tuple[ir.Value, int], ir.Value] = {}
        for layer in group.layers:
            weight, axis = layer.inputs[1], _summed_axis(layer)
            assert weight is not None
            if (weight, axis) not in done:
                name = self.names.value(f"{weight.name}_smoothed")
                done[weight, axis] = add_initializer(
                    self.model.graph, ChannelScaledTensor(_weight(layer), factors, axis, name)
                )
            layer.replace_input_with(0, divided)
            layer.replace_input_with(1, done[weight, axis])
            if not weight.uses() and not weight.is_graph_output():
                self.model.graph.initializers.pop(weight.name or "")

    def _fold(self, group: _Group, factors: Array) -> ir.Value | None:
        """Divide the scale and the bias of a LayerNormalization that only the layers read; None for other nodes."""
        value, producer = group.value, group.value.producer()
        only = {node for node, _ in value.uses()} <= set(group.layers) and not value.is_graph_output()
        if producer is None or not is_op(producer, "LayerNormalization") or not only:
            return None
        constants = producer.inputs[1:]
        if any(each is None or each.const_value is None or each.is_graph_input() for each in constants):
            return None
        if any(each is not None and tuple(each.shape or ()) != (len(factors),) for each in constants):
            return None
        for index, each in enumerate(constants, start=1):
            assert each is not None and each.const_value is not None
            name = self.names.value(f"{each.name}_smoothed")
            producer.replace_input_with(
                index, add_initializer(self.model.graph, ChannelScaledTensor(each.const_value, 1 / factors, 0, name))
            )
            if not each.uses():
                self.model.graph.initializers.pop(each.name or "")
        value.name = self.names.value(f"{value.name}_smoothed")  # its values are others now
        return value

    def _divide(self, group: _Group, factors: Array) -> ir.Value:
        """Multiply the activation by the inverse factors in a node of its own."""
        value, dtype = group.value, _weight(group.layers[0]).dtype
        name = self.names.value(f"{value.name}_smoothed")
        inverse = (1 / factors).astype(dtype.numpy())
        constant = add_initializer(self.model.graph, ir.Tensor(inverse, name=self.names.value(f"{name}_factors")))
        node = ir.node("Mul", [value, constant], name=self.names.node(f"smooth_{value.name}"))
        (result,) = node.outputs
        result.name, result.shape, result.type = name, value.shape, ir.TensorType(dtype)
        self.model.graph.insert_before(group.layers[0], node)
        return result
