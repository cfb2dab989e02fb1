"""The passes in order, again and again until nothing changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.graph.sanitize.branches import inline_decided_branches
from ndld_flow.graph.sanitize.constants import detach_initializers_from_inputs, lift_constants
from ndld_flow.graph.sanitize.duplicates import share_equal_initializers, share_equal_nodes
from ndld_flow.graph.sanitize.edits import Edits
from ndld_flow.graph.sanitize.folding import fold_constants
from ndld_flow.graph.sanitize.fuse_affine import fuse_affine
from ndld_flow.graph.sanitize.fuse_nodes import fuse_nodes
from ndld_flow.graph.sanitize.naming import make_names_unique
from ndld_flow.graph.sanitize.noops import remove_noops
from ndld_flow.graph.sanitize.options import SanitizeOptions
from ndld_flow.graph.sanitize.reshapes import simplify_reshapes
from ndld_flow.graph.sanitize.shape_values import ShapeValues, fold_shape_values, visited_shape_values
from ndld_flow.graph.sanitize.shapes import Interface, infer_shapes
from ndld_flow.graph.sanitize.unused import remove_unused
from ndld_flow.models.changed_model import check_changed_model
from ndld_flow.models.files import load_model, save_model, summarize_model
from ndld_flow.models.input_shapes import check_shapes, dims_from_shapes, set_shapes_of_inputs
from ndld_flow.models.local_functions import inline_functions
from ndld_flow.models.node_precision import constraints_of
from ndld_flow.records.graph_change import GraphChange

_MOST_PASSES = 20
"""Every rule makes the model smaller, so this is never reached; it only rules out an endless loop."""

_NAMED = 10
"""So many lost constraints are named."""
_FINISH = "finish"
_RETREATS: tuple[frozenset[str], ...] = (
    frozenset(("fuse affine", "fuse nodes")),
    frozenset(("fold shapes", "decide branches", "remove no-ops", "simplify reshapes")),
    frozenset(("all",)),
)
"""What is left out, step by step, when the result is not valid; after the last the model is written as it was."""

Pass = Callable[[Edits], None]


class _PassError(Exception):
    """A pass failed; the model it worked on is lost and is read again."""

    def __init__(self, name: str, cause: Exception) -> None:
        super().__init__(f"{name}: {type(cause).__name__}: {cause}")
        self.name = name


@dataclass(frozen=True)
class _Stage:
    """A pass with the setting that switches it on."""

    name: str
    run: Pass
    wanted: bool


def sanitize_file(
    source: Path, target: Path, options: SanitizeOptions, log: logging.Logger | None = None
) -> GraphChange:
    """Write a smaller model that computes the same; weights on disk stay there.

    A pass that fails is logged and left out; when the result is not valid, passes are left out until it is.
    Raises `ModelError` for a model that cannot be read or is invalid to begin with.
    """
    log = log or logging.getLogger(__name__)
    skipped: set[str] = set()
    while True:
        model = load_model(source)
        check_shapes(model, options.input_shapes, "input_shapes")
        before, asked = summarize_model(model), constraints_of(model)
        try:
            edits = _transform(model, options, skipped)
            save_model(model, target)
            check_changed_model(source, target, model)
            break
        except _PassError as error:
            log.warning("pass left out, because it failed: %s", error)
            skipped.add(error.name if error.name != _FINISH else "all")
        except ModelError as error:
            retreat = next((names for names in _RETREATS if not names <= skipped), None)
            if retreat is None:
                raise
            log.warning(
                "the result was not valid, so it is made again without %s: %s", ", ".join(sorted(retreat)), error
            )
            skipped |= retreat
    notes = [f"{what}: {count}" for what, count in sorted(edits.done.items()) if count]
    notes += [f"left out, because it failed: {name}" for name in sorted(skipped)]
    notes += _lost_constraints(asked, constraints_of(model))
    return GraphChange(before=before, after=summarize_model(load_model(target)), notes=tuple(notes))


def _lost_constraints(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Which precision constraints went with their nodes. Fusing and sharing never lose any."""
    lost = [f"{node!r} ({precision})" for node, precision in before.items() if node not in after]
    if not lost:
        return []
    more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
    return [f"{len(lost)} nodes with a precision constraint are gone: {', '.join(lost[:_NAMED])}{more}"]


def _transform(model: ir.Model, options: SanitizeOptions, skipped: set[str]) -> Edits:
    edits = Edits(model, options.fold_size_threshold)
    if "all" in skipped:
        return edits
    interface = Interface(edits)
    _prepare(edits, options, skipped, interface)
    for _ in range(options.passes or _MOST_PASSES):
        before = edits.done.total()
        _run_all(edits, options, skipped, interface)
        if edits.done.total() == before:
            break
    _guarded(_FINISH, partial(_finish, options=options, interface=interface), edits)
    return edits


def _finish(edits: Edits, options: SanitizeOptions, interface: Interface) -> None:
    make_names_unique(edits)
    interface.restore(edits, reshaped=bool(options.input_shapes))
    edits.model.graph.sort()


def _prepare(edits: Edits, options: SanitizeOptions, skipped: set[str], interface: Interface) -> None:
    if options.inline_functions and "inline functions" not in skipped:
        _guarded("inline functions", _inline_functions, edits)
    detach_initializers_from_inputs(edits)
    shapes = options.input_shapes
    set_shapes_of_inputs(edits.model, shapes, dims_from_shapes(edits.model, shapes, {}, "input_shapes"))
    interface.forget_inner_shapes(edits)
    make_names_unique(edits)


def _inline_functions(edits: Edits) -> None:
    edits.done["functions inlined"] += inline_functions(edits.model, "the model")


def _run_all(edits: Edits, options: SanitizeOptions, skipped: set[str], interface: Interface) -> None:
    for stage in _stages(options, interface):
        if stage.wanted and stage.name not in skipped:
            _guarded(stage.name, stage.run, edits)


def _guarded(name: str, run: Pass, edits: Edits) -> None:
    try:
        run(edits)
    except Exception as error:  # whatever goes wrong inside a pass must not lose the model
        raise _PassError(name, error) from error


def _stages(options: SanitizeOptions, interface: Interface) -> tuple[_Stage, ...]:
    fold, simplify = options.fold_constants, options.simplify
    return (
        _Stage("remove unused", remove_unused, options.remove_unused),
        _Stage("lift constants", lift_constants, fold),
        _Stage("infer shapes", partial(infer_shapes, interface=interface), fold or simplify or options.fuse),
        _Stage("fold constants", fold_constants, fold),
        _Stage("fold shapes", _fold_shapes, fold),
        _Stage("decide branches", _decide_branches, simplify),
        _Stage("remove no-ops", _remove_noops, simplify),
        _Stage("simplify reshapes", _simplify_reshapes, simplify),
        _Stage("fuse affine", fuse_affine, options.fuse),
        _Stage("fuse nodes", fuse_nodes, options.fuse),
        _Stage("share nodes", share_equal_nodes, options.deduplicate),
        _Stage("share initializers", share_equal_initializers, options.deduplicate),
        _Stage("remove unused again", remove_unused, options.remove_unused),
    )


def _fold_shapes(edits: Edits) -> None:
    fold_shape_values(edits, ShapeValues(edits))


def _decide_branches(edits: Edits) -> None:
    inline_decided_branches(edits)
    make_names_unique(edits)


def _remove_noops(edits: Edits) -> None:
    remove_noops(edits, visited_shape_values(edits))


def _simplify_reshapes(edits: Edits) -> None:
    simplify_reshapes(edits, visited_shape_values(edits))
