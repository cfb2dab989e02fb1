"""A profile as the rules look at it: medians once, and every share of the same whole."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from functools import cached_property

from ndld_flow.records.profile import Layer, Profile


class Subject:
    """What a profile says about its layers, computed once for all rules."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile

    @cached_property
    def medians_ms(self) -> tuple[float, ...]:
        """Of each layer, in the profile's order."""
        return tuple(layer.median_ms for layer in self.profile.layers)

    @cached_property
    def layers_ms(self) -> float:
        """All layers together."""
        return sum(self.medians_ms)

    @cached_property
    def pass_ms(self) -> float:
        """A pass as the layers saw it: with the profiler on, so that what lies outside them counts too."""
        passes = self.profile.layer_pass_ms
        return max(statistics.median(passes) if passes else 0.0, self.layers_ms)

    @cached_property
    def on_gpu(self) -> bool:
        """Whether the most wanted provider or backend runs on a GPU."""
        if self.profile.backend != "onnxruntime":
            return True
        return any(word in provider for provider in self.profile.providers[:1] for word in _GPU_PROVIDERS)

    def positions(self, layers: Iterable[Layer]) -> tuple[int, ...]:
        """Where these layers stand in the profile, the longest first."""
        wanted = {id(layer) for layer in layers}
        found = (position for position, layer in enumerate(self.profile.layers) if id(layer) in wanted)
        return tuple(sorted(found, key=lambda position: -self.medians_ms[position]))

    def sum_ms(self, positions: Sequence[int]) -> float:
        """What these layers take together."""
        return sum(self.medians_ms[position] for position in positions)

    def share(self, positions: Sequence[int]) -> float:
        """Of the pass, 0 to 1."""
        return self.sum_ms(positions) / self.pass_ms if self.pass_ms else 0.0


_GPU_PROVIDERS = ("CUDA", "Tensorrt", "TensorRT", "NvTensorRTRTX", "ROCM", "MIGraphX", "Dml", "WebGPU")
