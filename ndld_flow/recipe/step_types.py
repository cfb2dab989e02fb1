"""Step types: built in, from installed packages, and from files that the user trusts."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ndld_flow import steps
from ndld_flow.base.errors import RequestError
from ndld_flow.base.user_code import UserCode, failing_line, import_code
from ndld_flow.machine.plugins import code_of_plugin, find_plugins, load_plugin, plugin_origin
from ndld_flow.step import Step

ENTRY_POINTS = "ndld_flow.steps"
"""Group in which an installed package names its steps: `word = "package.module:Class"`."""
BUILT_IN = "built in"


@dataclass(frozen=True)
class StepType:
    """A step class with its name in recipes."""

    name: str
    cls: type[Step[Any, Any]]
    origin: str
    """`built in`, the distribution it comes from, or its file."""
    version: str
    """The step's own version, and that of its package."""
    code: UserCode | None = None
    """Its file, unless that belongs to an installed distribution."""

    @property
    def summary(self) -> str:
        """The first line of the class's docstring."""
        return (inspect.getdoc(self.cls) or "").partition("\n")[0]


@dataclass(frozen=True)
class StepTypes:
    """The available step types. A step is imported when it is requested."""

    files: tuple[Path, ...] = ()
    """Python files whose steps may be used, in addition to the built-in and the installed ones."""

    def names(self) -> list[str]:
        """Return all step names, sorted, without importing a step."""
        return sorted({*_built_in_names(), *find_plugins(ENTRY_POINTS), *(file.stem for file in self.files)})

    def find(self, name: str) -> StepType | None:
        """Return the step type of a name, or None. Raises RequestError if its file does not define a step."""
        for file in self.files:
            if file.stem == name:
                return _load_file(file)
        if name in _built_in_names():
            cls = _only_step(importlib.import_module(f"{steps.__name__}.{name}"), BUILT_IN)
            return StepType(name, cls, BUILT_IN, str(cls.version))
        point = find_plugins(ENTRY_POINTS).get(name)
        if point is None:
            return None
        origin = plugin_origin(point)
        cls = _check_step(load_plugin(point), origin)
        code = code_of_plugin(cls.__module__)
        return StepType(name, cls, origin, f"{cls.version}+{origin}", code)

    def __iter__(self) -> Iterator[StepType]:
        for name in self.names():
            step_type = self.find(name)
            if step_type is not None:
                yield step_type


@cache
def _built_in_names() -> frozenset[str]:
    return frozenset(module.name for module in pkgutil.iter_modules(steps.__path__))


def _load_file(path: Path) -> StepType:
    try:
        code = import_code(path)
    except RequestError:
        raise
    except Exception as error:
        line = failing_line(error, path)
        raise RequestError(f"{path}{line}: importing this step failed: {type(error).__name__}: {error}") from error
    assert code.module is not None  # else it would have raised
    cls = _only_step(code.module, str(path))
    return StepType(path.stem, cls, str(path), str(cls.version), code)


def _only_step(module: ModuleType, origin: str) -> type[Step[Any, Any]]:
    own = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)  # and not Step[In, Out], which pydantic assigns to this module
        and issubclass(value, Step)
        and value.__module__ == module.__name__
        and value.__pydantic_generic_metadata__["origin"] is None
    ]
    if len(own) != 1:
        names = ", ".join(cls.__name__ for cls in own) or "none"
        raise RequestError(f"{origin}: a step's file must define exactly one subclass of Step; found {names}.")
    return _check_step(own[0], origin)


def _check_step(cls: type[Step[Any, Any]], origin: str) -> type[Step[Any, Any]]:
    if not (inspect.isclass(cls) and issubclass(cls, Step)):
        raise RequestError(f"{origin}: {getattr(cls, '__name__', repr(cls))} is no subclass of Step.")
    try:
        cls.kinds()
    except (TypeError, AttributeError) as error:
        raise RequestError(f"{origin}: {error}.") from None
    return cls
