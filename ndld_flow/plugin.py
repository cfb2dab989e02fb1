"""Everything that a step, an operation, a check or a runtime of one's own imports.

::

    from ndld_flow.plugin import Context, Onnx, Result, Step

A name is imported when it is first used, so that a step does not pay for what runtimes need. A package makes its own
classes known by entry points in its `pyproject.toml`; the entry's name is the word in recipes::

    [project.entry-points."ndld_flow.steps"]
    stamp = "my_package.stamp:Stamp"

    [project.entry-points."ndld_flow.operations"]
    clear_doc_strings = "my_package.clear_doc_strings:ClearDocStrings"

    [project.entry-points."ndld_flow.checks"]
    long_name = "my_package.long_name:LongName"

    [project.entry-points."ndld_flow.runtimes"]
    reference = "my_package.reference:RUNTIME"

The folder `docs/examples/my_steps` is such a package. These names are stable; every other module but `ndld_flow.api` is
internal.
"""

from typing import TYPE_CHECKING

from ndld_flow.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from ndld_flow.base.declared_metrics import Returns as Returns
    from ndld_flow.base.declared_metrics import metrics as metrics
    from ndld_flow.base.errors import BackendError as BackendError
    from ndld_flow.base.errors import ModelError as ModelError
    from ndld_flow.base.errors import NdldFlowError as NdldFlowError
    from ndld_flow.base.errors import RequestError as RequestError
    from ndld_flow.base.quantities import Bytes as Bytes
    from ndld_flow.base.quantities import Fraction as Fraction
    from ndld_flow.base.quantities import Milliseconds as Milliseconds
    from ndld_flow.base.settings import Settings as Settings
    from ndld_flow.graph.edit.edited_model import EditedModel as EditedModel
    from ndld_flow.graph.edit.operation import InitializerOperation as InitializerOperation
    from ndld_flow.graph.edit.operation import JoinOperation as JoinOperation
    from ndld_flow.graph.edit.operation import NodeOperation as NodeOperation
    from ndld_flow.graph.edit.operation import Operation as Operation
    from ndld_flow.graph.edit.settings import NewName as NewName
    from ndld_flow.graph.edit.settings import NodeSelect as NodeSelect
    from ndld_flow.graph.edit.settings import Patterns as Patterns
    from ndld_flow.graph.edit.settings import Select as Select
    from ndld_flow.graph.edit.settings import TensorSelect as TensorSelect
    from ndld_flow.graph.lint.check import Check as Check
    from ndld_flow.graph.lint.check import Subject as Subject
    from ndld_flow.inputs import InputSpec as InputSpec
    from ndld_flow.machine.versions import read_version as read_version
    from ndld_flow.models.files import model_inputs as model_inputs
    from ndld_flow.models.files import model_outputs as model_outputs
    from ndld_flow.models.tensors import Array as Array
    from ndld_flow.models.tensors import TensorSpec as TensorSpec
    from ndld_flow.models.tensors import refuse_unfit_feeds as refuse_unfit_feeds
    from ndld_flow.records.inspection import Finding as Finding
    from ndld_flow.records.inspection import Severity as Severity
    from ndld_flow.records.measurement import Metric as Metric
    from ndld_flow.records.model_diff import GraphChange as GraphChange
    from ndld_flow.records.profile import Layer as Layer
    from ndld_flow.records.profile import RuntimeTraits as RuntimeTraits
    from ndld_flow.runtimes.native_output import catch_native_output as catch_native_output
    from ndld_flow.runtimes.protocol import DeviceTimes as DeviceTimes
    from ndld_flow.runtimes.protocol import HostBinding as HostBinding
    from ndld_flow.runtimes.protocol import LayerPass as LayerPass
    from ndld_flow.runtimes.protocol import RecordingPlan as RecordingPlan
    from ndld_flow.runtimes.protocol import ReportPasses as ReportPasses
    from ndld_flow.runtimes.protocol import RuntimeNames as RuntimeNames
    from ndld_flow.runtimes.protocol import SessionFacts as SessionFacts
    from ndld_flow.runtimes.protocol import SessionRequest as SessionRequest
    from ndld_flow.runtimes.protocol import Timing as Timing
    from ndld_flow.runtimes.registry import Runtime as Runtime
    from ndld_flow.runtimes.settings import ReadArtifact as ReadArtifact
    from ndld_flow.runtimes.settings import RuntimeSettings as RuntimeSettings
    from ndld_flow.step import Context as Context
    from ndld_flow.step import DataFile as DataFile
    from ndld_flow.step import Foresight as Foresight
    from ndld_flow.step import Reads as Reads
    from ndld_flow.step import Result as Result
    from ndld_flow.step import Reuse as Reuse
    from ndld_flow.step import RunsCode as RunsCode
    from ndld_flow.step import SampleData as SampleData
    from ndld_flow.step import Step as Step
    from ndld_flow.step import Turn as Turn
    from ndld_flow.store.kinds import AccuracyDocument as AccuracyDocument
    from ndld_flow.store.kinds import ActivationsDocument as ActivationsDocument
    from ndld_flow.store.kinds import Artifact as Artifact
    from ndld_flow.store.kinds import ComparisonDocument as ComparisonDocument
    from ndld_flow.store.kinds import CppProject as CppProject
    from ndld_flow.store.kinds import Engine as Engine
    from ndld_flow.store.kinds import ImagesDocument as ImagesDocument
    from ndld_flow.store.kinds import LintDocument as LintDocument
    from ndld_flow.store.kinds import Onnx as Onnx
    from ndld_flow.store.kinds import PrecisionDocument as PrecisionDocument
    from ndld_flow.store.kinds import ProfileDocument as ProfileDocument
    from ndld_flow.store.kinds import TorchModule as TorchModule
else:
    __getattr__, __dir__ = lazy_names(__name__)
