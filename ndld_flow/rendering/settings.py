"""Settings of images: what is drawn, how values become pixels, and what is drawn over the input."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ndld_flow.base.settings import Settings
from ndld_flow.graph.edit.operations.add_nms import AddNms, Threshold
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


class HeatMap(Settings):
    """A map of scores, such as the probabilities of a text detector."""

    tensor: str
    """Name of the tensor; a smaller map is enlarged to the input."""
    channel: Annotated[int, Field(ge=0)] = 0
    """Channel to draw."""
    layout: TensorLayout | None = None
    """Meaning of the dimensions; by default inferred from the shape."""
    range: tuple[Finite, Finite] = (0.0, 1.0)
    """Values that are transparent and opaque."""
    threshold: Finite | None = None
    """Frame the connected regions above this value, count them, and compare them with those of the reference."""

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.range[0] >= self.range[1]:
            raise ValueError("`range` is [transparent, opaque], and the first must be smaller")
        return self


class Mask(Settings):
    """A class for every pixel, each in its color."""

    tensor: str
    """Name of the tensor: integers are classes; of several channels of floats the largest is the class; one channel of
    floats is compared with `threshold`."""
    layout: TensorLayout | None = None
    """Meaning of the dimensions; by default inferred from the shape."""
    threshold: Finite = 0.5
    """One channel: values above it belong to the mask."""
    background: int | None = 0
    """Class that is not drawn; null to draw all."""


class Predictions(AddNms):
    """Raw predictions of a detector, with boxes and scores, from which non-maximum suppression takes the detections.

    The settings and the arithmetic are those of the operation `add_nms`.
    """

    normalized: bool = False
    """Coordinates are shares of width and height, not pixels."""

    @model_validator(mode="after")
    def _check_result(self) -> Self:
        if self.is_plugin or self.result != "split" or self.keep:
            raise ValueError("`op_type`, `result` and `keep` do not apply to drawn predictions: remove them")
        return self


class Detections(Settings):
    """Final detections, of a model that has non-maximum suppression or needs none."""

    tensor: str | None = None
    """Name of a tensor [N, detections, 6] with x1, y1, x2, y2, score and class."""
    boxes: str | None = None
    """Instead of `tensor`: name of the boxes, [N, detections, 4] or [detections, 4]."""
    scores: str | None = None
    """With `boxes`: name of the scores, [N, detections] or [detections]."""
    classes: str | None = None
    """With `boxes`: name of the classes, [N, detections] or [detections]."""
    count: str | None = None
    """Name of the number of detections, if the tensors have places for more."""
    box_format: Literal["xyxy", "xywh", "yxyx"] = "xyxy"
    """Coordinates of a box: `xywh` is center and size, the others two corners."""
    normalized: bool = False
    """Coordinates are shares of width and height, not pixels."""
    score_threshold: Threshold = 0.25
    """Only boxes with a higher score are drawn."""

    @model_validator(mode="after")
    def _check_tensors(self) -> Self:
        if (self.tensor is None) == (self.boxes is None):
            raise ValueError("give either `tensor` or `boxes`")
        if (self.boxes is None) != (self.scores is None):
            raise ValueError("`boxes` and `scores` go together")
        if self.boxes is None and self.classes is not None:
            raise ValueError("`classes` goes with `boxes`")
        return self


class Labels(Settings):
    """The classes with the highest scores, as text."""

    tensor: str
    """Name of the scores, [N, classes] or [classes]."""
    activation: Literal["softmax", "sigmoid"] | None = None
    """Function to apply to scores that are logits."""
    top: Annotated[int, Field(ge=1, le=20)] = 5
    """Number of classes."""


class OverlaySettings(Settings):
    """Results of a model over its input, beside those of the reference. Give one or more parts."""

    over: str | None = None
    """Name of the input; by default the first one that is an image."""
    heat_map: HeatMap | None = None
    """A map of scores, in colors over the input."""
    mask: Mask | None = None
    """A class for every pixel."""
    predictions: Predictions | None = None
    """Boxes of a detector without non-maximum suppression, such as `[1, 84, 8400]` of YOLOv8."""
    detections: Detections | None = None
    """Boxes of a detector whose outputs are final."""
    labels: Labels | None = None
    """The best classes of a classifier."""
    names: tuple[str, ...] = ()
    """Names of the classes; by default those in the metadata of an Ultralytics model, else their numbers."""

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if not (self.heat_map or self.mask or self.predictions or self.detections or self.labels):
            raise ValueError("give at least one of `heat_map`, `mask`, `predictions`, `detections` and `labels`")
        if self.predictions is not None and self.detections is not None:
            raise ValueError("`predictions` are raw, `detections` are final: give one of them")
        return self
