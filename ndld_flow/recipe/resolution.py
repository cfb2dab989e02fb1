"""Bounds on interpolation: a few lines of `${a}${a}` can expand beyond any memory.

OmegaConf has no limit. Besides compose.py and override_grammar.py only this file imports it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

MAX_STEPS = 20_000
"""Of one recipe: ten for each interpolation that is followed, one for each value and each hundred characters found."""
TOO_MUCH = "its interpolations expand to more than any recipe needs"

_LEFT = threading.local()
"""What may still be followed in this thread, as `steps`; nothing where nobody counts."""


@contextlib.contextmanager
def bounded_resolution() -> Iterator[None]:
    """Limit the interpolations that OmegaConf resolves inside the block; beyond, it raises
    InterpolationResolutionError.
    """
    _count_resolutions()
    _LEFT.steps = MAX_STEPS
    try:
        yield
    finally:
        del _LEFT.steps


def _count_resolutions() -> None:
    """Have OmegaConf count: there is one place through which each interpolation goes, and none to hook into."""
    from omegaconf import Container
    from omegaconf.errors import InterpolationResolutionError

    follow = Container.resolve_parse_tree
    if hasattr(follow, "__wrapped__"):
        return

    def counted(self: Container, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever OmegaConf hands over
        found = follow(self, *args, **kwargs)
        left = getattr(_LEFT, "steps", None)
        if left is not None:
            _LEFT.steps = left - 10 - _size(found)
            if _LEFT.steps < 0:
                raise InterpolationResolutionError(TOO_MUCH)
        return found

    counted.__wrapped__ = follow  # type: ignore[attr-defined]
    Container.resolve_parse_tree = counted  # type: ignore[method-assign]


def _size(found: object) -> int:
    from omegaconf import Container, OmegaConf

    plain = OmegaConf.to_container(found, resolve=False) if isinstance(found, Container) else found
    return _count(plain)


def _count(plain: object) -> int:
    if isinstance(plain, dict | list):
        return 1 + sum(map(_count, plain.values() if isinstance(plain, dict) else plain))
    return 1 + len(str(plain)) // 100
