"""Rules on how layers compute, for measured profiles and for engines that were not run.

A rule is a public function, in a module of this folder, that yields findings; rules are discovered automatically. It
yields nothing if its advice would be wrong: for an engine that is not quantized, for layers of unknown precision or
kernel, for what no recipe can change.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator

from ndld_flow.profiles.diagnose.subject import Insight, LintSubject, rules_in

Lint = Callable[[LintSubject], Iterator[Insight]]


def _find_lints() -> tuple[Lint, ...]:
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return tuple(sorted(rules_in(*modules), key=lambda rule: rule.__name__))


LINTS: tuple[Lint, ...] = _find_lints()
