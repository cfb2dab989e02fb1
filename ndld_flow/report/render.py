"""Page data to HTML: one template for each kind of page, autoescape on, everything inside one file."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

from ndld_flow.base import quantities
from ndld_flow.report.collect_profiles import profiler_words

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True)
class PageParts:
    """What one kind of page is put together from; names of files in `templates` and `static`."""

    template: str
    styles: tuple[str, ...]
    """In the order of the cascade."""
    scripts: tuple[str, ...]
    """One scope, in this order: a later file may use what an earlier one declares."""


EARLY_SCRIPT = "theme.js"
"""Of every page. Runs before the first paint, so that a chosen theme does not flash."""

WIDGETS = (
    "payload.js",
    "quantities.js",
    "elements.js",
    "csv.js",
    "table_model.js",
    "table_view.js",
    "switches.js",
    "selection_summary.js",
    "axis.js",
    "tooltip.js",
    "pictures.js",
    "latency_distribution.js",
)
"""What every page is made of, before what is its own."""

TIMELINE = (
    "timeline_data.js",
    "timeline_sight.js",
    "timeline_paint.js",
    "timeline_mouse.js",
    "timeline_keys.js",
    "timeline.js",
)
"""A timeline, of one report or of several."""

GRAPH = (
    "graph_data.js",
    "graph_colours.js",
    "graph_paint.js",
    "graph_map.js",
    "graph_search.js",
    "graph_mouse.js",
    "graph_keys.js",
    "graph_view.js",
)
"""The view of a graph, however it is coloured."""

DIVERGENCE = ("divergence_data.js", "divergence_panels.js", "divergence_chart.js", "divergence_table.js")
"""Errors of two models layer by layer."""

DIFF_TABLE = ("diff_table.js",)
"""What is different between two models, as a table."""

_STYLES = ("tokens.css", "page.css", "flow.css", "charts.css", "tables.css", "profile.css", "graph.css")

RUN_REPORT = PageParts(
    template="report.html.j2",
    styles=(*_STYLES, "compare.css", "diff.css", "precision.css", "print.css"),
    scripts=(
        *WIDGETS,
        "latency_samples.js",
        "latency_passes.js",
        "findings.js",
        *DIFF_TABLE,
        "layer_data.js",
        "heat.js",
        "layer_columns.js",
        "layer_details.js",
        *TIMELINE,
        "type_chart.js",
        "nested_pie.js",
        "roofline.js",
        "exports.js",
        *GRAPH,
        "layers.js",
        "sweep_spots.js",
        *DIVERGENCE,
        "search_trials.js",
        "keys.js",
        "conveniences.js",
        "page.js",
    ),
)

PROFILE_REPORT = PageParts(template="profile.html.j2", styles=(*_STYLES, "print.css"), scripts=RUN_REPORT.scripts)

MODEL_PAGE = PageParts(
    template="model_graph.html.j2",
    styles=("tokens.css", "page.css", "graph.css", "model_graph.css", "print.css"),
    scripts=(
        "payload.js",
        "quantities.js",
        "elements.js",
        "tooltip.js",
        *GRAPH,
        "model_data.js",
        "model_links.js",
        "model_tensor.js",
        "model_panel.js",
        "model_search.js",
        "keys.js",
        "model_page.js",
    ),
)
"""A model's graph with all that is in it."""


def render(parts: PageParts, page: object, **also: object) -> str:
    """A whole page as text. Equal page data give equal text.

    The template finds the data as `page`, and whatever else it is given by its name.
    """
    return environment().get_template(parts.template).render(page=page, **_equal_in_all(parts), **also)


@lru_cache
def _equal_in_all(parts: PageParts) -> dict[str, object]:
    """What every page of a kind has: the many points of a sweep are drawn by one process."""
    early, late = _static_text(EARLY_SCRIPT), "\n".join(map(_static_text, parts.scripts))
    return {
        "style": "\n".join(map(_static_text, parts.styles)),
        "early_script": early,
        "script": late,
        # Only these two scripts may run: should a name ever slip through the escaping, it stays text.
        "script_hashes": (_csp_hash(early), _csp_hash(late)),
    }


def _csp_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@lru_cache
def _static_text(name: str) -> str:
    text = resources.files("ndld_flow.report").joinpath("static", name).read_text("utf-8")
    if "</" in text:
        raise ValueError(f"{name} holds `</`, which could close the element it is put into")
    return text


@lru_cache
def environment() -> Environment:
    """What all templates are rendered in."""
    # Imported when a page is drawn: the verdict on a terminal does without it.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("ndld_flow.report"),
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
        "signed",
        "share",
        "change",
        "number",
        "percent",
        "three_digits",
        "slower_words",
    )
    made.filters |= {name: getattr(quantities, name) for name in names}
    made.filters["profiler_words"] = profiler_words
    made.globals |= {
        "size_change": lambda before, after: quantities.size_change(before, after).replace("->", "→"),
        "change_words": quantities.change_words,
    }
    return made
