"""Rules on how layers compute, for measured profiles and for engines that were not run.

A rule is a module with a function of the same name that yields findings; rules are discovered automatically. A rule
yields nothing if its advice would be wrong: for an engine that is not quantized, for layers of unknown precision or
kernel, for what no recipe can change.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator

from ndld_flow.profiles.diagnose.lint_subject import LintSubject
from ndld_flow.profiles.diagnose.subject import Insight

Lint = Callable[[LintSubject], Iterator[Insight]]


def _find_lints() -> tuple[Lint, ...]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(getattr(importlib.import_module(f"{__name__}.{name}"), name) for name in names)


LINTS: tuple[Lint, ...] = _find_lints()
