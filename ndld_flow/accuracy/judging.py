"""Outputs that were compared, against what was asked of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ndld_flow.accuracy.compared_output import ComparedOutput
from ndld_flow.accuracy.measuring import Measuring
from ndld_flow.accuracy.tolerance import Tolerance, outside
from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.records.accuracy import OutputAgreement

_MOST_UNSEEN = 1000


@dataclass(frozen=True)
class Asked:
    """What is measured on outputs, and how far they may be apart."""

    tolerance: Tolerance | None
    """None: outputs without a tolerance of their own are not judged."""
    by_output: Mapping[str, Tolerance]
    topk: int
    axis: int
    logits: Sequence[str]
    """Patterns of outputs whose `kl` is of their softmax."""

    def measuring(self, output: str) -> Measuring:
        tolerance = self.by_output.get(output, self.tolerance)
        rtol, atol = tolerance.elementwise() if tolerance is not None else (None, None)
        logits = any(name_matcher(pattern)(output) for pattern in self.logits)
        return Measuring(rtol, atol, self.topk, self.axis, logits)

    def check_names(self, outputs: Sequence[str]) -> None:
        """Raises `RequestError` for an output that is not there."""
        for name in self.by_output:
            if name not in outputs:
                raise RequestError(f'output_tolerance: the model has no output "{name}"; {suggest(name, outputs)}')
        for pattern in self.logits:
            if not any(map(name_matcher(pattern), outputs)):
                raise RequestError(f'softmax: "{pattern}" fits no output; {suggest(pattern, outputs)}')

    def judge(self, output: ComparedOutput) -> OutputAgreement:
        """The output's record, with a sentence for everything that is too far off."""
        metrics, places = output.agreement.metrics(), output.agreement.worst_slices()
        slices = output.yardstick.slices
        unseen = () if slices is None else slices.unseen
        return OutputAgreement(
            output=output.name,
            dtype=output.dtype,
            shape=output.shape,
            metrics=metrics,
            worst_samples=output.agreement.worst_samples(),
            judged_as=output.yardstick.kind,
            slice_axis=None if slices is None else slices.layout.axis,
            slice_count=0 if slices is None or slices.features is None else len(slices.features.seen),
            worst_slices=places,
            unseen=unseen[:_MOST_UNSEEN],
            unseen_count=len(unseen),
            failed=(*output.wrong, *_nonfinite(output), *outside(metrics, self._bounds(output), places)),
        )

    def _bounds(self, output: ComparedOutput) -> dict[str, float]:
        tolerance = self.by_output.get(output.name, self.tolerance)
        if tolerance is None:
            return {}
        return tolerance.bounds(output.yardstick.kind, self.topk, own=output.name in self.by_output)


def _nonfinite(output: ComparedOutput) -> list[str]:
    said = []
    if count := output.agreement.only_candidate_nonfinite:
        said.append(f"{count} elements are NaN or infinite where the reference is not")
    if count := output.agreement.only_reference_nonfinite:
        said.append(f"{count} elements are not the NaN or infinity that the reference has there")
    return said
