"""How far two runs of a model diverge, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import tee
from pathlib import Path

from ndld_flow.accuracy.inside.beginning import first_divergent
from ndld_flow.accuracy.inside.capture import BUDGET_BYTES, capture_part, chosen_places
from ndld_flow.accuracy.inside.layer_agreement import LayerAgreement
from ndld_flow.accuracy.inside.ranges import FORMAT_LIMITS, RangeMeter
from ndld_flow.accuracy.inside.tensor_places import TensorPlace, in_parts, nearest_before, tensor_bytes, tensors_of
from ndld_flow.models.declared_inputs import model_inputs
from ndld_flow.models.element_types import element_of
from ndld_flow.models.tensors import Array
from ndld_flow.records.divergence import LayerDivergence
from ndld_flow.runtimes.onnxruntime.model_matching import shared_inputs
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings
from ndld_flow.samples.feeds import Feed
from ndld_flow.samples.generated_values import is_float

__all__ = ["Observed", "Progress", "diverge", "first_divergent"]

Progress = Callable[[int, int, str], None]
"""`progress(done, total, what)`"""
Feeds = Mapping[str, Array]
_FLOATS = ("bfloat16", "double", "float", "float16", "")
"""Elements that are compared; the last is that of a tensor whose type is not known."""


@dataclass(frozen=True)
class Observed:
    """A model that is run to look inside."""

    path: Path
    settings: SessionSettings


@dataclass
class _Layer:
    """One tensor of both models."""

    place: TensorPlace
    ranges: RangeMeter | None
    agreement: LayerAgreement = field(default_factory=lambda: LayerAgreement(by_slice=True))
    shape: tuple[int, ...] = ()
    comparable: bool = False
    """It turned out to be of floats, and of the same shape in both."""

    def add(self, reference: Array | None, candidate: Array | None) -> None:
        if reference is None or candidate is None or reference.shape != candidate.shape:
            return
        if is_float(reference.dtype) and is_float(candidate.dtype):
            self.shape = self.shape or tuple(reference.shape)
            self.comparable = True
            self.agreement.add(reference, candidate)
            if self.ranges is not None:
                self.ranges.add(reference)

    def divergence(self, reads: tuple[str, ...]) -> LayerDivergence:
        return LayerDivergence(
            position=self.place.position,
            node=self.place.node,
            op_type=self.place.op_type,
            tensor=self.place.name,
            shape=self.shape,
            metrics=self.agreement.metrics(),
            worst_slice=self.agreement.worst_slice,
            reads=reads,
            nonfinite=self.agreement.nonfinite,
            range=None if self.ranges is None else self.ranges.range(),
        )


def diverge(
    reference: Observed,
    candidate: Observed,
    samples: Collection[Feeds],
    tensors: Sequence[str] | None = None,
    precision: str = "",
    progress: Progress = lambda done, total, what: None,
) -> tuple[LayerDivergence, ...]:
    """Compare the floats that both models have inside, by name, in the order of the reference's execution.

    `samples` are named as the reference's inputs, and read once for each part of the layers that fits in memory; each
    model runs once for a sample and part. `tensors` are the reference's names to compare, None for all. `precision`
    (`fp16`, `bf16`, ...) adds the reference's ranges against that format. What has another shape in the candidate is
    left out. Raises `RequestError` for a name that the reference does not have, `ModelError` and `BackendError` when a
    model cannot be run.
    """
    layers = _layers(reference, candidate, tensors, precision)
    first = next(iter(samples), None)
    if first is None or not layers:
        return ()
    shared = shared_inputs(model_inputs(reference.path), model_inputs(candidate.path))
    sizes = tensor_bytes(reference.path, [layer.place for layer in layers.values()], first, reference.settings)
    parts = in_parts(sizes, BUDGET_BYTES // 2)
    for number, part in enumerate(parts):
        mine, theirs = tee(iter(samples))
        cast = (shared.for_candidate({name: Feed(array, "") for name, array in feeds.items()}) for feeds in theirs)
        pairs = zip(_captured(reference, part, mine), _captured(candidate, part, cast), strict=True)
        for sample, (r, c) in enumerate(pairs):
            progress(number * len(samples) + sample, len(parts) * len(samples), "comparing layers")
            for name in part:
                layers[name].add(r.get(name), c.get(name))
    comparable = {name: layer for name, layer in layers.items() if layer.comparable}
    reads = nearest_before(tensors_of(reference.path), frozenset(comparable))
    return tuple(layer.divergence(reads[name]) for name, layer in comparable.items())


def _layers(
    reference: Observed, candidate: Observed, tensors: Sequence[str] | None, precision: str
) -> dict[str, _Layer]:
    limits = FORMAT_LIMITS.get(precision)
    theirs = {place.name for place in chosen_places(candidate.path, None)}
    return {
        place.name: _Layer(place, None if limits is None else RangeMeter(place.name, limits))
        for place in chosen_places(reference.path, tensors)
        if place.name in theirs and element_of(place.type) in _FLOATS
    }


def _captured(model: Observed, part: Sequence[str], samples: Iterable[Feeds]) -> Iterator[dict[str, Array]]:
    return capture_part(model.path, part, samples, model.settings)
