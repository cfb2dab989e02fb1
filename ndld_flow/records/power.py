"""The power of an accuracy check: the planted faults that it notices, and what its samples reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from ndld_flow.base.quantities import counted
from ndld_flow.base.text import first_of
from ndld_flow.records.document import Record

FaultOutcome = Literal["noticed", "within bounds", "unseen"]
"""`noticed`: the check fails. `within bounds`: outputs change by less than the tolerance, or leave the check undecided.
`unseen`: no output changes."""
_WEAK_UNSEEN = 0.25
_WEAK_SHARE = 0.05
_ENOUGH_PARTS = 59
"""So many rows include one of a twentieth of the table in 95 % of cases: 0.95^59 = 0.05."""
_NORMAL_95 = 1.959964
"""Quantile of the normal distribution for a 95 % interval."""


class PlantedFault(Record):
    """A fault that was planted in the reference, and whether the check notices it."""

    node: str
    """The node that is wrong, or that reads the wrong weight."""
    op_type: str
    weight: str = ""
    """The wrong weight; empty if the node itself is wrong."""
    kind: str
    """`zeroed`, `two channels swapped`, `epsilon of 0.001`."""
    outcome: FaultOutcome


class PartsReached(Record):
    """The parts of one kind that the samples reach: faults in the others stay unseen."""

    parts: Literal["rows", "leaves", "classes"]
    """Rows of a table such as an embedding, leaves of an ensemble of trees, or classes of an output."""
    of: str
    """The table, the node of the ensemble, or the output that names the classes or scores them highest."""
    reached: int
    count: int
    missing: tuple[str, ...] = ()
    """The first 10 classes that no sample reaches."""

    @property
    def is_weak(self) -> bool:
        """True if a fault in a twentieth of the parts would mostly stay unseen; not of classes, which may be rare."""
        return self.parts != "classes" and self.reached < min(_ENOUGH_PARTS, _WEAK_SHARE * self.count)

    @property
    def text(self) -> str:
        """`1 of 43 rows of table are read`."""
        parts = counted(self.count, "class") if self.parts == "classes" else f"{self.count:,} {self.parts}"
        return f"{self.reached:,} of {parts} of {self.of} are {'read' if self.parts == 'rows' else 'reached'}"


class Power(Record):
    """How much a check is worth: what it would notice, and what its samples do not reach."""

    faults: tuple[PlantedFault, ...] = ()
    wanted: int = 0
    """Faults that were requested; fewer are tried if the time ends or the model has no others."""
    reached: tuple[PartsReached, ...] = ()
    branches_not_run: tuple[str, ...] = ()
    """`then_branch of If_12`."""
    not_watched: tuple[str, ...] = ()
    """`rows of table`, `branches of If_3`: inside a loop or a branch, nothing shows what samples reach."""
    ignorable: tuple[str, ...] = ()
    """Inputs that a candidate may ignore: the check passes a model that gets others in their place."""
    exchangeable: tuple[str, ...] = ()
    """`mask and edges`: outputs so alike on these samples that the check passes a model that swaps them."""
    constant: tuple[str, ...] = ()
    """Outputs of the reference that are constant on all samples."""
    single_sizes: dict[str, int] = {}
    """Dimension that the model leaves open -> its only size in the samples."""
    not_measured: str = ""
    """The reason why no fault was planted; empty if some were."""

    def count(self, outcome: FaultOutcome) -> int:
        """Return the number of faults with an outcome."""
        return sum(fault.outcome == outcome for fault in self.faults)

    def share(self, outcome: FaultOutcome) -> float:
        """Return the share of faults with an outcome, 0 to 1; 0 without faults."""
        return self.count(outcome) / len(self.faults) if self.faults else 0.0

    def interval(self, outcome: FaultOutcome) -> tuple[float, float]:
        """Return the 95 % interval of a share, by Wilson's score (1927); from 0 to 1 without faults."""
        n, z = len(self.faults), _NORMAL_95
        if not n:
            return 0.0, 1.0
        p = self.share(outcome)
        center = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, center - half), min(1.0, center + half)

    @property
    def weak(self) -> tuple[str, ...]:
        """The reasons why a check that passes shows little; empty if there is none."""
        reasons = [f"output {name} is constant" for name in self.constant]
        reasons += [each.text for each in self.reached if each.is_weak]
        reasons += [f"a model that ignores {name} would pass" for name in self.ignorable]
        if self.exchangeable:
            reasons.append(f"a model that swaps {first_of(self.exchangeable, 2)} would pass")
        if self.interval("unseen")[0] >= _WEAK_UNSEEN:
            reasons.append(f"{self.count('unseen')} of {len(self.faults)} planted faults change nothing")
        return tuple(reasons)

    @property
    def remarks(self) -> tuple[str, ...]:
        """`20 planted faults: 12 noticed, 5 smaller than the bounds, 3 unseen`; empty if none was planted."""
        words = {"within bounds": "smaller than the bounds"}
        counts = {outcome: self.count(outcome) for outcome in get_args(FaultOutcome)}
        outcomes = [f"{count} {words.get(outcome, outcome)}" for outcome, count in counts.items() if count]
        return (f"{counted(len(self.faults), 'planted fault')}: {', '.join(outcomes)}",) if outcomes else ()


def first_reason(weak: Sequence[str]) -> str:
    """Return the first reason why a check is weak, and how many more there are."""
    return f"{weak[0]}, and {counted(len(weak) - 1, 'more reason')}" if len(weak) > 1 else weak[0]


def qualify(power: Power | None, remarks: Sequence[str] = ()) -> str:
    """Return `, weak: output y is constant (20 planted faults: 12 noticed, 8 unseen)`, to append to a verdict."""
    weak, noticed = ((), ()) if power is None else (power.weak, power.remarks)
    caveat = f", weak: {first_reason(weak)}" if weak else ""
    details = "; ".join((*remarks, *noticed))
    return f"{caveat} ({details})" if details else caveat
