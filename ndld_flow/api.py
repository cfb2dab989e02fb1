"""The Python API: one function for each verb of the command line.

::

    from ndld_flow import api

    finished = api.run("pipelines/quickstart.yaml", ["steps.speed.passes=50"])
    print(finished.passed, finished.metrics["speed.latency.median"], finished.artifacts["half"], finished.report)

A recipe is the path of its file, or a dictionary with the same keys, whose relative paths start at the current
directory. All functions check the types of their arguments and raise nothing but `NdldFlowError`, whose `step` is the
step that failed and whose `exit_code` is that of the command line; none prints or exits. The types of arguments and
results are names of this module too: `api.Rules`, `api.RunFinished`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ndld_flow.base.lazy_names import lazy_names
from ndld_flow.runner.public_functions import public

_TYPES = {
    "ndld_flow.base.errors": (
        "BackendError",
        "FormatError",
        "KilledError",
        "ModelError",
        "NdldFlowError",
        "OutputsError",
        "Problem",
        "RecipeError",
        "RequestError",
        "SourceError",
    ),
    "ndld_flow.drawing.graph": (
        "Look",
        "Reading",
    ),
    "ndld_flow.graph.edit.settings": (
        "NodeSelect",
        "TensorSelect",
    ),
    "ndld_flow.graph.inspect_model": ("Query",),
    "ndld_flow.machine.check": ("Check",),
    "ndld_flow.models.op_reference": ("ListedOperator",),
    "ndld_flow.profiles.compare.measured": ("Rules",),
    "ndld_flow.optimize.options": ("OptimizeOptions",),
    "ndld_flow.recipe.step_types": ("StepType",),
    "ndld_flow.recipe.write_recipe": (
        "AskShape",
        "RecipeOptions",
        "WrittenRecipe",
    ),
    "ndld_flow.records.comparison": ("Comparison",),
    "ndld_flow.records.history": ("AcceptedChange", "MetricHistory"),
    "ndld_flow.records.inspection": ("Inspection",),
    "ndld_flow.records.measurement": ("Metric",),
    "ndld_flow.records.model_diff": (
        "ModelDiff",
        "Part",
    ),
    "ndld_flow.records.engine_lock": ("EngineComparison",),
    "ndld_flow.records.noise": ("Noise",),
    "ndld_flow.records.optimization": ("Optimization",),
    "ndld_flow.records.profile": (
        "Layer",
        "Profile",
    ),
    "ndld_flow.runner.apply_finding": ("AppliedChange", "OfferedChange"),
    "ndld_flow.runner.collect_cache": ("CacheFreed",),
    "ndld_flow.runner.collect_garbage": ("Freed", "LibrariesFreed"),
    "ndld_flow.runner.comment_run": ("Commented",),
    "ndld_flow.runner.compare_models": ("ComparedModels", "ModelOptions"),
    "ndld_flow.runner.compare_runs": ("Compared",),
    "ndld_flow.runner.diff_engines": ("ComparedEngines",),
    "ndld_flow.runner.events": (
        "Event",
        "RunFinished",
        "SweepFinished",
    ),
    "ndld_flow.runner.executors.ssh.targets": ("TargetFreed",),
    "ndld_flow.runner.list_runs": ("RunSummary",),
    "ndld_flow.runner.listener": ("Listener",),
    "ndld_flow.runner.measure_model": ("Profiled",),
    "ndld_flow.runner.mlflow_export": ("Logged",),
    "ndld_flow.runner.plan": ("Decision",),
    "ndld_flow.reduce.options": ("ReduceOptions",),
    "ndld_flow.reduce.pack": ("Reduced",),
    "ndld_flow.runner.request": (
        "AnyRecipe",
        "Placement",
    ),
    "ndld_flow.sweep.plan_sweep": ("SweepPlan",),
    "ndld_flow.runner.verify": ("Verified",),
}
"""Module -> the types of arguments and results that it defines; each is imported when it is used."""

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas

    from ndld_flow.base.errors import (
        BackendError,
        FormatError,
        KilledError,
        ModelError,
        NdldFlowError,
        OutputsError,
        Problem,
        RecipeError,
        RequestError,
        SourceError,
    )
    from ndld_flow.drawing.graph import Look, Reading
    from ndld_flow.graph.edit.settings import NodeSelect, TensorSelect
    from ndld_flow.graph.inspect_model import Query
    from ndld_flow.machine.check import Check
    from ndld_flow.models.op_reference import ListedOperator
    from ndld_flow.optimize.options import OptimizeOptions
    from ndld_flow.profiles.compare.measured import Rules
    from ndld_flow.recipe.step_types import StepType
    from ndld_flow.recipe.write_recipe import AskShape, RecipeOptions, WrittenRecipe
    from ndld_flow.records.comparison import Comparison
    from ndld_flow.records.engine_lock import EngineComparison
    from ndld_flow.records.history import AcceptedChange, MetricHistory
    from ndld_flow.records.inspection import Inspection
    from ndld_flow.records.measurement import Metric
    from ndld_flow.records.model_diff import ModelDiff, Part
    from ndld_flow.records.noise import Noise
    from ndld_flow.records.optimization import Optimization
    from ndld_flow.records.profile import Layer, Profile
    from ndld_flow.reduce.options import ReduceOptions
    from ndld_flow.reduce.pack import Reduced
    from ndld_flow.runner.apply_finding import AppliedChange, OfferedChange
    from ndld_flow.runner.collect_cache import CacheFreed
    from ndld_flow.runner.collect_garbage import Freed, LibrariesFreed
    from ndld_flow.runner.comment_run import Commented
    from ndld_flow.runner.compare_models import ComparedModels, ModelOptions
    from ndld_flow.runner.compare_runs import Compared
    from ndld_flow.runner.diff_engines import ComparedEngines
    from ndld_flow.runner.events import Event, RunFinished, SweepFinished
    from ndld_flow.runner.executors.ssh.targets import TargetFreed
    from ndld_flow.runner.list_runs import RunSummary
    from ndld_flow.runner.listener import Listener
    from ndld_flow.runner.measure_model import Profiled
    from ndld_flow.runner.mlflow_export import Logged
    from ndld_flow.runner.plan import Decision
    from ndld_flow.runner.request import AnyRecipe, Placement
    from ndld_flow.runner.verify import Verified
    from ndld_flow.sweep.plan_sweep import SweepPlan
else:
    __getattr__ = lazy_names(__name__, {name: module for module, names in _TYPES.items() for name in names})

__all__ = [
    "AcceptedChange",
    "AnyRecipe",
    "AppliedChange",
    "AskShape",
    "BackendError",
    "CacheFreed",
    "Check",
    "Commented",
    "Compared",
    "ComparedEngines",
    "ComparedModels",
    "Comparison",
    "Decision",
    "EngineComparison",
    "Event",
    "FormatError",
    "Freed",
    "Inspection",
    "KilledError",
    "Layer",
    "LibrariesFreed",
    "ListedOperator",
    "Listener",
    "Logged",
    "Look",
    "Metric",
    "MetricHistory",
    "ModelDiff",
    "ModelError",
    "ModelOptions",
    "NdldFlowError",
    "NodeSelect",
    "Noise",
    "OfferedChange",
    "Optimization",
    "OptimizeOptions",
    "OutputsError",
    "Part",
    "Placement",
    "Problem",
    "Profile",
    "Profiled",
    "Query",
    "Reading",
    "RecipeError",
    "RecipeOptions",
    "ReduceOptions",
    "Reduced",
    "RequestError",
    "Rules",
    "RunFinished",
    "RunSummary",
    "SourceError",
    "StepType",
    "SweepFinished",
    "SweepPlan",
    "TargetFreed",
    "TensorSelect",
    "Verified",
    "WrittenRecipe",
    "accept",
    "apply",
    "comment",
    "compare",
    "compare_engines",
    "compare_models",
    "compose",
    "diff",
    "diff_engines",
    "digest",
    "doctor",
    "draw",
    "figures",
    "frame",
    "gc",
    "gc_cache",
    "gc_libraries",
    "gc_node",
    "gc_target",
    "history",
    "init",
    "init_example",
    "inspect",
    "layers",
    "list_files",
    "log_to_mlflow",
    "noise",
    "offered_changes",
    "ops",
    "optimize",
    "plan",
    "profile",
    "reduce",
    "report",
    "run",
    "runs",
    "schema",
    "steps",
    "sweep",
    "tag",
    "untag",
    "verify",
]

DEFAULT_OUTPUTS = "outputs"


@public
def run(
    recipe: AnyRecipe,
    overrides: Sequence[str] = (),
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    force: Sequence[str] = (),
    trust: bool = False,
    multirun: bool = False,
    place: Placement | None = None,
    apply: str | Path | None = None,
    output: str | Path | None = None,
    on: str = "",
    cache: str | None = None,
    push: bool | None = None,
    command: Sequence[str] = (),
    listener: Listener | None = None,
) -> RunFinished | SweepFinished:
    """Run a recipe and write its run folder and report; finished work is reused.

    A recipe with `sweep:` runs at many points, and so does any recipe with `multirun` and overrides with several
    values, such as `steps.speed.threads=1,2,4`: then the result is a `SweepFinished`, whose metrics and artifacts are
    those of the best point. `overrides` are in Hydra's grammar; `force` names steps to run even if nothing changed;
    `trust` allows code that the recipe names; `listener` is called with every event of `ndld_flow.runner.events`.
    ``place=Placement(jobs=4)`` runs the steps of a sweep that do not measure in worker processes,
    ``Placement(ray="auto")`` runs all steps, of a sweep or not, on a cluster; `apply` is the file to write a sweep's
    best point to, as a recipe of its own. `output` is the file or folder to write the result to when the run passes:
    the last model, the last engine. `on` is the target on which the steps that need a device run: a name of the user's
    settings or of the recipe, or `ssh://HOST`. `cache` is the URL of a shared cache whose results are used, empty for
    none, and `push` whether results are added to it; by default as the environment and the settings files say.
    `command` is recorded in the run's folder instead of an equivalent one.
    """
    from ndld_flow.runner.cache_settings import CacheChoice
    from ndld_flow.runner.listener import ignore
    from ndld_flow.runner.request import request_recipe
    from ndld_flow.sweep.run_request import run_request

    request = request_recipe(
        recipe,
        overrides,
        outputs=outputs,
        force=force,
        trust=trust,
        multirun=multirun,
        place=place,
        apply=apply,
        output=output,
        on=on,
        cache=CacheChoice(cache, push),
        command=command,
    )
    return run_request(request, listener or ignore)


@public
def sweep(
    recipe: AnyRecipe,
    overrides: Sequence[str] = (),
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    trust: bool = False,
    place: Placement | None = None,
    listener: Listener | None = None,
) -> SweepFinished:
    """Run a recipe at many points, as `run` does with `multirun`. Raises RequestError for a recipe without a sweep."""
    from ndld_flow.runner.events import RunFinished

    finished = run(recipe, overrides, outputs=outputs, trust=trust, multirun=True, place=place, listener=listener)
    assert not isinstance(finished, RunFinished)  # with `multirun`, a recipe without a sweep is refused
    return finished


@public
def plan(
    recipe: AnyRecipe,
    overrides: Sequence[str] = (),
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    force: Sequence[str] = (),
    trust: bool = False,
    multirun: bool = False,
    on: str = "",
    cache: str | None = None,
    listener: Listener | None = None,
) -> list[Decision] | SweepPlan:
    """Return for each step whether a run would execute or reuse it, and why; of a sweep its points and their steps.

    The arguments are those of `run`.
    """
    from ndld_flow.runner.cache_settings import CacheChoice
    from ndld_flow.runner.listener import ignore
    from ndld_flow.runner.request import request_recipe
    from ndld_flow.sweep.run_request import plan_request

    request = request_recipe(
        recipe,
        overrides,
        outputs=outputs,
        force=force,
        trust=trust,
        multirun=multirun,
        on=on,
        cache=CacheChoice(cache),
    )
    return plan_request(request, listener or ignore)


@public
def digest(
    recipe: AnyRecipe,
    overrides: Sequence[str] = (),
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    trust: bool = False,
    multirun: bool = False,
) -> str:
    """Return a digest of everything but the machine that decides the results of a recipe, as a key for caches of CI.

    Equal digests mean equal settings, models, data, code and libraries. Models may be downloaded.
    """
    from ndld_flow.runner.listener import ignore
    from ndld_flow.runner.request import request_recipe
    from ndld_flow.sweep.run_request import digest_request

    request = request_recipe(recipe, overrides, outputs=outputs, trust=trust, multirun=multirun)
    return digest_request(request, ignore)


@public
def compose(recipe: AnyRecipe, overrides: Sequence[str] = (), *, multirun: bool = False) -> str:
    """Return a recipe with its presets and overrides applied, as YAML that `run` accepts; nothing runs.

    Interpolations such as `${oc.env:TOKEN}` stay as they were written. The values are not checked: `plan` does that.
    """
    from ndld_flow.recipe.load import print_recipe
    from ndld_flow.runner.request import request_recipe

    return print_recipe(request_recipe(recipe).source, tuple(overrides), multirun=multirun)


@public
def list_files(recipe: AnyRecipe, overrides: Sequence[str] = ()) -> dict[str, Path]:
    """Return the files that make up a recipe, in the order of its `defaults:`: entry -> path; `_self_` is its own."""
    from ndld_flow.recipe.compose import list_parts
    from ndld_flow.runner.request import request_recipe

    return {part.name: part.file.path for part in list_parts(request_recipe(recipe).source, tuple(overrides))}


@public
def report(run: str, *, outputs: str | Path = DEFAULT_OUTPUTS, to: str | Path | None = None) -> Path:
    """Draw the report of a run or a sweep (tag, recipe, id, path), or of a sweep's point (`RUN#17`, `RUN#best`), from
    its records again; return its path.

    The page of a profile file or a folder of exports is written to `to`, or to the current directory. If `to` ends in
    `.xlsx` or `.csv`, the layers of the subject are written there as a table.
    """
    from ndld_flow.runner.draw import draw_any

    return draw_any(run, Path(outputs), Path(to) if to is not None else None)


@public
def compare(
    subjects: Sequence[str],
    gates: Sequence[str] = (),
    rules: Rules | None = None,
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    to: str | Path | None = None,
    measure: Listener | None = None,
) -> Compared:
    """Compare runs, tags, ids, points of sweeps (`SWEEP#17`), `RUN:STEP`, profile files and folders of exports, the
    first being the base.

    `gates` are conditions such as `latency.min <= +5 %`; `rules` define the differences that count; `to` is the folder
    to write instead of one below `outputs/comparisons/`. With `measure`, a listener of events, two profiles of runs are
    measured again, in turns, until the evidence decides.
    """
    from ndld_flow.runner.compare_runs import compare_runs

    return compare_runs(
        subjects,
        gates,
        rules,
        outputs=Path(outputs),
        to=Path(to) if to is not None else None,
        measure=measure,
    )


@public
def comment(
    run: str | None = None,
    *,
    against: str | None = None,
    gates: Sequence[str] = (),
    measure: Listener | None = None,
    log: str | Path | None = None,
    key: str | None = None,
    number: int | None = None,
    to: str | Path | None = None,
    post: bool = True,
    outputs: str | Path = DEFAULT_OUTPUTS,
) -> Commented:
    """Post the result of a run or a sweep on the pull request of this CI job, or write its Markdown to the file `to`.

    `against` is a run, or `RUN:STEP`, to compare with, by `gates`; with `measure`, a listener for events, both profiles
    are measured again in turns. `log` is the output of a run without a result, in the place of `run`. `key` names the
    comment, which a later call replaces (default: the recipe); `number` is the pull request's (default: the job's).
    Without `post`, the result is only appended to the summary of a GitHub job.
    """
    from ndld_flow.base.errors import RequestError
    from ndld_flow.runner.comment_run import Baseline, comment_log, comment_run, publish, summarize, write_markdown

    if log is not None:
        name, result = Path(log).stem, comment_log(Path(log))
    elif run is not None:
        baseline = Baseline(against, tuple(gates), measure) if against is not None else None
        name, result = comment_run(run, Path(outputs), baseline)
    else:
        raise RequestError("name a run, or the log of one that has no result.")
    if to is not None:
        write_markdown(result, Path(to))
        return result
    if not post:
        return summarize(result, os.environ)
    return publish(key or name, result, os.environ, number)


@public
def offered_changes(run: str | Path, *, outputs: str | Path = DEFAULT_OUTPUTS) -> Sequence[OfferedChange]:
    """Return the findings on the profiles of a run, or of `RUN:STEP`, whose change `apply` can write."""
    from ndld_flow.runner.apply_finding import offered_changes as find_offered
    from ndld_flow.runner.outputs import Outputs

    return find_offered(str(run), Outputs(Path(outputs)))


@public
def apply(
    run: str | Path,
    finding: str,
    *,
    to: str | Path | None = None,
    overwrite: bool = False,
    show_only: bool = False,
    trust: bool = False,
    outputs: str | Path = DEFAULT_OUTPUTS,
    listener: Listener | None = None,
) -> AppliedChange:
    """Write the change that a finding of a run suggests into its recipe, run the changed recipe, and compare both
    profiles.

    `to` is the file to write, by default one next to the recipe; with `show_only`, nothing is written or measured.
    Raises RequestError for a finding that the run does not have, and for a file that exists; and raises as `run` does.
    """
    from ndld_flow.runner.apply_finding import Options, apply_finding
    from ndld_flow.runner.listener import ignore
    from ndld_flow.runner.outputs import Outputs

    options = Options(None if to is None else Path(to), overwrite, show_only, trust)
    return apply_finding(str(run), finding, Outputs(Path(outputs)), options, listener or ignore)


@public
def reduce(
    recipe: AnyRecipe,
    overrides: Sequence[str] = (),
    *,
    to: str | Path = "reduced.zip",
    options: ReduceOptions | None = None,
    outputs: str | Path = DEFAULT_OUTPUTS,
    trust: bool = False,
    listener: Listener | None = None,
) -> Reduced:
    """Reduce a recipe's model to the smallest part with which the recipe still fails in the same way; write it as zip.

    `options` limits the number of runs and of samples, and sets what must stay the same. Weights and inputs whose
    values the failure does not need become random, unless it keeps them. Raises RequestError if the recipe does not
    fail.
    """
    from ndld_flow.reduce.options import ReduceOptions
    from ndld_flow.reduce.reduce import reduce_recipe
    from ndld_flow.runner.listener import ignore
    from ndld_flow.runner.request import request_recipe

    request = request_recipe(recipe, overrides, outputs=outputs, trust=trust)
    return reduce_recipe(request, Path(to), options or ReduceOptions(), listener or ignore)


@public
def optimize(
    model: str | Path,
    options: OptimizeOptions | None = None,
    *,
    output: str | Path | None = None,
    write: str | Path | None = None,
    overwrite: bool = False,
    outputs: str | Path = DEFAULT_OUTPUTS,
    trust: bool = False,
    listener: Listener | None = None,
) -> Optimization | None:
    """Find the fastest variant of a model that stays right, prove it on held-out data, and write it to `output`.

    Without a variant that is faster than the source at 95 % confidence, the source is delivered. With `write`, only the
    sweep that would run is written, and the result is None. Raises RequestError for options that do not fit the model,
    before anything runs, and ModelError for a model that does not run.
    """
    from ndld_flow.optimize.optimize import optimize_model, write_search
    from ndld_flow.optimize.options import OptimizeOptions
    from ndld_flow.runner.listener import ignore
    from ndld_flow.runner.request import request_recipe

    options = options or OptimizeOptions()
    if write is not None:
        write_search(Path(model), options, Path(write), overwrite=overwrite, listener=listener or ignore)
        return None
    request = request_recipe(model, outputs=outputs, output=output, trust=trust)
    return optimize_model(Path(model), options, request, listener or ignore)


@public
def diff(
    before: str | Path,
    after: str | Path,
    *,
    parts: Collection[Part] | None = None,
    compare_values: bool = True,
    outputs: str | Path = DEFAULT_OUTPUTS,
    page: str | Path | None = None,
) -> ModelDiff:
    """Return the differences between two models: nodes, edges, attributes, weights, interface, functions, versions.

    Each is a model's file, `RUN:STEP`, `RUN:source`, or a run, for its last model. Nodes are matched by operators,
    attributes and neighbours too, so that a renamed node is only a renamed node. `parts` are the parts to compare,
    by default all; `compare_values` includes the values of weights; `page` is the path of an HTML page.
    """
    from ndld_flow.report.diff_page import draw_diff
    from ndld_flow.runner.outputs import Outputs
    from ndld_flow.runner.references import diff_subjects

    names = str(before), str(after)
    change, region = diff_subjects(*names, Outputs(Path(outputs)), parts=parts, compare_values=compare_values)
    assert change.diff is not None
    if page is not None:
        draw_diff(change, names, Path(page), region)
    return change.diff


@public
def diff_engines(
    before: str | Path,
    after: str | Path,
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    page: str | Path | None = None,
) -> EngineComparison | None:
    """Compare two engines by bytes, layers, precisions, formats and tactics, without running them.

    Each is `RUN:STEP`, an `engine.lock`, its folder, the engine's file beside it, or an export of its layers; `page` is
    the path of an HTML page. Returns None if neither is an engine; raises RequestError if only one is.
    """
    from ndld_flow.runner.diff_engines import diff_engines as compare
    from ndld_flow.runner.outputs import Outputs

    return compare(str(before), str(after), Outputs(Path(outputs)), None if page is None else Path(page))


@public
def compare_models(
    models: Sequence[str | Path],
    gates: Sequence[str] = (),
    rules: Rules | None = None,
    options: ModelOptions | None = None,
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    listener: Listener | None = None,
) -> ComparedModels:
    """Compare two models, the base first, on the same inputs: their outputs, and their latency in alternating passes.

    Both are measured again each time, in a run whose recipe is kept. `gates` are conditions such as
    `latency.median <= -10 %`. Raises RequestError unless there are two models.
    """
    from ndld_flow.runner.compare_models import compare_models as compare
    from ndld_flow.runner.listener import ignore

    return compare(
        [Path(model) for model in models],
        gates,
        rules,
        options,
        outputs=Path(outputs),
        listener=listener or ignore,
    )


@public
def compare_engines(
    subjects: Sequence[str | Path],
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    to: str | Path | None = None,
) -> ComparedEngines | None:
    """Compare two engines that were not measured, and write page and record into a folder: `to`, or a new one.

    Subjects are those of `compare`; a run means its only engine. Returns None unless there are two, and neither has
    times. Raises RequestError for a subject that cannot be found or read.
    """
    from ndld_flow.runner.diff_engines import compare_untimed
    from ndld_flow.runner.outputs import Outputs

    return compare_untimed(list(map(str, subjects)), Outputs(Path(outputs)), None if to is None else Path(to))


@public
def profile(
    model: str | Path,
    settings: Sequence[str] = (),
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    on: str = "",
    command: Sequence[str] = (),
    listener: Listener | None = None,
) -> Profiled:
    """Measure a model without a recipe, with `settings` such as `passes=200` or `inputs.x.shape=[1,3,64,64]`.

    An existing profile, such as an export of trtexec, is read and not measured. `on` and `command` as in `run`.
    """
    from ndld_flow.runner.listener import ignore
    from ndld_flow.runner.measure_model import profile_model

    return profile_model(
        str(model), settings, outputs=Path(outputs), on=on, command=tuple(command), listener=listener or ignore
    )


@public
def layers(subject: str, *, outputs: str | Path = DEFAULT_OUTPUTS) -> pandas.DataFrame:
    """Return the layers of one profile as a table; `subject` as in `compare`, such as `quickstart:speed`.

    Raises RequestError if it names several profiles, BackendError without pandas (`ndld-flow[frames]`).
    """
    from ndld_flow.base.extras import require
    from ndld_flow.report.exports.frames import layers_frame
    from ndld_flow.runner.outputs import Outputs
    from ndld_flow.runner.references import find_profile

    require("frames", "`api.layers`")
    return layers_frame(find_profile(subject, Outputs(Path(outputs))))


@public
def frame(
    result: RunFinished | SweepFinished | Compared | Profiled | Profile | MetricHistory | Sequence[RunSummary],
) -> pandas.DataFrame:
    """Return a result as a table: the metrics of a run, the points of a sweep, the layers of a profile, the matched
    layers of a comparison, the measurements of a history, or one row per run for a list of `runs`.

    Raises BackendError without pandas (`ndld-flow[frames]`).
    """
    from ndld_flow.base.extras import require
    from ndld_flow.runner.notebook import make_frame

    require("frames", "`api.frame`")
    return make_frame(result)


@public
def figures(result: SweepFinished | Compared) -> dict[str, matplotlib.figure.Figure]:
    """Return the picture of a sweep or a comparison as a figure of matplotlib, by name, if there is one.

    Raises BackendError without matplotlib (`ndld-flow[plots]`).
    """
    from ndld_flow.base.extras import require
    from ndld_flow.runner.notebook import draw_figures

    require("plots", "`api.figures`")
    return draw_figures(result)


@public
def noise(
    model: str | Path | None = None,
    settings: Sequence[str] = (),
    *,
    comparisons: int = 8,
    outputs: str | Path = DEFAULT_OUTPUTS,
    listener: Listener | None = None,
) -> Noise:
    """Compare a model with itself `comparisons` times; `compare` uses the result on this machine."""
    from ndld_flow.runner.listener import ignore
    from ndld_flow.runner.measure_model import MODEL, learn_noise

    chosen = str(model) if model is not None else MODEL
    return learn_noise(chosen, settings, comparisons=comparisons, outputs=Path(outputs), listener=listener or ignore)


@public
def inspect(
    model: str | Path,
    query: Query | None = None,
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    export: str | Path | None = None,
) -> Inspection:
    """Return a model's summary, or the results of a query; the model is a file or `RUN:STEP`.

    ``api.inspect("model.onnx", Query(nodes=NodeSelect(op_type=("Conv",))))``. `export` is a `.npy` file for the values
    of the query's tensor.
    """
    from ndld_flow.graph.inspect_model import Query, export_tensor, inspect_model
    from ndld_flow.runner.outputs import Outputs
    from ndld_flow.runner.references import find_model

    path, query = find_model(str(model), Outputs(Path(outputs))), query or Query()
    inspection = inspect_model(path, query)
    if export is not None and query.tensor is not None:
        export_tensor(path, query.tensor, Path(export))
    return inspection


@public
def draw(
    model: str | Path, target: str | Path | None = None, *, reading: Reading | None = None, look: Look | None = None
) -> Path:
    """Draw a model's graph, or an engine's, as SVG, PNG or JPEG, by the target's suffix; return the file's path.

    `model` is an ONNX file, or any profile with layers, such as the output of TensorRT's engine inspector. The default
    target is `<model>.svg` in the current directory. Weights are not read. A target with the suffix `.html` becomes a
    page that opens bodies, searches, and shows attributes and values; it reads weights below 64 MiB unless
    `reading.values` is False.
    """
    from ndld_flow.drawing.draw import check_look, picture_bytes
    from ndld_flow.drawing.graph import Look, Reading
    from ndld_flow.runner.disk import explaining_file
    from ndld_flow.runner.draw import SUFFIXES, draw_page, read_drawn
    from ndld_flow.store.files import write_bytes_atomically

    path = Path(target) if target is not None else Path(f"{Path(model).stem}.svg")
    if path.suffix.lower() in SUFFIXES:
        return draw_page(Path(model), path, reading or Reading(), look or Look())
    check_look(path.suffix, look or Look())
    picture = picture_bytes(read_drawn(Path(model), reading or Reading()), path.suffix, look or Look())
    with explaining_file(path):
        write_bytes_atomically(path, picture)
    return path


@public
def runs(
    recipe: str = "*",
    *,
    where: Sequence[str] = (),
    tag: str = "",
    model: str = "",
    user: str = "",
    limit: int | None = None,
    outputs: str | Path = DEFAULT_OUTPUTS,
) -> list[RunSummary]:
    """Return runs and sweeps, newest first, at most `limit`; those that cannot be read have the reason in `damage`.

    `where` has conditions as in gates (`latency.median < 5 ms`: of any step), `tag` and `model` may be patterns.
    """
    from ndld_flow.runner.list_runs import RunFilter, list_runs
    from ndld_flow.runner.outputs import Outputs

    wanted = RunFilter(tuple(where), tag, model, user)
    return list_runs(Outputs(Path(outputs)), recipe, wanted, limit=limit)


@public
def history(
    recipe: str = "",
    metrics: Sequence[str] = (),
    *,
    every: bool = False,
    outputs: str | Path = DEFAULT_OUTPUTS,
    page: str | Path | None = None,
) -> MetricHistory:
    """Return the history of a recipe's metrics, with steps, trends and what differed; also write it to `page`, as HTML.

    `metrics` are names (`speed.latency.median`, `latency.median`) or patterns; by default those of the gates, or the
    median latencies; with `every`, all of them. An empty `recipe` is the only one.
    """
    from ndld_flow.runner.metric_history import read_history
    from ndld_flow.runner.outputs import Outputs

    found = read_history(Outputs(Path(outputs)), recipe, metrics, every=every)
    if page is not None:
        from ndld_flow.report.history_page import draw_history

        draw_history(found, Path(page))
    return found


@public
def accept(
    recipe: str,
    metric: str,
    note: str,
    *,
    at: str = "",
    outputs: str | Path = DEFAULT_OUTPUTS,
) -> AcceptedChange:
    """Accept the newest step of a metric, or that at the run `at`, with a note: baselines start anew there."""
    from ndld_flow.runner.metric_history import accept_change, find_step, read_history
    from ndld_flow.runner.outputs import Outputs

    kept = Outputs(Path(outputs))
    series, step = find_step(read_history(kept, recipe, (metric,)).series, metric, at)
    return accept_change(kept, series, step, note)


@public
def log_to_mlflow(
    runs: Sequence[str] = ("latest",),
    *,
    every: bool = False,
    uri: str = "",
    experiment: str = "",
    files: bool = True,
    outputs: str | Path = DEFAULT_OUTPUTS,
) -> list[Logged]:
    """Log runs to MLflow tracking, each once; with `every`, all runs of the recipes that `runs` names.

    `uri` is that of a tracking server, by default MLFLOW_TRACKING_URI; `experiment` by default the recipe's name. With
    `files`, the report and the record are uploaded too.
    """
    from ndld_flow.base.errors import RequestError
    from ndld_flow.runner.mlflow_export import Destination, log_runs
    from ndld_flow.runner.outputs import Outputs

    kept = Outputs(Path(outputs))
    folders: dict[Path, None] = {}
    for run in runs:
        found = list(kept.folders(run)) if every and run and "/" not in run else []
        if every and not found:
            raise RequestError(f"mlflow --all: {kept.root} has no run of a recipe {run!r}.")
        folders |= dict.fromkeys(found or [kept.find(run)])
    return list(log_runs(list(folders), kept, Destination(uri, experiment, files)))


@public
def tag(run: str, name: str, *, outputs: str | Path = DEFAULT_OUTPUTS) -> Path:
    """Give a run, a sweep or a sweep's point a permanent name, which protects it from `gc`; return its folder."""
    from ndld_flow.runner.outputs import Outputs

    kept = Outputs(Path(outputs))
    folder = kept.find_any(run)
    kept.set_tag(folder, name)
    return folder


@public
def untag(name: str, *, outputs: str | Path = DEFAULT_OUTPUTS) -> None:
    """Remove a tag. The run stays."""
    from ndld_flow.runner.outputs import Outputs

    Outputs(Path(outputs)).remove_tag(name)


@public
def steps(files: Sequence[str | Path] = ()) -> list[StepType]:
    """Return all step types: built in, installed, and those in `files` (whose code runs)."""
    from ndld_flow.recipe.step_types import StepTypes

    return list(StepTypes(tuple(Path(file).resolve() for file in files)))


@public
def ops(
    name: str = "",
    *,
    opset: int | None = None,
    domain: str | None = None,
    category: str = "",
    search: str = "",
    model: str | Path | None = None,
) -> Sequence[ListedOperator]:
    """Return operators with inputs, attributes, types and versions: those of ONNX in every opset, and of ONNX Runtime.

    All conditions must match: `domain` is `ai.onnx` or another, `category` a family as in `draw`, `search` words of the
    name or the documentation, `model` a file with the operators.
    """
    from ndld_flow.models.op_reference import OpQuery, list_operators

    path = Path(model) if model is not None else None
    return list_operators(OpQuery(name, opset, domain, category, search, path))


@public
def schema(
    files: Sequence[str | Path] = (), *, verb: str | None = None, to: str | Path | None = None
) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of recipes, including the steps in `files`.

    With `verb`, such as `plan`, it is the schema of what that verb prints with `--json`. The schema is also written to
    the file `to`.
    """
    if verb is not None:
        from ndld_flow.runner.verb_output import describe_output

        described = describe_output(verb)
    else:
        from ndld_flow.recipe.schema import describe_recipes

        described = describe_recipes(steps(files))
    if to is not None:
        import json

        from ndld_flow.runner.disk import explaining_file
        from ndld_flow.store.files import write_text_atomically

        with explaining_file(Path(to)):
            write_text_atomically(Path(to), json.dumps(described, indent=1) + "\n")
    return described


@public
def verify(
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> Verified:
    """Check every stored artifact against its digest; set damaged ones aside."""
    from ndld_flow.runner.outputs import Outputs
    from ndld_flow.runner.verify import verify_outputs

    return verify_outputs(Outputs(Path(outputs)), progress)


@public
def gc(
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    keep: int | None = None,
    dry_run: bool = False,
    notify: Callable[[str], None] = lambda _: None,
) -> Freed:
    """Delete artifacts that no kept run or sweep needs; `keep` limits the untagged runs kept of each recipe.

    Artifacts in use by runs in progress are left. `notify` is called with the reason of a wait.
    """
    from ndld_flow.runner.collect_garbage import collect_garbage
    from ndld_flow.runner.outputs import Outputs

    return collect_garbage(Outputs(Path(outputs)), keep, dry_run=dry_run, report=notify)


@public
def gc_node(*, max_age: str | None = None, dry_run: bool = False) -> Freed:
    """Delete results from the store that this machine keeps as a node of a Ray cluster: those older than `max_age`
    (`30 days`), by default all that no running task uses."""
    from ndld_flow.base.errors import RequestError
    from ndld_flow.base.quantities import parse_duration_ms
    from ndld_flow.runner.collect_garbage import collect_node_store

    try:
        max_age_s = 0.0 if max_age is None else parse_duration_ms(max_age) / 1e3
    except ValueError as error:
        raise RequestError(f"gc --ray-node: {error}") from None
    return collect_node_store(max_age_s, dry_run=dry_run)


@public
def gc_libraries(*, max_age: str | None = None, dry_run: bool = False) -> LibrariesFreed:
    """Delete the libraries that runs have created in the user's cache folder, such as the TensorRT of a required
    release: those that were not used for `max_age` (`30 days`), by default and at least for a day."""
    from ndld_flow.base.errors import RequestError
    from ndld_flow.base.quantities import parse_duration_ms
    from ndld_flow.runner.collect_garbage import collect_libraries

    try:
        max_age_s = 0.0 if max_age is None else parse_duration_ms(max_age) / 1e3
    except ValueError as error:
        raise RequestError(f"gc --libraries: {error}") from None
    return collect_libraries(max_age_s, dry_run=dry_run)


@public
def gc_cache(
    cache: str | None = None,
    *,
    max_size: str | None = None,
    max_age: str | None = None,
    dry_run: bool = False,
) -> CacheFreed:
    """Delete results from a shared cache: those older than `max_age` (`30 days`), then the oldest beyond `max_size`.

    By default, the cache is the one of the environment and the settings files. Others may push and pull meanwhile.
    """
    from ndld_flow.runner.collect_cache import collect_configured_cache

    return collect_configured_cache(cache, max_size, max_age, dry_run=dry_run)


@public
def doctor(
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    library: str | Path | None = None,
    on: str = "",
    listener: Listener | None = None,
) -> list[Check]:
    """Check what works on this machine, with the TensorRT in `library` if given (its code runs); or `on` a target."""
    from ndld_flow.runner.doctor import examine

    if on:
        from ndld_flow.runner.executors.ssh.targets import examine_target
        from ndld_flow.runner.listener import ignore

        return examine_target(on, listener or ignore)
    return examine(Path(outputs), None if library is None else Path(library))


@public
def gc_target(target: str) -> TargetFreed:
    """Remove the folder of a target with its environments and results; `target` is a name of the settings or ssh://."""
    from ndld_flow.runner.executors.ssh.targets import remove_from_target

    return remove_from_target(target)


@public
def init(
    model: str | Path,
    target: str | Path | None = None,
    options: RecipeOptions | None = None,
    *,
    overwrite: bool = False,
    ask: AskShape | None = None,
) -> WrittenRecipe:
    """Write a commented recipe for a model, which is run once to find input sizes that it accepts.

    ``api.init("model.onnx", options=RecipeOptions(precision="int8", data=("photos/",)))``. The result has the
    recipe's path and the trial; `ask` is called for the shape of an input where no likely size is accepted.
    """
    from ndld_flow.recipe.write_recipe import write_recipe

    path = Path(target) if target is not None else None
    return write_recipe(Path(model), path, options, overwrite=overwrite, ask=ask or (lambda *_: None))


@public
def init_example(name: str, *, overwrite: bool = False) -> Path:
    """Write an example recipe, such as `quickstart`, and its images to `pipelines/`; return the recipe's path."""
    from ndld_flow.recipe.examples import write_example

    return write_example(name, overwrite=overwrite)
