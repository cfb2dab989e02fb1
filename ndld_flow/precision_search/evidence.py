"""The reasons why a node breaks at a reduced precision, as sentences with figures."""

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
from ndld_flow.records.accuracy import TensorRange
from ndld_flow.records.precision_search import Evidence

ROUNDING_ERROR: Mapping[str, float] = {"fp16": 2.0**-11, "bf16": 2.0**-8}
"""The largest relative error of one rounding: half a unit in the last place of the format."""
_FAR = 20.0
"""A node whose own error exceeds that of this many roundings is a suspect."""
_VANISHED = 0.1
"""Smallest share of values becoming 0 that is reported as underflow."""
_FEW_BITS = 16
"""Numbers below this many times the smallest one have at most 4 bits of precision."""


class Suspect(Protocol):
    """A node with the evidence against it."""

    @property
    def node(self) -> ir.Node: ...

    @property
    def observed(self) -> bool:
        """True if the outputs of the node were observed."""

    @property
    def severity(self) -> float:
        """Strength of the evidence: 1 or more makes the node a suspect."""

    def evidence(self, without: str) -> tuple[Evidence, ...]:
        """Return the evidence, strongest first, never empty. `without` describes the result of leaving out the node."""


@dataclass(frozen=True)
class FloatSuspect:
    """A node with its local error in fp16 or bf16."""

    node: ir.Node
    error: LocalError | None
    """None if nothing was observed: in bodies, and for operators that only move data."""
    precision: str

    @property
    def observed(self) -> bool:
        return self.error is not None

    @property
    def severity(self) -> float:
        """Local error relative to `_FAR` times the error of one rounding; above 1000 if the output has NaN."""
        if self.error is None:
            return 0.0
        if self.error.nonfinite:
            return 1e3 + self.error.nonfinite
        return min(self.error.relative_rms / (_FAR * ROUNDING_ERROR[self.precision]), 1e3)

    def evidence(self, without: str) -> tuple[Evidence, ...]:
        """Return the evidence, strongest first. `without` describes the result of leaving out the node."""
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
        """Return a clause on the effect of a clamped BatchNormalization variance; empty if there is none."""
        variance = self.node.inputs[4] if self.node.op_type == "BatchNormalization" else None
        changed = scale_in_half(self.node) if variance is not None and variance.name == loss.name else None
        return "" if changed is None else f"; clamping them scales a channel by {changed.factor:.3g}"

    def _underflow(self, error: LocalError, limits: FormatLimits) -> Iterator[Evidence]:
        if self.severity < 1.0:
            return  # the node is accurate enough: the lost values do not matter
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


def _unobserved(without: str) -> Evidence:
    outcome = without or "no trial left it out"
    return Evidence(cause="sensitivity", sentence=f"its outputs were not observed; {outcome}")


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
    """Return `1.2 %` for `0.0123`."""
    return f"{number(float(f'{fraction * 100:.2g}'))} %"
