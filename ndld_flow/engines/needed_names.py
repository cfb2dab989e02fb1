"""The names of TensorRT's API that settings need, and remedies for releases that lack them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ndld_flow.engines.build_settings import AdvancedSettings, BuildSettings, TacticSourceName, Weights

_TO_QDQ = "quantise the model: its Q/DQ nodes (QuantizeLinear, DequantizeLinear) say what is computed in {}"
_FLAGS_INSTEAD: Mapping[str, str] = {
    "FP16": "convert the model with a `convert_fp16` step, or ask for FP16 layer by layer with `constrain_precision` "
    "and `typing: obey`",
    "BF16": "ask for BF16 layer by layer with `constrain_precision` and `typing: obey`",
    **{flag: _TO_QDQ.format(flag) for flag in ("INT8", "FP8", "INT4", "FP4")},
    "OBEY_PRECISION_CONSTRAINTS": "write `typing: obey`",
    "PREFER_PRECISION_CONSTRAINTS": "write `typing: prefer`",
    "WEIGHTLESS": "write `weights: strip`",
}
_TACTIC_LIBRARIES: Mapping[TacticSourceName, str] = {"cublas": "cuBLAS", "cublas_lt": "cuBLASLt", "cudnn": "cuDNN"}

_LEAVE = "leave it out, or take a release that has it"

WEIGHTS_FLAGS: Mapping[Weights, tuple[str, ...]] = {
    "fixed": (),
    "refit": ("REFIT",),
    "refit_individual": ("REFIT_INDIVIDUAL",),
    "refit_identical": ("REFIT_IDENTICAL",),
    "strip": ("STRIP_PLAN",),  # TensorRT adds REFIT_IDENTICAL
    "strip_refit": ("STRIP_PLAN", "REFIT"),
}
"""The values of `weights` -> members of BuilderFlag."""

OWN_SETTINGS: Mapping[str, str] = {
    "FP16": "fp16: true",
    "BF16": "bf16: true",
    "INT8": "int8: true",
    "FP8": "fp8: true",
    "TF32": "tf32: true",
    "OBEY_PRECISION_CONSTRAINTS": "typing: obey",
    "PREFER_PRECISION_CONSTRAINTS": "typing: prefer",
    "SPARSE_WEIGHTS": "sparse_weights: true",
    "REFIT": "weights: refit",
    "REFIT_INDIVIDUAL": "weights: refit_individual",
    "REFIT_IDENTICAL": "weights: refit_identical",
    "STRIP_PLAN": "weights: strip",
    "WEIGHTLESS": "weights: strip",
    "VERSION_COMPATIBLE": "version_compatible: true",
    "EXCLUDE_LEAN_RUNTIME": "exclude_lean_runtime: true",
    "ERROR_ON_TIMING_CACHE_MISS": "error_on_timing_cache_miss: true",
    "DIRECT_IO": "advanced.direct_io: true",
    "WEIGHT_STREAMING": "advanced.weight_streaming: true",
    "GPU_FALLBACK": "advanced.gpu_fallback: true",
    "DISABLE_COMPILATION_CACHE": "advanced.compilation_cache: false",
}
"""Members of BuilderFlag that have a setting of their own -> the setting in a recipe."""


@dataclass(frozen=True)
class Need:
    """A name that a setting needs."""

    written: str
    """The setting as the recipe writes it: `fp16: true`."""
    owner: str
    name: str
    what: str
    """Description such as `FP16 flag`."""
    instead: str
    """Remedy for a release without it."""
    own_word: bool = False
    """The name comes from the recipe and may be misspelt."""


def list_needs(settings: BuildSettings) -> Iterator[Need]:
    """Return the names that these settings need beyond those of every release."""
    yield from _precision_needs(settings)
    yield from _calibration_needs(settings)
    yield from _tactic_needs(settings)
    yield from _target_needs(settings)
    yield from _advanced_needs(settings.advanced)
    yield from _named_needs(settings.advanced)


def _precision_needs(settings: BuildSettings) -> Iterator[Need]:
    allowed = {"FP16": settings.fp16, "BF16": settings.bf16, "INT8": settings.int8, "FP8": settings.fp8}
    for flag in (flag for flag, on in allowed.items() if on):
        yield Need(OWN_SETTINGS[flag], "BuilderFlag", flag, f"{flag} flag", _FLAGS_INSTEAD[flag])


def _calibration_needs(settings: BuildSettings) -> Iterator[Need]:
    instead = _TO_QDQ.format("INT8") + ", and their scales are the ranges"
    if settings.calibration_cache is not None:
        written = f"calibration_cache: {settings.calibration_cache}"
        yield Need(written, "IInt8EntropyCalibrator2", "", "INT8 calibration", instead)
    if settings.placeholder_ranges:
        yield Need("placeholder_ranges: true", "ITensor", "dynamic_range", "ranges of tensors", instead)


def _tactic_needs(settings: BuildSettings) -> Iterator[Need]:
    remaining = "leave it out: `edge_mask_convolutions` and `jit_convolutions` are the sources that remain"
    for source in settings.tactic_sources or ():
        library = _TACTIC_LIBRARIES.get(source)
        what = f"tactics from {library}" if library else f"tactic source {source}"
        yield Need(f"tactic_sources: [{source}]", "TacticSource", source.upper(), what, remaining)


def _target_needs(settings: BuildSettings) -> Iterator[Need]:
    if settings.hardware_compatibility == "same_compute_capability":
        written = "hardware_compatibility: same_compute_capability"
        what = "compatibility with GPUs of the same compute capability"
        instead = "take a later release, or `hardware_compatibility: ampere_plus`"
        yield Need(written, "HardwareCompatibilityLevel", "SAME_COMPUTE_CAPABILITY", what, instead)
    if settings.compute_capabilities:
        written = f"compute_capabilities: [{', '.join(settings.compute_capabilities)}]"
        what = "choice of GPUs to build for"
        instead = (
            "it builds for the GPU it runs on: take `hardware_compatibility` for others, or `backend: tensorrt_rtx`"
        )
        yield Need(written, "ComputeCapability", "", what, instead)


def _advanced_needs(advanced: AdvancedSettings) -> Iterator[Need]:
    if advanced.build_route is not None:
        written = f"advanced.build_route: {advanced.build_route}"
        yield Need(written, "IBuilderConfig", "build_route", "build routes", _LEAVE)
    if advanced.remote_auto_tuning is not None:
        written = f"advanced.remote_auto_tuning: {advanced.remote_auto_tuning}"
        yield Need(written, "IBuilderConfig", "remote_auto_tuning_config", "remote auto tuning", _LEAVE)
    for flag in advanced.quantization_flags:
        written, instead = f"advanced.quantization_flags: [{flag}]", _LEAVE
        if flag == "CALIBRATE_BEFORE_FUSION":
            instead = "leave it out: nothing is calibrated where Q/DQ nodes say what is INT8"
        yield Need(written, "QuantizationFlag", flag, f"quantization flag {flag}", instead, own_word=True)


def _named_needs(advanced: AdvancedSettings) -> Iterator[Need]:
    """Yield the names that a recipe writes as TensorRT does."""
    for flag in advanced.flags:
        written, instead = f"advanced.flags: [{flag}]", _FLAGS_INSTEAD.get(flag, _LEAVE)
        yield Need(written, "BuilderFlag", flag, f"builder flag {flag}", instead, own_word=True)
    for flag in advanced.parser_flags:
        written, what = f"advanced.parser_flags: [{flag}]", f"parser flag {flag}"
        yield Need(written, "OnnxParserFlag", flag, what, _LEAVE, own_word=True)
    for feature, on in advanced.preview_features.items():
        written, what = f"advanced.preview_features.{feature}: {str(on).lower()}", f"preview feature {feature}"
        yield Need(written, "PreviewFeature", feature, what, _LEAVE, own_word=True)
    for tensor, asked in advanced.io_formats.items():
        for name in asked.formats:
            written, what = f"advanced.io_formats.{tensor}.formats: [{name}]", f"tensor format {name}"
            yield Need(written, "TensorFormat", name.upper(), what, _LEAVE, own_word=True)
