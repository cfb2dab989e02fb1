"""Features that TensorRT-RTX names but does not support.

Tried with TensorRT-RTX 1.7.1: it warns and goes on, silently does nothing, or fails while it builds. Its engines are
compiled ahead of time for kinds of GPUs and finished on the GPU they run on, so nothing is timed while building.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ndld_flow.engines.build_settings import AdvancedSettings, BuildSettings
from ndld_flow.runtimes.tensorrt.release_names import Names, members


@dataclass(frozen=True)
class Limit:
    """A setting that TensorRT-RTX does not support."""

    written: str
    """The setting as the recipe writes it."""
    fact: str
    """Behaviour of TensorRT-RTX: `times nothing while it builds`."""
    instead: str = "leave it out"
    """Remedy."""


def list_rtx_limits(settings: BuildSettings, names: Names) -> Iterator[Limit]:
    """Return the settings that TensorRT-RTX does not support although it has their names."""
    yield from _unknown_gpus(settings, names)
    yield from _compatibility(settings)
    yield from _timing(settings)
    yield from _dla(settings.advanced)
    yield from _advanced(settings.advanced)
    if settings.native_instance_norm is False:  # the parser makes the same network of it
        yield Limit("native_instance_norm: false", "has no plugin for InstanceNormalization, only its own")


def capability_member(capability: str) -> str:
    """Return `SM86`, the member of ComputeCapability, for `8.6`."""
    return f"SM{capability.replace('.', '')}"


def _unknown_gpus(settings: BuildSettings, names: Names) -> Iterator[Limit]:
    known = [member for member in members(names, "ComputeCapability") if member.startswith("SM")]
    has = ", ".join(sorted((f"{member[2:-1]}.{member[-1]}" for member in known), key=float))
    for capability in settings.compute_capabilities:
        if not names.has("ComputeCapability", capability_member(capability)):
            instead = "take one of these, or `backend: tensorrt` on such a GPU"
            yield Limit(f"compute_capabilities: [{capability}]", f"builds for {has}", instead)


def _compatibility(settings: BuildSettings) -> Iterator[Limit]:
    if settings.hardware_compatibility != "none":  # it warns, and the level stays NONE
        written = f"hardware_compatibility: {settings.hardware_compatibility}"
        fact = "builds engines that run on every RTX GPU from Ampere on"
        yield Limit(written, fact, "leave it out, or list `compute_capabilities` for some GPUs only")
    if settings.version_compatible and not settings.exclude_lean_runtime:  # there is no libnvinfer_lean.so.1
        fact = "has no lean runtime to put into the engine"
        yield Limit("version_compatible: true", fact, "add `exclude_lean_runtime: true`")


def _timing(settings: BuildSettings) -> Iterator[Limit]:
    """Its timing cache stays empty, and a miss is no error."""
    fact = "times nothing while it builds"
    if settings.timing_cache_file is not None:
        yield Limit(f"timing_cache_file: {settings.timing_cache_file}", fact)
    if settings.error_on_timing_cache_miss:
        yield Limit("error_on_timing_cache_miss: true", fact)


def _dla(advanced: AdvancedSettings) -> Iterator[Limit]:
    asked = [f"advanced.memory_pools.{pool}" for pool in advanced.memory_pools if pool.startswith("dla_")]
    asked += [f"advanced.parser_flags: [{flag}]" for flag in advanced.parser_flags if flag.endswith("_DLA")]
    if advanced.dla_core is not None:  # it is ignored: there are 0 cores
        asked.append(f"advanced.dla_core: {advanced.dla_core}")
    if advanced.engine_capability == "dla_standalone":
        asked.append("advanced.engine_capability: dla_standalone")
    for written in asked:
        yield Limit(written, "builds for GPUs, not for a DLA", "leave it out, or take `backend: tensorrt`")


def _advanced(advanced: AdvancedSettings) -> Iterator[Limit]:
    if advanced.engine_capability == "safety":  # it finds no implementation for any node
        yield Limit("advanced.engine_capability: safety", "builds standard engines only", "take `backend: tensorrt`")
    if advanced.runtime_platform == "windows_amd64":
        yield Limit("advanced.runtime_platform: windows_amd64", "builds engines for Linux and Windows alike")
    if advanced.build_route is not None:  # it stays empty
        yield Limit(f"advanced.build_route: {advanced.build_route}", "has its build routes switched off")
