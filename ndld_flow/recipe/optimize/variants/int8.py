"""INT8 with Q/DQ: of all layers that profit, with ranges measured in two ways."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.recipe.optimize.variant import Subject, Variant

ORDER = 30


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield a variant for each way to measure ranges; in OpenVINO also one with fewer layers, in its own precision."""
    if not subject.samples.search:
        yield "INT8 is not tried: it needs real samples, for ranges and to be judged; give --data."
        return
    for method in ("minmax", "percentile"):
        made = {"made": f"{{step: quantize, from: clean, method: {method}{subject.quantize_target}}}"}
        yield Variant(f"INT8, {method}{subject.label}", subject.runtime, made)
    if subject.runtime == "openvino":
        dense = "{step: quantize, from: clean, method: percentile, target: openvino, min_intensity: 64}"
        own = "{backend: openvino, inference_precision: default}"
        yield Variant(f"INT8 in dense layers, the rest as OpenVINO chooses{subject.label}", own, {"made": dense})
