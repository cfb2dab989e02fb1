"""Say which weights are written into data files and which into the model itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import size
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.tensor_criteria import TensorCriteria
from ndld_flow.graph.edit.tensor_selecting import ConstantTensor, constant_tensors, fitting_tensors
from ndld_flow.models.external_data import Placement, place, placement_of
from ndld_flow.models.sparse_tensors import SparseInitializer

_LARGEST_MODEL_BYTES = 2**31 - 2**26
"""A protobuf message stays under 2 GiB; some is for nodes."""


class Chosen(Protocol):
    """What both operations say."""

    @property
    def select(self) -> TensorCriteria | None: ...
    @property
    def allow_empty(self) -> bool: ...


class ExternaliseSettings(Chosen, Protocol):
    """What `externalise_weights` says."""

    @property
    def larger_than(self) -> int: ...
    @property
    def file(self) -> str: ...
    @property
    def alignment(self) -> int: ...


class InlineSettings(Chosen, Protocol):
    """What `inline_weights` says."""

    @property
    def smaller_than(self) -> int | None: ...


def externalise(edited: EditedModel, said: ExternaliseSettings) -> tuple[int, str]:
    """Let initializers be written to a data file; returns how many, and their size in words.

    Raises `RequestError` when there are none and that is not allowed.
    """
    held = [one for one in _dense(edited, said) if one.tensor.nbytes > said.larger_than]
    if not held and not said.allow_empty:
        raise RequestError(f"no initializer that is selected is larger than {size(said.larger_than)}")
    for one in held:
        place(one.value, Placement(said.file, said.alignment))
    return len(held), _size(held)


def inline(edited: EditedModel, said: InlineSettings) -> tuple[int, str]:
    """Let initializers be written into the model; returns how many, and their size in words.

    Raises `RequestError` when there are none and that is not allowed, and when the model would be too large for one
    file.
    """
    most = said.smaller_than
    held = [one for one in _dense(edited, said) if most is None or one.tensor.nbytes < most]
    if not held and not said.allow_empty:
        raise RequestError("no initializer that is selected is so small")
    for one in held:
        place(one.value, Placement(None))
    inside = [one for one in constant_tensors(edited.model) if _is_inside(one)]
    if sum(one.tensor.nbytes for one in inside) > _LARGEST_MODEL_BYTES:
        raise RequestError(
            f"the model would hold {_size(inside)} of weights; one file holds less than 2 GB. Inline the small ones "
            "only (`smaller_than`), or leave them in the data file"
        )
    return len(held), _size(held)


def _dense(edited: EditedModel, said: Chosen) -> list[ConstantTensor]:
    """Initializers that may lie in a data file."""
    if said.select is None:
        found = list(constant_tensors(edited.model, constants=False))
    else:
        found = fitting_tensors(edited.model, said.select, said.allow_empty, constants=False)
    return [
        one for one in found if not isinstance(one.tensor, SparseInitializer) and one.tensor.dtype != ir.DataType.STRING
    ]


def _is_inside(held: ConstantTensor) -> bool:
    """Whether it will be written into the model."""
    placement = placement_of(held.value)
    if held.tensor.dtype == ir.DataType.STRING:
        return False
    return placement.file is None if placement is not None else held.stored == "inline"


def _size(held: Sequence[ConstantTensor]) -> str:
    return size(sum(one.tensor.nbytes for one in held))
