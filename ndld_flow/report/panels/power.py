"""The power of checks and searches: planted faults, parts that no sample reaches, and samples that would help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ndld_flow.base.quantities import counted
from ndld_flow.base.text import short_name
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.placement import Placement
from ndld_flow.records.power import FaultOutcome, Power
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.report.panel import Panel
from ndld_flow.report.tables import Column, Table

_OUTCOMES: tuple[FaultOutcome, ...] = ("unseen", "within bounds", "noticed")
"""In the order of the table: what the check misses comes first."""


@dataclass(frozen=True)
class ShareView:
    """One outcome of the planted faults."""

    outcome: FaultOutcome
    count: int
    percent: float
    interval: str
    """`48 to 85 %`."""


@dataclass(frozen=True)
class PowerView:
    """What one check would notice."""

    step: str
    title: str
    """`small against source`, `Trials of find`."""
    reference: str
    power: Power
    shares: tuple[ShareView, ...]
    table: Table
    facts: tuple[str, ...]
    """What the samples do not reach."""
    helps: tuple[str, ...]
    """Samples that would reach it."""


def collect_power(documents: RunDocuments) -> tuple[PowerView, ...]:
    """Return the power of each check and then each search of a run, of those that measured it."""
    checks = [
        (step, f"{short_name(each.candidate)} against {short_name(each.reference)}", each.reference, each.power)
        for step, each in documents.of(Accuracy).items()
    ]
    searches: dict[str, PrecisionSearch | Placement] = {**documents.of(PrecisionSearch), **documents.of(Placement)}
    checks += [(step, f"Trials of {short_name(step)}", each.model, each.power) for step, each in searches.items()]
    return tuple(_view(step, title, reference, power) for step, title, reference, power in checks if power is not None)


def _view(step: str, title: str, reference: str, power: Power) -> PowerView:
    return PowerView(
        step=short_name(step),
        title=title,
        reference=short_name(reference),
        power=power,
        shares=tuple(
            ShareView(
                outcome, power.count(outcome), 100 * power.share(outcome), f"{100 * low:.0f} to {100 * high:.0f} %"
            )
            for outcome in reversed(_OUTCOMES)
            for low, high in [power.interval(outcome)]
        )
        if power.faults
        else (),
        table=_faults_table(power),
        facts=tuple(short_name(fact, 200) for fact in _facts(power)),
        helps=tuple(short_name(help_, 200) for help_ in _helps(power)),
    )


def _faults_table(power: Power) -> Table:
    columns = (
        Column("Outcome", "label"),
        Column("Node", "name"),
        Column("Operator"),
        Column("Fault"),
        Column("Weight"),
    )
    ordered = sorted(power.faults, key=lambda fault: _OUTCOMES.index(fault.outcome))
    rows = tuple(
        (fault.outcome, short_name(fault.node, 80), fault.op_type, fault.kind, short_name(fault.weight, 60))
        for fault in ordered
    )
    return Table(columns, rows)


def _facts(power: Power) -> Iterator[str]:
    yield from (f"output {name} is constant on all samples" for name in power.constant)
    for each in power.reached:
        never = f", never {', '.join(each.missing)}" if each.missing else ""
        more = ", ..." if never and len(each.missing) < each.count - each.reached else ""
        yield f"{each.text}{never}{more}"
    yield from (f"{branch} never runs" for branch in power.branches_not_run)
    yield from (f"{each}, inside a loop or a branch: not known" for each in power.not_watched)
    yield from (f"{name} may be ignored: the check passes a model that does" for name in power.ignorable)
    yield from (f"{pair} may be swapped: the check passes a model that does" for pair in power.exchangeable)
    if power.single_sizes:
        sizes = ", ".join(f"{name} {size}" for name, size in power.single_sizes.items())
        yield f"{counted(len(power.single_sizes), 'open dimension')} with one size only: {sizes}"


def _helps(power: Power) -> Iterator[str]:
    yield from (f"samples that change {name}" for name in power.constant)
    for each in power.reached:
        if each.is_weak or (each.parts == "classes" and each.reached < each.count):
            yield f"samples that reach other {each.parts} of {each.of}"
    yield from (f"samples that run {branch}" for branch in power.branches_not_run)
    for name in power.ignorable:
        yield f"samples with padding, so that {name} hides something" if "mask" in name else f"other values of {name}"
    yield from (f"samples on which {pair} differ" for pair in power.exchangeable)
    if power.single_sizes:
        yield f"samples with other sizes of {', '.join(power.single_sizes)}"


PANEL = Panel("Power", collect_power, after="accuracy")
