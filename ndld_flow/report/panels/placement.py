"""Layers that were quantized because it pays: the sets that were measured, and each region with its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ndld_flow.base.declared_metrics import metric_text
from ndld_flow.base.quantities import count, counted, percent, ratio_change, seconds
from ndld_flow.base.text import short_name
from ndld_flow.profiles.compare.rounds import CLOCK_NAMES
from ndld_flow.records.placement import MeasuredRatio, Placement, PlacementTrial
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.report.panel import Panel
from ndld_flow.report.tables import Column, Table, Value

_SETS = (
    Column("Set", kind="label"),
    Column("Regions", kind="number", text=count),
    Column("Accuracy", kind="label"),
    Column("Latency", kind="number", text=ratio_change),
    Column("At 95 % confidence"),
    Column("Outcome"),
)
_REGIONS = (
    Column("Layer", kind="name"),
    Column("Region"),
    Column("Alike", kind="number", text=count),
    Column("Latency alone", kind="number", text=ratio_change),
    Column("At 95 % confidence"),
    Column("Error", kind="number", text=percent),
    Column("Decision"),
    Column("Reason"),
)


@dataclass(frozen=True)
class PlacementView:
    """One placement."""

    step: str
    result: str
    """A sentence on the delivered model."""
    effort: str
    sets: Table
    regions: Table


def collect_placements(documents: RunDocuments) -> tuple[PlacementView, ...]:
    """Return the placements of a run."""
    return tuple(_view(short_name(step), placement) for step, placement in documents.of(Placement).items())


def _view(step: str, placement: Placement) -> PlacementView:
    kinds = Counter(region.kind for region in placement.regions)
    measured = {region.kind for region in placement.regions if region.alone is not None}
    effort = (
        f"{counted(len(placement.regions), 'region')} of {counted(len(kinds), 'kind')}, {count(len(measured))} of them "
        f"measured alone; {counted(len(placement.trials), 'set')} tried on "
        f"{counted(placement.sample_count, 'sample')}, which calibrated them too, in {seconds(placement.wall_s)}"
    )
    return PlacementView(
        step=step,
        result=_describe_result(placement),
        effort=effort,
        sets=Table(_SETS, tuple(_set_row(trial, placement.tolerance) for trial in placement.trials)),
        regions=Table(
            _REGIONS,
            tuple(
                (
                    short_name(region.node or region.output, 120),
                    short_name(" + ".join((region.op_type, *region.followers)), 120),
                    kinds[region.kind],
                    region.alone.ratio if region.alone is not None else None,
                    _interval(region.alone),
                    region.error,
                    region.decision,
                    short_name(region.why, 300),
                )
                for region in placement.regions
            ),
        ),
    )


def _describe_result(placement: Placement) -> str:
    backend, measured = short_name(placement.backend), placement.delivered
    if measured is None:
        found = "was not found to pay in the time given" if placement.ended_early else "does not pay"
        return f"INT8 {found} in {backend}: the result is the source."
    quantized = sum(region.decision == "quantized" for region in placement.regions)
    return (
        f"{counted(quantized, 'region')} of {count(len(placement.regions))} in INT8: latency in {backend} "
        f"{ratio_change(measured.ratio)} ({_interval(measured)} at 95 % confidence, {CLOCK_NAMES[measured.clock]}, "
        f"{counted(measured.rounds, 'round')})."
    )


def _interval(measured: MeasuredRatio | None) -> str:
    return "" if measured is None else f"{ratio_change(measured.low)} to {ratio_change(measured.high)}"


def _set_row(trial: PlacementTrial, bounds: Mapping[str, float]) -> tuple[Value, ...]:
    worst = [f"{name} {metric_text(name, trial.metrics[name])}" for name in bounds if name in trial.metrics]
    latency = trial.latency
    return (
        short_name(trial.name, 120),
        trial.regions,
        ", ".join(worst[:2]),
        latency.ratio if latency is not None else None,
        _interval(latency),
        short_name(trial.outcome, 300),
    )


PANEL = Panel("Placement", collect_placements, after="precision")
