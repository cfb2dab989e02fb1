"""Rules on computation that could be folded or fused."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from pydantic import JsonValue

from ndld_flow.base.quantities import counted
from ndld_flow.profiles.diagnose.recipe_change import FUSE, AddedStep, RecipeChange
from ndld_flow.profiles.diagnose.subject import Insight, Subject
from ndld_flow.records.profile import Layer

_SHAPES = ("Shape", "Size")
_FEWEST_SHAPES = 3
_INTEGERS = ("int64", "int32", "bool")
_FEW_VALUES = 64
"""A tensor of at most this many integers is a shape, an axis or an index."""
_NOTABLE_SHARE = 0.02
_CONVOLUTIONS = ("Conv", "FusedConv", "ConvTranspose")
_AFFINE = ("Mul", "Add", "Sub", "Div")
_LONGEST_WAY = 8
"""Maximum number of layers between a convolution and a layer that can be folded into it."""


def shapes_at_run_time(subject: Subject) -> Iterator[Insight]:
    """Report at least three Shape layers per pass, with the layers computed from them.

    With fixed input shapes their results are constants, and the runtime plans memory ahead
    (https://onnxruntime.ai/docs/tutorials/mobile/helpers/make-dynamic-shape-fixed.html).
    """
    shapes = subject.where(lambda layer: layer.type in _SHAPES)
    if len(shapes) < _FEWEST_SHAPES:
        return
    positions = subject.where(_computes_shapes)
    yield Insight(
        score=subject.share(positions),
        title=f"{counted(len(positions), 'layer')} computing shapes in each pass",
        evidence=f"{subject.call_types(positions)}: {subject.took_part(positions)}.",
        next_step=(
            "If the inputs always have this shape, run `fix_shapes` and then `sanitize`, which folds them; or set "
            "`free_dimensions` of `profile`."
        ),
        layers=positions,
        change=_with_fixed_shapes(subject),
    )


def scaling_not_folded(subject: Subject) -> Iterator[Insight]:
    """Report a layer that scales or shifts and is the only reader of a convolution: it can be folded into the weights
    and the bias of the convolution.

    It is a BatchNormalization, which at inference is a factor and an offset per channel (Jacob et al., 2017,
    https://arxiv.org/abs/1712.05877, section 3.2), or a Mul, Add, Sub or Div with a constant (one value, or one per
    channel).
    """
    positions = subject.where(
        lambda layer: (layer.type == "BatchNormalization" or _is_affine(layer)) and _reads_convolution(subject, layer)
    )
    part = subject.share(positions)
    if not positions or part < _NOTABLE_SHARE:
        return
    yield Insight(
        score=part,
        title=f"{counted(len(positions), 'layer')} scaling or shifting a convolution's output",
        evidence=f"{subject.call_types(positions)}: {subject.took_part(positions)}. The "
        f"longest is {subject.call(positions[0])}.",
        next_step="Run `sanitize` with `fuse: true`: it folds them into the weights of the convolution.",
        layers=positions,
        change=FUSE,
    )


def _computes_shapes(layer: Layer) -> bool:
    if layer.type in _SHAPES:
        return True
    tensors = (*layer.inputs, *layer.outputs)
    small = all(prod(tensor.shape) <= _FEW_VALUES and tensor.dtype in _INTEGERS for tensor in tensors)
    return bool(tensors) and small and layer.role != "control"


def _is_affine(layer: Layer) -> bool:
    """Return whether one input is a constant that is broadcast along all axes, or all but one."""
    if layer.type not in _AFFINE or not layer.weight_bytes or len(layer.inputs) != 2 or not layer.outputs:
        return False
    smaller = min((tensor.shape for tensor in layer.inputs), key=prod)
    if layer.type == "Div" and smaller != layer.inputs[1].shape:
        return False
    return sum(size > 1 for size in smaller) <= 1 and prod(smaller) < prod(layer.outputs[0].shape)


def _with_fixed_shapes(subject: Subject) -> RecipeChange | None:
    """Return the steps that make shapes constant; None for an input whose measured shape is not known."""
    inputs = subject.profile.inputs
    if not inputs or any(not tensor.name or min(tensor.shape, default=0) < 0 for tensor in inputs):
        return None
    shapes: dict[str, JsonValue] = {tensor.name: list(tensor.shape) for tensor in inputs}
    return RecipeChange(steps=(AddedStep("fix_shapes", {"shapes": shapes}), AddedStep("sanitize")))


def _reads_convolution(subject: Subject, layer: Layer) -> bool:
    """Return whether a layer is the only reader of a convolution, directly, through reorders or through similar
    layers."""
    for _ in range(_LONGEST_WAY):
        written = [
            (tensor.name, subject.makers[tensor.name]) for tensor in layer.inputs if tensor.name in subject.makers
        ]
        if len(written) != 1 or len(subject.readers[written[0][0]]) != 1:
            return False
        layer = subject.layers[written[0][1]]
        if layer.type in _CONVOLUTIONS:
            return True
        if layer.role != "reformat" and not _is_affine(layer):
            return False
    return False
