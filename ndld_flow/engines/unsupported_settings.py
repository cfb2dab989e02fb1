"""Settings that a release does not support or that conflict, reported before anything is built.

The limits of TensorRT-RTX were tested with 1.7.1: it warns and continues, silently does nothing, or fails while it
builds. Its engines are compiled ahead of time for kinds of GPUs and completed on the GPU on which they run, so nothing
is timed during a build.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from ndld_flow.base.extras import ENGINE_LIBRARIES
from ndld_flow.base.text import short_name, suggest
from ndld_flow.engines.build_settings import (
    AdvancedSettings,
    BuildSettings,
    TacticSourceName,
    Weights,
    decide_typing,
    types_strongly,
)
from ndld_flow.runtimes.tensorrt.release_names import Names, members, release_title, releases_text

_TO_QDQ = "quantize the model: its Q/DQ nodes (QuantizeLinear, DequantizeLinear) determine what is computed in {}"
_FLAGS_INSTEAD: Mapping[str, str] = {
    "FP16": "convert the model with a `convert_fp16` step, or constrain layers to FP16 with `constrain_precision` "
    "and `typing: obey`",
    "BF16": "constrain layers to BF16 with `constrain_precision` and `typing: obey`",
    **{flag: _TO_QDQ.format(flag) for flag in ("INT8", "FP8", "INT4", "FP4")},
    "OBEY_PRECISION_CONSTRAINTS": "write `typing: obey`",
    "PREFER_PRECISION_CONSTRAINTS": "write `typing: prefer`",
    "WEIGHTLESS": "write `weights: strip`",
}
_TACTIC_LIBRARIES: Mapping[TacticSourceName, str] = {"cublas": "cuBLAS", "cublas_lt": "cuBLASLt", "cudnn": "cuDNN"}

_LEAVE = "remove it, or use a release that has it"

WEIGHTS_FLAGS: Mapping[Weights, tuple[str, ...]] = {
    "fixed": (),
    "refit": ("REFIT",),
    "refit_individual": ("REFIT_INDIVIDUAL",),
    "refit_identical": ("REFIT_IDENTICAL",),
    "strip": ("STRIP_PLAN",),  # TensorRT adds REFIT_IDENTICAL
    "strip_refit": ("STRIP_PLAN", "REFIT"),
}
"""The values of `weights` -> members of BuilderFlag."""

FLAG_SETTINGS: Mapping[str, str] = {
    "FP16": "fp16: true",
    "BF16": "bf16: true",
    "INT8": "int8: true",
    "FP8": "fp8: true",
    "SPARSE_WEIGHTS": "sparse_weights: true",
    "VERSION_COMPATIBLE": "version_compatible: true",
    "EXCLUDE_LEAN_RUNTIME": "exclude_lean_runtime: true",
    "ERROR_ON_TIMING_CACHE_MISS": "error_on_timing_cache_miss: true",
    "DIRECT_IO": "advanced.direct_io: true",
    "WEIGHT_STREAMING": "advanced.weight_streaming: true",
    "GPU_FALLBACK": "advanced.gpu_fallback: true",
    "DISABLE_COMPILATION_CACHE": "advanced.compilation_cache: false",
}
"""Members of BuilderFlag -> the setting in a recipe that alone sets each of them."""

OWN_SETTINGS: Mapping[str, str] = {
    **FLAG_SETTINGS,
    "TF32": "tf32: true",
    "OBEY_PRECISION_CONSTRAINTS": "typing: obey",
    "PREFER_PRECISION_CONSTRAINTS": "typing: prefer",
    "REFIT": "weights: refit",
    "REFIT_INDIVIDUAL": "weights: refit_individual",
    "REFIT_IDENTICAL": "weights: refit_identical",
    "STRIP_PLAN": "weights: strip",
    "WEIGHTLESS": "weights: strip",
}
"""Members of BuilderFlag that have a setting of their own -> the setting in a recipe."""


@dataclass(frozen=True)
class Need:
    """A name that a setting needs."""

    written: str
    """The setting as written in the recipe: `fp16: true`."""
    owner: str
    name: str
    what: str
    """Description, such as `FP16 flag`."""
    instead: str
    """Remedy for a release without it."""
    own_word: bool = False
    """True if the name comes from the recipe and may be misspelled."""


_SCALES = _TO_QDQ.format("INT8") + ", and their scales are the ranges"
_NEEDS: tuple[tuple[str, str, str, str, str], ...] = (
    *(
        (flag.lower(), "BuilderFlag", flag, f"{flag} flag", _FLAGS_INSTEAD[flag])
        for flag in ("FP16", "BF16", "INT8", "FP8")
    ),
    ("calibration_cache", "IInt8EntropyCalibrator2", "", "INT8 calibration", _SCALES),
    ("placeholder_ranges", "ITensor", "dynamic_range", "ranges of tensors", _SCALES),
    (
        "debug_tensors: unfused",
        "INetworkDefinition",
        "mark_unfused_tensors_as_debug_tensors",
        "debug tensors that remain after fusion",
        "list names or patterns, which may change fusions",
    ),
    (
        "hardware_compatibility: same_compute_capability",
        "HardwareCompatibilityLevel",
        "SAME_COMPUTE_CAPABILITY",
        "compatibility with GPUs of the same compute capability",
        "use a later release, or `hardware_compatibility: ampere_plus`",
    ),
    (
        "compute_capabilities",
        "ComputeCapability",
        "",
        "choice of GPUs to build for",
        "it builds for the GPU it runs on: set `hardware_compatibility` for others, or use `backend: tensorrt_rtx`",
    ),
    ("advanced.build_route", "IBuilderConfig", "build_route", "build routes", _LEAVE),
    ("advanced.remote_auto_tuning", "IBuilderConfig", "remote_auto_tuning_config", "remote auto tuning", _LEAVE),
)
"""A setting with any value, or with one -> owner, name, what and instead of its `Need`."""


def list_needs(settings: BuildSettings) -> Iterator[Need]:
    """Yield the names that these settings need and that some release lacks."""
    for setting, owner, name, what, instead in _NEEDS:
        if text := as_written(settings, setting):
            yield Need(text, owner, name, what, instead)
    for source in settings.tactic_sources or ():
        library = _TACTIC_LIBRARIES.get(source)
        what = f"tactics from {library}" if library else f"tactic source {source}"
        remaining = "remove it: only `edge_mask_convolutions` and `jit_convolutions` remain"
        yield Need(f"tactic_sources: [{source}]", "TacticSource", source.upper(), what, remaining)
    yield from _named_needs(settings.advanced)


def as_written(settings: BuildSettings, setting: str) -> str:
    """Return `advanced.dla_core: 0` for `advanced.dla_core` with any value, or for `advanced.dla_core: 0`; else ``."""
    name, _, wanted = setting.partition(": ")
    value = attrgetter(name)(settings)
    text = f"[{', '.join(value)}]" if isinstance(value, tuple) else str(value)
    text = text.lower() if isinstance(value, bool) else text
    is_given = text == wanted if wanted else value is not None and value is not False and value not in ("none", ())
    return f"{name}: {text}" if is_given else ""


def _named_needs(advanced: AdvancedSettings) -> Iterator[Need]:
    """Yield the names that a recipe spells as TensorRT does."""
    for flag in advanced.quantization_flags:
        written, instead = f"advanced.quantization_flags: [{flag}]", _LEAVE
        if flag == "CALIBRATE_BEFORE_FUSION":
            instead = "remove it: nothing is calibrated if Q/DQ nodes determine what is INT8"
        yield Need(written, "QuantizationFlag", flag, f"quantization flag {flag}", instead, own_word=True)
    for flag in advanced.flags:
        written, instead = f"advanced.flags: [{flag}]", _FLAGS_INSTEAD.get(flag, _LEAVE)
        yield Need(written, "BuilderFlag", flag, f"builder flag {flag}", instead, own_word=True)
    for flag in advanced.parser_flags:
        written, what = f"advanced.parser_flags: [{flag}]", f"parser flag {flag}"
        yield Need(written, "OnnxParserFlag", flag, what, _LEAVE, own_word=True)
    for feature, on in advanced.preview_features.items():
        written, what = f"advanced.preview_features.{feature}: {str(on).lower()}", f"preview feature {feature}"
        yield Need(written, "PreviewFeature", feature, what, _LEAVE, own_word=True)
    for tensor, wanted in advanced.io_formats.items():
        for name in wanted.formats:
            written, what = f"advanced.io_formats.{tensor}.formats: [{name}]", f"tensor format {name}"
            yield Need(written, "TensorFormat", name.upper(), what, _LEAVE, own_word=True)


def list_contradictions(settings: BuildSettings, names: Names) -> Iterator[str]:
    """Return sentences that name the settings and a remedy."""
    if decide_typing(settings, names).strongly_typed:
        yield from _against_strong_typing(settings, names)
    else:
        yield from _against_weak_typing(settings)
    for flag in settings.advanced.flags:
        if flag in OWN_SETTINGS:
            yield f"`advanced.flags: [{flag}]`: write `{OWN_SETTINGS[flag]}` instead"
    if "NATIVE_INSTANCENORM" in settings.advanced.parser_flags:
        yield "`advanced.parser_flags: [NATIVE_INSTANCENORM]`: write `native_instance_norm: true` instead"
    yield from _against_compatibility(settings)
    yield from _against_other_modes(settings)


def _against_strong_typing(settings: BuildSettings, names: Names) -> Iterator[str]:
    """Reject precision flags and types of tensors: both are errors in a strongly typed network."""
    if not types_strongly(names):  # releases without flags are reported by `list_needs`
        allowed = [name for name in ("fp16", "bf16", "int8", "fp8") if getattr(settings, name)]
        extra = [flag for flag in settings.advanced.flags if flag in ("INT4", "FP4")]  # they have no setting
        for written in (*(f"{name}: true" for name in allowed), *(f"advanced.flags: [{flag}]" for flag in extra)):
            yield (
                f"`{written}` excludes `typing: strong`, which keeps the model's types: remove one, or convert "
                "the model itself (`convert_fp16`, Q/DQ nodes)"
            )
    for tensor, wanted in settings.advanced.io_formats.items():
        if wanted.dtype:
            yield (
                f"`advanced.io_formats.{tensor}.dtype: {wanted.dtype}`: a strongly typed network keeps the model's "
                "types; change the model's own input or output, such as by `convert_fp16` with `keep_io: false`"
            )


def _against_weak_typing(settings: BuildSettings) -> Iterator[str]:
    if settings.advanced.weight_streaming:
        yield (
            f"`advanced.weight_streaming: true` needs a strongly typed network, not `typing: {settings.typing}`: "
            "set `typing: strong`"
        )
    if settings.advanced.quantization_flags and not settings.int8:
        yield "`advanced.quantization_flags` are about INT8 calibration: set `int8: true`, or remove them"


def _against_compatibility(settings: BuildSettings) -> Iterator[str]:
    hardware = f"hardware_compatibility: {settings.hardware_compatibility}"
    compatible = [hardware] if settings.hardware_compatibility != "none" else []
    for source in settings.tactic_sources or ():
        if source in _TACTIC_LIBRARIES and compatible:
            yield f"`tactic_sources: [{source}]` excludes `{hardware}`, which does not use it: remove one"
    compatible += ["version_compatible: true"] if settings.version_compatible else []
    if settings.native_instance_norm is False and compatible:
        yield f"`native_instance_norm: false` excludes `{compatible[-1]}`, which needs TensorRT's own: remove one"


def _against_other_modes(settings: BuildSettings) -> Iterator[str]:
    advanced = settings.advanced
    elsewhere = advanced.runtime_platform == "windows_amd64"
    if elsewhere and settings.version_compatible and not settings.exclude_lean_runtime:
        yield (
            "`advanced.runtime_platform: windows_amd64` with `version_compatible: true` would embed this system's lean "
            "runtime in the engine: add `exclude_lean_runtime: true`"
        )
    if advanced.remote_auto_tuning is not None and advanced.engine_capability != "safety":
        written = f"advanced.remote_auto_tuning: {advanced.remote_auto_tuning}"
        yield f"`{written}` is only for `advanced.engine_capability: safety`: remove it"
    if advanced.engine_capability == "dla_standalone" and advanced.dla_core is None:
        yield "`advanced.engine_capability: dla_standalone` builds for a DLA: set `advanced.dla_core`"


_TIMES_NOTHING = "times nothing while it builds; remove it"
"""The timing cache remains empty, and a miss is not an error."""
_NO_DLA = "builds for GPUs, not for a DLA; remove it, or use `backend: tensorrt`"
_RTX_LIMITS = {
    # It warns, and the level stays NONE.
    "hardware_compatibility": "builds engines that run on every RTX GPU since Ampere; remove it, or list "
    "`compute_capabilities` for some GPUs only",
    "timing_cache_file": _TIMES_NOTHING,
    "error_on_timing_cache_miss": _TIMES_NOTHING,
    "advanced.dla_core": _NO_DLA,  # it is ignored: there are 0 cores
    "advanced.engine_capability: dla_standalone": _NO_DLA,
    # It finds no implementation for some node.
    "advanced.engine_capability: safety": "builds only standard engines; use `backend: tensorrt`",
    "advanced.runtime_platform: windows_amd64": "builds engines for Linux and Windows alike; remove it",
    "advanced.build_route": "has its build routes switched off; remove it",  # it stays empty
    # The parser creates the same network.
    "native_instance_norm: false": "has no plugin for InstanceNormalization, only its own; remove it",
}
"""A setting with any value, or with one -> what TensorRT-RTX does in place of it, and the remedy."""


def list_rtx_limits(settings: BuildSettings, names: Names) -> Iterator[tuple[str, str]]:
    """Yield the settings that TensorRT-RTX does not support although its bindings have their names, and why."""
    known = [member for member in members(names, "ComputeCapability") if member.startswith("SM")]
    has = ", ".join(sorted((f"{member[2:-1]}.{member[-1]}" for member in known), key=float))
    for capability in settings.compute_capabilities:
        if not names.has("ComputeCapability", f"SM{capability.replace('.', '')}"):
            limit = f"builds for {has}; use one of these, or `backend: tensorrt` on such a GPU"
            yield f"compute_capabilities: [{capability}]", limit
    if settings.version_compatible and not settings.exclude_lean_runtime:  # there is no libnvinfer_lean.so.1
        limit = "has no lean runtime to embed in the engine; add `exclude_lean_runtime: true`"
        yield "version_compatible: true", limit
    for plugin in settings.plugins:
        if plugin.suffix == ".py":  # its parser creates the plugin, and ends the process when it adds the layer
            yield f"plugins: [{plugin}]", "has no layers with a kernel in Python; use `backend: tensorrt`"
    advanced = settings.advanced
    yield from ((f"advanced.memory_pools.{pool}", _NO_DLA) for pool in advanced.memory_pools if pool.startswith("dla_"))
    flags = [flag for flag in advanced.parser_flags if flag.endswith("_DLA")]
    yield from ((f"advanced.parser_flags: [{flag}]", _NO_DLA) for flag in flags)
    yield from ((text, limit) for setting, limit in _RTX_LIMITS.items() if (text := as_written(settings, setting)))


def refuse_settings(settings: BuildSettings, names: Names) -> tuple[str, ...]:
    """Return a sentence for each setting with which a release cannot build; empty if there is none.

    Each sentence names the setting as written in the recipe, and a remedy.
    """
    title = release_title(names)
    sentences: list[str] = []
    for need in list_needs(settings):
        # Enums of bindings have more than members: `BuilderFlag.name`.
        if names.has(need.owner, need.name) and (need.name.isupper() or not need.own_word):
            continue
        releases, instead = releases_text(names.backend, need.owner, need.name), need.instead
        if need.own_word and not releases:  # perhaps it is misspelled
            instead = suggest(need.name, members(names, need.owner)) or instead
        since = f" ({releases})" if releases else ""
        sentences.append(f"`{need.written}`: {title} has no {need.what}{since}; {instead}")
    if ENGINE_LIBRARIES[names.backend].compiles_on_load:
        sentences += [f"`{written}`: {title} {limit}" for written, limit in list_rtx_limits(settings, names)]
    sentences += list_contradictions(settings, names)
    of_setting: dict[str, str] = {}
    for sentence in sentences:  # one reason for each setting is enough
        of_setting.setdefault(sentence.split("`")[1], sentence)
    # Recipes may come from strangers: their text is escaped and shortened.
    return tuple(short_name(sentence, 600) for sentence in of_setting.values())
