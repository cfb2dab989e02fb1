"""Settings that several operations share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from ndld_flow.base.settings import Settings
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Words
from ndld_flow.step import DataFile

NewName = Annotated[str, Field(min_length=1)]
"""A name, which must not be empty."""
DimName = Annotated[str, Field(pattern=r"[^0-9]")]
"""Name of a dimension. Tools would read a quoted number as a size, and an empty name as an unnamed dimension."""
Dim = Annotated[int, Field(ge=0, lt=2**63)] | DimName | None
Dims = tuple[Dim, ...]
"""A shape with a number, a name or null (dynamic and unnamed) for each dimension."""
RandomKind = Literal["normal", "zeros", "ones", "uniform_positive", "uniform_negative"]
"""`normal`: mean 0 and standard deviation 1; rounded for integers. `uniform_positive`: above 0 and at most 1; for
integers, 1 to 100. `uniform_negative`: the same below 0. Unsigned types hold no negative numbers."""


def _as_alternatives(value: object) -> object:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


class TensorDeclaration(Settings):
    """Type and shape of a tensor."""

    dtype: str
    """Element type: `float32`, `float16`, `int64`, `bool`, `string`, ..."""
    shape: Dims = Field(default=())
    """A number, a name or null (dynamic and unnamed) for each dimension: `[batch, 3, null, 640]`; `[]` is a scalar."""


class TensorValue(Settings):
    """A constant tensor: its numbers, or a `.npy` file that holds them."""

    value: JsonValue = None
    """The numbers, nested in lists, one level for each dimension: `[[1, 2], [3, 4]]`; at most 10,000."""
    file: Annotated[Path | None, DataFile()] = None
    """A `.npy` file with the numbers, relative to the current directory."""
    dtype: str | None = None
    """The element type, such as `float32`."""
    shape: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """The shape; a single number fills it."""

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        if (self.value is None) == (self.file is None):
            raise ValueError("give either `value` or `file`")
        return self


AttributeValue = Annotated[TensorValue | bool | int | float | str | list[JsonValue], Field(union_mode="left_to_right")]
"""`3`, `[1, 1]`, `same_upper`, or text in the grammar of values: `'[[1, 2], [3, 4]]'`, `"'It\\'s alive!'"`, `0x1F`,
`-inf`; an element type such as `float16` where ONNX uses its number; `{value: ..., dtype: ...}` or `{file: w.npy}` for
a tensor."""


class RewriteConditions(Settings):
    """Conditions on inputs and attributes of a pattern."""

    constants: dict[str, JsonValue] = Field(default={})
    """Input -> its constant value, a number or lists of numbers; `null` means any constant."""
    dtypes: dict[str, Words] = Field(default={})
    """Input -> its element type, such as `float16`, or a list of alternatives."""
    ranks: dict[str, int] = Field(default={})
    """Input -> its number of dimensions."""
    shapes: dict[str, tuple[int | str | None, ...]] = Field(default={})
    """Input -> its dimensions: numbers, names of dynamic ones, or `null` for any."""
    attributes: dict[str, Annotated[tuple[JsonValue, ...], BeforeValidator(_as_alternatives)]] = Field(default={})
    """Variable, without its `$` -> its value, or a list of alternatives; `{perm: [[0, 2, 1]]}` is one alternative."""
    single_use: Words = ()
    """Inputs that only the match reads."""

    @property
    def need_shapes(self) -> bool:
        """True when the conditions require inferred shapes and types."""
        return bool(self.dtypes or self.ranks or self.shapes)


class InitializerOperation(Operation, TensorValue):
    """Base of operations that give an initializer its value."""

    generate: RandomKind | None = None
    """Generate the numbers: `normal`, `zeros`, `ones`, `uniform_positive` or `uniform_negative`."""
    seed: int = Field(default=0, ge=0)
    """Seed for `generate`: the same seed generates the same numbers."""

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        if [self.value, self.file, self.generate].count(None) != 2:
            raise ValueError("give one of `value`, `file` and `generate`")
        return self


class NodeOperation(Operation):
    """Base of operations that create nodes."""

    op_type: str = Field(min_length=1)
    """The operator, such as `Relu`."""
    domain: str = ""
    """Domain of the operator, such as `com.microsoft`; the model's opset imports get it as needed. Operators outside
    the domains of ONNX and ONNX Runtime are custom operators, which are not checked."""
    attributes: dict[NewName, AttributeValue] = Field(default={})
    """Attribute -> value, as in `set_attributes`."""

    @property
    def own_domain(self) -> str:
        """The domain as models write it: empty for ONNX's own."""
        return "" if self.domain == "ai.onnx" else self.domain
