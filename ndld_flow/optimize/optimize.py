"""Optimize a model: search among its variants, prove the best on held-out data, and deliver it if it is right and
better than the source.

The search and the proofs are recipes that a person can read and run.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import yaml
from pydantic import JsonValue

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.quantities import seconds
from ndld_flow.execution.events import Notice
from ndld_flow.execution.listener import Listener
from ndld_flow.execution.request import Request
from ndld_flow.machine.host import describe_machine
from ndld_flow.measure.preflight import disturbance, read_cpu_time
from ndld_flow.optimize.budget import Budget
from ndld_flow.optimize.compose import Composer, read_model
from ndld_flow.optimize.found import Found, prove_source, time_shares
from ndld_flow.optimize.options import OptimizeOptions
from ndld_flow.optimize.proof import Proof, Prover, command_of
from ndld_flow.optimize.race_search import RaceSearch, remove_leftovers
from ndld_flow.optimize.sweep_search import SweepSearch
from ndld_flow.optimize.variant import LONGEST_S
from ndld_flow.recipe.write_recipe import name_recipe
from ndld_flow.records.measurement import cpus_used_by_others
from ndld_flow.records.optimization import Optimization, find_ending
from ndld_flow.records.placement import Placement
from ndld_flow.records.run_folder import OPTIMIZATION_RECORD
from ndld_flow.runner.export import check_output
from ndld_flow.runner.run_folder import write_optimization
from ndld_flow.runtimes.registry import settings_of
from ndld_flow.store.digest import digest_json
from ndld_flow.store.files import make_folder, write_text_atomically

_READS = 30.0
"""The default budget is at least this many times as long as reading the model and running it once: on a slow or busy
machine, all that follows takes longer by as much."""


def write_search(model: Path, options: OptimizeOptions, path: Path, *, overwrite: bool, listener: Listener) -> None:
    """Write the variants that `optimize_model` would try as a sweep.

    Raises RequestError if the file exists, and as `read_model`.
    """
    if path.exists() and not overwrite:
        raise RequestError(f"{path}: the file exists. Choose another, or give --overwrite.")
    composer = read_model(model, options, path.with_name(f"{path.stem}-samples"))
    _warn(composer, listener)
    write_text_atomically(path, composer.compose_sweep(path))


def optimize_model(model: Path, options: OptimizeOptions, request: Request, listener: Listener) -> Optimization:
    """Find, prove, deliver and record the fastest variant of a model; `request` has the folders and the output.

    It ends within its budget, and 2 s after Ctrl-C, with the best that was proved until then. Raises NdldFlowError if
    nothing can be searched.
    """
    start, started_at, cpu_before = time.monotonic(), datetime.now(UTC), read_cpu_time()
    if request.output is not None:
        check_output(request.output)
    folder = _folder(model, options, request.outputs)
    composer = read_model(model, options, folder / "samples")
    make_folder(folder)
    remove_leftovers(folder)
    budget = Budget(composer.budget_s, start)
    if budget.seconds is not None and not options.budget:  # once: a bound that moves is none
        total_s = max(budget.seconds, min(_READS * budget.used_s, LONGEST_S))
        budget = Budget(total_s, start)
        listener(Notice(text=f"this takes at most about {seconds(total_s)}; --budget changes it"))
    with budget.enforced_on_source():
        source = prove_source(Prover(composer, folder, request, listener))
    if composer.races:
        composer = replace(composer, shares=time_shares(source))
    _warn(composer, listener, source)
    prover = Prover(composer, folder, request, listener)
    search = RaceSearch if composer.races else SweepSearch
    found = search(prover, source, budget).run()
    if not found.delivered.passed:
        raise ModelError(f"{model}: no variant of it fits --for {options.target}: {found.delivered.why}")
    found.delivered = prover.deliver(found.delivered)
    assert found.delivered.finished is not None  # it passed
    during = disturbance(cpu_before, read_cpu_time(), time.monotonic() - start)
    load = cpus_used_by_others(during) / (describe_machine().cpu_count or 1)
    record = _describe(prover, found, source, budget, started_at).model_copy(update={"load_of_others": load})
    write_text_atomically(folder / OPTIMIZATION_RECORD, record.to_json())
    write_optimization(record, Path(found.delivered.finished.folder))  # on top of the page of its proof
    return record


def _describe_opening(composer: Composer, delivered: Proof) -> str:
    """Return Python that opens the delivered model as it was measured; empty if its path suffices."""
    runtime = yaml.safe_load(delivered.variant.runtime)
    values = runtime if isinstance(runtime, dict) else {"backend": runtime}
    settings = settings_of(values["backend"])
    if settings is None or composer.preset.engine:
        return ""
    model = (*delivered.exported, str(composer.model if delivered.variant.is_source else delivered.file))[0]
    return settings.model_validate(values).opening(model)


def _warn(composer: Composer, listener: Listener, source: Proof | None = None) -> None:
    """Report what is not tried, and the warnings of the source's run, such as of the rate of audio."""
    for line in source.finished.verdict if source is not None and source.finished is not None else ():
        if line.startswith("warning "):
            listener(Notice(text=line.removeprefix("warning "), warning=True))
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


def _describe(prover: Prover, found: Found, source: Proof, budget: Budget, started_at: datetime) -> Optimization:
    composer, options, delivered = prover.composer, prover.composer.options, found.delivered
    assert delivered.finished is not None  # it passed
    faster = found.faster
    return Optimization(
        model=str(composer.model),
        target=options.target,
        objectives=tuple(each.name for each in composer.objectives),
        keep=options.keep,
        search_samples=composer.samples.counts[0],
        held_samples=delivered.held_samples if faster else composer.samples.counts[1],
        random_inputs=not composer.samples.search,
        variants=found.variants,
        not_tried=found.not_tried,
        stopped_because=found.stopped_because,
        ending=find_ending(found.variants, faster=faster),
        delivered=delivered.variant.name,
        runtime=delivered.variant.runtime,
        opening=_describe_opening(composer, delivered),
        digest=delivered.model.digest,
        # The record of a placement lies beside the model.
        size_bytes=sum(file.size_bytes for file in delivered.model.files if file.path != Placement.file_name),
        source_bytes=sum(file.size_bytes for file in source.source.files),
        file=str(composer.model if delivered.variant.is_source else delivered.file),
        exported=delivered.exported,
        speed=delivered.speed,
        used_by_others=delivered.used_by_others,
        gains=delivered.gains,
        new_size_ms=delivered.new_size_ms,
        front=found.front,
        unknown=composer.preset.unknown,
        fixed_shapes=composer.fixed_shapes if faster and not delivered.variant.is_source else "",
        accuracy=delivered.accuracy if faster else "",
        worst_sample=delivered.worst_sample if faster else "",
        metrics=dict(delivered.metrics),
        recipe=str(delivered.recipe),
        command=command_of(delivered, prover.request),
        run=delivered.finished.run,
        sweep=found.sweep.sweep if found.sweep is not None else "",
        report=delivered.finished.report,
        budget_s=budget.seconds,
        started_at=started_at,
        wall_s=budget.used_s,
    )
