"""The subject of engine rules: layers without times, the build, and the precisions that were requested."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from pydantic import JsonValue

from ndld_flow.base.quantities import count
from ndld_flow.profiles.diagnose.subject import LayersSubject, layers_word
from ndld_flow.records.build import Build, ShapeRange
from ndld_flow.records.profile import Layer, Profile


class EngineSubject(LayersSubject):
    """An engine's layers, as a profile without times, and its build if known."""

    def __init__(self, profile: Profile, build: Build | None) -> None:
        super().__init__(profile)
        self.build = build

    @property
    def is_timed(self) -> bool:
        return False

    @property
    def on_gpu(self) -> bool:
        return True

    def longest_first(self, positions: Iterable[int]) -> tuple[int, ...]:
        """Return the positions in execution order, as nothing was timed."""
        return tuple(sorted(positions))

    @property
    def whole(self) -> str:
        return "the layers' time"

    def share(self, positions: Iterable[int]) -> float:
        """Return 0, as nothing was timed."""
        return 0.0

    def took(self, positions: Sequence[int]) -> str:
        """Return `3 of 21 layers`."""
        return f"{count(len(positions))} of {layers_word(len(self.layers))}"

    @cached_property
    def computing(self) -> tuple[int, ...]:
        """Positions of the layers that compute in floating point."""
        return self.where(lambda layer: layer.role == "compute" and "float" in layer.precision)

    @cached_property
    def is_strongly_typed(self) -> bool:
        """True if the build records a strongly typed network."""
        return self.build is not None and self.build.is_strongly_typed

    def option(self, name: str) -> JsonValue:
        """Return a setting of the build; None where there is none."""
        return self.build.options.get(name) if self.build is not None else None

    def ranges(self) -> list[tuple[int, str, ShapeRange]]:
        """Return (profile number, input, shapes) of all inputs of all optimization profiles, without shape tensors."""
        profiles = self.build.profiles if self.build is not None else ()
        return [
            (number, name, shapes)
            for number, profile in enumerate(profiles)
            for name, shapes in profile.inputs.items()
            if not shapes.values
        ]

    def where(self, matches: Callable[[Layer], bool]) -> tuple[int, ...]:
        """Return the positions of the layers that match, in execution order."""
        return tuple(place for place, layer in enumerate(self.layers) if matches(layer))


def missed_precisions(profile: Profile, build: Build | None = None) -> tuple[int, ...]:
    """Return the positions of the layers that certainly compute in another floating-point type than requested.

    The output type of an engine's layer is no proof if the layer has several nodes: engines fuse Casts into layers.
    ONNX Runtime's layers, which name a provider, have no fused Casts.
    """
    ignored = ignored_nodes(build)
    strongly_typed = build is not None and build.is_strongly_typed

    def is_sure(layer: Layer) -> bool:
        if not ignored.isdisjoint(layer.onnx_nodes):
            return True
        return bool(layer.provider) or (len(layer.onnx_nodes) == 1 and not strongly_typed)

    return tuple(
        place
        for place, layer in enumerate(profile.layers)
        if layer.role == "compute" and layer.misses_requested_precision and is_sure(layer)
    )


def ignored_nodes(build: Build | None) -> frozenset[str]:
    """Return the ONNX nodes whose constraints the build ignored."""
    constraints = () if build is None else build.constraints
    return frozenset(constraint.node for constraint in constraints if constraint.is_ignored)
