"""Put weights into a data file beside the model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from ndld_flow.base.units import Bytes
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.tensor_selection import TensorsSelected
from ndld_flow.store.kinds import is_reserved

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class ExternaliseWeights(Operation):
    """Put weights into a data file beside the model.

        externalise_weights: {larger_than: 1 KiB, file: weights.bin}

    Weights that lie in data files already are copied once, by the system; none is read into memory. Without this
    operation they go to `model.onnx.data`, and weights in the model stay there.
    """

    about = "how weights are kept"
    keeps_outputs = True

    select: TensorsSelected | None = None
    """Which initializers; all unless said."""
    larger_than: Bytes = 1024
    """Smaller ones stay in the model: shapes and axes are looked at there."""
    file: str = ""
    """The data file's name; `model.onnx.data` unless said."""
    alignment: int = Field(default=4096, ge=1, le=2**20)
    """Each tensor begins at a multiple of so many bytes."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    @field_validator("file")
    @classmethod
    def _check_file(cls, file: str) -> str:
        taken = is_reserved(file) or file.casefold().endswith(".onnx")
        if file and (taken or not _PLAIN_NAME.fullmatch(file)):
            raise ValueError(f"{file!r}: the data file lies beside the model; give a plain name such as `weights.bin`")
        return file

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.weight_places import externalise

        count, words = externalise(edited, self)
        return f"{count} initializers ({words}) go to {self.file or 'model.onnx.data'}"
