"""How far two models' outputs may be apart: the settings, and the sentence for a metric outside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ndld_flow.base.declared_metrics import Returns
from ndld_flow.base.quantities import apart
from ndld_flow.base.settings import Settings
from ndld_flow.base.units import Fraction
from ndld_flow.records.accuracy import OutputKind, higher_is_better

AtLeast = Annotated[float, Field(ge=0)]


SLICE_BOUNDS: Mapping[str, Mapping[str, float]] = {
    "default": {"slice_rms": 0.05, "slice_max": 0.10, "position_rms": 0.20},
    "loose": {"slice_rms": 0.20, "slice_max": 0.40, "position_rms": 0.60},
    "off": {},
}
"""`slices` -> its bounds; `tests/benchmarks/bench_accuracy.py` counts what they let pass and what they refuse."""
_IOU_LOSS = {"default": 0.03, "loose": 0.12}


class Tolerance(Settings):
    """How far outputs may be apart. Every bound must hold.

    Outputs of numbers are judged slice by slice (`slices`), whatever else is given: a detector whose scores are all
    zero still has a cosine of 1, as its boxes are larger by far. With `r` the reference and `c` the candidate, the
    other metrics are over all elements of an output, in float64.
    """

    slices: Literal["default", "loose", "off"] = "default"
    """Bounds on `slice_rms`, `slice_max` and `position_rms`: `default` (5 %, 10 %, 20 %) passes fp16 and lossless
    changes, `loose` (20 %, 40 %, 60 %) is for INT8 and BF16, `off` judges no slices. For maps of class numbers they
    bound `iou_loss` (3 %, 12 %)."""
    slice_rms: Annotated[Fraction, Field(gt=0)] | None = None
    """RMS error of the worst channel relative to that channel's own spread, at most; replaces that of `slices`."""
    slice_max: Annotated[Fraction, Field(gt=0)] | None = None
    """Largest error of the worst channel relative to that channel's own range, at most; replaces that of `slices`."""
    position_rms: Annotated[Fraction, Field(gt=0)] | None = None
    """RMS error at the worst row, column or sample relative to the spread, at most; replaces that of `slices`."""
    iou_loss: Annotated[Fraction, Field(le=1)] | None = None
    """Loss of intersection over union of the worst class of a class map, at most; replaces that of `slices`."""
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
            raise ValueError("with `slices: off` and no other bound nothing is checked: give at least one bound")
        return self

    def given(self, topk: int = 5) -> dict[str, float]:
        """Return the bounds of outputs of numbers, `rtol` and `atol` among them; that of `topk` by its metric's name,
        such as `top5`.
        """
        own: dict[str, float] = self.model_dump(exclude_none=True, exclude={"slices", "iou_loss"})
        own = {f"top{topk}" if name == "topk" else name: bound for name, bound in own.items()}
        return {**SLICE_BOUNDS[self.slices], **own}

    def bounds(self, kind: OutputKind = "numbers", topk: int = 5, *, own: bool = False) -> dict[str, float]:
        """Return metric -> bound for an output of this kind. `rtol` and `atol` are a bound on `mismatched`.

        `own`: the tolerance was given for this output by name, so that its bounds hold for integers too.
        """
        given = self.given(topk)
        if any(given.pop(name, None) is not None for name in ("rtol", "atol")):
            given.setdefault("mismatched", 0.0)
        if kind == "numbers":
            return given
        named = {metric: bound for metric, bound in given.items() if metric not in SLICE_BOUNDS["default"]}
        if own and named:
            return named
        loss = self.iou_loss if self.iou_loss is not None else _IOU_LOSS.get(self.slices)
        return {"iou_loss": loss} if kind == "classes" and loss is not None else {"mismatched": 0.0}

    def elementwise(self) -> tuple[float | None, float | None]:
        """(rtol, atol) that `mismatched` counts by; (None, None) where nothing is to be counted."""
        return self.rtol, self.atol if self.mismatched is None else self.atol or 0.0


def outside(
    metrics: Mapping[str, float], bounds: Mapping[str, float], places: Mapping[str, str] | None = None
) -> list[str]:
    """Return a sentence for each bound that does not hold; none where there are no metrics at all.

    `places`: metric -> the slice where it is worst, such as `channel 4`.
    """
    if not metrics:
        return []
    sentences = []
    for metric, bound in bounds.items():
        value = metrics.get(metric)
        where = f" in {places[metric]}" if places and metric in places else ""
        if value is None:
            if metric not in SLICE_BOUNDS["default"]:
                sentences.append(f"{metric} has no meaning for it{_why(metric)}, so it cannot be checked")
        elif value < bound if higher_is_better(metric) else value > bound:
            measured, limit = apart((value, bound), "")
            verb = "is less than" if higher_is_better(metric) else "is more than"
            sentences.append(f"{metric} {measured}{where} {verb} {limit}")
    return sentences


def _why(metric: str) -> str:
    if metric == "kl":
        return " (the reference's values are no probabilities; are they logits that `softmax` should name?)"
    if metric == "psnr_db":
        return " (the reference gives the same number everywhere)"
    if metric.startswith("top"):
        return f" (its rows have too few elements for {metric})"
    return ""
