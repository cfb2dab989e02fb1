"""Pointwise layers by the number of operations fused into each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ndld_flow.base.quantities import count, milliseconds, share
from ndld_flow.base.text import short_name, visible_name
from ndld_flow.profiles.diagnose.rules_layers import ELEMENTWISE
from ndld_flow.profiles.diagnose.subject import Subject
from ndld_flow.records.profile import Layer, Profile
from ndld_flow.report.measured import views_by_profile
from ndld_flow.report.panel import profiles_panel
from ndld_flow.report.tables import Column, Table, Value, without_empty_columns

_ENGINE_TYPES = ("pointwise", "pointwisev2", "pwgen", "elementwise", "unary", "activation", "scale", "eltwise")
"""Types of pointwise layers of TensorRT and OpenVINO, in lower case."""
_SHOWN = 20
_COLUMNS = (
    Column("Operations in a layer", "label"),
    Column("Layers", "number", count),
    Column("Time", "number", milliseconds),
    Column("%", "number", share),
    Column("Time per operation", "number", milliseconds),
)
_LAYERS = (
    Column("Name", "name"),
    Column("Type", "label"),
    Column("Operations", "number", count),
    Column("ONNX nodes", "label"),
    Column("Time", "number", milliseconds),
)


@dataclass(frozen=True)
class PointwiseView:
    """The pointwise layers of one profile."""

    label: str
    count: int
    operations: int
    """Number of ONNX nodes in them, as far as it is known."""
    share: float | None
    """Share of the sum of all layers; None without times."""
    by_operations: Table
    fused: Table
    """Layers of several operations, the longest first."""


def collect(profiles: Mapping[str, Profile]) -> tuple[PointwiseView, ...]:
    """Return a view of each profile with pointwise layers."""
    return views_by_profile(profiles, _view)


def is_pointwise(layer: Layer) -> bool:
    """Return whether a layer computes each output element from the same element of its inputs."""
    return layer.role == "compute" and (layer.type in ELEMENTWISE or layer.type.lower() in _ENGINE_TYPES)


def _view(label: str, profile: Profile) -> PointwiseView | None:
    subject = Subject(profile)
    places = subject.where(is_pointwise)
    if not places:
        return None
    timed = subject.layers_ms > 0
    groups: dict[int, list[int]] = defaultdict(list)
    for index in places:
        groups[len(subject.layers[index].onnx_nodes)].append(index)
    rows: list[tuple[Value, ...]] = []
    for operations, members in sorted(groups.items()):
        sum_ms = subject.sum_ms(members)
        each = sum_ms / (len(members) * operations) if operations and timed else None
        times = (sum_ms, sum_ms / subject.layers_ms) if timed else (None, None)
        rows.append((str(operations) if operations else "not recorded", len(members), *times, each))
    fused = [index for index in places if len(subject.layers[index].onnx_nodes) > 1]
    return PointwiseView(
        label=label,
        count=len(places),
        operations=sum(len(subject.layers[index].onnx_nodes) for index in places),
        share=subject.sum_ms(places) / subject.layers_ms if timed else None,
        by_operations=without_empty_columns(_COLUMNS, rows),
        fused=without_empty_columns(
            _LAYERS,
            [
                (
                    visible_name(layer.name),
                    short_name(layer.type, 40),
                    len(layer.onnx_nodes),
                    short_name(", ".join(layer.onnx_nodes)),
                    subject.medians_ms[index] if timed else None,
                )
                for index in fused[:_SHOWN]
                for layer in [subject.layers[index]]
            ],
        ),
    )


PANEL = profiles_panel("Pointwise", collect, is_tab=True)
