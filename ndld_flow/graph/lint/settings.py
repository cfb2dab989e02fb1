"""Settings of `lint`."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Literal

from ndld_flow.base.quantities import Bytes, Milliseconds
from ndld_flow.base.settings import Settings
from ndld_flow.machine.plugins import find_plugins


def check_name(module: str) -> str:
    """Return the name of the check in a module of `checks`; two underscores are a dot."""
    return module.replace("__", ".")


# By name: the checks import the settings.
_PLACE = importlib.import_module("ndld_flow.graph.lint.checks").__path__
ENTRY_POINTS = "ndld_flow.checks"
"""Group in which an installed package lists its checks: `name = "package.module:Class"`."""
BUILT_IN = frozenset(check_name(module.name) for module in pkgutil.iter_modules(_PLACE))
CHECK_NAMES = tuple(sorted({*BUILT_IN, *find_plugins(ENTRY_POINTS)}))
"""Every check, without importing one."""
if TYPE_CHECKING:
    CheckName = str
else:
    CheckName = Literal[CHECK_NAMES]


class LintSettings(Settings):
    """Settings of `lint`."""

    checks: tuple[CheckName, ...] = ()
    """Run only these checks; empty runs all."""
    skip: tuple[CheckName, ...] = ()
    """Checks to skip."""
    polygraphy: Literal["auto", "always", "never"] = "auto"
    """Polygraphy's lint, which runs the model: `auto` skips it for large models and if it is not installed."""
    large_model: Bytes = 2**30
    """Above this size, checks that read all weights or run the model are skipped unless `checks` names them."""
    time_limit: Milliseconds = 60_000.0
    """For all checks together; those that did not finish are undecided."""
