"""Outputs without a fixed size."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.records.inspection import Finding


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
