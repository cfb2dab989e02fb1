"""Why 8 bits are too few for a node, in sentences with numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import onnx_ir as ir

from ndld_flow.base.quantities import number
from ndld_flow.base.text import short_name
from ndld_flow.models.tensors import Array
from ndld_flow.precision_search.evidence import percent
from ndld_flow.records.divergence import LayerDivergence, TensorRange
from ndld_flow.records.precision_search import Evidence
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings

_MUCH = 0.25
"""Share of its output's RMS that a node may add as error before it is a suspect."""
_LOST = 0.5
"""Share of values lost in the steps of a scale from which on that is told."""
_STEPS = 255
_OUTLIERS = 32.0
"""So many times its RMS is the largest value of a tensor whose scale is set by few values: rounding alone is then 3.6 %
of the RMS, 1 / sqrt(12) of a step."""


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
        """Whether few values are far larger than the others."""
        return self.largest_abs >= _OUTLIERS * self.rms > 0


@dataclass(frozen=True)
class Int8Error:
    """What a node does wrong when it alone is quantised, and reads what is exact."""

    own: float
    """Relative RMS of its first output's error."""
    brought: float | None
    """That of the worst of the model's outputs; None where it was not followed there."""
    share: float
    """`brought` squared against the mean of all nodes': errors that know nothing of each other add as squares."""
    lost_weights: float
    """Share of its weights, other than 0, that become 0."""
    inputs: tuple[Spread, ...] = ()
    """Of those of the model's inputs that it reads: no node makes them, so they are in no layer."""


NO_ERROR = Int8Error(own=0.0, brought=0.0, share=0.0, lost_weights=0.0)


@runtime_checkable
class MeasuresInt8(Protocol):
    """A reducer that knows what each node alone does wrong."""

    def int8_errors(
        self, samples: Collection[Mapping[str, Array]], settings: SessionSettings, scratch: Path
    ) -> Mapping[str, Int8Error]:
        """First output -> error. Raises `ModelError` when the model does not run."""


@dataclass(frozen=True)
class Int8Suspect:
    """A node, what it alone does wrong, and how far what it reads and makes is off where everything is int8."""

    node: ir.Node
    layers: Mapping[str | None, LayerDivergence]
    """Tensor -> its divergence, and its range."""
    lost: Callable[[TensorRange], float]
    """Share of a tensor's values, other than 0, that a scale for all of them makes 0."""
    error: Int8Error | None = None
    """None where it was not measured: of what is not quantised, or has integer operators."""

    @property
    def observed(self) -> bool:
        """Whether what it does wrong may come from its neighbours: not where it was measured alone."""
        return self.error is None and self._seen

    @property
    def severity(self) -> float:
        """What it does to the model's outputs: 1 where that is as much as nodes do on average. Where nothing was
        measured alone, the error that it adds: 1 where that is a quarter of its output."""
        if self.error is not None:
            return self.error.share
        return max(0.0, self._made - self._read) / _MUCH

    @property
    def _seen(self) -> bool:
        return any(value.name in self.layers for value in self.node.outputs)

    @property
    def _made(self) -> float:
        return max((_off(self.layers[v.name]) for v in self.node.outputs if v.name in self.layers), default=0.0)

    @property
    def _read(self) -> float:
        return max((_off(layer) for layer in self._inputs()), default=0.0)

    def _inputs(self) -> list[LayerDivergence]:
        names = (value.name for value in self.node.inputs if value is not None)
        return [self.layers[name] for name in names if name in self.layers]

    def evidence(self, without: str) -> tuple[Evidence, ...]:
        """Most telling first. `without` says what leaving the node out alone comes to."""
        return (*self._ranges(), self._sensitivity(without))

    def _ranges(self) -> Iterator[Evidence]:
        for layer in self._inputs():
            if layer.range is not None and (lost := self.lost(layer.range)) >= _LOST:
                yield _too_wide(layer.range, lost)
            elif layer.range is not None and (spread := _spread(layer.range)).is_set_by_few:
                yield _set_by_few(spread)
        yield from (_set_by_few(spread) for spread in self.error.inputs if spread.is_set_by_few) if self.error else ()
        if self.error is not None and self.error.lost_weights >= _LOST:
            lost = self.error.lost_weights
            said = f"{percent(lost)} of its weights are less than half of a step of their scales and become 0"
            yield Evidence(cause="range", sentence=said, value=lost, limit=_LOST)

    def _sensitivity(self, without: str) -> Evidence:
        said = self._said_alone(self.error) if self.error is not None else self._said_together()
        made = self._made if self.error is None else self.error.own
        return Evidence(cause="sensitivity", sentence=f"{said}; {without}" if without else said, value=made)

    def _said_alone(self, error: Int8Error) -> str:
        own = f"in int8 alone its output is {percent(error.own)} off ({_sqnr(error.own)})"
        if error.brought is None:
            return own
        return (
            f"{own}, which makes the model's {percent(error.brought)} off, {error.share:.2g} times the average node's"
        )

    def _said_together(self) -> str:
        off = f"its output is {percent(self._made)} off, what it reads {percent(self._read)} (relative RMS)"
        return f"with everything in int8 {off if self._seen else 'what it computes was not looked at'}"


def _sqnr(error: float) -> str:
    """Signal against quantisation noise."""
    return f"SQNR {-20 * math.log10(error):.3g} dB" if error > 0 else "exact"


def _off(layer: LayerDivergence) -> float:
    return layer.metrics.get("relative_rms", 0.0)


def step_of(tensor: TensorRange | Spread) -> float:
    """The step of a scale that holds all of a tensor's values, and 0."""
    return (max(tensor.maximum, 0.0) - min(tensor.minimum, 0.0)) / _STEPS


def _spread(tensor: TensorRange) -> Spread:
    return Spread(tensor.tensor, tensor.minimum, tensor.maximum, tensor.rms)


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
