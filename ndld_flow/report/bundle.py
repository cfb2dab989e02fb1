"""Bundle ES modules into one script, so that a page is a single file and is built without Node.

The modules are ordinary: ESLint, TypeScript and any browser read them as they are. Each one becomes a function with
private local names, which runs once, after the modules that it imports:

    modules["table.js"] = (() => {
      const { make, shortened: short } = modules["elements.js"];
      ...
      return { TableView };
    })();

Only a plain subset of the syntax is accepted; anything else raises an error instead of a wrong script:

- `import { name, other as alias } from "./path.js";` at the beginning of a line, and `import "./path.js";`
- `export` in front of a `function`, `async function`, `class` or `const` at the beginning of a line. An exported value
  never changes, because an importer copies it.
- no cycles.

A page consists of its entry module and its panels, the modules of a folder. The entry exports `start(panels)`, which
gets the exports of each panel, in the order of their file names.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_IMPORT = re.compile(r'^import (?:\{(?P<names>[^}]*)\} from )?"(?P<path>\.{1,2}/[^"]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|class|const) (?P<name>[\w$]+))", re.MULTILINE)
_OTHER_SYNTAX = re.compile(r"^(?:import|export)\b.*|\bimport\(", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*(?://.*|/\*\*(?:(?!\*/)[\s\S])*\*/[ \t]*)\n", re.MULTILINE)
"""A comment on separate lines, which is removed from pages, as indentation is. ESLint refuses template literals of
several lines, which would be changed.
"""
_INDENTATION = re.compile(r"^[ \t]+", re.MULTILINE)


class BundleError(Exception):
    """A module that cannot become part of a page."""


@dataclass(frozen=True)
class Module:
    """One file: its code without import and export statements, the names it imports from each path, its exports."""

    path: str
    code: str
    imports: dict[str, tuple[str, ...]]
    """Path of a module -> names, each `name` or `name: alias`."""
    exports: tuple[str, ...]

    def text(self) -> str:
        """Return the module as a function that runs once."""
        names = {path: names for path, names in self.imports.items() if names}
        taken = [f'const {{ {", ".join(names[path])} }} = modules["{path}"];\n' for path in names]
        given = f"return {{ {', '.join(self.exports)} }};\n"
        return f'modules["{self.path}"] = (() => {{\n{"".join(taken)}{self.code}{given}}})();\n'


def report_files() -> Traversable:
    """Return the folder that contains the pages' scripts and styles (`static`) and the panels (`panels`)."""
    return resources.files("ndld_flow.report")


def bundle(entry: str, root: Traversable | None = None, panels: str = "") -> str:
    """Return one script that runs the page of an entry module, given by its path in `root`.

    `panels` is the folder of its panels, empty for a page without.

    Raises `BundleError` for a module that is missing, an imported name that is not exported, a cycle, and unsupported
    syntax.
    """
    root = root or report_files()
    texts = (module.text() for module in modules_of(entry, root, panels))
    started = ", ".join(f'modules["{path}"]' for path in _panels(panels, root))
    return f'const modules = {{}};\n{"".join(texts)}modules["{entry}"].start([{started}]);\n'


def modules_of(entry: str, root: Traversable, panels: str = "") -> list[Module]:
    """Return the modules of a page, each after those that it imports. Raises like `bundle`."""
    modules = _read_all([entry, *_panels(panels, root)], root)
    for module in modules.values():
        for path, names in module.imports.items():
            missing = [name for name in names if name.split(":")[0] not in modules[path].exports]
            if missing:
                raise BundleError(f"{module.path} imports {', '.join(missing)}, which {path} does not export")
    if "start" not in modules[entry].exports:
        raise BundleError(f"{entry} does not export `start`")
    # Each module comes after those that it imports; equal modules have equal order.
    graph = {path: sorted(modules[path].imports) for path in sorted(modules)}
    try:
        paths = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise BundleError(f"modules import each other in a cycle: {' -> '.join(error.args[1])}") from error
    return [modules[path] for path in paths]


def _panels(folder: str, root: Traversable) -> list[str]:
    names = sorted(file.name for file in root.joinpath(folder).iterdir()) if folder else []
    return [f"{folder}/{name}" for name in names if name.endswith(".js")]


def _read_all(paths: list[str], root: Traversable) -> dict[str, Module]:
    """Return the modules at these paths and all that they import."""
    modules: dict[str, Module] = {}
    waiting = list(paths)
    while waiting:
        path = waiting.pop()
        if path not in modules:
            try:
                text = root.joinpath(path).read_text("utf-8")
            except FileNotFoundError as error:
                raise BundleError(f"{path} does not exist") from error
            modules[path] = read_module(path, text)
            waiting += modules[path].imports
    return modules


def read_module(path: str, text: str) -> Module:
    """Parse a module. Raises `BundleError` for unsupported syntax."""
    text = _INDENTATION.sub("", _COMMENT.sub("", f"{text.rstrip()}\n"))
    imports = {
        posixpath.normpath(posixpath.join(posixpath.dirname(path), statement["path"])): tuple(
            # `name as alias` is called `name: alias` in a destructured object.
            re.sub(r"\s+as\s+", ": ", part.strip())
            for part in (statement["names"] or "").split(",")
            if part.strip()
        )
        for statement in _IMPORT.finditer(text)
    }
    exports = tuple(statement["name"] for statement in _EXPORT.finditer(text))
    code = _EXPORT.sub("", _IMPORT.sub("", text)).lstrip("\n")
    if other := _OTHER_SYNTAX.search(code):
        raise BundleError(f"{path}: `{other[0]}` is not a supported form of import or export")
    return Module(path, code, imports, exports)
