"""INT8 with Q/DQ: of all layers that profit, with ranges measured in two ways."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.recipe.optimize.variant import Subject, Variant

ORDER = 30


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield a variant for each way to measure ranges."""
    if not subject.samples.search:
        yield "INT8 is not tried: it needs real samples, for ranges and to be judged; give --data."
        return
    if not subject.allows("QuantizeLinear", "DequantizeLinear"):
        yield "INT8 is not tried: the target has no QuantizeLinear and DequantizeLinear."
        return
    target = f", target: {target}" if (target := subject.preset.quantize_target) else ""
    for method in ("minmax", "percentile"):
        made = {"made": f"{{step: quantize, from: clean, method: {method}{target}}}"}
        yield Variant(f"INT8, {method}{subject.label}", subject.runtime, made)
