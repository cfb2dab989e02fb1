"""The recipe's `inputs:`: shapes and values of the model's inputs, in one place for every step."""

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
    # So that a mistake in a list is told of its item, and of the item only.
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
"""Where an input's values come from: one of `GENERATED`, a number that every element is, or files."""


def patterns_of(data: Data) -> tuple[str, ...]:
    """What names the files that values come from, or nothing when they are generated."""
    if isinstance(data, tuple):
        return data
    return (data,) if isinstance(data, str) and data not in GENERATED else ()


def names_one_file(data: Data) -> bool:
    """Whether `data` is the path of a file, there or not: then its contents count, and not its name."""
    return isinstance(data, str) and data not in GENERATED and not is_several(data)


def without_names(data: Data) -> str | int | float:
    """What `data` says besides its files: the type of a single one, or `files`."""
    if isinstance(data, str) and names_one_file(data):
        return PurePath(data).suffix
    return "files" if patterns_of(data) or isinstance(data, tuple) else data


class InputSpec(Settings):
    """Shape and values of one model input."""

    shape: Shape | None = None
    """The one shape to use. Give either this or `opt` (with `min` and `max`)."""
    min: Shape | None = None
    """Smallest shape an engine must accept."""
    opt: Shape | None = None
    """Shape to run and to optimise for."""
    max: Shape | None = None
    """Largest shape an engine must accept."""
    data: Data = "random"
    """`random`, `zeros`, `ones`, a number that every element is, or files: a `.npy`, `.npz` or `.pb` (a TensorProto),
    an image, a video, a folder of these, an ONNX test data set, a glob (`images/**/*.png`), or a list of these. Of
    several, steps that run more than one sample use them all, others the first."""
    every: Annotated[int, Field(ge=1)] = 1
    """Of a video or an animation, every N-th frame is a sample."""
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
    def shapes(self) -> InputSpec:
        """The shapes alone, for steps that generate or read no values."""
        return InputSpec(shape=self.shape, min=self.min, opt=self.opt, max=self.max)

    @property
    def data_patterns(self) -> tuple[str, ...]:
        """What names the files that the values come from; empty when they are generated."""
        return patterns_of(self.data)
