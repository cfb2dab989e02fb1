"""FP16 for engines, except the nodes that it breaks. A CPU computes FP16 in FP32."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.optimize.goals import tolerance_of
from ndld_flow.optimize.variant import Subject, Variant

ORDER = 20


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield FP16 with the exceptions that a search finds, for targets that compute in it."""
    if not subject.preset.fp16:
        if subject.runtime == subject.preset.runtimes[0]:
            yield "FP16 is not tried: a CPU computes it in FP32."
        return
    found = f"{{step: find_precision, from: clean{tolerance_of(subject.conditions)}, trials: 60, time: 2 min}}"
    made = "{step: convert_fp16, from: clean, found_by: found}"
    name = f"FP16 except what it breaks{subject.label}"
    yield Variant(name, subject.runtime, {"found": found, "made": made})
