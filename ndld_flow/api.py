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

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base.lazy_names import lazy_names
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, public
from ndld_flow.cli.verbs import import_verb, list_verbs

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
    from ndld_flow.verbs.apply import apply, offered_changes
    from ndld_flow.verbs.comment import comment
    from ndld_flow.verbs.compare import compare, compare_engines, compare_models
    from ndld_flow.verbs.diff import diff, diff_engines
    from ndld_flow.verbs.doctor import doctor
    from ndld_flow.verbs.draw import draw
    from ndld_flow.verbs.gc import gc, gc_cache, gc_libraries, gc_node, gc_target
    from ndld_flow.verbs.history import accept, history
    from ndld_flow.verbs.init import init, init_example
    from ndld_flow.verbs.inspect import inspect
    from ndld_flow.verbs.mlflow import log_to_mlflow
    from ndld_flow.verbs.noise import noise
    from ndld_flow.verbs.ops import ops
    from ndld_flow.verbs.optimize import optimize
    from ndld_flow.verbs.plan import digest, plan
    from ndld_flow.verbs.profile import profile
    from ndld_flow.verbs.reduce import reduce
    from ndld_flow.verbs.report import report
    from ndld_flow.verbs.run import compose, list_files, run, sweep
    from ndld_flow.verbs.runs import runs
    from ndld_flow.verbs.schema import schema
    from ndld_flow.verbs.steps import steps
    from ndld_flow.verbs.tag import tag, untag
    from ndld_flow.verbs.verify import verify
else:
    _offered = lazy_names(__name__)

    def __getattr__(name: str) -> object:
        return getattr(import_verb(name), name) if name in list_verbs() else _offered(name)


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
