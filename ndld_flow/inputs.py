"""The recipe's `inputs:`: shapes and values of the model's inputs, shared by all steps."""

from __future__ import annotations

from itertools import pairwise
from pathlib import PurePath
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from ndld_flow.base.settings import Settings
from ndld_flow.store.found_files import is_several

T = TypeVar("T")
Dimension = Annotated[int, Field(ge=0)]
Shape = tuple[Dimension, ...]

GENERATED = ("random", "zeros", "ones")


def _check_named(data: T) -> T:
    if data in ("", ()):
        raise ValueError("it names no file")
    return data


Data = Annotated[
    Annotated[tuple[Annotated[str, Field(min_length=1)], ...], AfterValidator(_check_named), Tag("several")]
    | Annotated[str | int | float, AfterValidator(_check_named), Tag("one")],
    # A mistake in a list is reported for its item only.
    Discriminator(lambda data: "several" if isinstance(data, list | tuple) else "one"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "number"},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
            ]
        }
    ),
]
"""The source of an input's values: one of `GENERATED`, a number for every element, or files."""


def patterns_of(data: Data) -> tuple[str, ...]:
    """Return the patterns of files that values come from; none if they are generated."""
    if isinstance(data, tuple):
        return data
    return (data,) if isinstance(data, str) and data not in GENERATED else ()


def names_one_file(data: Data) -> bool:
    """Return True for the path of a single file, existing or not: its contents count, not its name."""
    return isinstance(data, str) and data not in GENERATED and not is_several(data)


def without_names(data: Data) -> str | int | float:
    """Return `data` without file names: the suffix of a single file, or `files`."""
    if isinstance(data, str) and names_one_file(data):
        return PurePath(data).suffix
    return "files" if patterns_of(data) or isinstance(data, tuple) else data


class InputSpec(Settings):
    """Shape and values of one model input."""

    shape: Shape | None = None
    """The shape to use. Give either this or `opt` (with `min` and `max`)."""
    min: Shape | None = None
    """Smallest shape an engine must accept."""
    opt: Shape | None = None
    """Shape to run and to optimize for."""
    max: Shape | None = None
    """Largest shape an engine must accept."""
    data: Data = "random"
    """`random`, `zeros`, `ones`, a number for every element, or files: a `.npy`, `.npz` or `.pb` (a TensorProto), an
    image, a video, a folder of these, an ONNX test data set, a glob (`images/**/*.png`), or a list of these. Steps
    that run several samples use all files, others the first."""
    every: Annotated[int, Field(ge=1)] = 1
    """Use every N-th frame of a video or an animation as a sample."""
    range: tuple[float, float] = (0.0, 1.0)
    """Range of random values: floats are uniform in [low, high), integers are drawn from the same half-open range."""
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    """Position of an image's channels."""
    mean: tuple[float, ...] = (0.0,)
    """Subtracted from an image's pixels after scaling to 0..1: one number, or one for each channel."""
    std: tuple[float, ...] = (1.0,)
    """Divisor of an image's pixels after `mean` is subtracted."""

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
        """Return the shape to run the model with; None leaves it to the model (free dimensions become 1)."""
        return self.shape if self.shape is not None else self.opt

    @property
    def shapes(self) -> InputSpec:
        """Return the shapes alone, for steps that use no values."""
        return InputSpec(shape=self.shape, min=self.min, opt=self.opt, max=self.max)

    @property
    def data_patterns(self) -> tuple[str, ...]:
        """Return the patterns of files that the values come from; empty if they are generated."""
        return patterns_of(self.data)
