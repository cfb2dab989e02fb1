"""Shapes and dimensions."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.base.errors import ModelError
from ndld_flow.graph.lint.check import Check, Subject, named_node
from ndld_flow.models.files import dims_of
from ndld_flow.models.model_defects import tensors_without_shape
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.models.tensors import UNNAMED_DIM
from ndld_flow.records.inspection import Finding, Severity


class ShapeInference(Check):
    """The first contradiction that strict shape inference finds.

    It is a warning in a model that ONNX Runtime loads: some of onnx's rules are wrong, and runtimes ignore others.
    """

    order = 30
    severity = "error"
    needs_model = True

    def find(self, subject: Subject) -> Iterator[Finding]:
        assert subject.model is not None
        try:
            infer_shapes(subject.model, strict=True)
        except ModelError as error:
            severity: Severity = "warning" if subject.loading.returncode == 0 else self.severity
            yield self.finding_at(str(error), *named_node(str(error)), severity=severity)


class MissingShape(Check):
    """Inputs, outputs and other tensors that are declared without a shape: runtimes take their rank as unknown."""

    order = 75

    def find(self, subject: Subject) -> Iterator[Finding]:
        for _, message in tensors_without_shape(subject.proto.graph):
            yield self.finding(message)


class DynamicOutput(Check):
    """Outputs whose size depends on the input's: engines then need profiles."""

    order = 110
    severity = "info"

    def find(self, subject: Subject) -> Iterator[Finding]:
        for value in subject.proto.graph.output:
            if not (value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape")):
                yield self.finding(f"output {value.name!r} has no shape")
                continue
            dims = value.type.tensor_type.shape.dim
            if not all(dim.HasField("dim_value") for dim in dims):
                texts = (str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims)
                yield self.finding(f"output {value.name!r} is dynamic: [{', '.join(texts)}]")


class AmbiguousDim(Check):
    """Dimensions named `?`: TensorRT and other tools take them all as equal."""

    order = 115

    def find(self, subject: Subject) -> Iterator[Finding]:
        count = sum(dim.dim_param == UNNAMED_DIM for graph in subject.graphs() for dim in dims_of(graph))
        if count:
            have = "1 dimension has" if count == 1 else f"{count} dimensions have"
            yield self.finding(
                f"{have} the name {UNNAMED_DIM!r}, which Paddle's exporters give to dimensions of different sizes. "
                "TensorRT requires dimensions of one name to be equal. Steps treat these as unnamed, and `sanitize` "
                "removes the names"
            )
