"""Precisions that were asked for and not given."""

from __future__ import annotations

from ndld_flow.records.build import Build
from ndld_flow.records.profile import Layer, Profile


def missed_precisions(profile: Profile, build: Build | None = None) -> tuple[int, ...]:
    """Positions of the layers that surely compute in another floating-point type than they were asked to.

    What a layer writes does not tell for all of them: engines fuse Casts into their layers, so that one of several
    nodes may compute in another type than it writes. ONNX Runtime's layers, which name a provider, do not.
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
    """ONNX nodes whose constraints the build ignored."""
    constraints = () if build is None else build.constraints
    return frozenset(one.node for one in constraints if one.is_ignored)
