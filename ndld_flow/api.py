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
    import pandas

    from ndld_flow.base.errors import BackendError as BackendError
    from ndld_flow.base.errors import FormatError as FormatError
    from ndld_flow.base.errors import KilledError as KilledError
    from ndld_flow.base.errors import ModelError as ModelError
    from ndld_flow.base.errors import NdldFlowError as NdldFlowError
    from ndld_flow.base.errors import OutputsError as OutputsError
    from ndld_flow.base.errors import Problem as Problem
    from ndld_flow.base.errors import RecipeError as RecipeError
    from ndld_flow.base.errors import RequestError as RequestError
    from ndld_flow.base.errors import SourceError as SourceError
    from ndld_flow.base.errors import UnknownNameError as UnknownNameError
    from ndld_flow.compare.comment_run import Commented as Commented
    from ndld_flow.compare.compare_models import ComparedModels as ComparedModels
    from ndld_flow.compare.compare_models import ModelOptions as ModelOptions
    from ndld_flow.compare.compare_runs import AppliedChange as AppliedChange
    from ndld_flow.compare.compare_runs import Compared as Compared
    from ndld_flow.compare.compare_runs import OfferedChange as OfferedChange
    from ndld_flow.compare.measure_model import Profiled as Profiled
    from ndld_flow.drawing.graph import Look as Look
    from ndld_flow.drawing.graph import Reading as Reading
    from ndld_flow.execution.cache import CacheFreed as CacheFreed
    from ndld_flow.execution.events import Event as Event
    from ndld_flow.execution.events import RunFinished as RunFinished
    from ndld_flow.execution.events import SweepFinished as SweepFinished
    from ndld_flow.execution.listener import Listener as Listener
    from ndld_flow.execution.request import AnyRecipe as AnyRecipe
    from ndld_flow.execution.request import Placement as Placement
    from ndld_flow.graph.edit.settings import NodeSelect as NodeSelect
    from ndld_flow.graph.edit.settings import TensorSelect as TensorSelect
    from ndld_flow.graph.inspect_model import Query as Query
    from ndld_flow.machine.host import Check as Check
    from ndld_flow.models.op_reference import ListedOperator as ListedOperator
    from ndld_flow.optimize.options import OptimizeOptions as OptimizeOptions
    from ndld_flow.profiles.compare.measured import Rules as Rules
    from ndld_flow.recipe.step_types import StepType as StepType
    from ndld_flow.recipe.write_recipe import AskShape as AskShape
    from ndld_flow.recipe.write_recipe import RecipeOptions as RecipeOptions
    from ndld_flow.recipe.write_recipe import WrittenRecipe as WrittenRecipe
    from ndld_flow.records.build import EngineComparison as EngineComparison
    from ndld_flow.records.comparison import Comparison as Comparison
    from ndld_flow.records.history import AcceptedChange as AcceptedChange
    from ndld_flow.records.history import MetricHistory as MetricHistory
    from ndld_flow.records.inspection import Inspection as Inspection
    from ndld_flow.records.measurement import Metric as Metric
    from ndld_flow.records.model_diff import ModelDiff as ModelDiff
    from ndld_flow.records.model_diff import Part as Part
    from ndld_flow.records.noise import Noise as Noise
    from ndld_flow.records.optimization import Optimization as Optimization
    from ndld_flow.records.profile import Layer as Layer
    from ndld_flow.records.profile import Profile as Profile
    from ndld_flow.reduce.pack import Reduced as Reduced
    from ndld_flow.reduce.part import ReduceOptions as ReduceOptions
    from ndld_flow.runner.plan import Decision as Decision
    from ndld_flow.runner.verify import Verified as Verified
    from ndld_flow.runs.collect_garbage import Freed as Freed
    from ndld_flow.runs.collect_garbage import LibrariesFreed as LibrariesFreed
    from ndld_flow.runs.diff_engines import ComparedEngines as ComparedEngines
    from ndld_flow.runs.list_runs import RunSummary as RunSummary
    from ndld_flow.runs.mlflow_export import Logged as Logged
    from ndld_flow.sweep.plan_sweep import SweepPlan as SweepPlan
    from ndld_flow.verbs.apply import apply as apply
    from ndld_flow.verbs.apply import offered_changes as offered_changes
    from ndld_flow.verbs.comment import comment as comment
    from ndld_flow.verbs.compare import compare as compare
    from ndld_flow.verbs.compare import compare_engines as compare_engines
    from ndld_flow.verbs.compare import compare_models as compare_models
    from ndld_flow.verbs.diff import diff as diff
    from ndld_flow.verbs.diff import diff_engines as diff_engines
    from ndld_flow.verbs.doctor import doctor as doctor
    from ndld_flow.verbs.draw import draw as draw
    from ndld_flow.verbs.gc import gc as gc
    from ndld_flow.verbs.gc import gc_cache as gc_cache
    from ndld_flow.verbs.gc import gc_libraries as gc_libraries
    from ndld_flow.verbs.history import accept as accept
    from ndld_flow.verbs.history import history as history
    from ndld_flow.verbs.init import init as init
    from ndld_flow.verbs.init import init_example as init_example
    from ndld_flow.verbs.inspect import inspect as inspect
    from ndld_flow.verbs.mlflow import log_to_mlflow as log_to_mlflow
    from ndld_flow.verbs.noise import noise as noise
    from ndld_flow.verbs.ops import ops as ops
    from ndld_flow.verbs.optimize import optimize as optimize
    from ndld_flow.verbs.plan import digest as digest
    from ndld_flow.verbs.plan import plan as plan
    from ndld_flow.verbs.profile import profile as profile
    from ndld_flow.verbs.reduce import reduce as reduce
    from ndld_flow.verbs.report import report as report
    from ndld_flow.verbs.run import compose as compose
    from ndld_flow.verbs.run import list_files as list_files
    from ndld_flow.verbs.run import run as run
    from ndld_flow.verbs.run import sweep as sweep
    from ndld_flow.verbs.runs import runs as runs
    from ndld_flow.verbs.schema import schema as schema
    from ndld_flow.verbs.steps import steps as steps
    from ndld_flow.verbs.tag import tag as tag
    from ndld_flow.verbs.tag import untag as untag
    from ndld_flow.verbs.verify import verify as verify
else:
    _import, __dir__ = lazy_names(__name__)

    def __getattr__(name: str) -> object:
        return getattr(import_verb(name), name) if name in list_verbs() else _import(name)


@public
def layers(subject: str, *, outputs: str | Path = DEFAULT_OUTPUTS) -> pandas.DataFrame:
    """Return the layers of one profile as a table; `subject` as in `compare`, such as `quickstart:speed`.

    Raises RequestError if it names several profiles, BackendError without pandas (the extra `frames`).
    """
    from ndld_flow.base.extras import require
    from ndld_flow.report.exports.spreadsheets import layers_frame
    from ndld_flow.runs.outputs import Outputs
    from ndld_flow.runs.references import find_profile

    require("frames", "`api.layers`")
    return layers_frame(find_profile(subject, Outputs(Path(outputs))))


@public
def frame(
    result: RunFinished | SweepFinished | Compared | Profiled | Profile | MetricHistory | Sequence[RunSummary],
) -> pandas.DataFrame:
    """Return a result as a table: the metrics of a run, the points of a sweep, the layers of a profile, the matched
    layers of a comparison, the measurements of a history, or one row per run for a list of `runs`.

    Raises BackendError without pandas (the extra `frames`).
    """
    from ndld_flow.base.extras import require
    from ndld_flow.compare.notebook import make_frame

    require("frames", "`api.frame`")
    return make_frame(result)
