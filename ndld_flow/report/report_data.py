"""The data of the scripts of a run's report, or of a profile's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ndld_flow.records.profile import Profile
from ndld_flow.report.collect_graph import GraphShape, collect_graphs, graph_shape
from ndld_flow.report.collect_layers import has_timed_layers
from ndld_flow.report.layer_columns import LayersData, TensorRow, Tensors, timed_layers, untimed_layers
from ndld_flow.report.panel import PanelView, panel_data


@dataclass(frozen=True)
class ReportData:
    """Layers, which several panels show, and the data of each panel's own script."""

    layers: list[LayersData]
    """Those of profiles, then those of engines."""
    graphs: list[GraphShape]
    graph_of: list[int | None]
    """For each item of `layers` its position among the graphs."""
    tensors: list[TensorRow]
    panels: Mapping[str, object]


def report_data(panels: Iterable[PanelView], profiles: Iterable[Profile]) -> ReportData:
    """Return the data of a page. `profiles` are all of the run; those with timed layers have a view each."""
    shown = list(panels)
    views = {panel.name: panel.view for panel in shown}
    timed = filter(has_timed_layers, profiles) if "layers" in views else ()
    layers = list(zip(views.get("layers", ()), timed, strict=True))
    engines = views.get("engines", ())
    graphs = collect_graphs([*(profile for _, profile in layers), *(engine.profile for engine in engines)])
    tensors = Tensors()
    return ReportData(
        layers=[
            *(timed_layers(view, profile, tensors) for view, profile in layers),
            *(untimed_layers(view.step, view.profile.layers, view.missed, tensors) for view in engines),
        ],
        graphs=[graph_shape(picture) for picture in graphs.pictures],
        graph_of=list(graphs.of_profile),
        tensors=tensors.rows(),
        panels=panel_data(shown),
    )
