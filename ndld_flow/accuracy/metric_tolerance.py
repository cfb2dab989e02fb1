"""What a user's metric must come to on a labelled set: the settings, and what a metric outside them is told as."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from ndld_flow.base.quantities import apart
from ndld_flow.base.settings import Settings
from ndld_flow.base.units import Fraction, parse_percent

Amount = Annotated[
    float,
    Field(allow_inf_nan=False),
    BeforeValidator(lambda given: parse_percent(given) if isinstance(given, str) else given),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "examples": ["90 %"]}]}),
]
"""What a metric comes to: `0.9`, `90 %`; unlike a fraction it may be less than 0."""


class MetricTolerance(Settings):
    """Bounds of one metric. Everything that is given must hold. `1 %` is 0.01 everywhere."""

    min: Amount | None = None
    """The candidate has at least so much."""
    max: Amount | None = None
    """The candidate has at most so much."""
    drop: Fraction | None = None
    """The candidate has at most so much less than the reference, in the metric's own unit: an accuracy of 0.90 may
    become 0.89 with `1 %`."""
    rise: Fraction | None = None
    """The candidate has at most so much more than the reference: for metrics of which less is better, such as an
    error."""
    relative_drop: Fraction | None = None
    """The candidate has at most such a part of the reference's less: 0.900 may become 0.891 with `1 %`."""
    relative_rise: Fraction | None = None
    """The candidate has at most such a part of the reference's more."""

    @model_validator(mode="after")
    def _check_bound(self) -> MetricTolerance:
        if not self.given():
            raise ValueError("an empty tolerance checks nothing: give at least one bound")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("nothing is at least `min` and at most `max`: `min` is larger")
        return self

    def given(self) -> dict[str, float]:
        """The bounds that were given."""
        return self.model_dump(exclude_none=True)

    def outside(self, name: str, reference: float, candidate: float) -> list[str]:
        """A sentence for each bound that does not hold."""
        said = []
        if self.min is not None and candidate < self.min:
            measured, limit = apart((candidate, self.min), "")
            said.append(f"{name} {measured} is less than {limit}")
        if self.max is not None and candidate > self.max:
            measured, limit = apart((candidate, self.max), "")
            said.append(f"{name} {measured} is more than {limit}")
        for words, difference, bound, relative in (
            ("less", reference - candidate, self.drop, self.relative_drop),
            ("more", candidate - reference, self.rise, self.relative_rise),
        ):
            told = f"{name} {candidate:.6g} is {difference:.6g} {words} than the reference's {reference:.6g}"
            if bound is not None and _exceeds(difference, bound):
                said.append(f"{told}, allowed is {bound:g}")
            if relative is not None and _exceeds(difference, relative * abs(reference)):
                said.append(f"{told}, allowed is {relative * 100:g} % of it")
        return said


def _exceeds(difference: float, bound: float) -> bool:
    # 0.90 - 0.89 is a little more than 0.01 in binary.
    return difference > bound and not math.isclose(difference, bound, rel_tol=1e-9, abs_tol=1e-12)
