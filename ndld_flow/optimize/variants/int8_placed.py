"""INT8 where it pays: a region is quantized only if the target is faster with it, and the outputs stay right."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.optimize.goals import tolerance_of
from ndld_flow.optimize.variant import Subject, Variant
from ndld_flow.optimize.variants.int8 import may_pay
from ndld_flow.runtimes.registry import DEFAULT

ORDER = 95
_LONGEST_MS = 60_000.0
_SHARE = 0.2
"""Share of the budget that the placement may take."""


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield one variant, with real samples, for runtimes that measure here."""
    quantized = subject.allows("QuantizeLinear", "DequantizeLinear") and may_pay(subject)
    if not subject.samples.search or not quantized or subject.preset.engine or subject.preset.remote:
        return
    time_ms = subject.limit_ms(_SHARE, _LONGEST_MS)
    threads = subject.options.threads
    own = f", threads: {threads[0]}" if len(threads) == 1 else ""
    placed = f"{{objective: latency, time: {time_ms:g} ms{own if subject.runtime == DEFAULT else ''}}}"
    target = f", runtime: {{backend: {subject.runtime}{own}}}" if own and subject.runtime != DEFAULT else ""
    scheme = f"{subject.quantize()}{subject.quantize_target}"
    made = f"{{{scheme}, optimize: {placed}{tolerance_of(subject.conditions)}{target}}}"
    yield Variant(f"INT8 where it pays{subject.label}", subject.runtime, {"made": made}, costly=True)
