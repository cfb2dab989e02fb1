"""Inputs and outputs of an engine, and their comparison with its model's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ndld_flow.base.dtype_names import bits_of_dtype, dtype_of_tensorrt
from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name
from ndld_flow.models.tensors import Array, TensorSpec, numpy_dtype, shape_text

_FLOATS = ("float64", "float32", "float16", "bfloat16")
"""An engine may have other float types than its model: it computes doubles as floats, and
`--inputIOFormats=fp16:chw` of trtexec chooses a type."""
_UNTYPED = ""
"""The type of a tensor that a step has made an output of a model, if shape inference does not know it."""


@dataclass(frozen=True)
class EngineTensor:
    """One input or output of an engine."""

    name: str
    dtype: str
    """Name in numpy or ml_dtypes."""
    shape: tuple[int, ...]
    """Its shape; -1 for a dynamic dimension."""
    is_input: bool
    on_host: bool
    """Its values are read or written in the host's memory."""
    has_range: bool = False
    """A shape tensor: the engine limits its values."""
    padding: tuple[int, int] = (-1, 1)
    """The dimension that is stored in blocks, and their length; -1 for plain row-major tensors."""

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.name, self.dtype, tuple(None if dim < 0 else dim for dim in self.shape))

    def bytes_for(self, shape: Sequence[int], strides: Sequence[int] = ()) -> int:
        """Return the bytes of a tensor of this shape with filled blocks; `strides` are in blocks and may leave gaps."""
        dims, block = list(shape), 1
        if self.padding[0] >= 0:
            axis, block = self.padding
            dims[axis] = -(-dims[axis] // block)
        spanned = max((dim * stride for dim, stride in zip(dims, strides, strict=False)), default=0)
        blocks = max(prod(dims), spanned if prod(dims) else 0)
        return (blocks * block * (bits_of_dtype(self.dtype) or 8) + 7) // 8

    def values_for(self, values: Array) -> Array:
        """Return the values in the engine's dtype, in row-major order."""
        dtype = numpy_dtype(self.dtype)
        return np.asarray(values, dtype=values.dtype if dtype is None else dtype, order="C")


def tensors_of(trt: Any, engine: Any) -> dict[str, EngineTensor]:  # noqa: ANN401
    """Return the engine's tensors by name, in its order."""
    names = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
    return {
        name: EngineTensor(
            name=name,
            dtype=dtype_of_tensorrt(engine.get_tensor_dtype(name).name),
            shape=tuple(engine.get_tensor_shape(name)),
            is_input=engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT,
            on_host=engine.get_tensor_location(name) == trt.TensorLocation.HOST,
            has_range=engine.is_shape_inference_io(name),
            padding=(engine.get_tensor_vectorized_dim(name), max(1, engine.get_tensor_components_per_element(name))),
        )
        for name in names
    }


def refuse_other_model(
    tensors: Mapping[str, EngineTensor],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    called: str,
    marked: Sequence[str] = (),
) -> None:
    """Raise `RequestError` with all differences if an engine's inputs and outputs differ from the model's.

    `marked` are further outputs.
    """
    own = {name: tensor for name, tensor in tensors.items() if tensor.is_input or name not in marked}
    differences = [*_differences(own, inputs, "input"), *_differences(own, outputs, "output")]
    if differences:
        raise RequestError(
            f"{called} is not of this model: {'; '.join(differences)}. Name the model that it was built from, or "
            "rebuild it."
        )


def note_casts(tensors: Mapping[str, EngineTensor], inputs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """Return a sentence for each input whose float type in the engine differs from the model's."""
    return tuple(
        f"input {spec.name} is {tensors[spec.name].dtype} in the engine and {spec.dtype} in the model: values are cast"
        for spec in inputs
        if tensors[spec.name].dtype != spec.dtype
    )


def refuse_shape(
    name: str, given: Sequence[int], allowed: Sequence[Sequence[int]], profile: int, *, values: bool = False
) -> None:
    """Raise `RequestError` if the shape of an input (or the values of a shape tensor) is outside of its bounds."""
    low, _, high = allowed
    fits = len(given) == len(low) and all(a <= dim <= b for a, dim, b in zip(low, given, high, strict=True))
    if fits:
        return
    value = f"values {shape_text(given)} are" if values else f"shape {shape_text(given)} is"
    exactly = list(low) == list(high)
    span = shape_text(low) if exactly else f"{shape_text(low)} to {shape_text(high)}"
    raise RequestError(
        f'input "{short_name(name)}": {value} outside of what the engine allows ({span}, '
        f"optimization profile {profile}). Change the recipe's `inputs:`, choose another `optimization_profile`, or "
        "build the engine for it."
    )


def _differences(tensors: Mapping[str, EngineTensor], specs: Sequence[TensorSpec], kind: str) -> Iterator[str]:
    own = {name: tensor for name, tensor in tensors.items() if tensor.is_input == (kind == "input")}
    known = {spec.name for spec in specs}
    for spec in specs:
        tensor = own.get(spec.name)
        if tensor is None:
            has = ", ".join(map(short_name, own)) or "none"
            yield f"it has no {kind} {short_name(spec.name)} (its {kind}s: {has})"
            continue
        both_float = tensor.dtype in _FLOATS and spec.dtype in _FLOATS
        same_type = both_float or spec.dtype in (tensor.dtype, _UNTYPED)
        if not (same_type and _same_shape(tensor.shape, spec.shape)):
            yield (
                f"{kind} {short_name(spec.name)} is {tensor.dtype} {tensor.spec.shape_text} in the engine and "
                f"{spec.dtype} {spec.shape_text} in the model"
            )
    yield from (f"the model has no {kind} {short_name(name)}" for name in own if name not in known)


def _same_shape(engine: Sequence[int], model: Sequence[int | str | None] | None) -> bool:
    """Compare shapes: an engine may fix dynamic dimensions of the model, but not the reverse."""
    if model is None:
        return True
    return len(engine) == len(model) and all(
        want == dim for dim, want in zip(engine, model, strict=True) if isinstance(want, int)
    )
