"""Optimize a model: compose a sweep, run it, prove its best points on held-out data, and deliver the first that is
right and faster than the source.

The sweep and the proofs are recipes that a person can read and run; nothing here computes or measures.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.quantities import counted, quantity
from ndld_flow.recipe.optimize_recipe import Composer, OptimizeOptions, Variant, read_model
from ndld_flow.records.measurement import Metric
from ndld_flow.records.optimization import OPTIMIZATION_RECORD, Optimization, TriedVariant, VariantOutcome
from ndld_flow.records.outcomes import PointOutcome
from ndld_flow.records.run_folder import read_sweep_record
from ndld_flow.report.sweep.page import draw_sweep
from ndld_flow.runner.events import Event, Notice, PointFinished, SweepFinished
from ndld_flow.runner.export import check_output
from ndld_flow.runner.listener import Listener
from ndld_flow.runner.optimize.proof import Proof, Prover
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.request import Request
from ndld_flow.runner.run_request import run_request
from ndld_flow.store.digest import digest_json
from ndld_flow.store.files import make_folder, write_text_atomically

_MOST_NOT_FASTER = 2
"""Number of variants that may turn out not faster than the source: those that follow were slower in the search."""


@dataclass
class _Point:
    """A point of the search, as known when it ended or was interrupted."""

    number: int
    variant: Variant
    threads: int | None
    outcome: PointOutcome
    why: str
    latency: Metric | None
    rank: float = 0.0

    @property
    def name(self) -> str:
        return self.variant.name + (f", {counted(self.threads, 'thread')}" if self.threads is not None else "")


@dataclass
class _Search:
    """The result of the search."""

    points: list[_Point] = field(default_factory=list)
    stopped_because: str = ""
    finished: SweepFinished | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    clock: float = field(default_factory=time.perf_counter)


def write_search(model: Path, options: OptimizeOptions, path: Path, *, overwrite: bool, listener: Listener) -> None:
    """Write the sweep that `optimize_model` would run. Raises RequestError if the file exists, and as `read_model`."""
    if path.exists() and not overwrite:
        raise RequestError(f"{path}: the file exists. Choose another, or give --overwrite.")
    composer = read_model(model, options)
    _warn(composer, listener)
    write_text_atomically(path, composer.compose_sweep(path))


def optimize_model(model: Path, options: OptimizeOptions, request: Request, listener: Listener) -> Optimization:
    """Find, prove, deliver and record the fastest variant of a model; `request` has the folders and the output.

    Ctrl-C during the search ends it, and its best so far is proved. Raises NdldFlowError if nothing can be searched.
    """
    if request.output is not None:
        check_output(request.output)
    composer = read_model(model, options)
    _warn(composer, listener)
    folder = _folder(composer, request.outputs)
    search = _run_search(composer, folder, request, listener)
    prover = Prover(composer, folder, request, listener)
    proofs = _prove_best(search, prover)
    delivered = next((proof for proof in proofs.values() if proof.passed), None)
    faster = delivered is not None
    if delivered is None:
        source = Variant("source", composer.base_runtime, is_source=True)
        delivered = prover.prove(source, None)
        if not delivered.passed:
            raise ModelError(f"the source does not pass its own check: {delivered.why}")
    found = _describe_result(prover, search, proofs, delivered, faster=faster)
    _record(found, folder, search, request)
    return found


def _describe_result(
    prover: Prover, search: _Search, proofs: dict[int, Proof], delivered: Proof, *, faster: bool
) -> Optimization:
    composer, options, ran, sweep = prover.composer, prover.composer.options, delivered.finished, search.finished
    assert ran is not None  # it passed
    return Optimization(
        model=str(composer.model),
        target=options.target,
        keep=options.keep,
        search_samples=composer.samples.counts[0],
        held_samples=composer.samples.counts[1],
        random_inputs=not composer.samples.search,
        variants=tuple(_describe(search.points, proofs, delivered, faster)),
        not_tried=tuple(composer.left_out),
        stopped_because=search.stopped_because,
        faster=faster,
        delivered=delivered.variant.name,
        runtime=delivered.variant.runtime,
        threads=delivered.threads,
        digest=delivered.model.digest,
        size_bytes=sum(file.size_bytes for file in delivered.model.files),
        source_bytes=sum(file.size_bytes for file in delivered.source.files),
        exported=delivered.exported,
        speed=delivered.speed if faster else None,
        accuracy=delivered.accuracy if faster else "",
        worst_sample=delivered.worst_sample if faster else "",
        metrics=dict(delivered.metrics),
        recipe=str(delivered.recipe),
        command=_command(delivered, prover.request),
        run=ran.run,
        sweep=sweep.sweep if sweep is not None else "",
        report=sweep.report if sweep is not None else ran.report,
        started_at=search.started_at,
        wall_s=time.perf_counter() - search.clock,
    )


def _warn(composer: Composer, listener: Listener) -> None:
    for sentence in composer.left_out:
        listener(Notice(text=sentence))


def _folder(composer: Composer, outputs: Path) -> Path:
    options = composer.options
    identity: list[JsonValue] = [
        str(composer.model.absolute()),
        options.target,
        *options.data,
        "",
        *options.keep,
        str(options.threads),
    ]
    folder = outputs / "optimizations" / f"{composer.name.removeprefix('optimize-')}-{digest_json(identity)[:8]}"
    make_folder(folder)
    return folder


def _run_search(composer: Composer, folder: Path, request: Request, listener: Listener) -> _Search:
    """Run the sweep; return its points in the order of their ranks, or those that had finished at Ctrl-C."""
    recipe = folder / "search.yaml"
    write_text_atomically(recipe, composer.compose_sweep(recipe))
    variants = {variant.name: variant for variant in composer.variants}
    seen: dict[int, PointFinished] = {}
    search = _Search()

    def listen(event: Event) -> None:
        if isinstance(event, PointFinished):
            seen[event.number] = event
        if not isinstance(event, SweepFinished):
            listener(event)

    try:
        finished = run_request(replace(request, recipe=recipe, output=None), listen)
    except KeyboardInterrupt:
        listener(Notice(text="interrupted: concluding with the best so far; Ctrl-C again ends this too", warning=True))
        points = [_interrupted_point(event, variants) for event in seen.values()]
        return replace(search, points=points, stopped_because="Ctrl-C")
    assert isinstance(finished, SweepFinished)
    record = read_sweep_record(Path(finished.folder))
    points = []
    for point in record.points:
        latest = point.again or point
        value = latest.objectives[0] if latest.objectives else None
        latency = None if value is None else Metric(value=value, unit=record.objectives[0].unit)
        variant = variants[str(point.values["variant"])]
        rank = float("inf") if point.rank is None else point.rank
        threads = _threads_of(point.values.get("speed.threads"))
        points.append(_Point(point.number, variant, threads, point.outcome, point.reason, latency, rank))
    ranked = sorted(points, key=lambda point: point.rank)
    return replace(search, points=ranked, stopped_because=record.stopped_because, finished=finished)


def _interrupted_point(event: PointFinished, variants: dict[str, Variant]) -> _Point:
    latency = next(iter(event.objectives.values()), None)
    rank = float("inf") if latency is None or latency.value is None else latency.value
    threads = _threads_of(event.values.get("speed.threads"))
    variant = variants[str(event.values["variant"])]
    return _Point(event.number, variant, threads, event.outcome, event.reason, latency, rank)


def _threads_of(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _prove_best(search: _Search, prover: Prover) -> dict[int, Proof]:
    """Prove points from the best on, until one passes; return the proofs by the number of the point."""
    proofs: dict[int, Proof] = {}
    for point in sorted(search.points, key=lambda point: point.rank):
        if point.outcome != "passed" or prover.composer.is_base(point.variant, point.threads):
            continue
        prover.listener(Notice(text=f"proving {point.name}: held-out samples, then alternating passes with the source"))
        proof = proofs[point.number] = prover.prove(point.variant, point.threads)
        prover.listener(Notice(text=f"{point.name}: {proof.outcome}{f': {proof.why}' if proof.why else ''}"))
        if proof.passed or sum(each.outcome == "not faster" for each in proofs.values()) >= _MOST_NOT_FASTER:
            break
    return proofs


def _describe(points: Sequence[_Point], proofs: dict[int, Proof], delivered: Proof, faster: bool) -> list[TriedVariant]:
    """Return all variants that were tried, the fastest first, each with the reason why it lost."""
    described = []
    for point in points:
        proof = proofs.get(point.number)
        outcome, why = (proof.outcome, proof.why) if proof is not None else _lost(point)
        if not faster and point.variant == delivered.variant and point.threads == delivered.threads:
            outcome, why = "delivered", ""
        described.append(
            TriedVariant(
                name=point.name, runtime=point.variant.runtime, outcome=outcome, why=why, latency=point.latency
            )
        )
    return described


def _lost(point: _Point) -> tuple[VariantOutcome, str]:
    """Return the outcome of a point that was not proved."""
    if point.outcome == "passed":
        latency = point.latency
        known = latency is not None and latency.value is not None
        return "slower", quantity(latency.value, latency.unit) if latency is not None and known else ""
    return ("not right" if point.outcome != "failed" else "failed"), point.why


def _command(proof: Proof, request: Request) -> str:
    words = ["ndld-flow", "run", str(proof.recipe)]
    words += ["-o", str(request.output)] if request.output is not None and not proof.variant.is_source else []
    words += ["--outputs", str(request.outputs)] if request.outputs != Path("outputs") else []
    return shlex.join([*words, *(["--trust"] if request.trust else [])])


def _record(found: Optimization, folder: Path, search: _Search, request: Request) -> None:
    """Write the record beside its recipes, and on top of the page of the search."""
    write_text_atomically(folder / OPTIMIZATION_RECORD, found.to_json())
    if search.finished is None:
        return
    swept = Path(search.finished.folder)
    write_text_atomically(swept / OPTIMIZATION_RECORD, found.to_json())
    draw_sweep(read_sweep_record(swept), swept, Outputs(request.outputs).store.object_folder)
