"""Why a node breaks at a reduced precision, in sentences with numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from ndld_flow.accuracy.inside.local_error import LocalError
from ndld_flow.accuracy.inside.tensor_statistics import FORMAT_LIMITS, FormatLimits
from ndld_flow.base.quantities import count, number
from ndld_flow.base.text import short_name
from ndld_flow.models.float_tensors import Loss
from ndld_flow.precision.fp16.hazards import scale_in_half
from ndld_flow.records.divergence import TensorRange
from ndld_flow.records.precision_search import Evidence

USUAL: Mapping[str, float] = {"fp16": 2.0**-11, "bf16": 2.0**-8}
"""Relative error of one rounding, at most: half of the last bit that the format has."""
_FAR = 20.0
"""So many roundings' error is more than a node should do alone."""
_VANISHED = 0.1
"""Share of values that become 0 from which on underflow is told."""
_FEW_BITS = 16
"""So many times the smallest number is where 4 bits are left."""


class Suspect(Protocol):
    """A node and what is known of it."""

    @property
    def node(self) -> ir.Node: ...

    @property
    def observed(self) -> bool:
        """Whether what it computes was looked at."""

    @property
    def severity(self) -> float:
        """How much speaks against it: 1 and more makes it a suspect."""

    def evidence(self, without: str) -> tuple[Evidence, ...]:
        """Most telling first, never empty. `without` says what leaving the node out alone comes to."""


@dataclass(frozen=True)
class FloatSuspect:
    """A node, and what it alone does wrong in fp16 or bf16."""

    node: ir.Node
    error: LocalError | None
    """None where nothing was observed: in bodies, and of what only moves data."""
    precision: str

    @property
    def observed(self) -> bool:
        return self.error is not None

    @property
    def severity(self) -> float:
        """What it alone does wrong: 1 where that is `_FAR` times the error of one rounding, more than 1000 for NaN."""
        if self.error is None:
            return 0.0
        if self.error.nonfinite:
            return 1e3 + self.error.nonfinite
        return min(self.error.relative_rms / (_FAR * USUAL[self.precision]), 1e3)

    def evidence(self, without: str) -> tuple[Evidence, ...]:
        """Most telling first. `without` says what leaving the node out alone comes to."""
        if self.error is None:
            return (_unobserved(without),)
        limits = FORMAT_LIMITS[self.precision]
        found = [
            *self._overflow(self.error, limits),
            *self._range(self.error, limits),
            *self._underflow(self.error, limits),
        ]
        return tuple(found) or (self._sensitivity(self.error, without),)

    def _overflow(self, error: LocalError, limits: FormatLimits) -> Iterator[Evidence]:
        for place, ranges in (("its output", error.output_ranges), ("it reads", error.input_ranges)):
            for tensor in ranges:
                if tensor.beyond_share > 0:
                    yield _beyond(place, tensor, limits)

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
        """What the clamped variance of a BatchNormalization does to a channel."""
        variance = self.node.inputs[4] if self.node.op_type == "BatchNormalization" else None
        changed = scale_in_half(self.node) if variance is not None and variance.name == loss.name else None
        return "" if changed is None else f"; clamped, they make a channel {changed.factor:.3g} times what it was"

    def _underflow(self, error: LocalError, limits: FormatLimits) -> Iterator[Evidence]:
        if self.severity < 1.0:
            return  # what vanishes does not matter here
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
        for place, ranges in (("its output", error.output_ranges), ("it reads", error.input_ranges)):
            for tensor in ranges:
                if tensor.vanishing_share >= _VANISHED or 0 < tensor.rms < _FEW_BITS * limits.smallest:
                    yield _vanishing(place, tensor, limits)

    def _sensitivity(self, error: LocalError, without: str) -> Evidence:
        usual = USUAL[self.precision]
        nonfinite = f"it makes {count(error.nonfinite)} NaN or infinite values" if error.nonfinite else ""
        off = f"it alone is {percent(error.relative_rms)} off (relative RMS; one rounding is {percent(usual)})"
        more = "" if self.severity >= 1.0 or not without else f"; {without}"
        return Evidence(
            cause="sensitivity",
            sentence=f"every value fits {self.precision}, but {nonfinite or off}{more}",
            tensor=error.outputs[0] if error.outputs else "",
            value=error.relative_rms,
            limit=usual,
        )


def _unobserved(without: str) -> Evidence:
    said = without or "nothing was tried without it"
    return Evidence(cause="sensitivity", sentence=f"what it computes was not looked at; {said}")


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


def percent(fraction: float) -> str:
    """`0.0123` -> `1.2 %`."""
    return f"{number(float(f'{fraction * 100:.2g}'))} %"
