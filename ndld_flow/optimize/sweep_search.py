"""Search by a sweep: for several objectives, engines, and targets on other machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ndld_flow.base.quantities import quantity
from ndld_flow.execution.events import Event, Notice, PointFinished, SweepFinished
from ndld_flow.execution.request import Request
from ndld_flow.optimize.budget import Budget
from ndld_flow.optimize.compose import SEARCH_SHARE, SOURCE, Composer
from ndld_flow.optimize.found import TOO_NOISY, Found, Search
from ndld_flow.optimize.proof import Proof, Prover, command_of
from ndld_flow.optimize.variant import Variant
from ndld_flow.recipe.write_recipe import name_recipe
from ndld_flow.records.measurement import Metric
from ndld_flow.records.optimization import FrontPoint, TriedVariant, VariantOutcome
from ndld_flow.records.outcomes import PointOutcome
from ndld_flow.records.run_folder import read_sweep_record
from ndld_flow.records.sweep import SweepRecord
from ndld_flow.store.files import write_text_atomically
from ndld_flow.sweep.run_request import run_request
from ndld_flow.sweep_search.search import Direction

_MOST_NOT_FASTER = 2
"""Number of variants that may turn out not better than the source: those that follow were worse in the search."""
_MOST_OF_FRONT = 4
"""Number of models on the Pareto front that are proved."""


@dataclass
class Point:
    """A point of the search, as known when it ended or was interrupted."""

    number: int
    variant: Variant
    outcome: PointOutcome
    why: str
    latency: Metric | None
    rank: float = 0.0
    objectives: Mapping[str, Metric] = field(default_factory=dict)
    on_front: bool = False


class SweepSearch(Search):
    """One search."""

    def __init__(self, prover: Prover, source: Proof, budget: Budget) -> None:
        super().__init__(prover, source, budget)
        self._variants = {variant.name: variant for variant in prover.composer.variants}
        self._points: list[Point] = []
        self._seen: dict[int, PointFinished] = {}
        self._proofs: dict[int, Proof] = {}
        self._finished: SweepFinished | None = None

    def _search(self) -> None:
        self._sweep()
        self._prove()

    def _found(self) -> Found:
        if not self._points:  # the sweep was interrupted
            goal = self._composer.objectives[0].direction
            self._points = [self._interrupted_point(event, goal) for event in self._seen.values()]
        several = len(self._composer.objectives) > 1
        proofs = choose(self._proofs)
        best = next((proof for proof in proofs.values() if proof.outcome == "delivered"), None)
        delivered = best or self._source
        described = describe(self._points, proofs, delivered, best is not None)
        untried = describe_untried(self._composer, self._points)
        return Found(
            delivered=delivered,
            variants=(*described, *untried),
            stopped_because=self._stopped_because,
            not_tried=tuple(self._composer.left_out),
            front=tuple(_front(self._points, proofs, self._prover.request)) if several else (),
            sweep=self._finished,
        )

    def _sweep(self) -> None:
        recipe = self._prover.folder / "search.yaml"
        limit_s = self._budget.left_s(SEARCH_SHARE)
        limit_ms = None if self._budget.seconds is None else max(limit_s, 1.0) * 1e3
        write_text_atomically(recipe, self._composer.compose_sweep(recipe, limit_ms=limit_ms))
        request = replace(self._prover.request, recipe=recipe, output=None)
        finished = run_request(request, self._listen)
        assert isinstance(finished, SweepFinished)
        record = read_sweep_record(Path(finished.folder))
        self._finished, self._stopped_because = finished, record.stopped_because
        self._points = sorted(self._read_points(record), key=lambda point: point.rank)

    def _listen(self, event: Event) -> None:
        if isinstance(event, SweepFinished):
            return
        if isinstance(event, PointFinished):
            self._seen[event.number] = event
        self._prover.listener(event)

    def _read_points(self, record: SweepRecord) -> Iterator[Point]:
        for point in record.points:
            latest = point.again or point
            measured = zip(self._composer.objectives, latest.objectives, record.objectives, strict=False)
            values = {
                objective.name: Metric(value=value, unit=described.unit)
                for objective, value, described in measured
                if value is not None
            }
            yield Point(
                number=point.number,
                variant=self._variants[str(point.values["variant"])],
                outcome=point.outcome,
                why=point.reason,
                latency=latest.metrics.get("speed.latency.min"),
                rank=float("inf") if point.rank is None else point.rank,
                objectives=values,
                on_front=point.on_front,
            )

    def _interrupted_point(self, event: PointFinished, goal: Direction) -> Point:
        """Return a point as its event describes it."""
        latency = event.objectives.get("speed.latency.min")
        first = next(iter(event.objectives.values()), None)
        rank = float("inf") if first is None else first.value if goal == "minimize" else -first.value
        variant = self._variants[str(event.values["variant"])]
        return Point(event.number, variant, event.outcome, event.reason, latency, rank)

    def _prove(self) -> None:
        """Prove points from the best on until one passes; for several objectives, others of the front too."""
        most = _MOST_OF_FRONT if len(self._composer.objectives) > 1 else 1
        passed = 0
        for point in self._points:
            if point.outcome != "passed" or point.variant.name == SOURCE or (passed and not point.on_front):
                continue
            against = "the engine of" if self._composer.preset.built_only else "alternating passes with"
            how = f"held-out samples, then {against} the source"
            self._prover.listener(Notice(text=f"proving {point.variant.name}: {how}"))
            proof = self._proofs[point.number] = self._prover.prove(point.variant, self._budget.left_s)
            passed += proof.passed
            outcome = "right and better" if proof.passed else proof.outcome
            self._prover.listener(
                Notice(text=f"{point.variant.name}: {outcome}{f': {proof.why}' if proof.why else ''}")
            )
            lost = sum(each.outcome in ("not faster", "not proved") for each in self._proofs.values())
            if passed >= most or lost >= _MOST_NOT_FASTER:
                break
        if not passed and any(proof.outcome == "not proved" for proof in self._proofs.values()):
            # What the sweep did not reach is open for its own reason.
            is_cut = any(describe_untried(self._composer, self._points))
            self._stopped_because = f"{self._stopped_because} and {TOO_NOISY}" if is_cut else TOO_NOISY


def choose(proofs: Mapping[int, Proof]) -> dict[int, Proof]:
    """Return the proofs, the first that passed as `delivered` and the others that did as those of the front."""
    chosen = dict(proofs)
    for number in [number for number, proof in proofs.items() if proof.passed][1:]:
        gained = "; ".join(gain.describe() for gain in proofs[number].gains)
        chosen[number] = replace(proofs[number], outcome="on the front", why=gained)
    return chosen


def _front(points: Sequence[Point], proofs: dict[int, Proof], request: Request) -> Iterator[FrontPoint]:
    """Yield the proved points of the front, the best in the first objective first."""
    for point in points:
        proof = proofs.get(point.number)
        if proof is not None and proof.passed:
            delivered = proof.outcome == "delivered"
            output = request.output if delivered else Path(f"{name_recipe(Path(f'{point.variant.name}.onnx'))}.onnx")
            command = command_of(proof, replace(request, output=output))
            yield FrontPoint(name=point.variant.name, gains=proof.gains, command=command, delivered=delivered)


def describe(points: Sequence[Point], proofs: dict[int, Proof], delivered: Proof, faster: bool) -> list[TriedVariant]:
    """Return all variants that were tried, the fastest first, each with the reason why it lost."""
    described = []
    # Those after variants that are not faster were worse in the search; otherwise the budget ended the proofs.
    unproved = not faster and sum(proof.outcome == "not faster" for proof in proofs.values()) < _MOST_NOT_FASTER
    for point in points:
        proof = proofs.get(point.number)
        outcome, why = (proof.outcome, proof.why) if proof is not None else _lost(point)
        if outcome == "not the best" and proof is None and unproved:
            outcome = "not proved"
        if not faster and point.variant == delivered.variant:
            outcome, why = "delivered", ""
        described.append(
            TriedVariant(
                name=point.variant.name,
                runtime=point.variant.runtime,
                outcome=outcome,
                why=why,
                latency=point.latency,
                objectives=dict(point.objectives),
                on_front=point.on_front,
            )
        )
    return described


def describe_untried(composer: Composer, points: Sequence[Point]) -> Iterator[TriedVariant]:
    """Yield the variants that the search did not reach."""
    tried = {SOURCE, *(point.variant.name for point in points)}
    for variant in composer.variants:
        if variant.name not in tried:
            yield TriedVariant(name=variant.name, runtime=variant.runtime, outcome="not tried")


def _lost(point: Point) -> tuple[VariantOutcome, str]:
    """Return the outcome of a point that was not proved."""
    if point.outcome == "passed":
        values = ", ".join(quantity(each.value, each.unit) for each in point.objectives.values())
        return "not the best", f"{values} in the search" if values else ""
    outcomes: dict[str, VariantOutcome] = {"failed": "failed", "inconclusive": "not judged"}
    return outcomes.get(point.outcome, "not right"), point.why
