"""Choose the layers to quantize: each must pay on the target and cost nothing that matters.

1. Each kind of region is measured alone, in floats against Q/DQ, in turns on the target, and the error of each layer
   alone on the samples. This only ranks: in the model, a region has other neighbours, and so other conversions.
2. Sets of regions are proposed by rules, such as those that are faster alone. Of each, a large part is found that meets
   the tolerance.
3. The sets are measured as whole models, in turns with the source, and the fastest is kept. Groups of its regions
   between which values are floats are dropped if the model is faster without them.
4. The best of several measurements is too good by chance, so the model is measured anew. Only if it is faster than
   the source by `least_gain` at 95 % confidence is it the result, else the source is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.accuracy.tolerance import Tolerance
from ndld_flow.base.errors import NdldFlowError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import first_of
from ndld_flow.machine.host import describe_machine
from ndld_flow.measure.pair_rounds import RoundLimits
from ndld_flow.placement.regions import (
    AccurateSets,
    LatencyMeter,
    Region,
    RegionWriter,
    Worth,
    captured_values,
    connected,
    find_regions,
)
from ndld_flow.precision_search.evidence import Int8Error
from ndld_flow.precision_search.minimal_set import Budget
from ndld_flow.precision_search.observations import OBSERVED
from ndld_flow.precision_search.trials import Judge
from ndld_flow.quantize.calibration import Ranges, Workspace
from ndld_flow.quantize.int8_reducer import isolated_errors
from ndld_flow.quantize.prepared_model import PreparedModel
from ndld_flow.quantize.quantize_file import reopened, write_quantized
from ndld_flow.quantize.settings import CPU_INTENSITY, PlacementSettings, QuantizeSettings, SkipReason
from ndld_flow.records.placement import MeasuredRatio, PlacedRegion, Placement, PlacementTrial, RegionDecision
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.runtimes.protocol import SessionRequest
from ndld_flow.samples.sample_feeds import SampleArrays, Samples, first_labels
from ndld_flow.store.digest import digest_file
from ndld_flow.store.kinds import Onnx

_ALONE, _ERRORS, _TRIALS, _DROPS = 0.4, 0.5, 0.8, 0.9
"""Shares of the time after which no further region, error of a layer, set or dropped group is measured."""
_REGION_LIMITS = RoundLimits(rounds=6, budget_ms=8_000.0)
_SET_LIMITS = RoundLimits(rounds=8, budget_ms=45_000.0)
_DROP_LIMITS = RoundLimits(rounds=6, budget_ms=20_000.0)
_LAST_LIMITS = RoundLimits(rounds=12, budget_ms=60_000.0)
_MOST_OF_GAIN = 0.8
_DOUBTFUL = 0.05
"""Share of what all regions save alone that is within the error of such measurements."""
_NAMED = 3
_FEWEST_TO_SPLIT = 4
_SKIPPED: Mapping[RegionDecision, SkipReason] = {
    "not faster": "not faster",
    "nothing pays": "not faster",
    "inaccurate": "inaccurate",
    "not measured": "not measured",
    "not tried": "not measured",
}
"""Decision on a region -> the reason why its layer is not quantized."""


@dataclass(frozen=True)
class PlacementRequest:
    """The model, the goal and the target of a placement."""

    source: Path
    label: str
    settings: QuantizeSettings
    placement: PlacementSettings
    tolerance: Tolerance
    samples: Samples
    target: SessionRequest
    """Opens the models that are measured."""
    reference: OnnxruntimeRequest
    """Opens the source, whose outputs are right, and models in which each layer has a quantized copy."""
    judged_in: SessionRequest
    """Opens the quantized models whose outputs are compared with the source's."""


@dataclass
class _Set:
    """A set of regions that was tried as a whole model."""

    name: str
    quantized: frozenset[int]
    """Positions of the regions."""
    path: Path
    latency: MeasuredRatio | None = None
    outcome: str = ""


class Placer:
    """One search. `place` is called once, and `finished` after it."""

    def __init__(self, request: PlacementRequest, workspace: Workspace) -> None:
        self._request, self._workspace = request, workspace
        self._measured: dict[int, MeasuredRatio] = {}
        """Kind of a region -> its latency alone."""
        self._unmeasured: dict[int, str] = {}
        """Kind -> the reason why it was not measured."""
        self._errors: Mapping[str, Int8Error] = {}
        self._dropped: dict[int, str] = {}
        """Region without which the model is faster -> the measurement."""
        self._sets: list[_Set] = []
        self._files = 0
        self._ended_early = False
        self._record: Placement | None = None

    def place(
        self, prepared: PreparedModel, ranges: Ranges, exclude: Mapping[str, SkipReason]
    ) -> Mapping[str, SkipReason]:
        """Return the layers to leave out -> the reason.

        Raises `ModelError` if the model does not run, and `RequestError` for a tolerance that it misses itself.
        """
        self._started = time.monotonic()
        self._prepared, self._ranges = prepared, ranges
        self._excluded = {*exclude, *ranges.with_nonfinite(prepared)}
        self._feeds = next(iter(self._request.samples)).arrays
        self._meter = LatencyMeter(
            self._request.target, self._workspace.scratch, self._request.placement.least_gain, self._workspace.progress
        )
        inside = captured_values(prepared, self._feeds, self._request.reference, self._workspace.scratch)
        self._regions = find_regions(prepared, self._excluded, inside)
        delivered: _Set | None = None
        if self._regions:
            self._measure_kinds(RegionWriter(prepared, ranges, self._request.settings, inside))
            del inside
            self._sets_of = self._open_sets()
            self._try_proposals()
            faster = [(each.latency.ratio, each) for each in self._sets if each.latency and self._gains(each.latency)]
            delivered = self._confirm(self._drop_groups(min(faster, key=lambda pair: pair[0])[1] if faster else None))
        placed = tuple(self._placed(index, delivered) for index in range(len(self._regions)))
        self._record = self._describe(placed, delivered)
        if delivered is not None:
            self._workspace.progress(0, 0, "measuring what the check of a set would notice")
            power = self._judge.measure_power(self._record.wall_s)
            self._record = self._record.model_copy(update={"power": power})
        return {region.output: _SKIPPED[region.decision] for region in placed if region.decision in _SKIPPED}

    def finished(self, written: Path) -> Placement:
        """Return the record, given the result. Raises `RuntimeError` if another file was measured."""
        assert self._record is not None
        if self._record.digest not in ("", digest_file(written)):
            raise RuntimeError(f"{written} is not the file that was measured")
        return self._record

    # --- Evidence on regions -----------------------------------------------------------------------------------------

    def _measure_kinds(self, writer: RegionWriter) -> None:
        """Measure one region of each kind, those with the most work first."""
        kinds: dict[int, list[Region]] = {}
        for region in self._regions:
            kinds.setdefault(region.kind, []).append(region)
        ordered = sorted(kinds.values(), key=lambda alike: -sum(region.macs or 0 for region in alike))
        for done, alike in enumerate(ordered):
            region = alike[0]
            if self._used() > _ALONE:
                self._unmeasured[region.kind] = "the time was used up"
                self._ended_early = True
                continue
            what = f"region {done + 1} of {len(ordered)}, {region.layer.op_type} {region.layer.name}"
            self._measure_alone(region, writer, what)

    def _measure_alone(self, region: Region, writer: RegionWriter, what: str) -> None:
        folder = self._workspace.scratch / f"region-{region.kind}"
        folder.mkdir()
        models = writer.write(region, folder)
        if models is None:
            self._unmeasured[region.kind] = "it cannot be a model of its own"
            return
        try:
            measured = self._meter.measure_quickly(models.floats, models.quantized, models.values, _REGION_LIMITS, what)
        except NdldFlowError as error:
            self._unmeasured[region.kind] = f"it does not run alone: {error}"
            return
        self._measured[region.kind] = measured
        self._workspace.log.info("%s: %s", what, measured.text)

    def _alone(self, index: int) -> MeasuredRatio | None:
        return self._measured.get(self._regions[index].kind)

    def _saved_ms(self, index: int) -> float:
        """Return the time that a region saves alone; 0 if it was not measured."""
        alone = self._alone(index)
        return 0.0 if alone is None else alone.float_ms * (1 - alone.ratio)

    def _saved_together_ms(self, indices: Iterable[int]) -> float:
        """Return the sum of the times that regions save alone."""
        return sum(map(self._saved_ms, indices))

    def _is_faster_alone(self, index: int) -> bool:
        alone = self._alone(index)
        return alone is not None and alone.high < 1

    # --- Sets --------------------------------------------------------------------------------------------------------

    def _open_sets(self) -> AccurateSets:
        request, scratch = self._request, self._workspace.scratch
        self._workspace.progress(0, 0, "measuring the error of each layer")
        whole = scratch / "all_int8.onnx"
        self._write(frozenset(range(len(self._regions))), whole)
        nodes = self._prepared.chosen(self._excluded)
        time_is_up = lambda: self._used() > _ERRORS  # noqa: E731
        samples = SampleArrays(request.samples, OBSERVED, time_is_up)
        self._errors = isolated_errors(self._prepared, nodes, whole, samples, request.reference, time_is_up)
        worths = [Worth(self._saved_ms(index), self._error(index)) for index in range(len(self._regions))]
        self._judge = Judge(
            request.source, request.samples, request.tolerance, request.reference, request.judged_in, scratch
        )
        return AccurateSets(self._judge, self._write, worths, scratch)

    def _error(self, index: int) -> float | None:
        error = self._errors.get(self._regions[index].layer.output)
        return None if error is None else error.output_error

    def _write(self, quantized: frozenset[int], target: Path) -> None:
        write_quantized(
            reopened(self._prepared),
            target,
            self._ranges,
            self._request.settings,
            dict.fromkeys(self._left_out(quantized), "not faster"),
            self._workspace,
        )

    def _left_out(self, quantized: frozenset[int]) -> set[str]:
        left = {region.layer.output for index, region in enumerate(self._regions) if index not in quantized}
        return left | self._excluded

    def _proposals(self) -> Iterator[tuple[str, frozenset[int]]]:
        """Yield rules and the regions that they choose, the most promising first."""
        everything = range(len(self._regions))
        faster = [index for index in everything if self._is_faster_alone(index)]
        yield "faster alone", frozenset(faster)
        yield (
            "not slower alone",
            frozenset(index for index in everything if (alone := self._alone(index)) is None or alone.low <= 1),
        )
        if self._request.settings.target == "cpu":
            yield "intensity", frozenset(i for i in everything if self._regions[i].intensity >= CPU_INTENSITY)
        yield "all", frozenset(everything)
        if len(faster) >= _FEWEST_TO_SPLIT:
            # The fewest regions that save most of what all of them save alone.
            wanted, chosen = _MOST_OF_GAIN * self._saved_together_ms(faster), list[int]()
            for index in sorted(faster, key=self._saved_ms, reverse=True):
                if self._saved_together_ms(chosen) < wanted:
                    chosen.append(index)
            yield f"{_MOST_OF_GAIN:.0%} of the gain alone", frozenset(chosen)

    def _try_proposals(self) -> None:
        seen: dict[frozenset[int], str] = {}
        proposed = set[frozenset[int]]()
        for name, wanted in self._proposals():
            if not wanted or wanted in proposed:
                continue
            proposed.add(wanted)
            if self._used() > _TRIALS:
                self._ended_early = True
                return
            self._workspace.progress(0, 0, f"trying the accuracy of the set `{name}`")
            accurate = self._sets_of.large_part(wanted, self._budget())
            if not accurate:
                why = f"no part was found that meets the tolerance; all of it: {self._sets_of.why_not(wanted)}"
                self._record_set(_Set(name, accurate, Path(), outcome=why))
            elif accurate in seen:
                self._record_set(_Set(name, accurate, Path(), outcome=f"the same as `{seen[accurate]}`"))
            else:
                seen[accurate] = name
                tried = _Set(name, accurate, self._written(accurate))
                try:
                    tried.latency = self._measure_whole(self._request.source, tried.path, _SET_LIMITS, f"set `{name}`")
                    tried.outcome = "faster" if self._gains(tried.latency) else "not faster than the source"
                except NdldFlowError as error:
                    tried.outcome = f"it does not run: {error}"
                self._record_set(tried)

    def _budget(self) -> Budget:
        """Return half of the remaining trials and time, so that each set gets some."""
        left = self._request.placement.trials - self._sets_of.tried
        end = (self._used() + _TRIALS) / 2
        return Budget(max(0, left) // 2, lambda: self._used() > end)

    def _record_set(self, tried: _Set) -> None:
        self._sets.append(tried)
        latency = f", {tried.latency.text}" if tried.latency is not None else ""
        regions = counted(len(tried.quantized), "region")
        self._workspace.log.info("set `%s`: %s%s: %s", tried.name, regions, latency, tried.outcome)

    def _written(self, quantized: frozenset[int]) -> Path:
        self._files += 1
        # The name of a model is in that of its data file, and so in its own digest.
        path = self._workspace.scratch / f"set-{self._files}" / Onnx.main
        path.parent.mkdir()
        self._write(quantized, path)
        return path

    def _measure_whole(self, base: Path, candidate: Path, limits: RoundLimits, what: str) -> MeasuredRatio:
        return self._meter.measure(base, candidate, self._feeds, limits, what)

    def _gains(self, measured: MeasuredRatio) -> bool:
        """Return whether a model is faster by the least gain at 95 % confidence."""
        return measured.high < 1 / (1 + self._request.placement.least_gain)

    # --- The choice --------------------------------------------------------------------------------------------------

    def _drop_groups(self, best: _Set | None) -> _Set | None:
        """Drop groups of regions without which the model is faster, those that save the least alone first."""
        if best is None:
            return None
        # If the model is as fast as the gains of its regions alone let expect, none costs much in it. In another
        # model any group may, whatever it saves alone.
        assert best.latency is not None  # the fastest was measured
        saved_ms = self._saved_together_ms(best.quantized)
        unexpected_ms = best.latency.float_ms * (best.latency.ratio - 1) + saved_ms
        latest_ms = _DOUBTFUL * saved_ms if unexpected_ms <= _DOUBTFUL * saved_ms else math.inf
        for group in sorted(self._groups(best.quantized), key=self._saved_together_ms):
            rest = best.quantized - group
            if not rest or self._used() > _DROPS or self._saved_together_ms(group) > latest_ms:
                break
            names = first_of([self._regions[index].layer.name for index in sorted(group)], _NAMED)
            path = self._written(rest)
            try:
                without = self._measure_whole(best.path, path, _DROP_LIMITS, f"without {names}")
            except NdldFlowError as error:
                self._workspace.log.info("without %s, it does not run: %s", names, error)
                continue
            if without.high >= 1 or not self._sets_of.meets(rest):
                continue
            self._dropped |= dict.fromkeys(group, f"the model is faster without it: {without.text}")
            best = _Set(f"{best.name}, without {names}", rest, path, outcome="faster than with them")
            self._record_set(best)
        return best

    def _groups(self, quantized: frozenset[int]) -> list[frozenset[int]]:
        positions = {region.layer.output: index for index, region in enumerate(self._regions)}
        groups = connected(self._prepared.chosen(self._left_out(quantized)))
        return [frozenset(positions[output] for output in group) for group in groups] if len(groups) > 1 else []

    def _confirm(self, best: _Set | None) -> _Set | None:
        """Measure the best set anew; return it if it gains again."""
        if best is None:
            return None
        best.latency = self._measure_whole(self._request.source, best.path, _LAST_LIMITS, "the chosen model")
        gains = self._gains(best.latency)
        best.outcome = "delivered" if gains else "fastest, but not faster than the source when it was measured anew"
        self._workspace.log.info("measured anew, `%s`: %s: %s", best.name, best.latency.text, best.outcome)
        return best if gains else None

    def _placed(self, index: int, delivered: _Set | None) -> PlacedRegion:
        region = self._regions[index]
        decision, why = self._decide(index, delivered)
        return PlacedRegion(
            node=region.layer.name,
            op_type=region.layer.op_type,
            output=region.layer.output,
            followers=tuple(node.op_type for node in region.followers),
            kind=region.kind,
            macs=region.macs,
            alone=self._alone(index),
            error=self._error(index),
            decision=decision,
            why=why,
        )

    def _decide(self, index: int, delivered: _Set | None) -> tuple[RegionDecision, str]:
        alone, sets = self._alone(index), self._sets_of
        missing = self._unmeasured.get(self._regions[index].kind, "")
        measured = f"not measured alone: {missing}"
        if alone is not None:
            compared = "faster" if alone.high < 1 else "slower" if alone.low > 1 else "not faster"
            measured = f"{compared} alone: {alone.text}"
        if delivered is not None and index in delivered.quantized:
            return "quantized", measured if self._is_faster_alone(index) else f"{measured}; the whole set is faster"
        if index in sets.broken:
            return "inaccurate", sets.broken[index]
        if index in self._dropped:
            return "not faster", self._dropped[index]
        if alone is None:
            return "not measured", measured
        if not self._is_faster_alone(index):
            return "not faster", measured
        if index in sets.untried:
            return "not tried", f"{measured}; left out to meet the tolerance, and not tried with the rest in time"
        return self._decide_of_sets(measured, delivered)

    def _decide_of_sets(self, measured: str, delivered: _Set | None) -> tuple[RegionDecision, str]:
        """Return the decision on a region that is faster alone and accurate, but not delivered."""
        if delivered is not None:
            return "not faster", f"{measured}; the fastest set leaves it out"
        if not any(tried.latency for tried in self._sets):
            return "nothing pays", f"{measured}; no accurate set of layers was found"
        return "nothing pays", f"{measured}; no set that was tried makes the model faster"

    def _describe(self, placed: tuple[PlacedRegion, ...], delivered: _Set | None) -> Placement:
        request = self._request
        return Placement(
            model=request.label,
            objective=request.placement.objective,
            backend=request.target.names().backend,
            machine=describe_machine(),
            tolerance=request.tolerance.given(),
            least_gain=request.placement.least_gain,
            sample_count=len(request.samples),
            samples=first_labels(request.samples),
            regions=placed,
            trials=tuple(map(self._trial, self._sets)),
            delivered=delivered.latency if delivered is not None else None,
            ended_early=self._ended_early or bool(self._regions and self._sets_of.untried),
            digest=digest_file(delivered.path) if delivered is not None else "",
            notes=request.samples.notes,
            wall_s=time.monotonic() - self._started,
        )

    def _trial(self, tried: _Set) -> PlacementTrial:
        return PlacementTrial(
            name=tried.name,
            regions=len(tried.quantized),
            metrics=dict(self._sets_of.metrics(tried.quantized)),
            latency=tried.latency,
            outcome=tried.outcome,
        )

    def _used(self) -> float:
        """Return the used share of the time."""
        return (time.monotonic() - self._started) * 1e3 / self._request.placement.time
