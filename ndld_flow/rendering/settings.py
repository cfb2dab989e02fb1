"""Settings of images: what is drawn, and how values become pixels."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ndld_flow.base.settings import Settings
from ndld_flow.rendering.formula import FUNCTIONS, names_in, parse_formula

ImageName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
"""A name that is also the name of a folder."""
TensorLayout = Literal["NCHW", "NHWC", "CHW", "HWC", "HW"]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Operand(Settings):
    """A tensor in a formula."""

    tensor: str
    """Name of a tensor, of an input or of a weight."""
    model: Literal["candidate", "reference"] | None = None
    """The model whose tensor it is. By default the formula is drawn for each model with its own tensors."""
    layout: TensorLayout | None = None
    """Meaning of the dimensions; by default inferred from the shape."""


class ImageSettings(Settings):
    """An image of a tensor, or of a formula over tensors."""

    tensor: str | None = None
    """Name of a tensor, of an input or of a weight. Of several items of a batch, the first is drawn."""
    formula: str | None = None
    """Instead of `tensor`: an expression such as `4 * abs(a - b)` over the names in `tensors`, with numbers, `+`, `-`,
    `*`, `/`, `%`, `**`, one comparison, and the functions abs, sqrt, exp, log, sigmoid, tanh, minimum, maximum,
    clip(x, low, high), where(condition, x, y), and mean (over the channels)."""
    tensors: dict[str, str | Operand] = Field(default={})
    """Name in the formula -> tensor, or `{tensor: NAME, model: reference}` for the other model's."""
    draw: Literal["image", "tiles"] | None = None
    """`image`: one or three channels as gray or RGB. `tiles`: every channel as a gray tile; convolution kernels as rows
    of tiles, one row for each output channel. By default `image` for one and three channels, else `tiles`."""
    layout: TensorLayout | None = None
    """Meaning of the dimensions of `tensor`; by default inferred from the shape."""
    channels: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Channels to draw, in this order; three with `draw: image` are red, green and blue. By default all."""
    color: Literal["rgb", "bgr"] = "rgb"
    """Order of three channels."""
    range: tuple[Finite, Finite] | None = None
    """Values of black and white, such as `[0, 1]`. By default [0, 255] for integers of 8 bits, [0, 1] if no value of
    the first model is outside, else its smallest and largest value. Both models are drawn with the same range."""
    target: str | None = None
    """Name of the input whose values, before `noise`, the tensor should have: it is drawn too, and `psnr` is the
    distance from it. Files are named in the step's `targets`. Needs `range`."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.tensor is None) == (self.formula is None):
            raise ValueError("give either `tensor` or `formula`")
        if self.formula is None and self.tensors:
            raise ValueError("`tensors` names the operands of a `formula`")
        if self.formula is not None:
            self._check_formula(self.formula)
        if self.range is not None and self.range[0] >= self.range[1]:
            raise ValueError("`range` is [black, white], and black must be smaller than white")
        if self.target is not None and self.range is None:
            raise ValueError("`target` needs `range`: the PSNR is relative to the distance from black to white")
        return self

    def _check_formula(self, formula: str) -> None:
        used = names_in(parse_formula(formula))
        if self.layout is not None or self.target is not None:
            raise ValueError("`layout` and `target` go with `tensor`; an operand has its own `layout`")
        for name in sorted(used - self.tensors.keys()):
            raise ValueError(f"the formula uses `{name}`, which `tensors` does not have")
        for name in sorted(self.tensors.keys() - used):
            raise ValueError(f"`tensors` has `{name}`, which the formula does not use")
        for name in sorted(self.tensors.keys() & FUNCTIONS.keys()):
            raise ValueError(f"`{name}` is a function of formulas: give the tensor another name")

    @property
    def operands(self) -> dict[str, Operand]:
        """Return name -> tensor; the only one of an image without formula is named `x`."""
        if self.tensor is not None:
            return {"x": Operand(tensor=self.tensor, layout=self.layout)}
        return {
            name: Operand(tensor=operand) if isinstance(operand, str) else operand
            for name, operand in self.tensors.items()
        }
