"""Observations of the nodes of a model: the error of each on its own, and where two runs diverge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from ndld_flow.accuracy.inside.capture import capture, open_inside
from ndld_flow.accuracy.inside.divergence import Observed, diverge
from ndld_flow.accuracy.inside.local_error import local_errors
from ndld_flow.base.errors import ModelError
from ndld_flow.models.element_types import is_op
from ndld_flow.models.files import load_model, save_model
from ndld_flow.models.tensors import Array
from ndld_flow.precision.constraints.rules import first_output
from ndld_flow.precision.fp16.convert import prepare
from ndld_flow.precision_search.evidence import FloatSuspect, Int8Error, Int8Suspect, MeasuresInt8, Suspect, step_of
from ndld_flow.precision_search.reducers import Reducer
from ndld_flow.precision_search.trials import runnable
from ndld_flow.records.accuracy import LayerDivergence, TensorRange
from ndld_flow.runtimes.protocol import SessionRequest
from ndld_flow.samples.sample_feeds import SampleArrays, Samples

T = TypeVar("T")
_DEEPEST = 8
"""Ifs nested deeper than this stay as they are."""


def write_with_taken_branches(
    source: Path, target: Path, samples: Iterable[Mapping[str, Array]], settings: SessionRequest
) -> Path:
    """Write `source` to `target` with every If that takes the same branch on all samples replaced by that branch.

    Tensors keep their names. Returns `target`, or `source` if nothing was replaced.
    """
    model = load_model(source)
    if not any(is_op(node, "If") for node in model.graph):
        return source
    path = source
    for _ in range(_DEEPEST):
        prepare(model, source)
        decided = _constant_branches(path, model, samples, settings)
        if not decided:
            break
        for node, taken in decided.items():
            _replace_if(model.graph, node, node.attributes["then_branch" if taken else "else_branch"].as_graph())
        # Shapes that were inferred from both branches, or from the other one, may not be those of this one.
        for value in (value for node in model.graph for value in node.outputs if not value.is_graph_output()):
            value.shape = None
        save_model(model, target)
        path = target
    return path


def _constant_branches(
    path: Path, model: ir.Model, samples: Iterable[Mapping[str, Array]], settings: SessionRequest
) -> dict[ir.Node, bool]:
    """Return the Ifs of the main graph that take the same branch on all samples -> True for `then_branch`."""
    conditions = {node: node.inputs[0] for node in model.graph if is_op(node, "If")}
    names = {node: value.name or "" for node, value in conditions.items() if value is not None and value.producer()}
    if not names:
        return {}
    session = open_inside(path, list(dict.fromkeys(names.values())), settings)
    wanted = {spec.name for spec in session.describe().inputs}
    seen: dict[str, set[bool]] = {name: set() for name in names.values()}
    for sample in samples:
        bound = session.bind({name: array for name, array in sample.items() if name in wanted})
        bound.run()
        for name, array in bound.outputs().items():
            seen[name] |= {True, False} if array is None or array.size != 1 else {bool(array.reshape(-1)[0])}
    return {node: next(iter(seen[name])) for node, name in names.items() if len(seen[name]) == 1}


def _replace_if(graph: ir.Graph, node: ir.Node, branch: ir.Graph) -> None:
    """Replace an If with one of its branches. The outputs of both keep their names."""
    outputs = list(branch.outputs)
    branch.outputs.clear()
    for value in tuple(branch.initializers.values()):
        del branch.initializers[value.name or ""]
        graph.register_initializer(value)
    nodes = list(branch)
    branch.remove(nodes)
    graph.insert_before(node, nodes)
    for old, new in zip(node.outputs, outputs, strict=True):
        name, old.name = old.name, None
        same = ir.Value(name=name, type=old.type, shape=old.shape)
        graph.insert_before(node, ir.Node("", "Identity", [new], outputs=[same]))
        old.replace_all_uses_with(same, replace_graph_outputs=True)
    graph.remove(node, safe=True)


OBSERVED = 4
"""Most samples whose inner tensors are observed; trials are judged on all samples."""


@dataclass(frozen=True)
class Observer:
    """Observes inner tensors of the searched model."""

    reference: Path
    precision: str
    reducer: Reducer
    samples: Samples
    settings: SessionRequest
    scratch: Path
    time_is_up: Callable[[], bool] = lambda: False
    """Returns whether the time for observations is used up; then one sample suffices, as they only rank the nodes."""
    notes: list[str] = field(default_factory=list)
    """Observations that failed, as sentences."""

    @property
    def _few(self) -> SampleArrays:
        return SampleArrays(self.samples, OBSERVED, self.time_is_up)

    @cached_property
    def _reference(self) -> Path:
        return self._inside(self.reference, "reference_inside.onnx")

    def _inside(self, path: Path, name: str) -> Path:
        return write_with_taken_branches(path, self.scratch / name, self._few, self.settings)

    def suspects(self, nodes: Iterable[ir.Node]) -> list[Suspect]:
        """Return a suspect for each node. For int8, with its own error or its divergence when everything is int8."""
        if self.precision == "int8":
            layers: dict[str | None, LayerDivergence] = {layer.tensor: layer for layer in self._whole}
            alone = self._measured(self._int8_errors)
            return [Int8Suspect(node, layers, self._lost, alone.get(first_output(node))) for node in nodes]
        errors = self._measured(
            lambda: local_errors(self._reference, self.precision, self._few, self.settings, self.scratch)
        )
        return [FloatSuspect(node, errors.get(first_output(node)), self.precision) for node in nodes]

    def _lost(self, tensor: TensorRange) -> float:
        """Return the share of a tensor's nonzero values that are less than half of a step of its scale."""
        half, small, count = step_of(tensor) / 2, 0, 0
        for arrays in capture(self._reference, [tensor.tensor], self._few, self.settings, self.scratch):
            sizes = np.abs(arrays[tensor.tensor])
            small += int(np.count_nonzero((sizes > 0) & (sizes < half)))
            count += int(np.count_nonzero(sizes))
        return small / count if count else 0.0

    def _int8_errors(self) -> Mapping[str, Int8Error]:
        if not isinstance(self.reducer, MeasuresInt8):
            return {}
        return self.reducer.int8_errors(self._few, self.settings, self.scratch, self.time_is_up)

    def _measured(self, measure: Callable[[], Mapping[str, T]]) -> Mapping[str, T]:
        """Return first output -> the error of its node on its own; empty, with a note, if it cannot be measured."""
        try:
            return measure()
        except ModelError as error:
            self.notes.append(f"the error of each node on its own could not be measured: {error}")
            return {}

    def whole(self) -> tuple[LayerDivergence, ...]:
        """Return each layer's divergence with nothing kept, and its range relative to the precision's limits.

        In the order of execution; empty if the model does not run.
        """
        if self.precision != "int8":
            return self._whole
        # The range of fp16 is irrelevant to int8.
        return tuple(layer.model_copy(update={"range": None}) for layer in self._whole)

    @cached_property
    def _whole(self) -> tuple[LayerDivergence, ...]:
        reduced = self.scratch / "whole.onnx"
        try:
            self.reducer.write(frozenset(), reduced)
            return self.layers(runnable(reduced), "fp16" if self.precision == "int8" else self.precision)
        except ModelError:
            return ()  # its trial records why it does not run

    def layers(self, candidate: Path, ranged: str = "") -> tuple[LayerDivergence, ...]:
        """Return each layer's divergence in the order of execution, with ranges relative to the format `ranged`."""
        inside = self._inside(candidate, "observed_inside.onnx")
        pair = Observed(self._reference, self.settings), Observed(inside, self.settings)
        return diverge(*pair, self._few, precision=ranged)


_NEXT_TO_SUSPECT = 0.9
"""Severity of a suspect's direct neighbour; `_LESS_PER_STEP` less for each further step."""
_LESS_PER_STEP = 0.01
_AFTER, _BEFORE = 2, 40
"""Steps downstream and upstream. A suspect's input may have lost its bits far upstream, as in a running sum."""

Neighbours = Callable[[ir.Node], Sequence[ir.Node]]


def severities(suspects: Iterable[Suspect]) -> dict[ir.Node, float]:
    """Return node -> its severity; neighbours of suspects get a little less than a suspect.

    A value is kept exact only if both its producer and its reader are kept, so neighbours are tried first.
    """
    by_node = {suspect.node: suspect for suspect in suspects}
    values = {node: suspect.severity for node, suspect in by_node.items()}
    certain = {node for node, severity in values.items() if severity >= 1.0}
    for neighbours, steps in ((ir.Node.successors, _AFTER), (ir.Node.predecessors, _BEFORE)):
        edge, seen = certain, set(certain)
        for step in range(steps):
            edge = {other for node in edge for other in _observed_neighbours(node, by_node, neighbours)} - seen
            seen |= edge
            for node in edge:
                values[node] = max(values[node], _NEXT_TO_SUSPECT - _LESS_PER_STEP * step)
    return values


def _observed_neighbours(node: ir.Node, known: Mapping[ir.Node, Suspect], neighbours: Neighbours) -> set[ir.Node]:
    """Return the nearest observed nodes, skipping those that only move values."""
    nearest: set[ir.Node] = set()
    seen, waiting = {node}, [node]
    while waiting:
        for other in neighbours(waiting.pop()):
            if other in seen:
                continue
            seen.add(other)
            if other in known and known[other].observed:
                nearest.add(other)
            else:
                waiting.append(other)
    return nearest
