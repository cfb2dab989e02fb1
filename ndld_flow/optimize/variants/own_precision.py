"""The precision that a runtime chooses by itself: OpenVINO computes in bfloat16 on some CPUs."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.optimize.variant import Subject, Variant

ORDER = 20


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield the source and the cleaned model in the runtime's own precision: what it fuses decides what it rounds."""
    own, title = subject.own_precision, subject.traits.title
    if not own:
        return
    if (precision := subject.traits.find_own_precision()) == "float32":
        yield f"{title}'s default precision is not tried: on this CPU it is {precision}, as in the other variants."
    else:
        yield Variant(f"source{subject.label} at the default precision", own, is_source=True)
        yield Variant(f"clean{subject.label} at the default precision", own)
