"""Layers that do not have the requested precision."""

from __future__ import annotations

from ndld_flow.records.build import Build
from ndld_flow.records.profile import Layer, Profile


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
        if layer.role == "compute" and layer.computes_other_than_asked and is_sure(layer)
    )


def ignored_nodes(build: Build | None) -> frozenset[str]:
    """Return the ONNX nodes whose constraints the build ignored."""
    constraints = () if build is None else build.constraints
    return frozenset(one.node for one in constraints if one.is_ignored)
