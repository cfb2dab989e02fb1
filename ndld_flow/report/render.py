"""Render page data as HTML and write it atomically: one template per kind of page, autoescaped, in a single file."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base import quantities
from ndld_flow.base.declared_metrics import metric_text
from ndld_flow.base.errors import PageError
from ndld_flow.base.text import short_name, visible_text
from ndld_flow.report.bundle import bundle, report_files
from ndld_flow.report.collect_layers import computing_name, passages
from ndld_flow.report.encoding import packed
from ndld_flow.report.measured import (
    facts_of,
    machine_settings,
    profiler_words,
    settings_of,
    shape_text,
    tensor_text,
    value_text,
)
from ndld_flow.report.panel import panel_folders
from ndld_flow.store.files import write_text_atomically

if TYPE_CHECKING:
    from jinja2 import Environment


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
