"""`${oc.env:NAME}`: the environment holds passwords and tokens, so that only a recipe that is trusted may read it.

Else a stranger's recipe could put them into the address of its model, or into a report that is shown to others.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import NoReturn

from ndld_flow.base.errors import Problem

READS_ENVIRONMENT = "this recipe reads the environment variable"


@contextlib.contextmanager
def reading_environment(*, allowed: bool) -> Iterator[None]:
    """Inside the block, OmegaConf reads environment variables only if allowed, wherever the recipe names them."""
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    OmegaConf.register_new_resolver("oc.env", oc.env if allowed else _refuse, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def _refuse(variable: object, _default: object = None) -> NoReturn:
    raise PermissionError(f"{READS_ENVIRONMENT} {variable}")


def explain_reading(where: str, dotted: str, text: str) -> Problem:
    """Return OmegaConf's refusal as a problem."""
    what = re.sub(rf".*({READS_ENVIRONMENT} \S+).*", r"\1", text)
    return Problem(where, dotted, what, "it may be a secret: make sure of it, then allow it with --trust")
