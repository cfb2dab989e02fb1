"""Optimize a model: compose a sweep, run it, prove its best points on held-out data, and deliver the first that is
right and better than the source.

The sweep and the proofs are recipes that a person can read and run; nothing here computes or measures.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.quantities import quantity
from ndld_flow.base.text import suggest
from ndld_flow.recipe.optimize.compose import Composer, read_model
from ndld_flow.recipe.optimize.options import OptimizeOptions
from ndld_flow.recipe.optimize.variant import Variant
from ndld_flow.recipe.write_recipe import name_recipe
from ndld_flow.records.optimization import (
    OPTIMIZATION_RECORD,
    FrontPoint,
    Optimization,
    TriedVariant,
    VariantOutcome,
    find_ending,
)
from ndld_flow.records.run_folder import read_run_record, read_sweep_record
from ndld_flow.records.run_record import metrics_of
from ndld_flow.report.sweep.page import draw_sweep
from ndld_flow.runner.events import Notice, RunFinished
from ndld_flow.runner.export import check_output
from ndld_flow.runner.listener import Listener
from ndld_flow.runner.optimize.proof import Proof, Prover
from ndld_flow.runner.optimize.search import Point, Search, name_variant, run_search
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.request import Request
from ndld_flow.runner.run_request import run_request
from ndld_flow.store.digest import digest_json
from ndld_flow.store.files import make_folder, write_text_atomically

_MOST_NOT_FASTER = 2
"""Number of variants that may turn out not better than the source: those that follow were worse in the search."""
_MOST_OF_FRONT = 4
"""Number of models on the Pareto front that are proved."""
_MOST_CLOSE = 3
"""Number of models that are proved for a single objective, to deliver the best of them."""
_WITHIN = 0.03
"""A variant is proved too if it may be better than the best that passed by more than this, at 95 % confidence."""
_CLOSE = 1.2
"""Without such an interval, it is proved if it was at most this many times as slow."""


def write_search(model: Path, options: OptimizeOptions, path: Path, *, overwrite: bool, listener: Listener) -> None:
    """Write the sweep that `optimize_model` would run. Raises RequestError if the file exists, and as `read_model`."""
    if path.exists() and not overwrite:
        raise RequestError(f"{path}: the file exists. Choose another, or give --overwrite.")
    composer = read_model(model, options, path.with_name(f"{path.stem}-samples"))
    _warn(composer, listener)
    write_text_atomically(path, composer.compose_sweep(path))


def optimize_model(model: Path, options: OptimizeOptions, request: Request, listener: Listener) -> Optimization:
    """Find, prove, deliver and record the fastest variant of a model; `request` has the folders and the output.

    Ctrl-C during the search ends it, and its best so far is proved. Raises NdldFlowError if nothing can be searched.
    """
    if request.output is not None:
        check_output(request.output)
    folder = _folder(model, options, request.outputs)
    composer = read_model(model, options, folder / "samples")
    _warn(composer, listener)
    make_folder(folder)
    _check_own_metric(composer, folder, request, listener)
    search = run_search(composer, folder, request, listener)
    prover = Prover(composer, folder, request, listener)
    proofs = _prove_best(search, prover)
    delivered = next((proof for proof in proofs.values() if proof.passed), None)
    faster = delivered is not None
    if delivered is None:
        source = Variant("source", composer.base_runtime, is_source=True)
        delivered = prover.prove(source, None)
        if not delivered.passed:
            if composer.preset.limits.operators:
                raise ModelError(f"{model}: no variant of it fits --for {options.target}: {delivered.why}")
            raise ModelError(f"the source does not pass its own check: {delivered.why}")
    found = _describe_result(prover, search, proofs, prover.deliver(delivered), faster=faster)
    _record(found, folder, search, request)
    return found


def _describe_result(
    prover: Prover, search: Search, proofs: dict[int, Proof], delivered: Proof, *, faster: bool
) -> Optimization:
    composer, options, ran, sweep = prover.composer, prover.composer.options, delivered.finished, search.finished
    assert ran is not None  # it passed
    variants = (*_describe(search.points, proofs, delivered, faster), *_describe_untried(composer, search))
    return Optimization(
        model=str(composer.model),
        target=options.target,
        objectives=tuple(each.name for each in composer.objectives),
        keep=options.keep,
        search_samples=composer.samples.counts[0],
        held_samples=composer.samples.counts[1],
        random_inputs=not composer.samples.search,
        variants=variants,
        not_tried=(*composer.left_out, *(f"{name} is not tried: {why}." for name, why in search.hopeless.items())),
        stopped_because=search.stopped_because,
        ending=find_ending(variants, faster=faster),
        delivered=delivered.variant.name,
        runtime=delivered.variant.runtime,
        threads=delivered.threads,
        digest=delivered.model.digest,
        size_bytes=sum(file.size_bytes for file in delivered.model_files),
        source_bytes=sum(file.size_bytes for file in delivered.source.files),
        exported=delivered.exported,
        speed=delivered.speed if faster else None,
        gains=delivered.gains if faster else (),
        front=tuple(_front(search.points, proofs, prover.request)) if len(composer.objectives) > 1 else (),
        unknown=composer.preset.unknown,
        fixed_shapes=composer.fixed_shapes if faster and not delivered.variant.is_source else "",
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


def _folder(model: Path, options: OptimizeOptions, outputs: Path) -> Path:
    """Return the folder of the recipes: one for each model and set of options."""
    identity: list[JsonValue] = [
        str(model.absolute()),
        options.target,
        *options.data,
        "",
        *options.keep,
        str(options.threads),
        [*options.minimize, *options.maximize],
        options.fix_shapes,
    ]
    return outputs / "optimizations" / f"{name_recipe(model)}-{digest_json(identity)[:8]}"


def _check_own_metric(composer: Composer, folder: Path, request: Request, listener: Listener) -> None:
    """Judge the source by the user's own metric, whose names only a run shows. Raises RequestError for conditions on
    others.
    """
    if composer.options.metric is None:
        return
    recipe = folder / "probe.yaml"
    write_text_atomically(recipe, composer.compose_probe())
    finished = run_request(replace(request, recipe=recipe, output=None), lambda _: None)
    assert isinstance(finished, RunFinished)
    record = read_run_record(Path(finished.folder))
    known = [name.removeprefix("agree.") for name in metrics_of(record.steps)]
    for name, bound in composer.conditions.accuracy:
        if name not in known:
            raise RequestError(
                f"--keep '{name} {bound}': {composer.options.metric} returns no such metric, and "
                f"neither does check_accuracy; {suggest(name, known)}"
            )
    listener(Notice(text=f"{composer.options.metric}: the source is judged by {', '.join(known[:6])}"))


def _prove_best(search: Search, prover: Prover) -> dict[int, Proof]:
    """Prove points from the best on; return proofs by the point's number. If any passes, one is to be delivered.

    For one objective, variants close to the first that passes are proved too, and the best by alternating passes is
    delivered; for several, the first that passes, and others of the front are proved. When the budget is used up, no
    further point is proved after the first.
    """
    proofs: dict[int, Proof] = {}
    first: Point | None = None
    for point in sorted(search.points, key=lambda point: point.rank):
        if point.outcome != "passed" or prover.composer.is_base(point.variant, point.threads):
            continue
        passed = sum(proof.passed for proof in proofs.values())
        if first is not None and not _is_worth_proving(point, first, passed, prover.composer):
            continue
        if proofs and search.left_ms(prover.composer.options.budget) <= 0:
            prover.listener(Notice(text="the budget is used up: no further variant is proved", warning=True))
            break
        against = "the engine of" if prover.composer.preset.built_only else "alternating passes with"
        how = f"held-out samples, then {against} the source"
        prover.listener(Notice(text=f"proving {point.name}: {how}"))
        proof = proofs[point.number] = prover.prove(point.variant, point.threads)
        first = first or (point if proof.passed else None)
        outcome = "right and better" if proof.passed else proof.outcome
        prover.listener(Notice(text=f"{point.name}: {outcome}{f': {proof.why}' if proof.why else ''}"))
        if sum(each.outcome == "not faster" for each in proofs.values()) >= _MOST_NOT_FASTER:
            break
    return _choose(proofs, prover.composer.variants, several=len(prover.composer.objectives) > 1)


def _is_worth_proving(point: Point, first: Point, passed: int, composer: Composer) -> bool:
    """Return whether a point is proved although a better one of the search has passed."""
    if len(composer.objectives) > 1:
        return point.on_front and passed < _MOST_OF_FRONT
    (objective,) = composer.objectives
    found = [each.objectives.get(objective.name) for each in (first, point)]
    if passed >= _MOST_CLOSE or objective.evidence != "alternating passes" or None in found:
        return False
    if point.ratio_to_best is not None and first.ratio_to_best == (1.0, 1.0):
        low, high = point.ratio_to_best
        return (low if objective.direction == "minimize" else 1 / high) < 1 - _WITHIN
    low, high = sorted(metric.value for metric in found if metric is not None)
    return 0 < high <= _CLOSE * low


def _choose(proofs: Mapping[int, Proof], variants: Sequence[Variant], *, several: bool) -> dict[int, Proof]:
    """Return the proofs with one of those that passed as `delivered`: the first for several objectives, else the one
    with the largest gain.

    If several variants have its model, as `INT8 where it pays` does if nothing pays, the first in `variants` is
    delivered.
    """
    passed = [number for number, proof in proofs.items() if proof.passed]
    best = min(passed, key=lambda number: 0 if several else proofs[number].gains[0].ratio, default=None)
    if best is not None:
        equal = [number for number in passed if number == best or proofs[number].is_same_as(proofs[best])]
        best = min(equal, key=lambda number: variants.index(proofs[number].variant))
    chosen = dict(proofs)
    for number in passed:
        if number != best:
            gained = "; ".join(gain.describe() for gain in proofs[number].gains)
            chosen[number] = replace(proofs[number], outcome="on the front" if several else "slower", why=gained)
    return chosen


def _front(points: Sequence[Point], proofs: dict[int, Proof], request: Request) -> Iterator[FrontPoint]:
    """Yield the proved points of the front, the best in the first objective first."""
    for point in points:
        proof = proofs.get(point.number)
        if proof is not None and proof.passed:
            delivered = proof.outcome == "delivered"
            output = request.output if delivered else Path(f"{name_recipe(Path(f'{point.variant.name}.onnx'))}.onnx")
            command = _command(proof, replace(request, output=output))
            yield FrontPoint(name=point.name, gains=proof.gains, command=command, delivered=delivered)


def _describe(points: Sequence[Point], proofs: dict[int, Proof], delivered: Proof, faster: bool) -> list[TriedVariant]:
    """Return all variants that were tried, the fastest first, each with the reason why it lost."""
    described = []
    # Those after variants that are not faster were worse in the search; otherwise the budget ended the proofs.
    unproved = not faster and sum(proof.outcome == "not faster" for proof in proofs.values()) < _MOST_NOT_FASTER
    for point in points:
        proof = proofs.get(point.number)
        outcome, why = (proof.outcome, proof.why) if proof is not None else _lost(point)
        if outcome == "slower" and proof is None and unproved:
            outcome = "not proved"
        if not faster and point.variant == delivered.variant and point.threads == delivered.threads:
            outcome, why = "delivered", ""
        described.append(
            TriedVariant(
                name=point.name,
                runtime=point.variant.runtime,
                outcome=outcome,
                why=why,
                latency=point.latency,
                objectives=dict(point.objectives),
                on_front=point.on_front,
            )
        )
    return described


def _describe_untried(composer: Composer, search: Search) -> Iterator[TriedVariant]:
    """Yield the variants that the search did not reach."""
    threads: Sequence[int | None] = composer.options.threads if len(composer.options.threads) > 1 else (None,)
    tried = {(point.variant.name, point.threads) for point in search.points}
    for variant in composer.variants:
        why = search.hopeless.get(variant.name, "")
        for count in threads:
            if (variant.name, count) not in tried and not composer.is_base(variant, count):
                name = name_variant(variant.name, count)
                outcome: VariantOutcome = "cannot win" if why else "not tried"
                yield TriedVariant(name=name, runtime=variant.runtime, outcome=outcome, why=why)


def _lost(point: Point) -> tuple[VariantOutcome, str]:
    """Return the outcome of a point that was not proved."""
    if point.outcome == "passed":
        values = ", ".join(quantity(each.value, each.unit) for each in point.objectives.values())
        return "slower", f"{values} in the search"
    return ("not right" if point.outcome != "failed" else "failed"), point.why


def _command(proof: Proof, request: Request) -> str:
    words = ["ndld-flow", "run", str(proof.recipe)]
    words += ["-o", str(request.output)] if request.output is not None and not proof.variant.is_source else []
    words += ["--outputs", str(request.outputs)] if request.outputs != Path("outputs") else []
    return shlex.join([*words, *(["--trust"] if request.trust else [])])


def _record(found: Optimization, folder: Path, search: Search, request: Request) -> None:
    """Write the record beside its recipes, and on top of the page of the search."""
    write_text_atomically(folder / OPTIMIZATION_RECORD, found.to_json())
    if search.finished is None:
        return
    swept = Path(search.finished.folder)
    write_text_atomically(swept / OPTIMIZATION_RECORD, found.to_json())
    draw_sweep(read_sweep_record(swept), swept, Outputs(request.outputs).store.object_folder)
