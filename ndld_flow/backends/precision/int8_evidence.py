"""Why 8 bits are too few for a node, in sentences with numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.backends.precision.evidence import percent
from ndld_flow.plain_text import short_name
from ndld_flow.quantities import number
from ndld_flow.records.divergence import LayerDivergence, TensorRange
from ndld_flow.records.precision_search import Evidence

_MUCH = 0.25
"""Share of its output's RMS that a node may add as error before it is a suspect."""
_LOST = 0.5
"""Share of values lost in the steps of a scale from which on that is told."""
_STEPS = 255


@dataclass(frozen=True)
class Int8Suspect:
    """A node, and how far what it reads and makes is off where everything is int8."""

    node: ir.Node
    layers: Mapping[str | None, LayerDivergence]
    """Tensor -> its divergence, and its range."""
    lost: Callable[[TensorRange], float]
    """Share of a tensor's values, other than 0, that a scale for all of them makes 0."""

    @property
    def observed(self) -> bool:
        """Whether its outputs were looked at."""
        return any(value.name in self.layers for value in self.node.outputs)

    @property
    def severity(self) -> float:
        """The error that it adds; 1 where that is a quarter of its output."""
        return max(0.0, self._made - self._read) / _MUCH

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
        ranges = [layer.range for layer in self._inputs() if layer.range is not None]
        found = [_too_wide(tensor, lost) for tensor in ranges if (lost := self.lost(tensor)) >= _LOST]
        off = f"its output is {percent(self._made)} off, what it reads {percent(self._read)} (relative RMS)"
        said = off if self.observed else "what it computes was not looked at"
        sentence = f"with everything in int8 {said}; {without}" if without else f"with everything in int8 {said}"
        return (*found, Evidence(cause="sensitivity", sentence=sentence, value=self._made, limit=self._read))


def _off(layer: LayerDivergence) -> float:
    return layer.metrics.get("relative_rms", 0.0)


def step_of(tensor: TensorRange) -> float:
    """The step of a scale that holds all of a tensor's values, and 0."""
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
