"""How far two models' outputs may be apart: the settings, and what a metric outside them is told as."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import Field, model_validator

from ndld_flow.declared_metrics import Returns
from ndld_flow.records.accuracy import higher_is_better
from ndld_flow.settings import Settings
from ndld_flow.units import Fraction

AtLeast = Annotated[float, Field(ge=0)]


class Tolerance(Settings):
    """How far outputs may be apart. Everything that is given must hold.

    With `r` the reference and `c` the candidate, over all elements of an output, in float64.
    """

    cosine: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Cosine similarity, at least: sum(r c) / (|r| |c|). It does not see a wrong scale."""
    snr_db: float | None = None
    """Signal-to-noise ratio in dB, at least: 10 log10(sum(r^2) / sum((c - r)^2)). It sees a wrong scale."""
    max_abs: AtLeast | None = None
    """Largest absolute difference, at most: max |c - r|."""
    mean_abs: AtLeast | None = None
    """Mean absolute difference, at most: mean |c - r|."""
    max_rel: AtLeast | None = None
    """Largest relative difference, at most: max |c - r| / |r|."""
    rmse: AtLeast | None = None
    """Root of the mean square error, at most: sqrt(mean (c - r)^2)."""
    relative_rms: Annotated[Fraction, Field(le=1e9)] | None = None
    """Error relative to the signal, at most: rms(c - r) / rms(r); `5 %` is 26 dB of `snr_db`."""
    psnr_db: float | None = None
    """Peak signal-to-noise ratio in dB, at least: 10 log10(peak^2 / mean (c - r)^2), peak = max(r) - min(r)."""
    kl: AtLeast | None = None
    """Kullback-Leibler divergence in nats, at most: mean over rows of sum r log(r / c). For outputs that are
    probabilities along `axis`, and for logits that are named in `softmax`."""
    rtol: AtLeast | None = None
    """Relative part of the bound |c - r| <= atol + rtol |r|, as in numpy.allclose; see `mismatched`."""
    atol: AtLeast | None = None
    """Absolute part of the bound |c - r| <= atol + rtol |r|, as in numpy.allclose; see `mismatched`."""
    mismatched: Annotated[Fraction, Field(le=1)] | None = None
    """Fraction of elements outside the bound of `rtol` and `atol` (for integers: that differ), at most; 0 when only
    the bound is given."""
    top1: Annotated[Fraction, Field(le=1)] | None = None
    """Fraction of rows (along the last axis) whose largest element is at the same place, at least."""
    topk: Annotated[Fraction, Field(le=1)] | None = None
    """Fraction of rows whose largest element in the reference is among the candidate's k largest, at least; k is 5
    where a step's `topk` says nothing else."""

    @classmethod
    def declared(
        cls, prefix: str = "", when: str = "outputs of that kind have it", given: Callable[..., bool] | None = None
    ) -> tuple[Returns, ...]:
        """Return the declarations of the metrics of outputs that can be bounded; only the run tells which have one.

        `top{k}` is left to the step, which knows k.
        """
        names = [name for name, info in cls.model_fields.items() if info.default is None]
        return tuple(
            Returns(f"{prefix}{name}", "dB" if name.endswith("_db") else "", given, when)
            for name in names
            if name not in ("rtol", "atol", "topk")
        )

    @model_validator(mode="after")
    def _check_bound(self) -> Tolerance:
        if not self.given():
            raise ValueError("an empty tolerance checks nothing: give at least one bound")
        return self

    def given(self, topk: int = 5) -> dict[str, float]:
        """The bounds that were given; that of `topk` by the name of its metric, such as `top5`."""
        given: dict[str, float] = self.model_dump(exclude_none=True)
        return {f"top{topk}" if name == "topk" else name: bound for name, bound in given.items()}

    def bounds(self, topk: int = 5) -> dict[str, float]:
        """Metric -> its bound. `rtol` and `atol` are a bound on `mismatched`."""
        given = self.given(topk)
        elementwise = [given.pop(name, None) for name in ("rtol", "atol")]
        if any(value is not None for value in elementwise):
            given.setdefault("mismatched", 0.0)
        return given

    def elementwise(self) -> tuple[float | None, float | None]:
        """(rtol, atol) that `mismatched` counts by; (None, None) where nothing is to be counted."""
        return self.rtol, self.atol if self.mismatched is None else self.atol or 0.0


def outside(metrics: Mapping[str, float], bounds: Mapping[str, float]) -> list[str]:
    """A sentence for each bound that does not hold; none where there are no metrics at all."""
    if not metrics:
        return []
    said = []
    for metric, bound in bounds.items():
        value = metrics.get(metric)
        if value is None:
            said.append(f"{metric} has no meaning for it{_why(metric)}, so it cannot be checked")
        elif higher_is_better(metric) and value < bound:
            said.append(f"{metric} {value:.6g} is less than {bound:g}")
        elif not higher_is_better(metric) and value > bound:
            said.append(f"{metric} {value:.6g} is more than {bound:g}")
    return said


def _why(metric: str) -> str:
    if metric == "kl":
        return " (the reference's values are no probabilities; are they logits that `softmax` should name?)"
    if metric == "psnr_db":
        return " (the reference gives the same number everywhere)"
    if metric.startswith("top"):
        return f" (its rows have too few elements for {metric})"
    return ""
