"""Application of a list of operations to a model file, with one model in memory throughout.

After each operation the recorded shapes that it may have invalidated are removed. A record stays valid while the
tensor's producer, its attributes, and everything before it are unchanged; records that the operation itself made are
valid too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from graphlib import CycleError
from pathlib import Path
from typing import ClassVar, Protocol

import onnx_ir as ir

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.graph.diff.diff_models import diff_models
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.functions import callees_first
from ndld_flow.graph.edit.operations.model import SetOpset
from ndld_flow.models.changed_model import check_changed_model
from ndld_flow.models.files import OLDEST_OPSET, all_graphs, load_model, repairs_of, save_model, summarize_model
from ndld_flow.models.foreign_shapes import can_infer
from ndld_flow.models.input_shapes import drop_all_invented_names
from ndld_flow.models.lazy_tensors import StreamedTensor
from ndld_flow.models.nodes import own_subgraphs, values_of
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.records.model_diff import GraphChange

Dim = int | ir.SymbolicDim | None


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

    The result is sorted, its shapes are inferred, and it has no defect that the source does not have. After a failed
    assertion, the rest is left out and `edited.failures` has the reason. Raises a `RequestError` that names the
    operation's place, and `ModelError` if the list leaves a model that is not valid.
    """
    before, recorded = summarize_model(edited.model), RecordedShapes(edited.model)
    edited.notes += repairs_of(edited.model)
    with _locating(str(edited.path)):
        sort_model(edited.model)
    for done, entry in enumerate(entries):
        progress(done, len(entries), entry.place)
        if done:
            recorded = settle_model(edited.model, recorded)
        with _locating(entry.place):
            edited.forget_names()
            edited.log.info("%s: %s", entry.place, entry.operation.apply(edited))
            sort_model(edited.model)
        recorded.outputs_hold = entry.operation.keeps_outputs
        if edited.failures:
            edited.failures[:] = [f"{entry.place}: {'; '.join(edited.failures)}"]
            break
    progress(len(entries), len(entries), "checking")
    edited.notes += finish_model(edited.model, recorded)
    for value in edited.bare:
        if not value.is_graph_output():
            value.shape = value.type = None
    save_model(edited.model, target)
    _read_back(edited.model, target)
    # It must have no defect that its source does not have.
    try:
        check_changed_model(edited.path, target, edited.log, edited.model, new_types=True)
    except ModelError as error:
        reason = str(error).removeprefix(f"{target}: ")
        raise ModelError(f"the operations leave a model that is not valid: {reason}") from None
    # The model in memory still refers to the old data files, so that unchanged weights compare equal without reading.
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


@contextmanager
def _locating(place: str) -> Iterator[None]:
    """Add the position of the operation to errors."""
    try:
        yield
    except RequestError as error:
        raise error.with_text(f"{place}: {error}") from None


def settle_model(model: ir.Model, recorded: RecordedShapes) -> RecordedShapes:
    """Remove invalid shapes before the next operation; returns the shapes that remain.

    The model must be sorted.
    """
    touched = recorded.touched(model)
    if not touched:
        return recorded
    _infer_again(model, recorded, touched)
    return RecordedShapes(model)


def finish_model(model: ir.Model, recorded: RecordedShapes) -> list[str]:
    """Sort the model, remove shapes that may be invalid, and infer them again. Returns notes for the record.

    Raises `ModelError` if nodes depend on each other in a cycle, and if a model with nodes has no output left.
    """
    sort_model(model)
    if len(model.graph) and not model.graph.outputs:
        raise ModelError("the operations leave a model without outputs: add some with `add_outputs`")
    return _infer_again(model, recorded, recorded.touched(model))


def sort_model(model: ir.Model) -> None:
    """Put nodes after the producers of their inputs. Raises `ModelError` if they depend on each other in a cycle.

    Sorted graphs are unchanged.
    """
    try:
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            if not _is_sorted(graph, set()):
                graph.sort()
    except ValueError:
        raise ModelError("the result would have nodes that depend on each other in a cycle") from None


def _is_sorted(graph: ir.Graph, before: set[ir.Node]) -> bool:
    for node in graph:
        if not all(value is None or _is_available(value, before) for value in node.inputs):
            return False
        if not all(_is_sorted(body, before) for _, body in own_subgraphs(node)):
            return False
        before.add(node)
    return all(_is_available(value, before) for value in graph.outputs)


def _is_available(value: ir.Value, before: set[ir.Node]) -> bool:
    producer = value.producer()
    return producer is None or producer in before


def _infer_again(model: ir.Model, recorded: RecordedShapes, touched: set[ir.Value]) -> list[str]:
    # Names of declared dimensions always hold, numbers only where the operation leaves the outputs unchanged.
    declared = {
        value: [dim if recorded.outputs_hold or not isinstance(dim, int) else None for dim in value.shape]
        for value in model.graph.outputs
        if value.shape is not None
    }
    stale = recorded.remove_stale(touched, model)
    infer_shapes(model)
    drop_all_invented_names(model)
    notes: list[str] = []
    for value, dims in declared.items():
        if value not in stale:
            continue
        if value.shape is None:  # ONNX requires one
            value.shape = ir.Shape(dims)
            if None in dims:
                notes.append(f"output {value.name}: its shape could not be inferred; it is unknown")
        elif len(value.shape) == len(dims):
            inferred = [dim if isinstance(dim, int) or dim.value is not None else None for dim in value.shape]
            value.shape = ir.Shape([old if new is None else new for new, old in zip(inferred, dims, strict=True)])
    return notes


class RecordedShapes:
    """Shapes and types that were recorded before an operation."""

    outputs_hold = False
    """True if the operation guarantees unchanged outputs of the model."""

    def __init__(self, model: ir.Model) -> None:
        values = (value for graph in all_graphs(model) for value in values_of(graph))
        self._records = {value: (value.shape, value.type, _origin(value)) for value in values}
        homes: tuple[ir.Model | ir.Function, ...] = (model, *model.functions.values())
        self._opsets = {home: dict(home.opset_imports) for home in homes}
        self._functions = {key: _signature(function) for key, function in model.functions.items()}
        nodes = (node for graph in all_graphs(model) for node in graph)
        self._owners = {value: node for node in nodes for _, body in own_subgraphs(node) for value in body.inputs}
        """Input of a subgraph -> the node that provides it."""
        # Origins are ids: nothing new may get the id of an old object.
        self._kept: list[object] = [value.const_value for value in self._records if value.producer() is None]
        computing = {node for value in self._records if (node := value.producer()) is not None}
        self._kept += [(node, [attribute.value for attribute in node.attributes.data.values()]) for node in computing]
        self._kept_of_functions = [list(function.attributes.values()) for function in model.functions.values()]

    def touched(self, model: ir.Model) -> set[ir.Value]:
        """Return tensors that are new or may have changed. The model must be sorted."""
        tracing = _Tracing(self)
        try:
            functions: Iterable[ir.Function] = callees_first(model.functions)
        except CycleError:  # recursive ones, which no valid model has
            functions = model.functions.values()
        for function in functions:
            tracing.walk(function)
        tracing.walk(model)
        return tracing.touched

    def differs(self, value: ir.Value) -> bool:
        """Return whether a tensor is new, or its recorded shape or its computation has changed."""
        return self._records.get(value) != (value.shape, value.type, _origin(value))

    def opsets_differ(self, home: ir.Model | ir.Function) -> bool:
        """Return whether its operators may have another meaning now."""
        return self._opsets.get(home) != home.opset_imports

    def signature_differs(self, function: ir.Function) -> bool:
        """Return whether it has other outputs, or attributes with other defaults."""
        return self._functions.get(function.identifier()) != _signature(function)

    def remove_stale(self, touched: Iterable[ir.Value], model: ir.Model) -> set[ir.Value]:
        """Remove shapes and types that may be invalid; returns those tensors.

        Graph outputs and inputs of subgraphs keep their type, which ONNX requires.
        """
        stale = set[ir.Value]()
        for value in touched:
            record, producer = self._records.get(value), value.producer() or self._owners.get(value)
            if record is None or producer is None or record[0] is not value.shape:
                continue  # the operation has set the shape
            if not can_infer(producer) and producer.op_identifier() not in model.functions:
                continue
            stale.add(value)
            value.shape = None
            if value.producer() is not None and not value.is_graph_output():
                value.type = None
        return stale


class _Tracing:
    """Tensors that an operation affects, found by following tensors from producers to readers."""

    def __init__(self, recorded: RecordedShapes) -> None:
        self.touched: set[ir.Value] = set()
        self._recorded = recorded
        self._functions: set[ir.OperatorIdentifier] = set()
        """Functions whose outputs may have changed."""
        self._whole = False

    def walk(self, home: ir.Model | ir.Function) -> None:
        """Visit the model or a function; functions that it calls must have been visited."""
        self._whole = self._recorded.opsets_differ(home)
        self._enter(home.graph)
        if isinstance(home, ir.Function):
            others = self._whole or self._recorded.signature_differs(home)
            if others or not self.touched.isdisjoint(home.outputs):
                self._functions.add(home.identifier())

    def _enter(self, graph: ir.Graph) -> None:
        given = (*graph.inputs, *graph.initializers.values())
        self.touched.update(value for value in given if self._recorded.differs(value))
        for node in graph:
            if self._is_touched(node):
                self.touched.update(node.outputs)

    def _is_touched(self, node: ir.Node) -> bool:
        reads = any(value in self.touched for value in node.inputs)
        bodies = [body for _, body in own_subgraphs(node)]
        for body in bodies:
            if reads:
                # a Loop's counter and condition do not depend on the node's inputs
                self.touched.update(body.inputs[2:] if node.op_type == "Loop" else body.inputs)
            self._enter(body)
        return (
            reads
            or self._whole
            or any(map(self._recorded.differs, node.outputs))
            or any(output in self.touched for body in bodies for output in body.outputs)
            or (bool(self._functions) and node.op_identifier() in self._functions)
        )


def _signature(function: ir.Function) -> Hashable:
    defaults = frozenset((name, id(attribute.value)) for name, attribute in function.attributes.items())
    return (tuple(map(id, function.outputs)), defaults)


def _origin(value: ir.Value) -> Hashable:
    """Return the origin of a tensor; equal origins with equal inputs have equal shapes."""
    node = value.producer()
    if node is None:
        tensor = value.const_value
        return None if tensor is None else (id(tensor), tuple(map(str, tensor.shape)), tensor.dtype)
    attributes = frozenset((name, id(attribute.value)) for name, attribute in node.attributes.data.items())
    bodies = tuple(id(output) for _, body in own_subgraphs(node) for output in body.outputs) if attributes else ()
    return (id(node), node.domain, node.op_type, value.index(), tuple(map(id, node.inputs)), attributes, bodies)


def raise_opset(source: Path, scratch: Path, log: logging.Logger) -> tuple[Path, list[str]]:
    """Return a model, or a copy in `scratch` of the oldest opset that can be converted, with a note on it.

    Names stay. Raises `RequestError` with the nodes that cannot be raised, and why.
    """
    model = load_model(source)
    opset = model.opset_imports.get("", OLDEST_OPSET)
    if opset >= OLDEST_OPSET:
        return source, []
    raised = scratch / f"opset_{OLDEST_OPSET}.onnx"
    entry = Entry(f"opset {opset} is too old for other precisions", SetOpset(to=OLDEST_OPSET))
    edit_file(EditedModel(model, source, log=log), [entry], raised)
    note = f"opset {opset} -> {OLDEST_OPSET} first: Casts need the broadcasting and the Cast of newer operators"
    return raised, [note]
