"""INT8 except the layers that it breaks, which a search finds: the most expensive family, and so among the last."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.optimize.goals import tolerance_of
from ndld_flow.optimize.variant import Subject, Variant
from ndld_flow.optimize.variants.int8 import may_pay, plain_form

ORDER = 90
_LONGEST_MS = 120_000.0
_SHARE = 0.15
"""Share of the budget that the search for exceptions may take."""


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield one variant, with real samples."""
    quantized = subject.allows("QuantizeLinear", "DequantizeLinear")
    if not subject.samples.search or not quantized or not may_pay(subject):
        return
    time_ms = subject.limit_ms(_SHARE, _LONGEST_MS)
    target = subject.quantize_target
    found = (
        f"{{step: find_precision, from: clean, precision: int8, int8: {{method: minmax{target}}}"
        f"{tolerance_of(subject.conditions)}, trials: 60, time: {time_ms:g} ms}}"
    )
    made = f"{{{subject.quantize()}{target}, found_by: found}}"
    name = f"INT8 except what it breaks{subject.label}"
    plain, steps = plain_form(subject), {"found": found, "made": made}
    yield Variant(name, subject.runtime, steps, costly=True, unless=(plain,), whole=plain, needs=plain)
