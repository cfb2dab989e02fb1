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

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from ndld_flow.base.declared_metrics import Returns, metrics
    from ndld_flow.base.errors import BackendError, ModelError, NdldFlowError, RequestError
    from ndld_flow.base.quantities import Bytes, Fraction, Milliseconds
    from ndld_flow.base.settings import Settings
    from ndld_flow.graph.edit.edited_model import EditedModel
    from ndld_flow.graph.edit.operation import InitializerOperation, JoinOperation, NodeOperation, Operation
    from ndld_flow.graph.edit.settings import NewName, NodeSelect, Patterns, Select, TensorSelect
    from ndld_flow.graph.lint.check import Check, Subject
    from ndld_flow.inputs import InputSpec
    from ndld_flow.machine.versions import read_version
    from ndld_flow.models.files import model_inputs, model_outputs
    from ndld_flow.models.tensors import Array, TensorSpec, refuse_unfit_feeds
    from ndld_flow.records.inspection import Finding, Severity
    from ndld_flow.records.measurement import Metric
    from ndld_flow.records.model_diff import GraphChange
    from ndld_flow.records.profile import Layer, RuntimeTraits
    from ndld_flow.runtimes.native_output import catch_native_output
    from ndld_flow.runtimes.protocol import (
        DeviceTimes,
        HostBinding,
        LayerPass,
        RecordingPlan,
        ReportPasses,
        RuntimeNames,
        SessionFacts,
        SessionRequest,
        Timing,
    )
    from ndld_flow.runtimes.registry import Runtime
    from ndld_flow.runtimes.settings import ReadArtifact, RuntimeSettings
    from ndld_flow.step import (
        Context,
        DataFile,
        Foresight,
        Reads,
        Result,
        Reuse,
        RunsCode,
        SampleData,
        Step,
        Turn,
    )
    from ndld_flow.store.kinds import (
        AccuracyDocument,
        ActivationsDocument,
        Artifact,
        ComparisonDocument,
        CppProject,
        Engine,
        ImagesDocument,
        LintDocument,
        Onnx,
        PrecisionDocument,
        ProfileDocument,
        TorchModule,
    )
else:
    __getattr__ = lazy_names(__name__)

__all__ = [
    "AccuracyDocument",
    "ActivationsDocument",
    "Array",
    "Artifact",
    "BackendError",
    "Bytes",
    "Check",
    "ComparisonDocument",
    "Context",
    "CppProject",
    "DataFile",
    "DeviceTimes",
    "EditedModel",
    "Engine",
    "Finding",
    "Foresight",
    "Fraction",
    "GraphChange",
    "HostBinding",
    "ImagesDocument",
    "InitializerOperation",
    "InputSpec",
    "JoinOperation",
    "Layer",
    "LayerPass",
    "LintDocument",
    "Metric",
    "Milliseconds",
    "ModelError",
    "NdldFlowError",
    "NewName",
    "NodeOperation",
    "NodeSelect",
    "Onnx",
    "Operation",
    "Patterns",
    "PrecisionDocument",
    "ProfileDocument",
    "ReadArtifact",
    "Reads",
    "RecordingPlan",
    "ReportPasses",
    "RequestError",
    "Result",
    "Returns",
    "Reuse",
    "RunsCode",
    "Runtime",
    "RuntimeNames",
    "RuntimeSettings",
    "RuntimeTraits",
    "SampleData",
    "Select",
    "SessionFacts",
    "SessionRequest",
    "Settings",
    "Severity",
    "Step",
    "Subject",
    "TensorSelect",
    "TensorSpec",
    "Timing",
    "TorchModule",
    "Turn",
    "catch_native_output",
    "metrics",
    "model_inputs",
    "model_outputs",
    "read_version",
    "refuse_unfit_feeds",
]
