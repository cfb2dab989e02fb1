"""Python files that a recipe names and the user trusts: imported from the bytes that were hashed."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from blake3 import blake3

from ndld_flow.base.errors import RequestError
from ndld_flow.base.imported_modules import find_imported, use_modules
from ndld_flow.base.text import one_paragraph


def new_module(path: Path, name: str) -> ModuleType | None:
    """Return a module for a file, its code not yet run; None if the file's suffix is not Python's.

    The module is in `sys.modules` before its code runs, because dataclasses and pydantic look annotations up there.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        return None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    return module


def run_source(module: ModuleType, source: bytes, path: Path) -> None:
    """Run a module's code. If it fails, the module is removed from `sys.modules` and the error is raised.

    The file's own loader is not used: Python compares cached bytecode by size and by whole seconds, and would run the
    previous code of a file that has just changed, under the digest of the new code.
    """
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the recipe is trusted
    except BaseException:
        del sys.modules[module.__name__]
        raise


def failing_line(error: BaseException, path: Path) -> str:
    """Return the innermost line of the file in an error's traceback, as `:12`; empty if it has none."""
    file = path.absolute()
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).absolute() == file:
        return f":{error.lineno}"
    trace, line = error.__traceback__, ""
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).absolute() == file:
            line = f":{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def load_user_module(path: Path) -> ModuleType:
    """Import a file, which may import modules from its own folder.

    Raises RequestError with the failing line if the file cannot be read, is not Python, or fails.
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
    with locating_errors(path):
        run_source(module, source, path)
    return module


@contextlib.contextmanager
def locating_errors(path: Path) -> Iterator[None]:
    """Turn any exception of the file's code into a RequestError of one paragraph, with the failing line."""
    try:
        yield
    except RequestError:
        raise
    except (Exception, SystemExit) as error:
        reason = one_paragraph(error)
        description = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        raise RequestError(f"{path}{failing_line(error, path)}: {description}") from error
