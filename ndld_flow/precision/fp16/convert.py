"""Conversion of a model to fp16 with the fewest Casts: infer types, group, choose, rewrite, save."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.models.element_types import infer_types
from ndld_flow.models.files import check_model, external_files, load_model, save_model, summarize_model
from ndld_flow.models.local_functions import inline_functions
from ndld_flow.models.node_selection import op_name
from ndld_flow.models.op_signatures import is_op
from ndld_flow.models.type_groups import Group, Groups, group_places
from ndld_flow.models.unique_names import UniqueNames
from ndld_flow.precision.fp16.choice import Fp16Options, blocked_nodes, choose_fp32, keep_blocked, keep_shape_arithmetic
from ndld_flow.precision.fp16.constants import Progress
from ndld_flow.precision.fp16.hazards import loss_lines, loss_notes, normalization_notes
from ndld_flow.precision.fp16.rewrite import Rewriter
from ndld_flow.records.model_diff import GraphChange

_MIN_OPSET = 7
"""Earlier opsets define broadcasting and Cast differently, and ONNX Runtime does not load them."""


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
    try:
        return _convert(model, source, target, request, log, progress)
    except (LookupError, TypeError, ValueError, AttributeError):
        check_model(source, full_check=True)
        raise


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
    kept = _kept_nodes(groups, fp32)
    notes += normalization_notes(model, kept)
    choice = {group: ir.DataType.FLOAT16 for group in groups.all if group not in fp32}
    rewriter = Rewriter(model, types, groups, choice, progress)
    rewriter.rewrite()
    save_model(model, target)
    notes += [*_kept_notes(kept), *loss_notes(rewriter.constants.losses)]
    change = GraphChange(
        before=before, after=summarize_model(model), casts_added=rewriter.casts_added, notes=tuple(notes)
    )
    _write_log(log, kept, rewriter, notes)
    names = {node.name or f"{node.op_type} -> {node.outputs[0].name}": why for node, why in kept.items()}
    return Fp16Conversion(change, names, functions, _size(source), _size(target))


def _size(path: Path) -> int:
    """Return the bytes of a model's files."""
    return path.stat().st_size + sum((path.parent / name).stat().st_size for name in external_files(path))


def refuse_broken(result: Path, source: Path, functions_inlined: int, log: logging.Logger) -> None:
    """Check a converted model with the ONNX checker and its strict shape inference.

    If the checker rejects the source as well, that is only logged (`lint` reports details). The checker does not check
    calls of local functions: `ModelError` if inlining them gives an invalid model.
    """
    try:
        check_model(result, full_check=True)
    except ModelError as error:
        try:
            check_model(source, full_check=True)
        except ModelError as source_error:
            log.warning("%s", source_error)
            return
        if functions_inlined:
            raise ModelError(f"{source}: inlining its local functions gives an invalid model: {error}") from None
        raise RuntimeError(f"the converted model is invalid although its source is valid: {error}") from None


def prepare(model: ir.Model, source: Path) -> list[str]:
    """Inline functions, make names unique and sort nodes, so that types can be inferred; return notes on it."""
    notes = []
    opset = model.opset_imports.get("", _MIN_OPSET)
    if opset < _MIN_OPSET:
        raise ModelError(
            f"{source}: opset {opset} is too old to be converted. Convert the model to opset 13 or later first, "
            "with onnx.version_converter or a new export."
        )
    functions = inline_functions(model, source)
    if functions:
        notes.append(f"inlined {functions} local functions")
    renamed = UniqueNames(model).rename_duplicates(model)
    if renamed:
        notes.append(f"renamed {renamed} nodes with duplicate names")
    try:
        model.graph.sort()
    except ValueError:
        raise ModelError(f"{source}: the graph has a cycle, so it cannot be converted.") from None
    return notes


def _kept_nodes(groups: Groups, fp32: set[Group]) -> dict[ir.Node, str]:
    """Return the nodes whose floats all stay fp32 -> why. Casts do not count: they connect precisions."""
    kept: dict[ir.Node, str] = {}
    for node, members in groups.of_node().items():
        if not is_op(node, "Cast") and all(group in fp32 for group in members):
            kept[node] = next(group.kept for group in members)
    return kept


def _kept_notes(kept: Mapping[ir.Node, str]) -> list[str]:
    """Return a note on the number of fp32 nodes for each reason."""
    return [f"{count} nodes kept in fp32: {reason}" for reason, count in Counter(kept.values()).most_common()]


def _write_log(log: logging.Logger, kept: Mapping[ir.Node, str], rewriter: Rewriter, notes: Sequence[str]) -> None:
    for node, reason in kept.items():
        log.info("kept in fp32: %s %r: %s", op_name(node), node.name, reason)
    for line in loss_lines(rewriter.constants.losses):
        log.info("%s", line)
    for note in notes:
        log.info("%s", note)
    log.info("%d Casts added, %d Casts of the model removed", rewriter.casts_added, rewriter.casts_removed)
