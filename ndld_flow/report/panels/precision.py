"""Searches for nodes that must keep a higher precision: the problem, where it starts, kept nodes, their cost."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby

from ndld_flow.base.declared_metrics import FRACTIONS, higher_is_better, metric_text
from ndld_flow.base.quantities import ABSENT, count, counted, milliseconds, seconds, share
from ndld_flow.base.text import short_name, visible_name
from ndld_flow.profiles.diagnose.rules_search import SearchSubject, insights_of_search
from ndld_flow.records.accuracy import Accuracy, LayerDivergence
from ndld_flow.records.precision_search import KeptNode, PrecisionSearch, Trial
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.records.run_record import RunRecord
from ndld_flow.report.collect_divergence import DepthCurves, DepthView, bound_of, collect_depth, depth_curves
from ndld_flow.report.collect_layers import InsightView, Passage, has_timed_layers, insight_view, passages
from ndld_flow.report.encoding import rounded
from ndld_flow.report.panel import Panel
from ndld_flow.report.panels.accuracy import bound_text
from ndld_flow.report.search_outcome import SearchOutcome, search_outcome, search_sentences
from ndld_flow.report.tables import Column, Table

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
    # A step reads a single search as `found_by`, or several as `found_by.0`.
    users = [
        name
        for name, record in documents.run.records.items()
        if any(parent == step and key.partition(".")[0] == FOUND_BY for key, parent in record.parents.items())
    ]
    first = users[0] if users else None
    record = documents.run.records.get(first) if first else None
    return Cost(
        macs_share=search.kept_macs_share,
        users=tuple(map(short_name, users)),
        casts=record.change.casts_added if record and record.change else None,
        measured=_measured(search, users, documents) if search.kept else None,
    )


def _measured(search: PrecisionSearch, users: Collection[str], documents: RunDocuments) -> MeasuredCost | None:
    """Return the cost in the first profile of a model that uses the result."""
    names = {node.node for node in search.kept if node.node}
    for step, profile in documents.of(Profile).items():
        if not profile.layers or _ancestors(step, documents.run).isdisjoint(users):
            continue
        layers, medians = profile.layers, profile.layer_times.ms
        holding = tuple(index for index, layer in enumerate(layers) if not names.isdisjoint(layer.onnx_nodes))
        if not holding:
            return None
        return MeasuredCost(
            step=short_name(step),
            kept_ms=sum(medians[place] for place in holding),
            cast_ms=sum(ms for ms, layer in zip(medians, layers, strict=True) if layer.role == "cast"),
            layers_ms=sum(medians),
            layers=holding,
        )
    return None


def _ancestors(step: str, run: RunRecord) -> set[str]:
    """Return the steps in the history of a step's model, following each step's first input."""
    records = run.records
    ancestors: set[str] = set()
    name = step
    while name in records and name not in ancestors:
        ancestors.add(name)
        name = records[name].parents.get("from", "")
    return ancestors


def cost_words(cost: Cost, kept: int) -> str:
    """Return `0.4 % of the multiply-accumulates; 6 Casts in half; their layers take 112 µs of 18.2 ms (0.6 %)`."""
    if not kept:
        return "nothing: no node is kept."
    casts = ""
    if cost.casts is not None:
        casts = f"{counted(cost.casts, 'Cast')} in `{cost.users[0]}`"
    if cost.macs_share is None:
        work = "their share of the work is unknown"
    else:
        part = "less than 0.1 %" if 0 < cost.macs_share < 0.001 else share(cost.macs_share)
        work = f"{part} of the multiply-accumulates"
    parts = [work, casts, _time(cost)]
    return f"{'; '.join(part for part in parts if part)}."


def _time(cost: Cost) -> str:
    measured = cost.measured
    if measured is None:
        what = f"`{cost.users[0]}`" if cost.users else "a model that keeps them"
        return f"their latency is unknown: no profile of {what} in this run records ONNX nodes"
    casts = f", all Casts {milliseconds(measured.cast_ms)}" if measured.cast_ms else ""
    part = f"{milliseconds(measured.kept_ms)} of {milliseconds(measured.layers_ms)}"
    return f"their layers take {part} ({share(measured.part)}) in `{measured.step}`{casts}"


_KEPT_SHOWN = 200
_CAUSES = ("overflow", "underflow", "range", "unsupported", "sensitivity")
"""The most informative first."""
_NAMES_SHOWN = 40
_TRIALS_SHOWN = 40


@dataclass(frozen=True)
class KeptRow:
    """One node that stays at higher precision."""

    node: str
    op_type: str
    cause: str
    evidence: tuple[tuple[str, str], ...]
    """(sentence, tensor)"""
    without: tuple[str, ...]
    """Values of the bound's metrics without the node: `cosine 0.9132`."""
    depth_row: int | None
    """Its position in the chart."""
    layer: tuple[int, int] | None
    """Its layer on the page: positions of the profile among those with layers, and of the layer."""


@dataclass(frozen=True)
class AlwaysKept:
    """Nodes that always stay at higher precision, for one reason."""

    reason: str
    names: tuple[str, ...]
    more: int
    """Number of nodes that are not listed."""


@dataclass(frozen=True)
class SearchTrials:
    """The trials of a search; lists have an item for each trial."""

    step: str
    metric: str
    higher: bool
    """A higher metric is better."""
    bound: float | None
    number: list[int]
    phase: list[str]
    what: list[str]
    kept: list[int]
    """Number of kept nodes."""
    ranges: list[list[int] | None]
    """First and last position of each range of kept nodes; None if there are too many."""
    passed: list[bool]
    wall_s: list[float]
    note: list[str]
    metrics: dict[str, list[float | None]]
    in_percent: list[str]
    """The metrics that are fractions."""


@dataclass(frozen=True)
class PrecisionData:
    """Data of the script, with an item for each search."""

    searches: list[SearchTrials]
    depths: list[DepthCurves | None]


@dataclass(frozen=True)
class SearchView:
    """One search."""

    search: PrecisionSearch
    step: str
    outcome: SearchOutcome
    sentences: tuple[tuple[Passage, ...], ...]
    cost_words: tuple[Passage, ...]
    insights: tuple[InsightView, ...]
    """Findings on the search."""
    metrics: tuple[tuple[str, str, str, str], ...]
    """(metric, all reduced, with the kept nodes, bound)"""
    kept: tuple[KeptRow, ...]
    causes: tuple[tuple[str, int], ...]
    """(cause, number of kept nodes), the most frequent first."""
    trial_table: Table
    """The first trials, for pages without a script and for pull requests."""
    always_kept: tuple[AlwaysKept, ...]
    samples: str
    """`8 samples, to which the result is fitted`."""
    depth: DepthView | None


def collect_searches(documents: RunDocuments) -> tuple[SearchView, ...]:
    """Return all searches of a run, in recipe order."""
    return tuple(_view(step, search, documents) for step, search in documents.of(PrecisionSearch).items())


def _view(step: str, search: PrecisionSearch, documents: RunDocuments) -> SearchView:
    outcome = search_outcome(step, search)
    depth = search_depth(search)
    cost = collect_cost(step, search, documents)
    trial_metrics = tuple(dict.fromkeys(metric for trial in search.trials for metric in trial.metrics))[:3]
    # Checks of these steps, and of those that read their results, directly or not.
    models = set(cost.users)
    for ran in documents.run.steps:
        if ran.record is not None and models.intersection(ran.record.parents.values()):
            models.add(ran.name)
    accuracies = documents.of(Accuracy).items()
    checks = tuple((name, accuracy) for name, accuracy in accuracies if accuracy.candidate in models)
    part = cost.measured.part if cost.measured else None
    names = dict.fromkeys([*search.tolerance, *search.metrics_found, *search.metrics_whole])
    return SearchView(
        search=search,
        step=short_name(step),
        outcome=outcome,
        sentences=tuple(map(passages, search_sentences(search, outcome))),
        cost_words=passages(cost_words(cost, len(search.kept))),
        insights=tuple(map(insight_view, insights_of_search(SearchSubject(step, search, cost.users, checks, part)))),
        metrics=tuple(
            (
                short_name(name, 60),
                _text(name, search.metrics_whole.get(name)),
                _text(name, search.metrics_found.get(name)),
                bound_text(name, search.tolerance[name]) if name in search.tolerance else "",
            )
            for name in names
        ),
        kept=_kept_rows(search, documents.of(Profile), depth),
        causes=tuple(Counter[str](node.cause for node in search.kept).most_common()),
        trial_table=_trial_table(search.trials[:_TRIALS_SHOWN], trial_metrics),
        always_kept=_always_kept(search.always_kept),
        samples=counted(search.sample_count, "sample")
        + (", to which the result is fitted, so it may do worse on others" if search.is_fitted else ""),
        depth=depth,
    )


def search_depth(search: PrecisionSearch) -> DepthView | None:
    """Return the search's layers, all reduced and with the kept nodes; None if it compared none."""
    outputs = {name for node in search.kept for name in node.outputs}
    names = {node.node for node in search.kept if node.node}

    def is_kept(layer: LayerDivergence) -> bool:
        return layer.tensor in outputs or layer.node in names

    curves = {f"all in {search.precision}": search.layers_whole}
    if search.kept:
        stay = f"{len(search.kept)} in {short_name(search.kept_precision, 20)}"
        curves[stay] = search.layers_found
    there = {words: layers for words, layers in curves.items() if layers}
    return collect_depth(there, is_kept, search.first_divergent, bound_of(search.tolerance), search.precision)


def _text(metric: str, value: float | None) -> str:
    return ABSENT if value is None else metric_text(metric, value)


# --- kept nodes ---


def _kept_rows(
    search: PrecisionSearch, profiles: Mapping[str, Profile], depth: DepthView | None
) -> tuple[KeptRow, ...]:
    shown = sorted(search.kept, key=lambda node: _CAUSES.index(node.cause))[:_KEPT_SHOWN]
    names = {node.node for node in shown if node.node}
    layers: dict[str, tuple[int, int]] = {}  # of each node, the first layer on the page that holds it
    layered = filter(has_timed_layers, profiles.values())
    for index, profile in enumerate(layered):
        for position, layer in enumerate(profile.layers):
            for name in names.intersection(layer.onnx_nodes):
                layers.setdefault(name, (index, position))
    rows = {depth.layers[row].record.tensor: row for row in depth.kept} if depth else {}
    of_node = [next((rows[name] for name in node.outputs if name in rows), None) for node in shown]
    return tuple(_kept_row(node, search, row, layers.get(node.node)) for node, row in zip(shown, of_node, strict=True))


def _kept_row(node: KeptNode, search: PrecisionSearch, depth_row: int | None, layer: tuple[int, int] | None) -> KeptRow:
    metrics = [metric for metric in search.tolerance if metric in node.without] or list(node.without)
    return KeptRow(
        node=short_name(node.node or next(iter(node.outputs), "")),
        op_type=short_name(node.op_type, 60),
        cause=node.cause,
        evidence=tuple((short_name(fact.sentence, 400), short_name(fact.tensor, 120)) for fact in node.evidence[:6]),
        without=tuple(f"{short_name(name, 40)} {metric_text(name, node.without[name])}" for name in metrics[:3]),
        depth_row=depth_row,
        layer=layer,
    )


def _always_kept(always: Mapping[str, str]) -> tuple[AlwaysKept, ...]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for node, reason in always.items():
        by_reason[reason].append(node)
    return tuple(
        AlwaysKept(short_name(reason, 300), tuple(map(short_name, names[:_NAMES_SHOWN])), len(names[_NAMES_SHOWN:]))
        for reason, names in sorted(by_reason.items(), key=lambda item: -len(item[1]))
    )


# --- trials ---


def _trial_table(trials: Sequence[Trial], metrics: Sequence[str]) -> Table:
    columns = (
        Column("#", "number"),
        Column("Phase"),
        Column("Trial"),
        Column("Kept", "number", count),
        *(Column(short_name(metric, 40), "number", partial(_text, metric)) for metric in metrics),
        Column("Outcome", "outcome"),
        Column("Duration", "number", seconds),
    )
    rows = (
        (
            trial.number,
            trial.phase,
            ", ".join(filter(None, (short_name(trial.what, 300), trial_note(trial)))),
            trial.kept_count,
            *(trial.metrics.get(metric) for metric in metrics),
            "passed" if trial.passed else "failed",
            trial.wall_s,
        )
        for trial in trials
    )
    return Table(columns, tuple(rows))


def trial_note(trial: Trial) -> str:
    """Return the reason why a trial was not run, or a note that an earlier search ran it."""
    return short_name(trial.trouble, 400) or ("taken from an earlier search" if trial.remembered else "")


_MOST_RANGES = 60
"""Maximum number of ranges of positions of a trial's kept nodes."""


def script_data(views: tuple[SearchView, ...]) -> PrecisionData:
    """Return the trials and the layers of each search."""
    return PrecisionData(
        [_trials(view) for view in views], [depth_curves(view.depth) if view.depth else None for view in views]
    )


def _trials(view: SearchView) -> SearchTrials:
    trials = view.search.trials
    metrics = dict.fromkeys(metric for trial in trials for metric in trial.metrics)
    outcome = view.outcome
    return SearchTrials(
        step=view.step,
        metric=outcome.metric,
        higher=higher_is_better(outcome.metric),
        bound=None if outcome.bound is None else rounded(outcome.bound),
        number=[trial.number for trial in trials],
        phase=[trial.phase for trial in trials],
        what=[visible_name(trial.what) for trial in trials],
        kept=[trial.kept_count for trial in trials],
        ranges=[
            list(chain.from_iterable(ranges)) if len(ranges) <= _MOST_RANGES else None
            for ranges in (_ranges_of(trial.kept) for trial in trials)
        ],
        passed=[trial.passed for trial in trials],
        wall_s=[rounded(trial.wall_s) for trial in trials],
        note=[trial_note(trial) for trial in trials],
        # Nine digits, as a cosine near 1 differs in the last ones.
        metrics={
            visible_name(metric): [
                rounded(value, 9) if value is not None and math.isfinite(value) else value
                for value in (trial.metrics.get(metric) for trial in trials)
            ]
            for metric in metrics
        },
        in_percent=[metric for metric in metrics if metric in FRACTIONS],
    )


def _ranges_of(positions: Collection[int]) -> list[tuple[int, int]]:
    """Return the first and the last position of each range."""
    # Neighbours have the same distance from their places in the order.
    ranges = (list(run) for _, run in groupby(enumerate(sorted(positions)), key=lambda pair: pair[1] - pair[0]))
    return [(run[0][1], run[-1][1]) for run in ranges]


PANEL = Panel("Precision", collect_searches, after="findings", data=script_data)
