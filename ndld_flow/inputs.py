"""The recipe's `inputs:`: shapes and values of the model's inputs, in one place for every step."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Dimension = Annotated[int, Field(ge=0)]
Shape = tuple[Dimension, ...]


class InputSpec(BaseModel):
    """Shape and values of one model input."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    shape: Shape | None = None
    """The one shape to use. Give either this or `opt` (with `min` and `max`)."""
    min: Shape | None = None
    """Smallest shape an engine must accept."""
    opt: Shape | None = None
    """Shape to run and to optimise for."""
    max: Shape | None = None
    """Largest shape an engine must accept."""
    data: str | int | float = "random"
    """`random`, `zeros`, `ones`, a number that every element is, or a file: `.npy`, `.pb` (a TensorProto), or an image
    (`.png`, `.jpg`)."""
    range: tuple[float, float] = (0.0, 1.0)
    """Random floats are uniform in [low, high); random integers are drawn from the same half-open range."""
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    """Where an image's channels go."""
    mean: tuple[float, ...] = (0.0,)
    """Subtracted from an image's pixels (scaled to 0..1 first), one number or one for each channel."""
    std: tuple[float, ...] = (1.0,)
    """Divides an image's pixels after `mean`."""

    @model_validator(mode="after")
    def _check_shapes(self) -> InputSpec:
        if self.shape is not None and (self.min or self.opt or self.max):
            raise ValueError("give either `shape` or `min`/`opt`/`max`, not both")
        bounds = [shape for shape in (self.min, self.opt, self.max) if shape is not None]
        if len({len(shape) for shape in bounds}) > 1:
            raise ValueError("`min`, `opt` and `max` must have the same number of dimensions")
        for low, high in pairwise(bounds):
            if any(a > b for a, b in zip(low, high, strict=True)):
                raise ValueError("every dimension must satisfy min <= opt <= max")
        return self

    @property
    def run_shape(self) -> Shape | None:
        """The shape to run the model at; None leaves it to the model (free dimensions become 1)."""
        return self.shape if self.shape is not None else self.opt

    @property
    def data_file(self) -> str | None:
        """The file the values come from, or None when they are generated."""
        if not isinstance(self.data, str) or self.data in ("random", "zeros", "ones"):
            return None
        return self.data
