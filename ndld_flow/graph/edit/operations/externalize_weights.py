"""Store weights in a data file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import Bytes
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import SelectTensors
from ndld_flow.store.kinds import is_reserved

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class ExternalizeWeights(Operation):
    """Store weights in a data file next to the model.

        externalize_weights: {larger_than: 1 KiB, file: weights.bin}

    Weights that are already in data files are copied once, by the operating system, and not read into memory. Without
    this operation they are written to `model.onnx.data`, and weights inside the model stay there.
    """

    heading = "weight storage"
    keeps_outputs = True

    select: SelectTensors | None = None
    """Initializers to store there; all by default."""
    larger_than: Bytes = 1024
    """Smaller ones stay in the model, where tools look for constant shapes and axes."""
    file: str = ""
    """Name of the data file; `model.onnx.data` by default."""
    alignment: int = Field(default=4096, ge=1, le=2**20)
    """Offsets of tensors are multiples of this many bytes."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    @field_validator("file")
    @classmethod
    def _check_file(cls, file: str) -> str:
        taken = is_reserved(file) or file.casefold().endswith(".onnx")
        if file and (taken or not _PLAIN_NAME.fullmatch(file)):
            raise ValueError(
                f"{file!r}: the data file is in the model's folder; give a plain name such as `weights.bin`"
            )
        return file

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.base.quantities import size
        from ndld_flow.graph.edit.constant_tensors import dense_initializers
        from ndld_flow.models.external_data import Placement, place

        weights = dense_initializers(edited.model, self.select, self.allow_empty)
        chosen = [weight for weight in weights if weight.tensor.nbytes > self.larger_than]
        if not chosen and not self.allow_empty:
            raise RequestError(f"no selected initializer is larger than {size(self.larger_than)}")
        for weight in chosen:
            place(weight.value, Placement(self.file, self.alignment))
        total = size(sum(weight.tensor.nbytes for weight in chosen))
        return f"{len(chosen)} initializers ({total}) moved to {self.file or 'model.onnx.data'}"
