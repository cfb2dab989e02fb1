"""Weights that are not finite."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.graph.lint.float_values import float_tensors, pieces_of
from ndld_flow.models.streaming_statistics import Extremes
from ndld_flow.records.inspection import Finding


class NanInf(Check):
    """NaN and infinity in initializers and Constants."""

    order = 130
    severity = "error"
    needs_model = True
    costly = True

    def find(self, subject: Subject) -> Iterator[Finding]:
        for label, tensor in float_tensors(subject):
            values = Extremes()
            for piece in pieces_of(tensor):
                values.add(piece)
            if values.nans:
                yield self.finding(f"{label} has {values.nans} NaNs in {tensor.size} values")
            if values.infinities:
                message = f"{label} has {values.infinities} infinities in {tensor.size} values"
                # Attention masks contain minus infinity on purpose.
                yield self.finding(message, severity="warning")
