"""Application of a list of operations to a model file, with one model in memory throughout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import onnx_ir as ir

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.graph.diff.diff_models import diff_models
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.finishing import finish_model, settle_model, sort_model
from ndld_flow.graph.edit.stale_shapes import NotedShapes
from ndld_flow.models.changed_model import check_changed_model
from ndld_flow.models.derived_tensors import StreamedTensor
from ndld_flow.models.files import check_model, load_model, save_model, summarize_model
from ndld_flow.records.model_diff import GraphChange


class Applies(Protocol):
    """Interface of an operation."""

    keeps_outputs: ClassVar[bool]

    def apply(self, edited: EditedModel, /) -> str: ...


@dataclass(frozen=True)
class Entry:
    """An operation with its position in the recipe, `operations[3] rename_nodes`."""

    place: str
    operation: Applies


def edit_file(
    edited: EditedModel,
    entries: Sequence[Entry],
    target: Path,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> GraphChange:
    """Apply operations in order to a model that was read from `edited.path`, and write the result to `target`.

    The result is sorted, its shapes are inferred, and the ONNX checker has passed it. Raises a `RequestError` that
    names the operation's place, and `ModelError` when the list leaves a model that is not valid.
    """
    before, noted = summarize_model(edited.model), NotedShapes(edited.model)
    with _telling(str(edited.path)):
        sort_model(edited.model)
    for done, entry in enumerate(entries):
        progress(done, len(entries), entry.place)
        if done:
            noted = settle_model(edited.model, noted)
        with _telling(entry.place):
            edited.forget_names()
            edited.log.info("%s: %s", entry.place, entry.operation.apply(edited))
            sort_model(edited.model)
        noted.outputs_hold = entry.operation.keeps_outputs
    progress(len(entries), len(entries), "checking")
    edited.notes += finish_model(edited.model, noted)
    _forget(edited.bare)
    save_model(edited.model, target)
    _read_back(edited.model, target)
    _check(edited, target)
    # The model in memory still names the weights' old place, so that those which stayed are equal without being read.
    diff = diff_models(load_model(edited.path), edited.model)
    return GraphChange(before=before, after=summarize_model(edited.model), notes=tuple(edited.notes), diff=diff)


def _read_back(model: ir.Model, target: Path) -> None:
    """Replace tensors that were computed during writing by those of the file, so that they are not computed again."""
    held = [(graph, value) for graph in model.graphs() for value in graph.initializers.values()]
    if not any(isinstance(value.const_value, StreamedTensor) for _, value in held):
        return
    written = dict(zip(model.graphs(), load_model(target).graphs(), strict=True))
    for graph, value in held:
        if isinstance(value.const_value, StreamedTensor):
            value.const_value = written[graph].initializers[value.name or ""].const_value


def _forget(bare: Iterable[ir.Value]) -> None:
    for value in bare:
        if not value.is_graph_output():
            value.shape = value.type = None


def open_model(path: Path) -> ir.Model:
    """Load the model to edit. Raises `ModelError` like `load_model`."""
    return load_model(path)


@contextmanager
def _telling(place: str) -> Iterator[None]:
    """Prefix errors with the position of the operation."""
    try:
        yield
    except RequestError as error:
        raise type(error)(f"{place}: {error}") from None


def _check(edited: EditedModel, target: Path) -> None:
    """Raise `ModelError` for an invalid result, with a remark if the source was invalid too."""
    try:
        check_changed_model(edited.path, target, edited.model)
    except ModelError as error:
        reason = str(error).removeprefix(f"{target}: ")
        try:
            check_model(edited.path)
        except ModelError as old:
            reason += f" (It was not valid before the edit either: {str(old).removeprefix(f'{edited.path}: ')})"
        raise ModelError(f"the operations leave a model that is not valid: {reason}") from None
