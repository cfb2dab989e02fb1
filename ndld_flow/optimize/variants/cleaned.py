"""The model cleaned up: constants folded, operators fused."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.optimize.variant import Subject, Variant

ORDER = 10


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield the cleaned model, and what fixing its shapes might gain."""
    yield Variant(f"clean{subject.label}", subject.runtime)
    if subject.has_weights_as_inputs:
        yield "The model lists its weights as inputs: they become constants, which a caller cannot replace."
    shapes = subject.trial.free_sizes
    if any(likely.varies for likely in subject.trial.inputs):
        yield f"The samples have several sizes: the speed is that of one of median size, {shapes}."
    elif shapes and not subject.options.fix_shapes:
        yield (
            f"Shapes stay free, and are measured as {shapes}; --shape sets others. With --fix-shapes, the model "
            "accepts these only, and runtimes optimize it further."
        )
