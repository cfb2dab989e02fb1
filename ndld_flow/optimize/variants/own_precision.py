"""The precision that OpenVINO chooses on this CPU: bfloat16 on some."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.optimize.variant import Subject, Variant

ORDER = 20


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield the source and the cleaned model in OpenVINO's own precision: what it fuses decides what it rounds."""
    if subject.runtime != "openvino":
        return
    from ndld_flow.runtimes.openvino.openvino_session import default_precision

    precision = default_precision()
    if precision == "float32":
        yield "OpenVINO's default precision is not tried: on this CPU it is float32, as in the other variants."
    else:
        own = "{backend: openvino, inference_precision: default}"
        yield Variant(f"source{subject.label} at the default precision", own, is_source=True)
        yield Variant(f"clean{subject.label} at the default precision", own)
