"""Settings that conflict: every release of TensorRT refuses the combination, or one of them would have no effect."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.engines.needed_names import OWN_SETTINGS
from ndld_flow.engines.typing_modes import decide_typing, types_strongly
from ndld_flow.runtimes.tensorrt.release_names import Names

_MORE_WEAK_FLAGS = ("INT4", "FP4")  # beside those with a setting of their own
_LIBRARIES = ("cublas", "cublas_lt", "cudnn")


def list_contradictions(settings: BuildSettings, names: Names) -> Iterator[str]:
    """Return sentences that name the settings and a remedy."""
    if decide_typing(settings, names).strongly_typed:
        yield from _against_strong_typing(settings, names)
    else:
        yield from _against_weak_typing(settings)
    yield from _flags_with_own_settings(settings)
    yield from _against_compatibility(settings)
    yield from _against_other_modes(settings)


def _against_strong_typing(settings: BuildSettings, names: Names) -> Iterator[str]:
    """Precision flags are an error in a strongly typed network; types of its tensors cannot be set."""
    if not types_strongly(names):  # those that have no flags say so already
        allowed = [name for name in ("fp16", "bf16", "int8", "fp8") if getattr(settings, name)]
        extra = [flag for flag in settings.advanced.flags if flag in _MORE_WEAK_FLAGS]
        for written in (*(f"{name}: true" for name in allowed), *(f"advanced.flags: [{flag}]" for flag in extra)):
            yield (
                f"`{written}` excludes `typing: strong`, where the model's types are kept: leave one out, or convert "
                "the model itself (`convert_fp16`, Q/DQ nodes)"
            )
    for tensor, asked in settings.advanced.io_formats.items():
        if asked.dtype:
            yield (
                f"`advanced.io_formats.{tensor}.dtype: {asked.dtype}`: a strongly typed network keeps the model's "
                "types; change the model's own input or output, such as by `convert_fp16` with `keep_io: false`"
            )


def _against_weak_typing(settings: BuildSettings) -> Iterator[str]:
    if settings.advanced.weight_streaming:
        yield (
            f"`advanced.weight_streaming: true` needs a strongly typed network, not `typing: {settings.typing}`: "
            "set `typing: strong`"
        )
    if settings.advanced.quantization_flags and not settings.int8:
        yield "`advanced.quantization_flags` are about INT8 calibration: set `int8: true`, or leave them out"


def _flags_with_own_settings(settings: BuildSettings) -> Iterator[str]:
    for flag in settings.advanced.flags:
        if flag in OWN_SETTINGS:
            yield f"`advanced.flags: [{flag}]`: write `{OWN_SETTINGS[flag]}` instead"
    if "NATIVE_INSTANCENORM" in settings.advanced.parser_flags:
        yield "`advanced.parser_flags: [NATIVE_INSTANCENORM]`: write `native_instance_norm: true` instead"


def _against_compatibility(settings: BuildSettings) -> Iterator[str]:
    hardware = f"hardware_compatibility: {settings.hardware_compatibility}"
    compatible = [hardware] if settings.hardware_compatibility != "none" else []
    for source in settings.tactic_sources or ():
        if source in _LIBRARIES and compatible:
            yield f"`tactic_sources: [{source}]` excludes `{hardware}`, which does without it: leave one out"
    compatible += ["version_compatible: true"] if settings.version_compatible else []
    if settings.native_instance_norm is False and compatible:
        yield f"`native_instance_norm: false` excludes `{compatible[-1]}`, which needs TensorRT's own: leave one out"


def _against_other_modes(settings: BuildSettings) -> Iterator[str]:
    advanced = settings.advanced
    elsewhere = advanced.runtime_platform == "windows_amd64"
    if elsewhere and settings.version_compatible and not settings.exclude_lean_runtime:
        yield (
            "`advanced.runtime_platform: windows_amd64` with `version_compatible: true` would put this system's lean "
            "runtime into the engine: add `exclude_lean_runtime: true`"
        )
    if advanced.remote_auto_tuning is not None and advanced.engine_capability != "safety":
        written = f"advanced.remote_auto_tuning: {advanced.remote_auto_tuning}"
        yield f"`{written}` is for `advanced.engine_capability: safety` only: leave it out"
    if advanced.engine_capability == "dla_standalone" and advanced.dla_core is None:
        yield "`advanced.engine_capability: dla_standalone` builds for a DLA: set `advanced.dla_core`"
