"""Tolerances of outputs and of a user's metric: the settings, and the messages for bounds that do not hold."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from ndld_flow.base.declared_metrics import Returns, higher_is_better, metric_texts
from ndld_flow.base.quantities import Fraction, apart, parse_percent
from ndld_flow.base.settings import Settings

if TYPE_CHECKING:
    from ndld_flow.records.accuracy import OutputKind

AtLeast = Annotated[float, Field(ge=0)]


UNITS = {"snr_db": "dB", "psnr_db": "dB"}
"""Metric -> its unit; other metrics have none."""
SLICE_BOUNDS: Mapping[str, Mapping[str, float]] = {
    "default": {"slice_rms": 0.05, "slice_max": 0.10, "position_rms": 0.20},
    "loose": {"slice_rms": 0.20, "slice_max": 0.40, "position_rms": 0.60},
    "off": {},
}
"""`slices` -> its bounds; `tests/benchmarks/bench_accuracy.py` counts the faults that they accept and reject."""
_IOU_LOSS = {"default": 0.03, "loose": 0.12}


class Tolerance(Settings, defer_build=False):
    """The largest accepted differences between outputs. All bounds must hold.

    Float outputs are judged slice by slice (`slices`), whatever other bounds are given: a detector whose scores are all
    zero still has a cosine of 1, because its boxes are far larger. With `r` the reference and `c` the candidate, the
    other metrics are computed over all elements of an output, in float64.
    """

    # YAML 1.1 reads `off` as false.
    slices: Annotated[
        Literal["default", "loose", "off"], BeforeValidator(lambda given: "off" if given is False else given)
    ] = "default"
    """Bounds on `slice_rms`, `slice_max` and `position_rms`: `default` (5 %, 10 %, 20 %) passes fp16 and lossless
    changes, `loose` (20 %, 40 %, 60 %) is for INT8 and BF16, `off` judges no slices. For class maps they bound
    `iou_loss` (3 %, 12 %)."""
    slice_rms: Annotated[Fraction, Field(gt=0)] | None = None
    """Maximum RMS error of the worst channel, relative to that channel's own spread; replaces the bound of `slices`."""
    slice_max: Annotated[Fraction, Field(gt=0)] | None = None
    """Maximum error of the worst channel, relative to that channel's own range; replaces the bound of `slices`."""
    position_rms: Annotated[Fraction, Field(gt=0)] | None = None
    """Maximum RMS error of the worst row, column or sample, relative to the spread; replaces the bound of `slices`."""
    iou_loss: Annotated[Fraction, Field(le=1)] | None = None
    """Maximum loss of intersection over union of the worst class of a class map; replaces the bound of `slices`."""
    cosine: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Minimum cosine similarity: sum(r c) / (|r| |c|). It does not detect a wrong scale."""
    snr_db: float | None = None
    """Minimum signal-to-noise ratio in dB: 10 log10(sum(r^2) / sum((c - r)^2)). It detects a wrong scale."""
    max_abs: AtLeast | None = None
    """Maximum absolute difference: max |c - r|."""
    mean_abs: AtLeast | None = None
    """Maximum mean absolute difference: mean |c - r|."""
    max_rel: AtLeast | None = None
    """Maximum relative difference: max |c - r| / |r|."""
    rmse: AtLeast | None = None
    """Maximum root mean square error: sqrt(mean (c - r)^2)."""
    relative_rms: Annotated[Fraction, Field(le=1e9)] | None = None
    """Maximum error relative to the signal: rms(c - r) / rms(r); `5 %` is 26 dB of `snr_db`."""
    psnr_db: float | None = None
    """Minimum peak signal-to-noise ratio in dB: 10 log10(peak^2 / mean (c - r)^2) with peak = max(r) - min(r)."""
    kl: AtLeast | None = None
    """Maximum Kullback-Leibler divergence in nats: mean over rows of sum r log(r / c). It applies to outputs that are
    probabilities along `axis`, and to logits that are named in `softmax`."""
    rtol: AtLeast | None = None
    """Relative part of the bound |c - r| <= atol + rtol |r|, as in numpy.allclose; see `mismatched`."""
    atol: AtLeast | None = None
    """Absolute part of the bound |c - r| <= atol + rtol |r|, as in numpy.allclose; see `mismatched`."""
    mismatched: Annotated[Fraction, Field(le=1)] | None = None
    """Maximum fraction of elements outside the bound of `rtol` and `atol` (for integers: of elements that differ); 0 if
    only the bound is given."""
    top1: Annotated[Fraction, Field(le=1)] | None = None
    """Minimum fraction of rows (along the last axis) whose largest element is at the same index."""
    topk: Annotated[Fraction, Field(le=1)] | None = None
    """Minimum fraction of rows whose largest element in the reference is among the candidate's k largest; k is the
    step's `topk`, 5 by default."""

    @classmethod
    def declared(
        cls,
        prefix: str = "",
        when: str = "an output is of a kind that has it",
        given: Callable[..., bool] | None = None,
    ) -> tuple[Returns, ...]:
        """Return the declarations of the metrics of outputs that have bounds; only a run shows which outputs have
        which.

        `top{k}` is left to the step, which knows k.
        """
        names = [name for name, info in cls.model_fields.items() if info.default is None]
        return tuple(
            Returns(f"{prefix}{name}", UNITS.get(name, ""), given, when)
            for name in names
            if name not in ("rtol", "atol", "topk")
        )

    @model_validator(mode="after")
    def _check_bound(self) -> "Tolerance":
        if not self.given():
            raise ValueError("`slices: off` without another bound checks nothing: give at least one bound")
        return self

    def or_loose(self) -> "Tolerance":
        """Return the same with the `loose` bounds of `slices` if it names none.

        Steps call it when settings are read: later, as in another process, all settings have values.
        """
        return self if "slices" in self.model_fields_set else self.model_copy(update={"slices": "loose"})

    def given(self, topk: int = 5) -> dict[str, float]:
        """Return the bounds of float outputs, including `rtol` and `atol`; the bound of `topk` has its metric's name,
        such as `top5`.
        """
        own: dict[str, float] = self.model_dump(exclude_none=True, exclude={"slices", "iou_loss"})
        own = {f"top{topk}" if name == "topk" else name: bound for name, bound in own.items()}
        return {**SLICE_BOUNDS[self.slices], **own}

    def bounds(self, kind: "OutputKind" = "numbers", topk: int = 5, *, own: bool = False) -> dict[str, float]:
        """Return metric -> bound for an output of this kind; `rtol` and `atol` become a bound on `mismatched`.

        `own`: the tolerance was given for this output by name, so its bounds apply to integers too.
        """
        given = self.given(topk)
        elementwise = [given.pop(name, None) for name in ("rtol", "atol")]
        if elementwise != [None, None]:
            given.setdefault("mismatched", 0.0)
        if kind == "numbers":
            return given
        named = {metric: bound for metric, bound in given.items() if metric not in SLICE_BOUNDS["default"]}
        if own and named:
            return named
        loss = self.iou_loss if self.iou_loss is not None else _IOU_LOSS.get(self.slices)
        return {"iou_loss": loss} if kind == "classes" and loss is not None else {"mismatched": 0.0}

    def elementwise(self) -> tuple[float | None, float | None]:
        """Return the (rtol, atol) of `mismatched`; (None, None) if it is not measured."""
        return self.rtol, self.atol if self.mismatched is None else self.atol or 0.0


def outside(
    metrics: Mapping[str, float], bounds: Mapping[str, float], places: Mapping[str, str] | None = None
) -> list[str]:
    """Return a sentence for each bound that does not hold; none if there are no metrics at all.

    `places`: metric -> the slice in which it is worst, such as `channel 4`.
    """
    if not metrics:
        return []

    sentences = []
    for metric, bound in bounds.items():
        value = metrics.get(metric)
        where = f" in {places[metric]}" if places and metric in places else ""
        if value is None:
            if metric not in SLICE_BOUNDS["default"]:
                sentences.append(f"{metric} is not defined for this output{_why(metric)}, so it cannot be checked")
        elif value < bound if higher_is_better(metric) else value > bound:
            measured, limit = metric_texts(metric, value, bound)
            verb = "is less than" if higher_is_better(metric) else "is more than"
            sentences.append(f"{metric} {measured}{where} {verb} {limit}")
    return sentences


def _why(metric: str) -> str:
    if metric == "kl":
        return " (the reference's values are not probabilities; if they are logits, name the output in `softmax`)"
    if metric == "psnr_db":
        return " (the reference is constant)"
    if metric.startswith("top"):
        return f" (its rows have too few elements for {metric})"
    return ""


Amount = Annotated[
    float,
    Field(allow_inf_nan=False),
    BeforeValidator(lambda given: parse_percent(given) if isinstance(given, str) else given),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "examples": ["90 %"]}]}),
]
"""A metric's value: `0.9`, `90 %`; unlike a fraction it may be negative."""


class MetricTolerance(Settings):
    """Bounds on one metric. All given bounds must hold. `1 %` is 0.01 everywhere."""

    min: Amount | None = None
    """The candidate's lowest value."""
    max: Amount | None = None
    """The candidate's highest value."""
    drop: Fraction | None = None
    """Maximum decrease from the reference to the candidate, in the metric's own unit: with `1 %`, an accuracy of 0.90
    may become 0.89."""
    rise: Fraction | None = None
    """Maximum increase from the reference to the candidate, for metrics where lower is better, such as an error."""
    relative_drop: Fraction | None = None
    """Maximum decrease relative to the reference: with `1 %`, 0.900 may become 0.891."""
    relative_rise: Fraction | None = None
    """Maximum increase relative to the reference."""

    @model_validator(mode="after")
    def _check_bound(self) -> "MetricTolerance":
        if not self.given():
            raise ValueError("an empty tolerance checks nothing: give at least one bound")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("`min` is larger than `max`, so no value satisfies both")
        return self

    def given(self) -> dict[str, float]:
        """Return the bounds that were given."""
        return self.model_dump(exclude_none=True)

    def outside(self, name: str, reference: float, candidate: float) -> list[str]:
        """Return a sentence for each bound that does not hold."""
        sentences = []
        for words, end, sign in (("less", self.min, 1), ("more", self.max, -1)):
            if end is not None and sign * candidate < sign * end:
                measured, limit = apart((candidate, end), "")
                sentences.append(f"{name} {measured} is {words} than {limit}")
        for words, difference, bound, relative in (
            ("less", reference - candidate, self.drop, self.relative_drop),
            ("more", candidate - reference, self.rise, self.relative_rise),
        ):
            comparison = f"{name} {candidate:.6g} is {difference:.6g} {words} than the reference's {reference:.6g}"
            if bound is not None and _exceeds(difference, bound):
                sentences.append(f"{comparison}, the limit is {bound:g}")
            if relative is not None and _exceeds(difference, relative * abs(reference)):
                sentences.append(f"{comparison}, the limit is {relative * 100:g} % of it")
        return sentences


def _exceeds(difference: float, bound: float) -> bool:
    # 0.90 - 0.89 is a little more than 0.01 in binary.
    return difference > bound and not math.isclose(difference, bound, rel_tol=1e-9, abs_tol=1e-12)
