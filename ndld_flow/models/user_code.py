"""Python files that a recipe names and a person trusts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from blake3 import blake3

from ndld_flow.base.errors import RequestError
from ndld_flow.base.failing_line import failing_line
from ndld_flow.base.imported_modules import find_imported, use_modules
from ndld_flow.base.source_module import new_module, run_source
from ndld_flow.models.files import one_paragraph


def load_user_module(path: Path) -> ModuleType:
    """Import a file, which may import modules that lie beside it.

    Raises `RequestError` when it cannot be read, is not Python, or fails; with the line that does.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise RequestError(f"{path}: the file cannot be read ({error.strerror})") from None
    use_modules(find_imported(path, source))
    name = f"ndld_flow_user_{path.stem}_{blake3(source).hexdigest()[:12]}"
    module = new_module(path, name)
    if module is None:
        raise RequestError(f"{path}: it is not Python: its name does not end in `.py`")
    with told_with_place(path):
        run_source(module, source, path)
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
