"""Values of attributes, as a recipe says them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, JsonValue, model_validator

from ndld_flow.base.settings import Settings
from ndld_flow.step import DataFile


class TensorValue(Settings):
    """A tensor, for attributes that hold one; other attributes may take their numbers from a file too."""

    value: JsonValue = None
    """The numbers, in lists as deep as the tensor has dimensions; at most 10,000."""
    file: Annotated[Path | None, DataFile()] = None
    """A `.npy` file with the numbers; from the folder where the program is started."""
    dtype: str | None = None
    """The element type, such as `float32`."""
    shape: tuple[int, ...] | None = None
    """The shape; one number fills it."""

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        if (self.value is None) == (self.file is None):
            raise ValueError("say either `value` or `file`")
        return self

    @property
    def generate(self) -> None:
        """Attributes are not made up."""

    @property
    def seed(self) -> int:
        """Nothing is made up."""
        return 0


AttributeValue = Annotated[TensorValue | bool | int | float | str | list[JsonValue], Field(union_mode="left_to_right")]
"""`3`, `[1, 1]`, `same_upper`, or text in the grammar of values: `'[[1, 2], [3, 4]]'`, `"'It\\'s alive!'"`, `0x1F`,
`-inf`; an element type such as `float16` where ONNX wants its number; `{value: ..., dtype: ...}` or `{file: w.npy}` for
a tensor."""
