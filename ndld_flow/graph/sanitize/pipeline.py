"""The passes in order, repeated until nothing changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import first_of
from ndld_flow.graph.sanitize.edits import (
    Edits,
    detach_initializers_from_inputs,
    lift_constants,
    make_names_unique,
    remove_unused,
    share_equal_initializers,
    share_equal_nodes,
)
from ndld_flow.graph.sanitize.folding import fold_constants, left_unfolded
from ndld_flow.graph.sanitize.fusion import fuse_affine, fuse_nodes
from ndld_flow.graph.sanitize.settings import SanitizeSettings
from ndld_flow.graph.sanitize.shapes import Interface, fold_shape_values, infer_shapes
from ndld_flow.graph.sanitize.simplify import inline_decided_branches, remove_noops, simplify_reshapes
from ndld_flow.models.changed_model import check_changed_model
from ndld_flow.models.files import load_model, repairs_of, save_model, summarize_model
from ndld_flow.models.input_shapes import check_shapes, dims_from_shapes, set_shapes_of_inputs
from ndld_flow.models.nodes import constraints_of, inline_functions
from ndld_flow.records.model_diff import GraphChange

_MOST_PASSES = 20
"""Limit against endless loops, never reached in practice: every rule makes the model smaller."""

_NAMED = 10
"""Maximum number of lost constraints that are named."""
_FINISH = "finish"
_EXCLUSIONS: tuple[frozenset[str], ...] = (
    frozenset(("fuse affine", "fuse nodes")),
    frozenset(("fold shapes", "decide branches", "remove no-ops", "simplify reshapes")),
    frozenset(("all",)),
)
"""Passes to exclude, step by step, while the result is invalid; after the last, the model is written unchanged."""

Pass = Callable[[Edits], None]


class _PassError(Exception):
    """A pass failed; its model is lost and must be read again."""

    def __init__(self, name: str, cause: Exception) -> None:
        super().__init__(f"{name}: {type(cause).__name__}: {cause}")
        self.name = name


@dataclass(frozen=True)
class _Stage:
    """A pass with the setting that enables it."""

    name: str
    run: Pass
    wanted: bool


def sanitize_file(
    source: Path, target: Path, settings: SanitizeSettings, log: logging.Logger | None = None
) -> GraphChange:
    """Write a simplified model with the same results; weights on disk stay there.

    A pass that fails is logged and excluded; if the result is invalid, passes are excluded until it is valid. Raises
    `ModelError` for a model that cannot be read.
    """
    log = log or logging.getLogger(__name__)
    skipped: set[str] = set()
    while True:
        model = load_model(source)
        check_shapes(model, settings.input_shapes, "input_shapes")
        before, constraints_before = summarize_model(model), constraints_of(model)
        try:
            edits = _transform(model, settings, skipped)
            save_model(model, target)
            check_changed_model(source, target, log, model)
            break
        except _PassError as error:
            log.warning("pass excluded because it failed: %s", error)
            skipped.add(error.name if error.name != _FINISH else "all")
        except ModelError as error:
            excluded = next((names for names in _EXCLUSIONS if not names <= skipped), None)
            if excluded is None:
                raise
            log.warning("the result was invalid, so it is rebuilt without %s: %s", ", ".join(sorted(excluded)), error)
            skipped |= excluded
    notes = repairs_of(model)
    notes += [f"{what}: {count}" for what, count in sorted(edits.done.items()) if count]
    notes += left_unfolded(edits)
    notes += [f"excluded because it failed: {name}" for name in sorted(skipped)]
    constraints = constraints_of(model)
    # Fusing and merging never lose any.
    lost = [f"{node!r} ({precision})" for node, precision in constraints_before.items() if node not in constraints]
    if lost:
        notes.append(f"removed {counted(len(lost), 'node')} with a precision constraint: {first_of(lost, _NAMED)}")
    return GraphChange(before=before, after=summarize_model(load_model(target)), notes=tuple(notes))


def _transform(model: ir.Model, settings: SanitizeSettings, skipped: set[str]) -> Edits:
    edits = Edits(model, settings.fold_size_threshold)
    if "all" in skipped:
        return edits
    interface = Interface(edits)
    if settings.inline_functions and "inline functions" not in skipped:
        _run_pass("inline functions", _inline_functions, edits)
    detach_initializers_from_inputs(edits)
    shapes = settings.input_shapes
    set_shapes_of_inputs(model, shapes, dims_from_shapes(model, shapes, {}, "input_shapes"))
    interface.forget_inner_shapes(edits)
    make_names_unique(edits)
    for _ in range(_MOST_PASSES if settings.passes == "auto" else settings.passes):
        before = edits.done.total()
        for stage in _stages(settings, interface):
            if stage.wanted and stage.name not in skipped:
                _run_pass(stage.name, stage.run, edits)
        if edits.done.total() == before:
            break
    _run_pass(_FINISH, partial(_finish, settings=settings, interface=interface), edits)
    return edits


def _finish(edits: Edits, settings: SanitizeSettings, interface: Interface) -> None:
    make_names_unique(edits)
    interface.restore(edits, reshaped=bool(settings.input_shapes))
    edits.model.graph.sort()


def _inline_functions(edits: Edits) -> None:
    edits.done["functions inlined"] += inline_functions(edits.model, "the model")


def _run_pass(name: str, run: Pass, edits: Edits) -> None:
    try:
        run(edits)
    except Exception as error:  # no failure inside a pass may lose the model
        raise _PassError(name, error) from error


def _stages(settings: SanitizeSettings, interface: Interface) -> tuple[_Stage, ...]:
    fold, simplify = settings.fold_constants, settings.simplify
    return (
        _Stage("remove unused", remove_unused, settings.remove_unused),
        _Stage("lift constants", lift_constants, fold),
        _Stage("infer shapes", partial(infer_shapes, interface=interface), fold or simplify or settings.fuse),
        _Stage("fold constants", fold_constants, fold),
        _Stage("fold shapes", fold_shape_values, fold),
        _Stage("decide branches", inline_decided_branches, simplify),
        _Stage("remove no-ops", remove_noops, simplify),
        _Stage("simplify reshapes", simplify_reshapes, simplify),
        _Stage("fuse affine", fuse_affine, settings.fuse),
        _Stage("fuse nodes", fuse_nodes, settings.fuse),
        _Stage("share nodes", share_equal_nodes, settings.deduplicate),
        _Stage("share initializers", share_equal_initializers, settings.deduplicate),
        _Stage("remove unused again", remove_unused, settings.remove_unused),
    )
