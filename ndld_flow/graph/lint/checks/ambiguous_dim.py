"""Dimensions whose name is a question mark."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.models.files import dims_of
from ndld_flow.models.tensors import UNNAMED_DIM
from ndld_flow.records.inspection import Finding


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
