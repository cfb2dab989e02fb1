"""The reasons why a node loses accuracy at a reduced precision or needs more than 8 bits, as sentences with numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

import onnx_ir as ir

from ndld_flow.accuracy.inside.layer_meters import FORMAT_LIMITS, FormatLimits
from ndld_flow.accuracy.inside.local_error import LocalError
from ndld_flow.base.quantities import count, number, percent
from ndld_flow.base.text import short_name
from ndld_flow.models.lazy_tensors import Loss
from ndld_flow.models.tensors import Array
from ndld_flow.precision.fp16.convert import scale_in_half
from ndld_flow.records.accuracy import LayerDivergence, TensorRange
from ndld_flow.records.precision_search import Evidence
from ndld_flow.runtimes.protocol import SessionRequest

ROUNDING_ERROR: Mapping[str, float] = {"fp16": 2.0**-11, "bf16": 2.0**-8}
"""The largest relative error of one rounding: half a unit in the last place of the format."""
_FAR = 20.0
"""A node whose own error exceeds that of this many roundings is a suspect."""
_VANISHED = 0.1
"""Smallest share of values becoming 0 that is reported as underflow."""
_FEW_BITS = 16
"""Numbers smaller than this multiple of the smallest one have at most 4 bits of precision."""


@dataclass(frozen=True)
class FloatSuspect:
    """A node with its local error in fp16 or bf16."""

    node: ir.Node
    error: LocalError | None
    """None if nothing was observed: in bodies, and for operators that only move data."""
    precision: str

    @property
    def observed(self) -> bool:
        """True if the outputs of the node were observed."""
        return self.error is not None

    @property
    def severity(self) -> float:
        """Local error relative to `_FAR` times the error of one rounding; above 1000 if the output has NaN. 1 or more
        makes the node a suspect."""
        if self.error is None:
            return 0.0
        if self.error.nonfinite:
            return 1e3 + self.error.nonfinite
        return min(self.error.relative_rms / (_FAR * ROUNDING_ERROR[self.precision]), 1e3)

    def evidence(self, without: str) -> tuple[Evidence, ...]:
        """Return the evidence, strongest first, never empty. `without` describes the result of not keeping the node."""
        if self.error is None:
            sentence = f"its outputs were not observed; {without or 'no trial converted it'}"
            return (Evidence(cause="sensitivity", sentence=sentence),)
        limits = FORMAT_LIMITS[self.precision]
        tensors = [("its output", tensor) for tensor in self.error.output_ranges]
        tensors += [("it reads", tensor) for tensor in self.error.input_ranges]
        evidence = [_beyond(place, tensor, limits) for place, tensor in tensors if tensor.beyond_share > 0]
        evidence += self._range(self.error, limits)
        if self.severity >= 1.0:  # else the node is accurate enough: lost values do not matter
            evidence += self._lost_weights(self.error, limits)
            evidence += [
                _vanishing(place, tensor, limits)
                for place, tensor in tensors
                if tensor.vanishing_share >= _VANISHED or 0 < tensor.rms < _FEW_BITS * limits.smallest
            ]
        return tuple(evidence) or (self._sensitivity(self.error, without),)

    def _range(self, error: LocalError, limits: FormatLimits) -> Iterator[Evidence]:
        clamped = sorted((loss for loss in error.weights if loss.clamped), key=lambda loss: -loss.largest)
        for loss in clamped:
            values = f"{count(loss.clamped)} of {count(loss.size)} values"
            yield Evidence(
                cause="range",
                sentence=f"its weight {short_name(loss.name, 60)} has {values} beyond {limits.largest:.6g} "
                f"(largest {loss.largest:.2g}){self._scaled(loss)}",
                tensor=loss.name,
                value=loss.largest,
                limit=limits.largest,
            )

    def _scaled(self, loss: Loss) -> str:
        """Return a clause on the effect of a clamped BatchNormalization variance; empty if there is none."""
        variance = self.node.inputs[4] if self.node.op_type == "BatchNormalization" else None
        changed = scale_in_half(self.node) if variance is not None and variance.name == loss.name else None
        return "" if changed is None else f"; clamping them scales a channel by {changed.factor:.3g}"

    def _lost_weights(self, error: LocalError, limits: FormatLimits) -> Iterator[Evidence]:
        for loss in error.weights:
            if 2 * loss.vanished > loss.size:
                yield Evidence(
                    cause="underflow",
                    sentence=f"its weight {short_name(loss.name, 60)} has {count(loss.vanished)} of {count(loss.size)} "
                    f"values too small for {limits.precision} (below {limits.smallest:.1g})",
                    tensor=loss.name,
                    value=loss.largest,
                    limit=limits.smallest,
                )

    def _sensitivity(self, error: LocalError, without: str) -> Evidence:
        usual = ROUNDING_ERROR[self.precision]
        nonfinite = f"it produces {count(error.nonfinite)} NaN or infinite values" if error.nonfinite else ""
        off = f"its own error is {percent(error.relative_rms)} (relative RMS; one rounding is {percent(usual)})"
        more = "" if self.severity >= 1.0 or not without else f"; {without}"
        return Evidence(
            cause="sensitivity",
            sentence=f"every value fits {self.precision}, but {nonfinite or off}{more}",
            tensor=error.outputs[0] if error.outputs else "",
            value=error.relative_rms,
            limit=usual,
        )


def _beyond(place: str, tensor: TensorRange, limits: FormatLimits) -> Evidence:
    name = short_name(tensor.tensor, 60)
    values = f"{count(max(1, round(tensor.beyond_share * tensor.elements)))} of {count(tensor.elements)} values"
    return Evidence(
        cause="overflow",
        sentence=f"{place} {name} {'has' if place == 'its output' else 'with'} {values} beyond {limits.largest:.6g} "
        f"(largest {tensor.largest_abs:.2g})",
        tensor=tensor.tensor,
        value=tensor.largest_abs,
        limit=limits.largest,
    )


def _vanishing(place: str, tensor: TensorRange, limits: FormatLimits) -> Evidence:
    name = short_name(tensor.tensor, 60)
    gone = f"{percent(tensor.vanishing_share)} of its values become 0"
    return Evidence(
        cause="underflow",
        sentence=f"{place} {name}{'' if place == 'its output' else ', which'} is {tensor.rms:.1g} (RMS), and {gone} "
        f"(the smallest {limits.precision} is {limits.smallest:.1g})",
        tensor=tensor.tensor,
        value=tensor.rms,
        limit=limits.smallest,
    )


_MUCH = 0.25
"""Error, as a fraction of the output's RMS, above which a node is a suspect."""
_LOST = 0.5
"""Smallest share of values rounded to 0 that is reported."""
_STEPS = 255
_OUTLIERS = 32.0
"""Smallest ratio of largest value to RMS from which a few values are assumed to determine the scale. Rounding alone
then causes an error of 3.6 % of the RMS: 1 / sqrt(12) of a step."""


@dataclass(frozen=True)
class Spread:
    """The values of a tensor over all samples."""

    tensor: str
    minimum: float
    maximum: float
    rms: float

    @property
    def largest_abs(self) -> float:
        return max(abs(self.minimum), abs(self.maximum))

    @property
    def is_set_by_few(self) -> bool:
        """True if a few values are far larger than the others."""
        return self.largest_abs >= _OUTLIERS * self.rms > 0


@dataclass(frozen=True)
class Int8Error:
    """The error of a node if it is the only one quantized and reads exact inputs."""

    own: float
    """Relative RMS of its first output's error."""
    output_error: float | None
    """Relative RMS of the worst model output's error; None if it was not measured."""
    share: float
    """`output_error` squared, relative to the mean over all nodes: independent errors add as squares."""
    lost_weights: float
    """Share of its nonzero weights that become 0."""
    inputs: tuple[Spread, ...] = ()
    """Spreads of the model inputs that it reads, which no layer has, as no node computes them."""


NO_ERROR = Int8Error(own=0.0, output_error=0.0, share=0.0, lost_weights=0.0)


@runtime_checkable
class MeasuresInt8(Protocol):
    """A reducer that can measure the error of each node on its own."""

    def int8_errors(
        self,
        samples: Collection[Mapping[str, Array]],
        settings: SessionRequest,
        scratch: Path,
        time_is_up: Callable[[], bool] = ...,
    ) -> Mapping[str, Int8Error]:
        """Return first output -> error. Raises `ModelError` if the model does not run."""


@dataclass(frozen=True)
class Int8Suspect:
    """A node with its own int8 error, and the divergence of its inputs and outputs when everything is int8."""

    node: ir.Node
    layers: Mapping[str | None, LayerDivergence]
    """Tensor -> its divergence and range."""
    lost: Callable[[TensorRange], float]
    """Returns the share of a tensor's nonzero values that one scale for all of them rounds to 0."""
    error: Int8Error | None = None
    """None if it was not measured: for nodes that are not quantized or become integer operators."""

    @property
    def observed(self) -> bool:
        """True if its divergence may come from its neighbours: it was observed but not measured on its own."""
        return self.error is None and self._seen

    @property
    def severity(self) -> float:
        """Effect on the model's outputs relative to the average node. If it was not measured on its own: the error that
        it adds, relative to a quarter of its output."""
        if self.error is not None:
            return self.error.share
        return max(0.0, self._output_error - self._input_error) / _MUCH

    @property
    def _seen(self) -> bool:
        return any(value.name in self.layers for value in self.node.outputs)

    @property
    def _output_error(self) -> float:
        return max((_off(self.layers[v.name]) for v in self.node.outputs if v.name in self.layers), default=0.0)

    @property
    def _input_error(self) -> float:
        return max((_off(layer) for layer in self._inputs()), default=0.0)

    def _inputs(self) -> list[LayerDivergence]:
        names = (value.name for value in self.node.inputs if value is not None)
        return [self.layers[name] for name in names if name in self.layers]

    def evidence(self, without: str) -> tuple[Evidence, ...]:
        """Return the evidence, strongest first. `without` describes the result of not keeping the node."""
        return (*self._ranges(), self._sensitivity(without))

    def _ranges(self) -> Iterator[Evidence]:
        for layer in self._inputs():
            if layer.range is not None and (lost := self.lost(layer.range)) >= _LOST:
                yield _too_wide(layer.range, lost)
            elif (range_ := layer.range) is not None and (
                spread := Spread(range_.tensor, range_.minimum, range_.maximum, range_.rms)
            ).is_set_by_few:
                yield _set_by_few(spread)
        yield from (_set_by_few(spread) for spread in self.error.inputs if spread.is_set_by_few) if self.error else ()
        if self.error is not None and self.error.lost_weights >= _LOST:
            lost = self.error.lost_weights
            sentence = f"{percent(lost)} of its weights are less than half of a step of their scales and become 0"
            yield Evidence(cause="range", sentence=sentence, value=lost, limit=_LOST)

    def _sensitivity(self, without: str) -> Evidence:
        sentence = self._measured_alone(self.error) if self.error is not None else self._measured_together()
        value = self._output_error if self.error is None else self.error.own
        return Evidence(cause="sensitivity", sentence=f"{sentence}; {without}" if without else sentence, value=value)

    def _measured_alone(self, error: Int8Error) -> str:
        # The error as a signal-to-quantization-noise ratio.
        sqnr = f"SQNR {-20 * math.log10(error.own):.3g} dB" if error.own > 0 else "exact"
        own = f"with only this node in int8, the error of its output is {percent(error.own)} ({sqnr})"
        if error.output_error is None:
            return own
        return f"{own} and that of the model {percent(error.output_error)}, {error.share:.2g} times the average node's"

    def _measured_together(self) -> str:
        output, input_ = percent(self._output_error), percent(self._input_error)
        errors = f"the error of its output is {output}, of its input {input_} (relative RMS)"
        return f"with everything in int8, {errors if self._seen else 'its outputs were not observed'}"


Suspect: TypeAlias = FloatSuspect | Int8Suspect
"""A node with the evidence against it."""


def _off(layer: LayerDivergence) -> float:
    return layer.metrics.get("relative_rms", 0.0)


def step_of(tensor: TensorRange | Spread) -> float:
    """Return the step of a scale that spans all of a tensor's values and 0."""
    return (max(tensor.maximum, 0.0) - min(tensor.minimum, 0.0)) / _STEPS


def _too_wide(tensor: TensorRange, lost: float) -> Evidence:
    step = step_of(tensor)
    return Evidence(
        cause="range",
        sentence=f"it reads {short_name(tensor.tensor, 60)}, whose values reach {number(tensor.largest_abs)}: "
        f"{percent(lost)} of them are less than half of one of {_STEPS} steps ({number(step)}) and become 0",
        tensor=tensor.tensor,
        value=lost,
        limit=_LOST,
    )


def _set_by_few(tensor: Spread) -> Evidence:
    times = tensor.largest_abs / tensor.rms
    return Evidence(
        cause="range",
        sentence=f"it reads {short_name(tensor.tensor, 60)}, whose values reach {number(tensor.largest_abs)}, "
        f"{times:.3g} times their RMS: one of {_STEPS} steps ({number(step_of(tensor))}) is "
        f"{percent(step_of(tensor) / tensor.rms)} of the RMS",
        tensor=tensor.tensor,
        value=times,
        limit=_OUTLIERS,
    )
