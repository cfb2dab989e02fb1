"""The latency of two models on a target, measured in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.measure.pair_rounds import MeasuredRounds, RoundLimits, measure_rounds
from ndld_flow.measure.profiling_request import ProfilingRequest, Side
from ndld_flow.measure.session_rounds import measure_sessions
from ndld_flow.measure.stopping import MeasuringPlan
from ndld_flow.models.tensors import Array
from ndld_flow.profiles.compare.rounds import RoundsPlan, deciding_interval, describe_rounds, typical_base
from ndld_flow.profiles.compare.verdicts import decide_ratio
from ndld_flow.records.noise import Round
from ndld_flow.records.placement import MeasuredRatio
from ndld_flow.runtimes.protocol import SessionRequest


@dataclass(frozen=True)
class LatencyMeter:
    """Measures pairs of models on one target."""

    session: SessionRequest
    scratch: Path
    least_gain: float
    """Measurements end once a difference is known to be more or less than this."""
    report: Callable[[int, int, str], None]

    def measure(
        self, base: Path, candidate: Path, values: Mapping[str, Array], limits: RoundLimits, what: str
    ) -> MeasuredRatio:
        """Measure two models with the same inputs in turns, in fresh processes; return candidate over base.

        Raises `BackendError` and `ModelError` if one does not run.
        """
        sides = [self._side(path, values, what) for path in (base, candidate)]
        return self._describe(measure_rounds(sides, self.scratch, limits, self._decider(limits)), limits)

    def measure_quickly(
        self, base: Path, candidate: Path, values: Mapping[str, Array], limits: RoundLimits, what: str
    ) -> MeasuredRatio:
        """Measure two small models as `measure` does, but in this process if the runtime can."""
        if self.session.needs_process:
            return self.measure(base, candidate, values, limits, what)
        self.report(0, 0, what)
        return self._describe(
            measure_sessions((base, candidate), self.session, values, limits, self._decider(limits)), limits
        )

    def _plan(self, limits: RoundLimits) -> RoundsPlan:
        on_device = self.session.measured_gpu() is not None
        return RoundsPlan(on_device, limits.rounds, limits.budget_ms, self.least_gain)

    def _decider(self, limits: RoundLimits) -> Callable[[Sequence[Round]], bool]:
        plan = self._plan(limits)

        def is_decided(rounds: Sequence[Round]) -> bool:
            if len(rounds) < limits.fewest:
                return False
            interval = deciding_interval(describe_rounds(rounds, plan, ""))
            return decide_ratio(interval, self.least_gain, "lower") != "inconclusive"

        return is_decided

    def _describe(self, measured: MeasuredRounds, limits: RoundLimits) -> MeasuredRatio:
        paired = describe_rounds(measured.rounds, self._plan(limits), measured.stopped_because)
        interval = deciding_interval(paired)
        return MeasuredRatio(
            float_ms=typical_base(paired),
            ratio=interval.ratio,
            low=interval.low,
            high=interval.high,
            clock=paired.clock,
            rounds=len(measured.rounds),
        )

    def _side(self, path: Path, values: Mapping[str, Array], what: str) -> Side:
        request = ProfilingRequest(
            path=path,
            label=what,
            digest="",
            inputs={},
            session=self.session,
            plan=MeasuringPlan(),
            layer_passes=0,
            batches=(),
            seed=0,
            options={},
            values=values,
        )
        return Side(request, self.scratch, lambda done, total, doing: self.report(done, total, f"{what}: {doing}"))
