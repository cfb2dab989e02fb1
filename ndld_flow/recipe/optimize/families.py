"""Discovery of the families of variants."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from ndld_flow.recipe.optimize import variants
from ndld_flow.recipe.optimize.variant import Subject, Variant


def propose_variants(subject: Subject) -> Iterator[tuple[int, Variant | str]]:
    """Yield the variants of all families with the order of each, and sentences on what is not tried."""
    for module in pkgutil.iter_modules(variants.__path__):
        family = importlib.import_module(f"{variants.__name__}.{module.name}")
        yield from ((family.ORDER, proposed) for proposed in family.propose(subject))
