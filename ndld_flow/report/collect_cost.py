"""What keeping nodes at higher precision costs, as far as a run tells: work, Casts, and time where it was measured."""

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
"""The input by which a step reads a search."""


@dataclass(frozen=True)
class MeasuredCost:
    """Time of the layers that hold the kept nodes, in one profile."""

    step: str
    """The profile's."""
    kept_ms: float
    """Medians of their layers together; what is fused with them counts too."""
    cast_ms: float
    """Of all layers that are Casts, those at the model's inputs and outputs included."""
    layers_ms: float
    """Of all layers together."""
    layers: tuple[int, ...]
    """Positions in `Profile.layers`, of each kept node that was found one."""

    @property
    def part(self) -> float:
        """Of all layers, 0 to 1."""
        return self.kept_ms / self.layers_ms if self.layers_ms else 0.0


@dataclass(frozen=True)
class Cost:
    """What is known of it; None for what the run does not tell."""

    macs_share: float | None
    users: tuple[str, ...]
    """Steps that used what was found."""
    casts: int | None
    """Added by the first of them."""
    measured: MeasuredCost | None


def collect_cost(step: str, search: PrecisionSearch, documents: RunDocuments) -> Cost:
    """Return the cost of what `step` found, in the models that were made with it."""
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
    """Return the searches that a step read: one, or several as `found_by.0`."""
    return [whom for what, whom in record.parents.items() if what.partition(".")[0] == FOUND_BY]


def _measured(search: PrecisionSearch, users: Collection[str], documents: RunDocuments) -> MeasuredCost | None:
    """In the first profile whose model was made with what was found."""
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
    """Return the steps that a step's model went through, by what each read first."""
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
        return "how much of the work they do is not known"
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
        return f"its latency is not known: this run has no profile of {what} that names them"
    casts = f", all Casts {milliseconds(measured.cast_ms)}" if measured.cast_ms else ""
    told = f"{milliseconds(measured.kept_ms)} of {milliseconds(measured.layers_ms)}"
    return f"their layers take {told} ({share(measured.part)}) in `{measured.step}`{casts}"
