"""Checks of overrides before Hydra's parser, which is slow and accepts everything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ndld_flow.base.errors import Problem, RecipeError

MAX_LENGTH = 4000
"""Characters of one override."""
MAX_COUNT = 1000

OF_HYDRA = "this is a setting of Hydra's own, which composes recipes here and runs nothing"
OF_HYDRA_HINT = "a sweep has `sweep.method`, `sweep.points`, `--jobs`; a run has `--outputs`"

_LONG = "write long values into a recipe"


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise RecipeError for overrides that no recipe needs."""
    if len(overrides) > MAX_COUNT:
        raise RecipeError(
            [Problem("overrides", "", f"there are at most {MAX_COUNT:,}, found {len(overrides):,}", _LONG)]
        )
    problems = [
        Problem(f'override "{override}"', "", *trouble) for override in overrides for trouble in _find(override)
    ]
    if problems:
        raise RecipeError(problems)


def _find(override: str) -> Iterator[tuple[str, str]]:
    if len(override) > MAX_LENGTH:
        yield f"an override has at most {MAX_LENGTH:,} characters, this one has {len(override):,}", _LONG
    elif not _is_text(override):
        yield "this holds bytes or characters that no text has", "write it in UTF-8, without control characters"
    elif re.match(r"[+~]*\s*hydra\s*([./@=:]|$)", override):
        # what would say how Hydra runs something would say nothing here
        yield OF_HYDRA, OF_HYDRA_HINT


def _is_text(override: str) -> bool:
    """Return whether a text is valid UTF-8 and printable on one line."""
    return not any((char < " " and char not in "\t\n") or "\ud800" <= char <= "\udfff" for char in override)
