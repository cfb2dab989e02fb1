"""Conversion of a model to fp16 with the fewest Casts: infer types, find hazards, group, choose, rewrite, save."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import first_of
from ndld_flow.models.changed_model import check_changed_model, examine_model
from ndld_flow.models.element_types import infer_types, is_op
from ndld_flow.models.external_files import model_bytes
from ndld_flow.models.files import blaming_model, load_model, repairs_of, save_model, summarize_model
from ndld_flow.models.lazy_tensors import HALF, Array, Loss
from ndld_flow.models.nodes import UniqueNames, fixed_tensor, inline_functions, op_name
from ndld_flow.models.shape_inference import drop_stale_sizes
from ndld_flow.precision.fp16.choice import Fp16Options, blocked_nodes, choose_fp32, keep_blocked, keep_shape_arithmetic
from ndld_flow.precision.fp16.rewrite import Progress, Rewriter
from ndld_flow.precision.type_groups import group_places
from ndld_flow.records.model_diff import GraphChange

_NAMED = 10
"""Maximum number of weights named in notes; the log has all."""
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
    """Return notes that summarize the losses."""
    notes = []
    clamped = sorted((loss for loss in losses if loss.clamped), key=lambda loss: -loss.largest)
    if clamped:
        count = sum(loss.clamped for loss in clamped)
        names = first_of([f"{loss.name} (largest {loss.largest:.4g})" for loss in clamped], _NAMED)
        notes.append(f"{count} weight values beyond fp16's 65504 were clamped, in {names}; see `block.values_outside`")
    # A few tiny values in a large weight are common and harmless; the log has them.
    many = (loss for loss in losses if loss.vanished > _USUAL_SHARE * loss.size)
    vanished = sorted(many, key=lambda loss: -loss.vanished / loss.size)
    if vanished:
        count = sum(loss.vanished for loss in vanished)
        names = first_of([f"{loss.name} ({loss.vanished} of {loss.size})" for loss in vanished], _NAMED)
        notes.append(f"{count} weight values are too small for fp16 and became 0 or {HALF.smallest:.1g}, in {names}")
    return notes


def normalization_notes(model: ir.Model, kept: Collection[ir.Node]) -> list[str]:
    """Return notes on BatchNormalization nodes whose statistics show that fp16 is too narrow for them or their input.

    Call it before the model is rewritten; `kept` are the nodes that stay fp32.
    """
    notes: list[str] = []
    for node in model.graph.all_nodes():
        if not is_op(node, "BatchNormalization"):
            continue
        changed = scale_in_half(node) if node not in kept else None
        if changed is not None:
            notes.append(
                f"BatchNormalization {node.name!r}: variance {changed.variance:.3g} + epsilon {changed.epsilon:.1g} "
                f"becomes {changed.half:.3g} in fp16, which scales a channel by {changed.factor:.3g}; keep the node in "
                "fp32 (`block.nodes` or `block.values_outside`)"
            )
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
    half = np.minimum(variance, HALF.largest).astype(np.float16).astype(np.float64) + float(np.float16(epsilon))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt(exact / half)
    worst = int(np.argmax(np.abs(np.nan_to_num(ratio, nan=np.inf) - 1.0)))
    if 0.95 < ratio[worst] < 1.05:
        return None
    return ScaleInHalf(float(variance[worst]), epsilon, float(half[worst]), float(ratio[worst]))


def _input_note(node: ir.Node, kept: Collection[ir.Node]) -> list[str]:
    """Return a note if the running statistics show that the node's input may exceed fp16."""
    mean, variance = _values(node, 3), _values(node, 4)
    maker = node.inputs[0].producer() if node.inputs[0] is not None else None
    if mean is None or variance is None or maker is None or maker in kept:
        return []
    deviation = np.sqrt(np.maximum(variance, 1e-30))
    room = (HALF.largest - np.abs(mean)) / deviation
    worst = int(np.argmin(room))
    if room[worst] >= _SAFE_DEVIATIONS:
        return []
    return [
        f"{maker.op_type} {maker.name!r} may overflow fp16: by the statistics of {node.name!r} its output has mean "
        f"{mean[worst]:.4g} and standard deviation {deviation[worst]:.4g}, so 65504 is {room[worst]:.1f} standard "
        "deviations away; keep it in fp32 too if large inputs give wrong results"
    ]


def _values(node: ir.Node, index: int) -> Array | None:
    """Return a per-channel input in float64 if it is a constant."""
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = fixed_tensor(value)
    return None if tensor is None or not tensor.size else tensor.numpy().astype(np.float64).ravel()


MIN_OPSET = 7
"""Earlier opsets define broadcasting and Cast differently."""


@dataclass(frozen=True)
class Fp16Conversion:
    """The result of a conversion."""

    change: GraphChange
    kept: Mapping[str, str]
    """Node that stayed fp32 -> why."""
    functions_inlined: int
    size_before: int
    """Bytes on disk, external data included."""
    size_after: int


def convert_to_fp16(
    source: Path, target: Path, request: Fp16Options, log: logging.Logger, progress: Progress
) -> Fp16Conversion:
    """Write `source` in fp16 to `target`, weight by weight, so that memory does not grow with the model.

    Raises `ModelError` for a model that cannot be read or converted and `RequestError` for an invalid selector.
    """
    model = load_model(source)
    with blaming_model(source):
        return _convert(model, source, target, request, log, progress)


def _convert(
    model: ir.Model, source: Path, target: Path, request: Fp16Options, log: logging.Logger, progress: Progress
) -> Fp16Conversion:
    before = summarize_model(model)
    functions = len(model.functions)
    notes = prepare(model, source)
    types = infer_types(model)
    groups = group_places(model, types, request.keep_io)
    keep_blocked(groups, blocked_nodes(model, request, notes))
    keep_shape_arithmetic(model, groups)
    fp32 = choose_fp32(groups)
    kept = {  # Casts do not count: they connect precisions
        node: members[0].kept
        for node, members in groups.of_node().items()
        if not is_op(node, "Cast") and all(group in fp32 for group in members)
    }
    notes += normalization_notes(model, kept)
    choice = {group: ir.DataType.FLOAT16 for group in groups.all if group not in fp32}
    rewriter = Rewriter(model, types, groups, choice, progress)
    rewriter.rewrite()
    save_model(model, target)
    reasons = Counter(kept.values()).most_common()
    notes += [f"{counted(count, 'node')} kept in fp32: {reason}" for reason, count in reasons]
    notes += loss_notes(rewriter.constants.losses)
    change = GraphChange(
        before=before, after=summarize_model(model), casts_added=rewriter.casts_added, notes=tuple(notes)
    )
    _write_log(log, kept, rewriter, notes)
    names = {node.name or f"{node.op_type} -> {node.outputs[0].name}": why for node, why in kept.items()}
    return Fp16Conversion(change, names, functions, model_bytes(source), model_bytes(target))


def refuse_broken(result: Path, source: Path, functions_inlined: int, log: logging.Logger) -> None:
    """Raise an error if a converted model has a defect that its source does not have.

    The checker does not check calls of local functions: `ModelError` if inlining them gives an invalid model.
    `RuntimeError`, a bug, if the checker accepts the source and not the result; `ModelError` if the source has defects
    too, or if only ONNX Runtime refuses the result.
    """
    try:
        check_changed_model(source, result, log, new_types=True)
    except ModelError as error:
        if functions_inlined:
            raise ModelError(f"{source}: inlining its local functions gives an invalid model: {error}") from None
        if examine_model(source).is_clean and not examine_model(result).is_clean:
            raise RuntimeError(f"the converted model is invalid although its source is valid: {error}") from None
        raise ModelError(f"{source}: its conversion is not valid: {error}") from None


def prepare(model: ir.Model, source: Path) -> list[str]:
    """Tidy a model into which Casts are inserted. Raises as `tidy` and `refuse_old` do."""
    refuse_old(model, source)
    return tidy(model, source)


def refuse_old(model: ir.Model, source: Path) -> None:
    """Raise `ModelError` for an opset that is too old for Casts and new constants."""
    opset = model.opset_imports.get("", MIN_OPSET)
    if opset < MIN_OPSET:
        raise ModelError(
            f"{source}: opset {opset} is too old for Casts and new constants. Convert it first with `edit` and "
            f"`set_opset: {{to: {MIN_OPSET}}}`, or export it anew."
        )


def tidy(model: ir.Model, source: Path) -> list[str]:
    """Inline functions, make names unique, sort nodes and drop stale sizes; return notes on it."""
    notes = repairs_of(model)
    functions = inline_functions(model, source)
    if functions:
        notes.append(f"inlined {functions} local functions")
    renamed = UniqueNames(model).rename_duplicates(model)
    if renamed:
        notes.append(f"renamed {counted(renamed, 'node')} with duplicate names")
    try:
        model.graph.sort()
    except ValueError:
        raise ModelError(f"{source}: the graph has a cycle, so it cannot be converted.") from None
    drop_stale_sizes(model)
    return notes


def _write_log(log: logging.Logger, kept: Mapping[ir.Node, str], rewriter: Rewriter, notes: Sequence[str]) -> None:
    for node, reason in kept.items():
        log.info("kept in fp32: %s %r: %s", op_name(node), node.name, reason)
    for line in loss_lines(rewriter.constants.losses):
        log.info("%s", line)
    for note in notes:
        log.info("%s", note)
    log.info("%d Casts added, %d Casts of the model removed", rewriter.casts_added, rewriter.casts_removed)
