"""Settings of noise on the inputs of models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ndld_flow.base.quantities import Fraction
from ndld_flow.base.settings import Settings


class Noise(Settings):
    """Noise on the inputs of the candidate, or of both models."""

    kind: Literal["normal", "uniform", "salt_pepper"] = "normal"
    """`normal` and `uniform` are added; `salt_pepper` sets elements to the smallest or largest value of their input."""
    deviation: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """`normal`: standard deviation, in the units of the model's input (after `mean` and `std`)."""
    amplitude: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """`uniform`: the noise is in [-amplitude, amplitude]."""
    share: Annotated[Fraction, Field(gt=0, le=1)] | None = None
    """`salt_pepper`: the share of elements that are replaced, half by the smallest and half by the largest value."""
    inputs: tuple[str, ...] = ()
    """Inputs that get noise; by default all float inputs."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the noise; sample i uses `seed` + i."""
    applies_to: Literal["candidate", "both"] = "candidate"
    """`candidate`: the reference runs on the clean inputs, so that the differences include the effect of the noise.
    `both`: both models run on the same noisy inputs, so that the differences are those of the models alone."""

    @model_validator(mode="after")
    def _check_amount(self) -> Noise:
        amounts = {"normal": "deviation", "uniform": "amplitude", "salt_pepper": "share"}
        mine = amounts.pop(self.kind)
        if getattr(self, mine) is None:
            raise ValueError(f"noise of kind `{self.kind}` needs `{mine}`")
        extra = [name for name in amounts.values() if getattr(self, name) is not None]
        if extra:
            raise ValueError(f"`{extra[0]}` does not apply to noise of kind `{self.kind}`: give `{mine}`")
        return self

    @property
    def amount(self) -> float:
        return self.deviation or self.amplitude or self.share or 0.0
