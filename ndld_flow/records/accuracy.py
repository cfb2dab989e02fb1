"""How far two models' outputs agree."""

from __future__ import annotations

from ndld_flow.records.base import Record

HIGHER_IS_BETTER = ("cosine", "snr_db", "top1")
"""Metrics where less is worse: their tolerance is a lower bound, and over several outputs the lowest is told."""


class OutputAgreement(Record):
    """One output tensor of the candidate against the reference's."""

    output: str
    dtype: str
    shape: tuple[int, ...]
    metrics: dict[str, float]
    """`max_abs`, `mean_abs`, `max_rel`, `cosine`, `snr_db`, `mismatched` (fraction of elements outside), ..."""
    failed: tuple[str, ...] = ()
    """Metrics outside their tolerance, each as a sentence."""


class Accuracy(Record):
    """The comparison of two models on the same inputs."""

    format_version: int = 1
    reference: str
    candidate: str
    provider_reference: str
    provider_candidate: str
    sample_count: int
    inputs: dict[str, str]
    """Input -> how its values came to be: `random uniform [0, 1), seed 0, float32 1x3x320x320`."""
    tolerance: dict[str, float]
    output_tolerance: dict[str, dict[str, float]] = {}
    """Output -> its own tolerance, which replaces `tolerance` there."""
    outputs: tuple[OutputAgreement, ...]
    notes: tuple[str, ...] = ()
    """What makes the comparison say less than it seems to: sizes assumed, outputs that are the same everywhere."""

    @property
    def passed(self) -> bool:
        return not any(output.failed for output in self.outputs)
