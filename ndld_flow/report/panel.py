"""Panels of a report: the sections of its page, found by their place in the folder `panels`.

A panel is a module that holds `PANEL`. Files of the same name next to it are optional: `NAME.html.j2` is its template,
and `NAME.js` a script that exports `show(data)`. Without a template, the view is a `Table`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.report.noted_failures import noting

View = TypeVar("View")

_FOLDER = "ndld_flow.report.panels"
_WITH_TABS = ("layers", "engines")


@dataclass(frozen=True)
class Panel(Generic[View]):
    """One section of a report."""

    title: str
    """Heading, also in the page's navigation."""
    collect: Callable[[RunDocuments], View | None]
    """Return the data of the template from the run's records; None or an empty tuple if the run has no such section."""
    after: str = ""
    """Name of the panel that it follows; empty for the first one."""
    of_profiles: Callable[[Mapping[str, Profile]], View | None] | None = None
    """Return the data from profiles alone; with it, the panel is also on the page of a profile outside a run."""
    data: Callable[[View], object] | None = None
    """Return the part of the view that the panel's script reads, at `data.panels.NAME`: dataclasses, lists, values."""
    closed: bool = False
    """The section starts folded: it holds what few readers need."""
    leads: bool = False
    """The section is above the figures of the run: it holds what every reader needs."""
    is_tab: bool = False
    """The panel is a tab of the layers, or of the engines where no layer has a time."""


def profiles_panel(
    title: str, collect: Callable[[Mapping[str, Profile]], View | None], *, is_tab: bool = False
) -> Panel[View]:
    """Return a panel on the profiles of a run, which the page of a profile has too. It follows the layers."""
    return Panel(title, lambda documents: collect(documents.of(Profile)), "layers", of_profiles=collect, is_tab=is_tab)


@dataclass(frozen=True)
class PanelView:
    """A panel with the data of one run."""

    name: str
    title: str
    template: str
    view: Any
    """Data of its template; each template knows its own type."""
    closed: bool = False
    """The section starts folded."""
    leads: bool = False
    """The section is above the figures of the run."""
    tabs: tuple[PanelView, ...] = ()


def panel_folders() -> list[Path]:
    """Return the folders of panels, with their templates."""
    return [Path(folder) for folder in import_module(_FOLDER).__path__]


@cache
def find_panels() -> dict[str, Panel[Any]]:
    """Return name -> panel in the order of the page.

    Raises a `ValueError` if a panel follows one that does not exist, or if panels follow each other in a circle.
    """
    panels: dict[str, Panel[Any]] = {}
    for module in pkgutil.iter_modules(map(str, panel_folders())):
        panels[module.name] = import_module(f"{_FOLDER}.{module.name}").PANEL

    def chain(name: str) -> list[str]:
        """Return the panels after one. Of several that follow it, the one with fewer panels behind it comes first."""
        chains = [[follower, *chain(follower)] for follower, panel in panels.items() if panel.after == name]
        return [member for members in sorted(chains, key=len) for member in members]

    ordered = chain("")
    if unplaced := panels.keys() - set(ordered):
        raise ValueError(f"panels that follow no panel of the page: {', '.join(sorted(unplaced))}")
    return {name: panels[name] for name in ordered}


def collect_panels(documents: RunDocuments, notes: list[str]) -> tuple[PanelView, ...]:
    """Return the panels that a run has, in the order of the page. Those that fail are added to the notes."""
    views: dict[str, Any] = {}
    for name, panel in find_panels().items():
        with noting(f"The section {panel.title}", notes):
            views[name] = panel.collect(documents)
    return panels_of(views)


def views_of_profiles(profiles: Mapping[str, Profile]) -> dict[str, Any]:
    """Return name -> data of the panels that need only profiles."""
    return {name: panel.of_profiles(profiles) for name, panel in find_panels().items() if panel.of_profiles is not None}


def panels_of(views: Mapping[str, Any]) -> tuple[PanelView, ...]:
    """Return the panels with these views, in the order of the page; those without data are left out."""
    shown = [(name, panel) for name, panel in find_panels().items() if views.get(name)]
    with_tabs = next((name for name in _WITH_TABS if views.get(name)), "")

    def view_of(name: str, panel: Panel[Any]) -> PanelView:
        members = [(tab, its) for tab, its in shown if its.is_tab] if name == with_tabs else []
        tabs = tuple(view_of(tab, its) for tab, its in members)
        return PanelView(name, panel.title, _template_of(name), views[name], panel.closed, panel.leads, tabs)

    ordered = sorted(shown, key=lambda each: not each[1].leads)
    return tuple(view_of(name, panel) for name, panel in ordered if not (panel.is_tab and with_tabs))


def panel_data(shown: Iterable[PanelView]) -> dict[str, object]:
    """Return the data of the panels' own scripts."""
    known = find_panels()
    pairs = ((panel, known[panel.name].data) for panel in shown)
    return {panel.name: data(panel.view) for panel, data in pairs if data is not None}


@cache
def _template_of(name: str) -> str:
    own = f"{name}.html.j2"
    return f"panels/{own}" if any((folder / own).is_file() for folder in panel_folders()) else "table_panel.html.j2"
