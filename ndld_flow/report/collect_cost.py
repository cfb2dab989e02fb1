"""Collect the cost of keeping nodes at higher precision: work, Casts, and time if measured."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ndld_flow.base.quantities import count, milliseconds, share
from ndld_flow.base.text import short_name
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.records.run_record import RunRecord
from ndld_flow.records.step_record import StepRecord

FOUND_BY = "found_by"
"""Name of the input with which a step reads a search."""


@dataclass(frozen=True)
class MeasuredCost:
    """Time of the layers that hold the kept nodes, in one profile."""

    step: str
    """Step of the profile."""
    kept_ms: float
    """Sum of the medians of their layers, including fused nodes."""
    cast_ms: float
    """Sum over all Cast layers, including those at the model's inputs and outputs."""
    layers_ms: float
    """Sum over all layers."""
    layers: tuple[int, ...]
    """Positions in `Profile.layers` of the layers of kept nodes."""

    @property
    def part(self) -> float:
        """Share of all layers, 0 to 1."""
        return self.kept_ms / self.layers_ms if self.layers_ms else 0.0


@dataclass(frozen=True)
class Cost:
    """The known costs; None for those that the run does not record."""

    macs_share: float | None
    users: tuple[str, ...]
    """Steps that used the result."""
    casts: int | None
    """Number of Casts added by the first of them."""
    measured: MeasuredCost | None


def collect_cost(step: str, search: PrecisionSearch, documents: RunDocuments) -> Cost:
    """Return the cost of the result of `step` in the models that use it."""
    users = _users(step, documents.run)
    first = users[0] if users else None
    record = _records(documents.run).get(first) if first else None
    return Cost(
        macs_share=search.kept_macs_share,
        users=tuple(map(short_name, users)),
        casts=record.change.casts_added if record and record.change else None,
        measured=_measured(search, users, documents) if search.kept else None,
    )


def _records(run: RunRecord) -> dict[str, StepRecord]:
    return {one.name: one.record for one in run.steps if one.record is not None}


def _users(step: str, run: RunRecord) -> list[str]:
    return [name for name, record in _records(run).items() if step in _found_by(record)]


def _found_by(record: StepRecord) -> Collection[str]:
    """Return the searches that a step read: a single one, or several as `found_by.0`."""
    return [whom for what, whom in record.parents.items() if what.partition(".")[0] == FOUND_BY]


def _measured(search: PrecisionSearch, users: Collection[str], documents: RunDocuments) -> MeasuredCost | None:
    """Return the cost in the first profile of a model that uses the result."""
    names = {node.node for node in search.kept if node.node}
    for step, profile in documents.profiles.items():
        if profile.layers and not _ancestors(step, documents.run).isdisjoint(users):
            return _cost_in(step, profile, names)
    return None


def _cost_in(step: str, profile: Profile, names: Collection[str]) -> MeasuredCost | None:
    medians = [layer.median_ms for layer in profile.layers]
    holding = tuple(place for place, layer in enumerate(profile.layers) if not set(layer.onnx_nodes).isdisjoint(names))
    if not holding:
        return None
    return MeasuredCost(
        step=short_name(step),
        kept_ms=sum(medians[place] for place in holding),
        cast_ms=sum(ms for ms, layer in zip(medians, profile.layers, strict=True) if layer.role == "cast"),
        layers_ms=sum(medians),
        layers=holding,
    )


def _ancestors(step: str, run: RunRecord) -> set[str]:
    """Return the steps in the history of a step's model, following each step's first input."""
    records = _records(run)
    found: set[str] = set()
    name = step
    while name in records and name not in found:
        found.add(name)
        name = records[name].parents.get("from", "")
    return found


def cost_words(cost: Cost, kept: int) -> str:
    """`0.4 % of the multiply-accumulates, 6 Casts, 112 µs of 18.2 ms (0.6 %) in their layers (profile speed)`."""
    if not kept:
        return "nothing: no node is kept."
    parts = [_work(cost.macs_share), _casts(cost), _time(cost)]
    return f"{'; '.join(part for part in parts if part)}."


def _work(macs_share: float | None) -> str:
    if macs_share is None:
        return "their share of the work is unknown"
    told = "less than 0.1 %" if 0 < macs_share < 0.001 else share(macs_share)
    return f"{told} of the multiply-accumulates"


def _casts(cost: Cost) -> str:
    if cost.casts is None:
        return ""
    return f"{count(cost.casts)} Cast{'s' if cost.casts != 1 else ''} in `{cost.users[0]}`"


def _time(cost: Cost) -> str:
    measured = cost.measured
    if measured is None:
        what = f"`{cost.users[0]}`" if cost.users else "a model that keeps them"
        return f"their latency is unknown: no profile of {what} in this run records ONNX nodes"
    casts = f", all Casts {milliseconds(measured.cast_ms)}" if measured.cast_ms else ""
    told = f"{milliseconds(measured.kept_ms)} of {milliseconds(measured.layers_ms)}"
    return f"their layers take {told} ({share(measured.part)}) in `{measured.step}`{casts}"
