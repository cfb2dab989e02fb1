"""Rules on copies between host and device around a pass."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.base.quantities import milliseconds, share
from ndld_flow.profiles.diagnose.insight import Insight
from ndld_flow.profiles.diagnose.subject import Subject

_WORTH_A_LOOK = 0.1


def transfers(subject: Subject) -> Iterator[Insight]:
    """Report copies of inputs and outputs that take at least a tenth of the latency.

    Copies from pinned memory are faster and can overlap with computing
    (https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/, "Data Transfer Between Host and Device"). The estimated
    saving of keeping data on the device is nine tenths of the time that does not overlap.
    """
    to_device = subject.lane_ms(lambda run: run.h2d_ms)
    to_host = subject.lane_ms(lambda run: run.d2h_ms)
    if to_device is None or to_host is None or not subject.latency_ms:
        return
    part = (to_device + to_host) / subject.latency_with_copies_ms
    if part < _WORTH_A_LOOK:
        return
    whole = "the latency" if subject.latency_has_copies else "a pass with its copies"
    yield Insight(
        score=min(1.0, part) * 0.9,
        title=f"Copies between host and device take {share(part)} of {whole}",
        evidence=f"To the device {milliseconds(to_device)}, back {milliseconds(to_host)}, latency "
        f"{milliseconds(subject.latency_ms)} (medians).",
        next_step=(
            "Keep inputs and outputs on the device (IO binding) if adjacent stages run there. Otherwise use pinned "
            "memory, overlap copies with the previous pass on a second stream, and send bytes instead of floats."
        ),
    )
