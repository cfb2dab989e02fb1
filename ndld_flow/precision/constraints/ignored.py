"""Constraints that could not be carried out, in a few sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ndld_flow.base.text import short_name
from ndld_flow.records.build import Constraint


def tell_ignored(constraints: Sequence[Constraint]) -> list[str]:
    """How many constraints were ignored for which reason, and the first of them."""
    first: dict[tuple[str, str], str] = {}
    counts = Counter((one.precision, one.outcome) for one in constraints if one.is_ignored)
    for one in constraints:
        first.setdefault((one.precision, one.outcome), one.node)
    return [
        f"{precision} {outcome} ({count} node{'' if count == 1 else 's'}, such as "
        f"{short_name(first[precision, outcome])!r})"
        for (precision, outcome), count in counts.most_common()
    ]
