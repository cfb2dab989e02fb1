"""One output of two models, compared sample after sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ndld_flow.accuracy.agreement import Agreement
from ndld_flow.accuracy.kept_outputs import Outputs, storable
from ndld_flow.accuracy.yardstick import Yardstick
from ndld_flow.models.tensors import Array, shape_text
from ndld_flow.runtimes.onnxruntime.model_matching import Pair
from ndld_flow.samples.generated_values import is_float, is_integer


@dataclass
class ComparedOutput:
    """One output of the reference, or one that only the candidate has."""

    pair: Pair
    agreement: Agreement
    dtype: str = ""
    """The candidate's, as its model declares it."""
    shape: tuple[int, ...] = ()
    """The candidate's, of the first sample."""
    yardstick: Yardstick = field(default_factory=Yardstick)
    """How it is judged."""
    samples: list[dict[str, float]] = field(default_factory=list)
    """The metrics of each sample alone."""
    wrong: list[str] = field(default_factory=list)
    """Why it could not be compared, as sentences."""

    @property
    def name(self) -> str:
        """The reference's name; the candidate's where the reference has no such output."""
        return self.pair[0] or self.pair[1] or ""

    def add(self, sample: str, reference: Outputs, candidate: Outputs, dtypes: Mapping[str, str]) -> None:
        """Compare one more sample. `dtypes` are those of the candidate's outputs that come as others."""
        if self.wrong:
            return
        mine, theirs = self.pair
        if mine is None or theirs is None:
            owner, other = ("candidate", "reference") if mine is None else ("reference", "candidate")
            self.wrong.append(f"only the {owner} has this output, the {other} has not")
            return
        r, c = reference[mine], candidate[theirs]
        if r is None or c is None:
            self.wrong.append("it is no tensor, so it cannot be compared")
            return
        if not self.dtype:
            self.dtype, self.shape = dtypes.get(theirs, str(c.dtype.name)), tuple(c.shape)
        self._add_tensors(sample, r, storable(c))

    def _add_tensors(self, sample: str, r: Array, c: Array) -> None:
        if _family(r) != _family(c):
            self.wrong.append(f"it is {c.dtype.name} where the reference has {r.dtype.name}")
        elif r.shape != c.shape:
            self.wrong.append(f"its shape is {shape_text(c.shape)} where the reference has {shape_text(r.shape)}")
        else:
            self.samples.append(self.agreement.add(r, c, sample))


def _family(array: Array) -> str:
    if is_float(array.dtype):
        return "float"
    return "integer" if is_integer(array.dtype) else str(array.dtype.kind)
