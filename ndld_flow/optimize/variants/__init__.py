"""Families of variants that `optimize` tries, one per file; every module in this folder is found.

A module has `ORDER`, its place in the search (likely winners come first, and what takes long last, so that a budget
ends that), and `propose`, which yields variants where they can pay, by the graph and by the time that operators take,
and sentences on what is not tried.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from ndld_flow.optimize.variant import Subject, Variant


def propose_variants(subject: Subject) -> Iterator[tuple[int, Variant | str]]:
    """Yield the variants of all families with the order of each, and sentences on what is not tried."""
    for module in pkgutil.iter_modules(__path__):
        family = importlib.import_module(f"{__name__}.{module.name}")
        yield from ((family.ORDER, proposed) for proposed in family.propose(subject))
