"""What a tensor holds, as a recipe says it: written out, from a `.npy` file, or made up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.step import DataFile

Kind = Literal["normal", "zeros", "ones", "uniform_positive", "uniform_negative"]
"""`normal`: mean 0 and standard deviation 1; of integers, rounded. `uniform_positive`: above 0 and at most 1; of
integers, 1 to 100. `uniform_negative`: the same below 0. Types without a sign hold no negative numbers."""


class WithTensorValue(Operation):
    """Base of operations that say a tensor's numbers."""

    value: JsonValue = None
    """The numbers, in lists as deep as the tensor has dimensions: `[[1, 2], [3, 4]]`; at most 10,000."""
    file: Annotated[Path | None, DataFile()] = None
    """A `.npy` file with the numbers; from the folder where the program is started."""
    generate: Kind | None = None
    """Make the numbers up: `normal`, `zeros`, `ones`, `uniform_positive` or `uniform_negative`."""
    seed: int = Field(default=0, ge=0)
    """For `generate`: the same seed makes the same numbers."""
    dtype: str | None = None
    """The element type, such as `float32`."""
    shape: tuple[int, ...] | None = None
    """The shape."""

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        if [self.value, self.file, self.generate].count(None) != 2:
            raise ValueError("say one of `value`, `file` and `generate`")
        if self.shape is not None and min(self.shape, default=0) < 0:
            raise ValueError("a shape has no negative sizes")
        return self
