"""The model cleaned up: constants folded, operators fused."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.optimize.variant import Subject, Variant, describe_shapes

ORDER = 10


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield the cleaned model, and what fixing its shapes might gain."""
    yield Variant(f"clean{subject.label}", subject.runtime)
    if subject.has_weights_as_inputs:
        yield "The model lists its weights as inputs: they become constants, which a caller cannot replace."
    shapes = describe_shapes(subject.trial.inputs)
    if shapes and not subject.options.fix_shapes:
        yield f"Shapes stay free: with --fix-shapes, the model accepts {shapes} only, and runtimes optimize it further."
