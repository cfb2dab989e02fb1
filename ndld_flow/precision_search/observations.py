"""What is known of a model's nodes before and after a search: errors of each alone, and where two runs diverge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ndld_flow.accuracy.inside.capture import capture
from ndld_flow.accuracy.inside.divergence import Observed, diverge
from ndld_flow.accuracy.inside.local_error import LocalError, local_errors
from ndld_flow.base.errors import ModelError
from ndld_flow.models.tensors import Array
from ndld_flow.precision.constraints.found_nodes import first_output
from ndld_flow.precision_search.evidence import FloatSuspect, Suspect
from ndld_flow.precision_search.int8_evidence import Int8Error, Int8Suspect, MeasuresInt8, step_of
from ndld_flow.precision_search.judging import runnable
from ndld_flow.precision_search.reducing import Reducer
from ndld_flow.precision_search.taken_branches import write_taken
from ndld_flow.records.divergence import LayerDivergence, TensorRange
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings
from ndld_flow.samples.sample_feeds import Samples

_OBSERVED = 4
"""Samples that are looked at inside; trials are judged on all of them."""


class FewSamples(Sequence[Mapping[str, Array]]):
    """The first samples, as arrays; each round reads them again."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return min(len(self._samples), _OBSERVED)

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        for sample in islice(self._samples, _OBSERVED):
            yield {name: feed.values for name, feed in sample.feeds.items()}

    def __getitem__(self, index: int) -> Mapping[str, Array]:  # type: ignore[override]
        return next(islice(self, index, None))


@dataclass(frozen=True)
class Observer:
    """Looks inside the model that is searched."""

    reference: Path
    precision: str
    reducer: Reducer
    samples: Samples
    settings: SessionSettings
    scratch: Path
    notes: list[str] = field(default_factory=list)
    """What could not be looked at."""

    @cached_property
    def _reference(self) -> Path:
        return self._inside(self.reference, "reference_inside.onnx")

    def _inside(self, path: Path, name: str) -> Path:
        return write_taken(path, self.scratch / name, FewSamples(self.samples), self.settings)

    def suspects(self, nodes: Iterable[ir.Node]) -> list[Suspect]:
        """What is known of each node. For int8 its error alone, or how it grows with all in int8."""
        if self.precision == "int8":
            layers: dict[str | None, LayerDivergence] = {layer.tensor: layer for layer in self._whole}
            alone = self._int8_errors()
            return [Int8Suspect(node, layers, self._lost, alone.get(first_output(node))) for node in nodes]
        errors = self._errors()
        return [FloatSuspect(node, errors.get(first_output(node)), self.precision) for node in nodes]

    def _lost(self, tensor: TensorRange) -> float:
        """Share of a tensor's values other than 0 that are less than half of a step of its scale."""
        half, small, count = step_of(tensor) / 2, 0, 0
        samples = FewSamples(self.samples)
        for arrays in capture(self._reference, [tensor.tensor], samples, self.settings, self.scratch):
            sizes = np.abs(arrays[tensor.tensor])
            small += int(np.count_nonzero((sizes > 0) & (sizes < half)))
            count += int(np.count_nonzero(sizes))
        return small / count if count else 0.0

    def _int8_errors(self) -> Mapping[str, Int8Error]:
        if not isinstance(self.reducer, MeasuresInt8):
            return {}
        try:
            return self.reducer.int8_errors(FewSamples(self.samples), self.settings, self.scratch)
        except ModelError as error:
            self.notes.append(f"what each node alone does wrong could not be measured: {error}")
            return {}

    def _errors(self) -> dict[str, LocalError]:
        samples = FewSamples(self.samples)
        try:
            return local_errors(self._reference, self.precision, samples, self.settings, self.scratch)
        except ModelError as error:
            self.notes.append(f"what each node alone does wrong could not be measured: {error}")
            return {}

    def whole(self) -> tuple[LayerDivergence, ...]:
        """How far each layer is off with nothing kept, and the range of its values against the precision.

        In the order of execution; none where the model does not run.
        """
        if self.precision != "int8":
            return self._whole
        # What fp16 can hold says nothing of int8.
        return tuple(layer.model_copy(update={"range": None}) for layer in self._whole)

    @cached_property
    def _whole(self) -> tuple[LayerDivergence, ...]:
        reduced = self.scratch / "whole.onnx"
        try:
            self.reducer.write(frozenset(), reduced)
            return self.layers(runnable(reduced), "fp16" if self.precision == "int8" else self.precision)
        except ModelError:
            return ()  # its trial says why it does not run

    def layers(self, candidate: Path, ranged: str = "") -> tuple[LayerDivergence, ...]:
        """How far each layer of a model is off, in the order of execution; with ranges for a format that is named."""
        inside = self._inside(candidate, "observed_inside.onnx")
        pair = Observed(self._reference, self.settings), Observed(inside, self.settings)
        return diverge(*pair, FewSamples(self.samples), precision=ranged)
