"""Python files that a recipe names and a person trusts."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from blake3 import blake3

from ndld_flow.backends.models.files import one_paragraph
from ndld_flow.errors import RequestError
from ndld_flow.failing_line import failing_line


def load_user_module(path: Path) -> ModuleType:
    """Import a file. Raises `RequestError` when it cannot be read, is not Python, or fails; with the line that does."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise RequestError(f"{path}: the file cannot be read ({error.strerror})") from None
    name = f"ndld_flow_edit_{path.stem}_{blake3(source).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RequestError(f"{path}: it is not Python: its name does not end in `.py`")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look annotations up here
    try:
        with told_with_place(path):
            spec.loader.exec_module(module)
    except RequestError:
        del sys.modules[name]
        raise
    return module


@contextlib.contextmanager
def told_with_place(path: Path) -> Iterator[None]:
    """What the file's code raises inside becomes a `RequestError` in one paragraph, with the file's line."""
    try:
        yield
    except RequestError:
        raise
    except (Exception, SystemExit) as error:
        reason = one_paragraph(error)
        told = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        raise RequestError(f"{path}{failing_line(error, path)}: {told}") from error
