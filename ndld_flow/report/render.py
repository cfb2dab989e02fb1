"""Render page data as HTML and write it atomically: one template per kind of page, autoescaped, in a single file.

The ES modules of a page are bundled into one script, so that it is built without Node.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
from dataclasses import dataclass
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base import quantities
from ndld_flow.base.declared_metrics import metric_text
from ndld_flow.base.errors import PageError
from ndld_flow.base.text import short_name, value_text, visible_text
from ndld_flow.report.collect_layers import computing_name, passages
from ndld_flow.report.encoding import packed
from ndld_flow.report.measured import (
    facts_of,
    machine_settings,
    profiler_words,
    settings_of,
    shape_text,
    tensor_text,
)
from ndld_flow.report.panel import panel_folders
from ndld_flow.store.files import write_text_atomically

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from jinja2 import Environment

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

    `panels` is the folder of its panels, empty for a page without. The entry exports `start(panels)`, which gets the
    exports of each panel, in the order of their file names.

    The modules are ordinary: ESLint, TypeScript and any browser read them as they are. Each one becomes a function with
    private local names, which runs once, after the modules that it imports:

        modules["table.js"] = (() => {
          const { make, shortened: short } = modules["elements.js"];
          ...
          return { TableView };
        })();

    Only a plain subset of the syntax is accepted; anything else raises an error instead of a wrong script:

    - `import { name, other as alias } from "./path.js";` at the beginning of a line, and `import "./path.js";`
    - `export` in front of a `function`, `async function`, `class` or `const` at the beginning of a line. An exported
      value never changes, because an importer copies it.
    - no cycles.

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


@dataclass(frozen=True)
class PageParts:
    """The files that one kind of page is built from."""

    name: str
    """Its template is `NAME.html.j2`."""
    own_styles: str
    """Names of its own styles in the order of the cascade, in which they follow the common ones and precede `print`."""
    script: str = ""
    """Folder of its script in `static`, if it does not have the page's name."""
    panels: str = ""
    """Folder of the scripts of its panels; empty for a page without."""

    @property
    def styles(self) -> tuple[str, ...]:
        """Return its files of styles in the order of the cascade."""
        return tuple(f"{name}.css" for name in ("tokens", "page", *self.own_styles.split(), "print"))

    @property
    def entry(self) -> str:
        """Return the module that starts the page."""
        return f"static/{self.script or self.name}/page.js"


_SPACES = re.compile(r"/\*.*?\*/\n?|^[ \t]+", re.DOTALL | re.MULTILINE)
"""Comments and indentation of styles, which pages do not contain."""
EARLY_SCRIPT = "theme.js"
"""A script of every page. It runs before the first paint, so that a chosen theme does not flash."""

_STYLES = "flow charts tables profile views graph"
RUN_REPORT = PageParts("report", f"{_STYLES} compare diff precision optimization", panels="panels")
PROFILE_REPORT = PageParts("profile", _STYLES, RUN_REPORT.name, RUN_REPORT.panels)
MODEL_PAGE = PageParts("model", "graph model_graph")
"""A model's graph with all that is in it."""


def render(parts: PageParts, page: object, **also: object) -> str:
    """Return the text of a page. Equal page data give equal text.

    The template receives the data as `page`, and further values by their names.
    """
    return environment().get_template(f"{parts.name}.html.j2").render(page=page, **_equal_in_all(parts), **also)


@lru_cache
def _equal_in_all(parts: PageParts) -> dict[str, object]:
    """Return the parts that all pages of a kind share, cached for the many points of a sweep."""
    early, late = _static_text(EARLY_SCRIPT), _closing_no_tag(parts.entry, bundle(parts.entry, panels=parts.panels))
    return {
        "style": "\n".join(_SPACES.sub("", _static_text(name)) for name in parts.styles),
        "early_script": early,
        "script": late,
        # Only these two scripts may run: even a name that escapes the escaping stays text.
        "script_hashes": (_csp_hash(early), _csp_hash(late)),
    }


def _csp_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@lru_cache
def _static_text(name: str) -> str:
    return _closing_no_tag(name, report_files().joinpath("static", name).read_text("utf-8"))


def _closing_no_tag(name: str, text: str) -> str:
    if "</" in text:
        raise ValueError(f"{name} holds `</`, which could close the element that it is put into")
    return text


@lru_cache
def environment() -> Environment:
    """Return the environment of all templates."""
    # Imported lazily: terminal output does not need it.
    from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, PrefixLoader, StrictUndefined

    templates = Environment(
        loader=ChoiceLoader(
            [PackageLoader("ndld_flow.report"), PrefixLoader({"panels": FileSystemLoader(panel_folders())})]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = (
        "milliseconds",
        "seconds",
        "size",
        "count",
        "counted",
        "signed",
        "share",
        "change",
        "number",
        "quantity",
        "percent",
        "three_digits",
    )
    templates.filters |= {name: getattr(quantities, name) for name in names}
    templates.filters |= {"computing_name": computing_name, "passages": passages, "profiler_words": profiler_words}
    templates.filters |= {"facts_of": facts_of, "machine_settings": machine_settings, "settings_of": settings_of}
    templates.filters |= {"shape_text": shape_text, "value_text": value_text}
    templates.filters |= {"metric_text": metric_text}
    templates.filters |= {"packed": packed, "short": short_name, "visible": visible_text, "tensor_type": tensor_text}
    templates.globals |= {
        "size_change": lambda before, after: quantities.size_change(before, after).replace("->", "→"),
        "relative_change": quantities.relative_change,
    }
    return templates


def write_page(path: Path, text: str, again: str) -> Path:
    """Write a page as `writing_atomically` does and return its path. `again` is the command to repeat.

    Raises a `PageError` if it cannot be written.
    """
    try:
        write_text_atomically(path, text)
    except OSError as error:
        raise PageError(
            f"{path} cannot be written ({error.strerror}). "
            f"Free space or make the folder writable, then run `{again}` again."
        ) from error
    return path
