"""Settings of `lint`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Literal

from ndld_flow.base.quantities import Bytes, Milliseconds
from ndld_flow.base.settings import Settings
from ndld_flow.machine.plugins import classes_in, find_plugins

ENTRY_POINTS = "ndld_flow.checks"
"""Group in which an installed package lists its checks: `name = "package.module:Class"`."""
# By name: the checks import the settings.
BUILT_IN = classes_in(importlib.import_module("ndld_flow.graph.lint.checks"), "Check")
"""Name -> class, as `module:Class`."""
BUILT_IN["onnx.checker"] = BUILT_IN.pop("onnx_checker")  # as in Python
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
