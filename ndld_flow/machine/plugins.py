"""Classes that are found by their place, in this package, and those that installed packages offer by entry points."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, distributions
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import one_paragraph
from ndld_flow.base.user_code import UserCode, is_installed, list_files
from ndld_flow.store.digest import digest_file, digest_json


def classes_in(package: ModuleType, base: str) -> dict[str, str]:
    """Return name -> `module:Class` of a package's public classes whose base has a name that ends like this.

    They are found in the text of its files: importing all operations of `edit` takes 0.1 s, and a check imports onnx.
    `RenameNodes` has the name `rename_nodes`.
    """
    return {
        re.sub(r"(?<!^)(?=[A-Z])", "_", found).lower(): f"{package.__name__}.{path.stem}:{found}"
        for folder in package.__path__
        for path in Path(folder).glob("*.py")
        for found in re.findall(rf"^class ([A-Z]\w*)\(\w*{base}\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    }


def find_plugins(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by their names, without importing any."""
    return _find_all(tuple(sys.path)).get(group, {})


@cache
def _find_all(path: tuple[str, ...]) -> Mapping[str, Mapping[str, EntryPoint]]:
    """Return group -> name -> entry point; the first distribution on the path wins. `path` is that of Python."""
    del path  # only the cache's
    found: dict[str, dict[str, EntryPoint]] = {}
    for installed in distributions():  # read once: each call of `entry_points` reads the metadata of all of them
        for point in installed.entry_points:
            found.setdefault(point.group, {}).setdefault(point.name, point)
    return found


def plugin_origin(point: EntryPoint) -> str:
    """Return the distribution of an entry point, with its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def plugin_version(point: EntryPoint) -> str:
    """Return the origin of an entry point; with a digest of its package's files if no distribution installed them.

    The version of an editable install stays while its code changes.
    """
    spec = find_spec(point.module.partition(".")[0])
    path = spec.origin if spec is not None else None
    if path is None or is_installed(path):
        return plugin_origin(point)
    files = {name: digest_file(file) for name, file in list_files(Path(path)).items()}
    return f"{plugin_origin(point)} {digest_json({**files})[:12]}"


def code_of_plugin(module: str) -> UserCode | None:
    """Return the package of a module as a user's code; None if it belongs to an installed distribution."""
    # It may have left `sys.modules`: a package that is first imported for a user's file is forgotten with that.
    package = importlib.import_module(module.partition(".")[0])
    path = package.__file__ or importlib.import_module(module).__file__
    return None if path is None or is_installed(path) else UserCode(Path(path), package)


def load_plugin(point: EntryPoint) -> Any:  # noqa: ANN401 - whatever the entry point names
    """Import what an entry point names. Raises RequestError if that fails."""
    try:
        return point.load()
    except Exception as error:
        raise RequestError(
            f"{plugin_origin(point)}: the entry point `{point.name} = {point.value}` of {point.group} cannot be "
            f"imported: {type(error).__name__}: {one_paragraph(error)}. Repair or uninstall this package."
        ) from error
