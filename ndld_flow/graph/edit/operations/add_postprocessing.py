"""Classes, the best ones, or another type in place of an output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class AddPostprocessing(Operation):
    """Put Softmax, ArgMax, TopK or a Cast after an output.

    What is put out in its place keeps its name; of TopK there are two, `<output>_values` and `<output>_indices`.

        add_postprocessing: {output: logits, activation: softmax, top_k: 5}
    """

    about = "named surgeries"

    output: str | None = None
    """The output; it may be left out when there is only one."""
    activation: Literal["softmax", "sigmoid"] | None = None
    """Done first."""
    argmax: bool = False
    """The index of the largest along `axis`, which goes."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """So many of the largest along `axis`, and their indices."""
    axis: int = -1
    """The axis of classes."""
    cast: Literal["float16", "float32", "float64", "int32", "int64", "uint8"] | None = None
    """The type of what is put out, done last."""
    keep: bool = False
    """Put out what was put out before, too; it keeps its name then."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if self.argmax and self.top_k is not None:
            raise ValueError("`argmax` and `top_k` exclude each other")
        if not (self.activation or self.argmax or self.top_k or self.cast):
            raise ValueError("say what to do: `activation`, `argmax`, `top_k` or `cast`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.surgeries.postprocessing import Wanted, add_postprocessing_to

        wanted = Wanted(
            activation=self.activation.capitalize() if self.activation else None,
            argmax=self.argmax,
            top_k=self.top_k,
            axis=self.axis,
            cast=self.cast,
            keep=self.keep,
        )
        return f"{', '.join(add_postprocessing_to(edited, self.output, wanted))} put out"
