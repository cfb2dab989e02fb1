"""Ask the shared cache about all steps ahead of time, many at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.runner.keys import join_keys, make_key
from ndld_flow.runner.plan import Planner, Reason, Unit, arrange_steps

if TYPE_CHECKING:
    from ndld_flow.records.run_record import StepRecord


@dataclass
class _Front:
    """The steps of one run about which the cache has not been asked."""

    planner: Planner
    digests: dict[str, str | None]
    """Model or step -> digest of its artifact, where it is known."""
    waiting: list[Unit]

    def take_ready(self) -> list[Unit]:
        """Remove and return the steps whose inputs are known."""
        ready = [
            unit
            for unit in self.waiting
            if all(self.digests.get(name) for step in unit for name in step.reads.values())
            and not (self.planner.in_sweep and unit[0].type.cls.takes_turns)
        ]
        self.waiting = [unit for unit in self.waiting if unit not in ready]
        return ready

    def ask(self, unit: Unit) -> None:
        """Start to look up steps that the store does not have."""
        assert self.planner.cache is not None
        with contextlib.suppress(NdldFlowError):  # raised again when the steps are decided
            keys = [make_key(parts) for parts in join_keys(self.planner.describe(unit, self.digests))]
            if any(self.planner.store.read_record(key) is None for key in keys):
                self.planner.cache.ask(keys)

    def decide(self, unit: Unit) -> Iterator[StepRecord]:
        """Yield the records that the cache has, and note the digests of all results that exist."""
        try:
            decisions = self.planner.decide(unit, self.digests)
        except NdldFlowError:
            return
        for decision in decisions:
            if decision.record is not None:
                self.digests[decision.step.name] = decision.record.artifact.digest
                if decision.reason is Reason.CACHED:
                    yield decision.record


def look_ahead(runs: Iterable[tuple[Planner, Mapping[str, str | None]]]) -> list[StepRecord]:
    """Ask the cache about the steps of runs, given with the digests of their models and finished steps.

    All steps whose inputs are known are looked up at the same time, then those whose inputs have become known. Returns
    the records that the cache has.
    """
    fronts = [
        _Front(planner, dict(digests), arrange_steps(planner.recipe))
        for planner, digests in runs
        if planner.cache is not None
    ]
    found: list[StepRecord] = []
    while ready := [(front, unit) for front in fronts for unit in front.take_ready()]:
        for front, unit in ready:
            front.ask(unit)
        for front, unit in ready:
            found += front.decide(unit)
    return found
