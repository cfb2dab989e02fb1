"""Weights beyond the range of fp16."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.graph.lint.float_values import float_tensors, pieces_of
from ndld_flow.models.streaming_statistics import Extremes
from ndld_flow.records.inspection import Finding

_FP16_MAX = 65504.0
_FP16_TINY = 2.0**-25
"""Values below this round to zero in fp16."""
_SCALAR_SIZE = 16
"""Largest tensor that counts as a constant such as an epsilon, whose loss turns a division into infinity."""


class Fp16Range(Check):
    """Values that fp16 cannot represent."""

    order = 140
    needs_model = True
    costly = True

    def find(self, subject: Subject) -> Iterator[Finding]:
        for label, tensor in float_tensors(subject):
            if tensor.dtype == ir.DataType.FLOAT16:
                continue
            values = Extremes()
            for piece in pieces_of(tensor):
                values.add(piece)
            if values.largest_abs > _FP16_MAX:
                yield self.finding(f"{label} reaches {values.largest_abs:.4g}: infinity in fp16")
            if tensor.size <= _SCALAR_SIZE:
                small = [v for piece in pieces_of(tensor) for v in piece.tolist() if 0 < abs(v) < _FP16_TINY]
                if small:
                    yield self.finding(f"{label} is {small[0]:.4g}: zero in fp16")
