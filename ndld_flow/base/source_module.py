"""Import a Python file from the very bytes that were digested."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def new_module(path: Path, name: str) -> ModuleType | None:
    """A module for a file, known under a name, its code not yet run; None when the file's name is not Python's.

    It is known before its code runs, because dataclasses and pydantic look annotations up there.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        return None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    return module


def run_source(module: ModuleType, source: bytes, path: Path) -> None:
    """Run a module's code; where that fails the module is forgotten, and what it raised is raised.

    Not by the file's own loader: Python's cache of compiled files goes by size and by the second, so that it would run
    the code of before where a file was changed quickly, under the digest of the new one.
    """
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - trusted, as who calls says
    except BaseException:
        del sys.modules[module.__name__]
        raise
