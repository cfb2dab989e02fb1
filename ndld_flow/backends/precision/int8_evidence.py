"""Why 8 bits are too few for a node, in sentences with numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.backends.precision.evidence import percent
from ndld_flow.plain_text import short_name
from ndld_flow.quantities import number
from ndld_flow.records.divergence import LayerDivergence, TensorRange
from ndld_flow.records.precision_search import Evidence

_MUCH = 0.25
"""Share of its output's RMS that a node may add as error before it is a suspect."""
_SPAN = 32.0
"""Largest value over RMS from which on the steps of a scale are told to be too wide: 4 of them are an RMS then."""
_STEPS = 255


@dataclass(frozen=True)
class Int8Suspect:
    """A node, and how far what it reads and makes is off where everything is int8."""

    node: ir.Node
    layers: Mapping[str | None, LayerDivergence]
    """Tensor -> its divergence."""

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
        spans = (layer.range for layer in self._inputs() if layer.range is not None and layer.range.rms > 0)
        wide = max(spans, key=_span, default=None)
        found = [_too_wide(wide)] if wide is not None and _span(wide) >= _SPAN else []
        off = f"its output is {percent(self._made)} off, what it reads {percent(self._read)} (relative RMS)"
        said = off if self.observed else "what it computes was not looked at"
        sentence = f"with everything in int8 {said}; {without}" if without else f"with everything in int8 {said}"
        return (*found, Evidence(cause="sensitivity", sentence=sentence, value=self._made, limit=self._read))


def _off(layer: LayerDivergence) -> float:
    return layer.metrics.get("relative_rms", 0.0)


def _span(tensor: TensorRange) -> float:
    return tensor.largest_abs / tensor.rms


def _too_wide(tensor: TensorRange) -> Evidence:
    step = (tensor.maximum - tensor.minimum) / _STEPS
    return Evidence(
        cause="range",
        sentence=f"it reads {short_name(tensor.tensor, 60)}, whose largest value {number(tensor.largest_abs)} is "
        f"{_span(tensor):.3g} times its RMS: one of {_STEPS} steps is {number(step)}",
        tensor=tensor.tensor,
        value=_span(tensor),
        limit=_SPAN,
    )
