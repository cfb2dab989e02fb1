"""The model cleaned up: constants folded, operators fused."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.base.text import short_name
from ndld_flow.recipe.optimize.variant import Subject, Variant

ORDER = 10


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield the cleaned model, in which shapes are fixed if that is allowed."""
    fixed = f", fixed to {_shapes(subject)}" if subject.options.fix_shapes and subject.free else ""
    yield Variant(f"clean{fixed}{subject.label}", subject.runtime)
    if subject.free and not subject.options.fix_shapes:
        yield (
            f"Shapes stay free: --fix-shapes allows a model for {_shapes(subject)} only, which runtimes optimize "
            "further."
        )


def _shapes(subject: Subject) -> str:
    return " and ".join(
        f"{short_name(likely.spec.name)} {'x'.join(map(str, likely.shape or ()))}" for likely in subject.free
    )
