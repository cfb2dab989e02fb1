"""The shapes that an engine allows: from the step's settings, the recipe's inputs, or the model's fixed dimensions.

For each input, the first of these that applies: the step's `profiles`; the step's `batch`, if only the first dimension
is dynamic; the recipe's `inputs:`; the model's own static shape; and a batch of 1 if only the first dimension is
dynamic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ndld_flow.base.errors import BackendError, RequestError, UnknownNameError
from ndld_flow.base.text import short_name
from ndld_flow.engines.build_settings import BatchSetting, BuildSettings, ShapeSetting
from ndld_flow.inputs import InputSpec, Shape
from ndld_flow.records.build import BuiltProfile, ShapeRange
from ndld_flow.runtimes.tensorrt.library import Bound

_INFERRED = "inferred batch"


@dataclass(frozen=True)
class NetworkInput:
    """One input of the network."""

    name: str
    shape: tuple[int, ...]
    """-1 for a dynamic dimension."""
    dims: tuple[str, ...] = ()
    """Names of dimensions; empty for dimensions without one."""
    is_shape_tensor: bool = False
    """True if its values determine shapes, so that the profile gives values."""

    @classmethod
    def of(cls, tensor: Bound) -> NetworkInput:
        """Return the input of an ITensor."""
        shape = tuple(tensor.shape)
        dims = tuple(tensor.get_dimension_name(index) or "" for index in range(len(shape)))
        return cls(tensor.name, shape, dims, bool(tensor.is_shape_tensor))

    @property
    def only_batch_is_dynamic(self) -> bool:
        return bool(self.shape) and self.shape[0] == -1 and -1 not in self.shape[1:] and not self.is_shape_tensor

    @property
    def shown(self) -> str:
        """Return `x [batch, 3, ?, ?]`."""
        dims = self.dims or ("",) * len(self.shape)
        shown = (
            short_name(dim) or "?" if size == -1 else str(size) for size, dim in zip(self.shape, dims, strict=True)
        )
        return f"{short_name(self.name)} [{', '.join(shown)}]"


def choose_profiles(
    inputs: Sequence[NetworkInput], settings: BuildSettings, recipe: Mapping[str, InputSpec]
) -> tuple[BuiltProfile, ...]:
    """Return the optimization profiles of an engine, with every input in each.

    Raises RequestError that names the input, its dimensions and the profile if a shape is missing or does not fit.
    """
    if settings.profiles:
        return tuple(_profile_of_setting(inputs, profile, number) for number, profile in enumerate(settings.profiles))
    _refuse_unknown(recipe, inputs, "inputs")
    chosen = {given.name: _choose(given, settings.batch, recipe.get(given.name)) for given in inputs}
    missing = [given for given in inputs if chosen[given.name] is None]
    if missing:
        raise RequestError(_describe_missing(missing, "the optimization profile (profiles[0])"))
    known = {name: choice for name, choice in chosen.items() if choice is not None}
    bases = list(dict.fromkeys(basis for _, basis in known.values() if basis != "fixed shapes"))
    return (
        BuiltProfile(
            inputs={name: shapes for name, (shapes, _) in known.items()}, basis=", ".join(bases) or "fixed shapes"
        ),
    )


def add_profiles(builder: Bound, config: Bound, profiles: Sequence[BuiltProfile], extra_memory: float | None) -> None:
    """Add the profiles to a builder's configuration. Raises BackendError if TensorRT rejects one."""
    for number, profile in enumerate(profiles):
        added = make_profile(builder, profile)
        if extra_memory is not None:
            added.extra_memory_target = extra_memory
        if config.add_optimization_profile(added) < 0:
            shown = ", ".join(
                f"{short_name(name)} {list(shapes.min)} {list(shapes.opt)} {list(shapes.max)}"
                for name, shapes in profile.inputs.items()
            )
            raise BackendError(f"TensorRT rejects optimization profile {number}: {shown}")


def make_profile(builder: Bound, shapes_of: BuiltProfile) -> Bound:
    """Return an IOptimizationProfile. Raises BackendError if TensorRT rejects the shapes of an input."""
    profile = builder.create_optimization_profile()
    for name, shapes in shapes_of.inputs.items():
        put = profile.set_shape_input if shapes.values else profile.set_shape
        try:
            put(name, shapes.min, shapes.opt, shapes.max)
        except (RuntimeError, TypeError, ValueError):  # not consistent, beyond int32 or int64, more than 8 dimensions
            shown = f"{short_name(name)} {list(shapes.min)} {list(shapes.opt)} {list(shapes.max)}"
            raise BackendError(f"TensorRT rejects these shapes of an optimization profile: {shown}") from None
    return profile


def assumed_batch(profiles: Sequence[BuiltProfile]) -> str:
    """Return a note if a batch of 1 was assumed, else an empty string."""
    if not any(_INFERRED in profile.basis for profile in profiles):
        return ""
    return "the dynamic batch dimension is 1, as no setting gives a size: set `batch`, `profiles` or `inputs:`"


def _profile_of_setting(
    inputs: Sequence[NetworkInput], profile: Mapping[str, ShapeSetting], number: int
) -> BuiltProfile:
    where = f"profiles[{number}]"
    _refuse_unknown(profile, inputs, where)
    missing = [given for given in inputs if given.name not in profile and (-1 in given.shape or given.is_shape_tensor)]
    if missing:
        raise RequestError(_describe_missing(missing, where))
    ranges = {}
    for given in inputs:
        shape = profile.get(given.name)
        ranges[given.name] = (
            _fixed(given.shape)
            if shape is None
            else _checked(given, ShapeRange(min=shape.min, opt=shape.opt, max=shape.max), where)
        )
    return BuiltProfile(inputs=ranges, basis=where)


def _refuse_unknown(names: Iterable[str], inputs: Sequence[NetworkInput], where: str) -> None:
    known = [given.name for given in inputs]
    for name in names:
        if name not in known:
            raise UnknownNameError(f'{where}: "{short_name(name)}" is not an input of the model', name, known)


def _choose(given: NetworkInput, batch: BatchSetting | None, spec: InputSpec | None) -> tuple[ShapeRange, str] | None:
    """Return the shapes of one input and their source; None if no setting gives them."""
    if given.is_shape_tensor:
        # The recipe's `data:` is the value of every element.
        if spec is None or not isinstance(spec.data, int) or -1 in given.shape:
            return None
        values: Shape = (spec.data,) * math.prod(given.shape)
        return ShapeRange(min=values, opt=values, max=values, values=True), "inputs"
    if batch is not None and given.only_batch_is_dynamic:
        rest = given.shape[1:]
        return ShapeRange(min=(batch.min, *rest), opt=(batch.opt, *rest), max=(batch.max, *rest)), "batch"
    best = None if spec is None else spec.run_shape or spec.max or spec.min
    if spec is not None and best is not None:
        shapes = ShapeRange(min=spec.min or best, opt=best, max=spec.max or best)
        return _checked(given, shapes, "inputs"), "inputs" if -1 in given.shape else "fixed shapes"
    if -1 not in given.shape:
        return _fixed(given.shape), "fixed shapes"
    return (_fixed((1, *given.shape[1:])), _INFERRED) if given.only_batch_is_dynamic else None


def _checked(given: NetworkInput, shapes: ShapeRange, where: str) -> ShapeRange:
    shown = f"[{', '.join(map(str, shapes.opt))}]"
    if given.is_shape_tensor:
        count = math.prod(given.shape)
        if len(shapes.opt) != count:
            raise RequestError(
                f"{where}: {given.shown} is a shape tensor, so its profile gives its {count} values, not {shown}"
            )
        return shapes.model_copy(update={"values": True})
    if len(shapes.opt) != len(given.shape):
        raise RequestError(
            f"{where}: {given.shown} has {len(given.shape)} dimensions in the model, but {shown} has {len(shapes.opt)}"
        )
    for bound in (shapes.min, shapes.opt, shapes.max):
        if any(own not in (-1, size) for own, size in zip(given.shape, bound, strict=True)):
            raise RequestError(
                f"{where}: [{', '.join(map(str, bound))}] does not fit {given.shown}: dimensions with a number are "
                "fixed in the model"
            )
    return shapes


def _fixed(shape: Shape) -> ShapeRange:
    return ShapeRange(min=shape, opt=shape, max=shape)


def _describe_missing(missing: Sequence[NetworkInput], where: str) -> str:
    named = "; ".join(
        f"{given.shown} is a shape tensor, whose values are missing"
        if given.is_shape_tensor
        else f"{given.shown} has dynamic dimensions"
        for given in missing
    )
    first = missing[0]
    count = math.prod(first.shape) if first.is_shape_tensor else len(first.shape)
    shape = (
        ", ".join(("1",) * max(count, 1))
        if first.is_shape_tensor
        else ", ".join("1" if size == -1 else str(size) for size in first.shape)
    )
    return (
        f"{where} lacks shapes: {named}. Give them, such as `profiles: [{{{short_name(first.name)}: {{min: [{shape}], "
        f"opt: [{shape}], max: [{shape}]}}}}]`, or in the recipe's `inputs:`."
    )
