"""Hazards of fp16 to a model's values, as far as its weights show them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ndld_flow.models.derived_tensors import Array
from ndld_flow.models.float_tensors import MAX_HALF, MIN_HALF, Loss
from ndld_flow.models.op_signatures import is_op
from ndld_flow.models.type_groups import constant_tensor

_NAMED = 10
"""Weights that the notes name at most; the log has all."""
_USUAL_SHARE = 0.01
_SAFE_DEVIATIONS = 8.0
"""Activations of trained networks often reach this many standard deviations."""


def loss_lines(losses: Sequence[Loss]) -> list[str]:
    """Return a line for each converted weight that lost values, clamped ones first."""
    clamped = [
        f"{loss.name}: {loss.clamped} of {loss.size} values beyond fp16's 65504 were clamped "
        f"(largest {loss.largest:.4g})"
        for loss in losses
        if loss.clamped
    ]
    vanished = [
        f"{loss.name}: {loss.vanished} of {loss.size} values are too small for fp16" for loss in losses if loss.vanished
    ]
    return clamped + vanished


def loss_notes(losses: Sequence[Loss]) -> list[str]:
    """Return notes that summarise the losses."""
    notes = []
    clamped = sorted((loss for loss in losses if loss.clamped), key=lambda loss: -loss.largest)
    if clamped:
        count = sum(loss.clamped for loss in clamped)
        names = _listed([f"{loss.name} (largest {loss.largest:.4g})" for loss in clamped])
        notes.append(f"{count} weight values beyond fp16's 65504 were clamped, in {names}; see `block.values_outside`")
    # A few tiny values in a large weight are common and harmless; the log has them.
    many = (loss for loss in losses if loss.vanished > _USUAL_SHARE * loss.size)
    vanished = sorted(many, key=lambda loss: -loss.vanished / loss.size)
    if vanished:
        count = sum(loss.vanished for loss in vanished)
        names = _listed([f"{loss.name} ({loss.vanished} of {loss.size})" for loss in vanished])
        notes.append(f"{count} weight values are too small for fp16 and became 0 or {MIN_HALF:.1g}, in {names}")
    return notes


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def normalization_notes(model: ir.Model, kept: Collection[ir.Node]) -> list[str]:
    """Return notes on BatchNormalization nodes whose statistics show that fp16 breaks them or their input.

    Call it before the model is rewritten; `kept` are the nodes that stay fp32.
    """
    notes: list[str] = []
    for node in model.graph.all_nodes():
        if is_op(node, "BatchNormalization"):
            notes += _scale_note(node) if node not in kept else []
            notes += _input_note(node, kept)
    return notes


@dataclass(frozen=True)
class ScaleInHalf:
    """The BatchNormalization channel that fp16 changes most."""

    variance: float
    epsilon: float
    half: float
    """variance + epsilon in fp16."""
    factor: float
    """Factor by which the channel is scaled."""


def scale_in_half(node: ir.Node) -> ScaleInHalf | None:
    """Return the effect of fp16 on 1 / sqrt(variance + epsilon); None if it is below 5 % or unknown."""
    variance = _values(node, 4) if is_op(node, "BatchNormalization") else None
    if variance is None:
        return None
    epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
    exact = variance + epsilon
    half = np.minimum(variance, MAX_HALF).astype(np.float16).astype(np.float64) + float(np.float16(epsilon))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt(exact / half)
    worst = int(np.argmax(np.abs(np.nan_to_num(ratio, nan=np.inf) - 1.0)))
    if 0.95 < ratio[worst] < 1.05:
        return None
    return ScaleInHalf(float(variance[worst]), epsilon, float(half[worst]), float(ratio[worst]))


def _scale_note(node: ir.Node) -> list[str]:
    changed = scale_in_half(node)
    if changed is None:
        return []
    return [
        f"BatchNormalization {node.name!r}: variance {changed.variance:.3g} + epsilon {changed.epsilon:.1g} becomes "
        f"{changed.half:.3g} in fp16, which scales a channel by {changed.factor:.3g}; keep the node in "
        "fp32 (`block.nodes` or `block.values_outside`)"
    ]


def _input_note(node: ir.Node, kept: Collection[ir.Node]) -> list[str]:
    """Return a note if the running statistics show that the node's input may exceed fp16."""
    mean, variance = _values(node, 3), _values(node, 4)
    maker = node.inputs[0].producer() if node.inputs[0] is not None else None
    if mean is None or variance is None or maker is None or maker in kept:
        return []
    deviation = np.sqrt(np.maximum(variance, 1e-30))
    room = (MAX_HALF - np.abs(mean)) / deviation
    worst = int(np.argmin(room))
    if room[worst] >= _SAFE_DEVIATIONS:
        return []
    return [
        f"{maker.op_type} {maker.name!r} may overflow fp16: by the statistics of {node.name!r} its output has mean "
        f"{mean[worst]:.4g} and deviation {deviation[worst]:.4g}, so 65504 is {room[worst]:.1f} deviations away; "
        "keep it in fp32 too if large inputs go wrong"
    ]


def _values(node: ir.Node, index: int) -> Array | None:
    """Return a per-channel input in double precision if it is a constant."""
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = constant_tensor(value)
    return None if tensor is None or not tensor.size else tensor.numpy().astype(np.float64).ravel()
