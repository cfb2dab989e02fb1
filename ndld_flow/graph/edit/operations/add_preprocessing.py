"""Camera frames as a model's input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel

Size = Annotated[int, Field(ge=1)]
NotZero = Annotated[float, Field(gt=0)]


class AddPreprocessing(Operation):
    """Let an image input take camera frames: uint8, channels last, scaled and normalized inside the model.

    The model gets (frame * scale - mean) / std, computed in fp32; the results are those of preprocessed floats up to
    1e-6 of the largest.

        add_preprocessing: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], swap_channels: true}
    """

    about = "named surgeries"

    input: str | None = None
    """The input; it may be left out when only one has 4 dimensions. It keeps its name."""
    layout: Literal["NHWC", "NCHW"] = "NHWC"
    """The frames' order of axes."""
    dtype: Literal["uint8", "uint16", "int8", "float16", "float32"] = "uint8"
    """The frames' type."""
    model_layout: Literal["NCHW", "NHWC"] = "NCHW"
    """The order of axes that the model has now."""
    swap_channels: bool = False
    """Turn BGR frames to RGB, or RGB to BGR."""
    scale: float = 1 / 255
    """What frames are multiplied by first."""
    mean: tuple[float, ...] = ()
    """Subtracted after scaling; one number, or one for each channel in the model's order. None is 0."""
    std: tuple[NotZero, ...] = ()
    """What is divided by then; none is 1."""
    resize_to: tuple[Size, Size] | None = None
    """Height and width that frames of any size get (linear, half-pixel centres); none leaves them as they come."""
    fold: bool = False
    """Put scale, mean, std and swapped channels into the weights of the first Conv where that is possible, and say why
    where it is not. A Conv that pads keeps its mean before it. Outputs then differ in the last bits (about 1e-5 of the
    largest)."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.surgeries.preprocessing import Camera, add_preprocessing_to

        camera = Camera(
            layout=self.layout,
            dtype=self.dtype,
            model_layout=self.model_layout,
            swap_channels=self.swap_channels,
            scale=self.scale,
            mean=self.mean,
            std=self.std,
            resize_to=self.resize_to,
            fold=self.fold,
        )
        name = add_preprocessing_to(edited, self.input, camera)
        return f"{name} takes {self.dtype} frames in {self.layout}"
