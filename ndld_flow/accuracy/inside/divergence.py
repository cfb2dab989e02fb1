"""Divergence of two runs of a model, layer by layer, and the first divergent layer.

A layer is off when it has NaN or infinities that the reference does not have there, when the error of one of its slices
exceeds the bounds on slices, or when its noise exceeds what the other bounds allow; all of these are relative to the
layer's own signal. That alone is not enough: a tensor of small values may be far off and then be added to large correct
ones, and errors may cancel out. So a layer counts only if its error persists: if a chain of layers that are off leads
from it to one that no other layer reads. The first such layer in the order of execution is the origin. If NaN or
infinities persist, it is the first layer that has them, because nothing before is as severe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import tee
from pathlib import Path

from ndld_flow.accuracy.inside.capture import (
    BUDGET_BYTES,
    TensorPlace,
    capture_part,
    chosen_places,
    in_parts,
    nearest_before,
    run_each,
    tensor_bytes,
    tensors_of,
)
from ndld_flow.accuracy.inside.layer_meters import FORMAT_LIMITS, LayerAgreement, RangeMeter
from ndld_flow.accuracy.slices import SLICE_METRICS
from ndld_flow.base.quantities import counted
from ndld_flow.models.element_types import element_of
from ndld_flow.models.files import model_inputs, model_outputs
from ndld_flow.models.tensors import Array
from ndld_flow.records.accuracy import LayerDivergence, noise_of
from ndld_flow.records.execution import BuiltFile
from ndld_flow.runtimes.protocol import SessionRequest
from ndld_flow.runtimes.session_process import open_session
from ndld_flow.samples.feeds import Feed, shared_inputs
from ndld_flow.samples.generated_values import is_float

USUAL_NOISE = 0.045
"""Relative RMS that is allowed if no bound is relative to the signal: that of a cosine of 0.999."""


def allowed_noise(bounds: Mapping[str, float]) -> float:
    """Return the largest rms(c - r) / rms(r) that the bounds on outputs allow, by the strictest of them.

    A cosine of C allows noise orthogonal to the signal of sqrt(1 / C^2 - 1); an SNR of S dB allows 10^(-S / 20).
    `relative_rms` is that noise itself. Other metrics depend on the scale or the number of values.
    """
    allowed = []
    if 0 < bounds.get("cosine", 0.0) <= 1:
        allowed.append(math.sqrt(1 / bounds["cosine"] ** 2 - 1))
    if "snr_db" in bounds:
        allowed.append(noise_of(bounds["snr_db"]))
    if "relative_rms" in bounds:
        allowed.append(bounds["relative_rms"])
    return min(allowed, default=math.inf if "slice_rms" in bounds else USUAL_NOISE)


def first_divergent(layers: Sequence[LayerDivergence], bounds: Mapping[str, float]) -> LayerDivergence | None:
    """Return the layer where the divergence begins, or None. `bounds` are `Tolerance.bounds()`.

    `layers` are in the order of execution, as `diverge` returns them.
    """
    allowed = {name: bound for name, bound in bounds.items() if name in SLICE_METRICS}
    allowed["relative_rms"] = allowed_noise(bounds)
    off = {
        layer.tensor
        for layer in layers
        if layer.nonfinite > 0 or any(layer.metrics.get(name, 0.0) > bound for name, bound in allowed.items())
    }
    persistent = _persistent(layers, off)
    return next((layer for layer in persistent if layer.nonfinite), next(iter(persistent), None))


def _persistent(layers: Sequence[LayerDivergence], off: set[str]) -> list[LayerDivergence]:
    """Return the layers that are off and lead, only through layers that are off, to one that no layer reads."""
    read = {name for layer in layers for name in layer.reads}
    persists: set[str] = set()
    for layer in reversed(layers):
        if layer.tensor in off and (layer.tensor not in read or layer.tensor in persists):
            persists.add(layer.tensor)
            persists.update(layer.reads)
    return [layer for layer in layers if layer.tensor in persists and layer.tensor in off]


Progress = Callable[[int, int, str], None]
"""`progress(done, total, what)`"""
Feeds = Mapping[str, Array]
_FLOATS = ("bfloat16", "double", "float", "float16", "")
"""Compared element types; the empty string is an unknown type."""


@dataclass(frozen=True)
class Observed:
    """A model whose inner tensors are captured."""

    path: Path
    settings: SessionRequest

    def names(self) -> frozenset[str]:
        """Return the tensors that can be captured."""
        return frozenset(place.name for place in chosen_places(self.path, None))

    def captured(self, part: Sequence[str], samples: Iterable[Feeds]) -> Iterator[dict[str, Array]]:
        """Yield the values of these tensors, one dict per sample."""
        return capture_part(self.path, part, samples, self.settings)


@dataclass
class _Layer:
    """One tensor of both models."""

    place: TensorPlace
    ranges: RangeMeter | None
    agreement: LayerAgreement = field(default_factory=lambda: LayerAgreement(by_slice=True))
    shape: tuple[int, ...] = ()
    comparable: bool = False
    """True if it is float, and of the same shape in both models."""

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
    """Compare the float tensors that both models have, by name, in the order of the reference's execution.

    `samples` use the names of the reference's inputs, and are read once for each part of the layers that fits in
    memory; each model runs once for a sample and part. `tensors` are the reference's names to compare, None for all.
    `precision` (`fp16`, `bf16`, ...) adds the reference's ranges against that format. Tensors that have another shape
    in the candidate are skipped. Raises `RequestError` for a name that the reference does not have, `ModelError` and
    `BackendError` if a model cannot be run.
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
        pairs = zip(reference.captured(part, mine), candidate.captured(part, cast), strict=True)
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
    theirs = candidate.names()
    return {
        place.name: _Layer(place, None if limits is None else RangeMeter(place.name, limits))
        for place in chosen_places(reference.path, tensors)
        if place.name in theirs and element_of(place.type) in _FLOATS
    }


@dataclass(frozen=True)
class MarkedModel(Observed):
    """A model that a file with marked outputs or debug tensors runs; only these tensors can be captured."""

    request: SessionRequest
    built: BuiltFile
    scratch: Path

    def names(self) -> frozenset[str]:
        # Only a run shows the names of debug tensors that remain after fusion.
        return frozenset(self.built.marked) or super().names() - {each.name for each in model_outputs(self.path)}

    def captured(self, part: Sequence[str], samples: Iterable[Feeds]) -> Iterator[dict[str, Array]]:
        with closing(open_session(self.request, self.path, self.scratch)) as session:
            for outputs in run_each(session, samples):
                yield {name: outputs[name] for name in part if name in outputs}

    def note(self, checked: str, compared: int) -> str:
        """Return the caveat of a comparison of its layers; `checked` is the file whose outputs are judged."""
        if not self.built.marked:
            other = "" if self.built.name == checked else f", another build than {checked}"
            return (
                f"{counted(compared, 'layer')} compared inside {self.built.name}{other}, by its debug tensors: those "
                "that it fused away, or that have another name in it than in the model, were not"
            )
        return (
            f"layers were compared on {self.built.name}, whose {len(self.built.marked)} marked outputs make it fuse "
            f"layers differently from {checked}: they describe {self.built.name}, and the outputs {checked} itself"
        )
