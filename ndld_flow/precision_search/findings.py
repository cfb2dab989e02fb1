"""What a precision search found, as its record tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ndld_flow.accuracy.inside.divergence import first_divergent
from ndld_flow.accuracy.tolerance import Tolerance
from ndld_flow.base.quantities import count, number
from ndld_flow.precision_search.attempts import Kept
from ndld_flow.precision_search.evidence import Suspect
from ndld_flow.precision_search.macs import macs_share
from ndld_flow.precision_search.observations import Observer
from ndld_flow.precision_search.reducing import Reducer
from ndld_flow.precision_search.search import Found
from ndld_flow.precision_search.trials import Trials
from ndld_flow.records.divergence import LayerDivergence
from ndld_flow.records.precision_search import KeptNode, PrecisionSearch, Trial
from ndld_flow.samples.sample_feeds import Samples

Precision = Literal["fp16", "bf16", "int8"]


@dataclass(frozen=True)
class Wanted:
    """What is searched for, and how long."""

    precision: Precision
    tolerance: Tolerance
    op_types: Sequence[str]
    trials: int
    time_s: float


@dataclass(frozen=True)
class Subject:
    """The model that is searched."""

    path: Path
    label: str
    samples: Samples
    reducer: Reducer


@dataclass(frozen=True)
class Findings:
    """A search that has ended, and what is needed to tell of it."""

    subject: Subject
    wanted: Wanted
    found: Found
    trials: Trials
    observer: Observer

    def record(
        self, trials: tuple[Trial, ...], candidates: Sequence[int], suspects: Mapping[int, Suspect]
    ) -> PrecisionSearch:
        """The record, but for the last check, the layers then, and the time it all took."""
        reducer, kept = self.subject.reducer, self.found.kept
        whole = self.observer.whole()
        first = first_divergent(whole, self.wanted.tolerance.bounds())
        sample = next(iter(self.subject.samples))
        return PrecisionSearch(
            model=self.subject.label,
            precision=self.wanted.precision,
            tolerance=self.wanted.tolerance.given(),
            sample_count=len(self.subject.samples),
            inputs={name: feed.description for name, feed in sample.feeds.items()},
            settings=dict(reducer.settings),
            node_count=len(reducer.nodes),
            candidate_count=len(candidates),
            always_kept={reducer.nodes[place].called: why for place, why in reducer.always_kept.items()},
            kept=tuple(self._kept_node(place, suspects[place]) for place in sorted(kept)),
            passed=self.found.outcome.passed,
            metrics_whole=self.trials.metrics(frozenset()),
            metrics_found=self.trials.metrics(kept),
            layers_whole=whole,
            first_divergent="" if first is None else first.tensor,
            trials=trials,
            kept_macs_share=self._macs_share(suspects, whole) if kept else 0.0,
            wall_s=0.0,
            notes=tuple(self._notes()),
        )

    def _kept_node(self, place: int, suspect: Suspect) -> KeptNode:
        node, kept = self.subject.reducer.nodes[place], self.found.kept
        tried = place in self.found.without
        without = self.trials.metrics(kept - {place}) if tried else {}
        evidence = suspect.evidence(self._say_without(kept, place) if tried else "")
        return KeptNode(
            node=node.name,
            op_type=node.op_type,
            outputs=node.outputs,
            cause=evidence[0].cause,
            evidence=evidence,
            without=without,
        )

    def _say_without(self, kept: Kept, place: int) -> str:
        rest = say_metrics(self.trials.metrics(kept - {place}), self.wanted.tolerance)
        return f"without it: {rest or 'the model does not run'}, with it: {self._say(kept)}"

    def _say(self, kept: Kept) -> str:
        return say_metrics(self.trials.metrics(kept), self.wanted.tolerance)

    def _macs_share(self, suspects: Mapping[int, Suspect], layers: Sequence[LayerDivergence]) -> float | None:
        """By the shapes that the layers had, and those of the inputs."""
        nodes = [suspects[place].node for place in self.found.kept]
        graph = next(iter(suspects.values())).node.graph
        if graph is None or not layers:
            return None
        sample = next(iter(self.subject.samples))
        shapes = {name: tuple(feed.values.shape) for name, feed in sample.feeds.items()}
        return macs_share(nodes, graph, shapes | {layer.tensor: layer.shape for layer in layers})

    def _notes(self) -> list[str]:
        notes = [*self.subject.samples.notes, *self.trials.judge.notes, *self.observer.notes]
        if self.found.spent:
            notes.append(f"the budget ended the search: {self._say_best()}")
        elif not self.found.outcome.passed:
            notes.append("the bound is not met, not even with everything kept that may be")
        return notes

    def _say_best(self) -> str:
        if not self.found.kept:
            return "nothing that was tried is better than to keep nothing"
        best = f"the set of {len(self.found.kept)} is the best that was tried"
        return best if self.found.minimal else f"{best}, and may hold nodes it does not need"


def say_metrics(metrics: Mapping[str, float], tolerance: Tolerance) -> str:
    """`12 values NaN or infinite`, or `cosine 0.9991, snr_db 27.2`: the first two that are bounded."""
    if "nonfinite" in metrics:
        return f"{count(metrics['nonfinite'])} values NaN or infinite"
    bounded = [name for name in tolerance.bounds() if name in metrics][:2]
    return ", ".join(f"{name} {number(metrics[name])}" for name in bounded)
