"""A forecast of a build on this machine: the TensorRT that settings require, and settings that it does not support.

Computed from the settings, the machine and the library's version; imports no TensorRT, since every plan and run calls
it.

The limits of TensorRT-RTX were tested with 1.7.1: it warns and continues, silently does nothing, or fails while it
builds. Its engines are compiled ahead of time for kinds of GPUs and completed on the GPU on which they run, so nothing
is timed during a build.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.base.extras import ENGINE_LIBRARIES, TITLES, EngineBackend
from ndld_flow.base.text import short_name, suggest
from ndld_flow.engines.build_settings import (
    AdvancedSettings,
    BuildSettings,
    TacticSourceName,
    Weights,
    decide_typing,
    types_strongly,
)
from ndld_flow.machine.host import describe_machine, has_nvidia_gpu
from ndld_flow.models.external_files import mentions
from ndld_flow.runtimes.tensorrt.library import Library, how_to_install, is_of_release
from ndld_flow.runtimes.tensorrt.release_names import (
    Names,
    members,
    names_of_release,
    release_title,
    releases_text,
    short_release,
)
from ndld_flow.runtimes.tensorrt.required_library import choose_library, describe_other_release
from ndld_flow.step import Foresight

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
        if settings.advanced.weight_streaming:
            yield (
                f"`advanced.weight_streaming: true` needs a strongly typed network, not `typing: {settings.typing}`: "
                "set `typing: strong`"
            )
        if settings.advanced.quantization_flags and not settings.int8:
            yield "`advanced.quantization_flags` are about INT8 calibration: set `int8: true`, or remove them"
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


def find_build_library(settings: BuildSettings) -> Library:
    """Return the library to build with, which may have to be created. Raises BackendError if `library` has none."""
    return choose_library(settings.backend, settings.release, settings.library)


def build_versions(settings: BuildSettings) -> dict[str, str]:
    """Return the version of the library to build with; empty if there is none, which `foresee_build` reports."""
    try:
        library = find_build_library(settings)
    except BackendError:
        return {}
    return {library.backend: library.version or "not installed"}


def describe_missing(settings: BuildSettings, library: Library) -> str:
    """Return why a library is not the required one and how to install that; empty if it is."""
    if not settings.release:
        if library.found:
            return ""
        if settings.backend is None and library.origin == "not installed":
            rtx = how_to_install("tensorrt_rtx")
            return f"{library.missing}; or TensorRT-RTX, which builds without a GPU too: {rtx}"
        return library.missing
    return describe_other_release(library, settings.release)


def foresee_build(settings: BuildSettings) -> Foresight:
    """Return the effect of these settings in the required or installed release, and the requirements missing on this
    machine.
    """
    problems = tuple(_missing_files(settings))
    try:
        library = find_build_library(settings)
    except BackendError as error:  # the folder that `library` names has nothing usable
        return Foresight(problems=problems, lacks=(str(error),))
    missing = describe_missing(settings, library)
    release = settings.release if missing else library.version
    lacks = (*filter(None, [missing]), *_missing_hardware(settings, library))
    if not release:
        return Foresight(problems=problems, lacks=lacks)
    try:
        names = names_of_release(library.backend, release)
    except RequestError as error:  # older than what is supported
        return Foresight(problems=(*problems, str(error)))
    problems += refuse_settings(settings, names)
    if settings.lock is not None and settings.lock.is_file():
        from ndld_flow.engines.engine_lock import lock_problems

        problems += lock_problems(settings, settings.lock, library.version)
    return Foresight((*_notes(settings, names, library, release),), problems, lacks)


def foresee_ranges(settings: BuildSettings, model: Path, requested: frozenset[str]) -> tuple[str, ...]:
    """Return the problem of a weakly typed INT8 build without ranges of tensors; empty if there is none.

    INT8 is allowed by the settings, or by a precision constraint of a node: `requested` are those that are not in the
    model yet.
    TensorRT notices it only after minutes: "Calibration failure occurred with no scaling factors detected".
    """
    if settings.calibration_cache is not None or settings.placeholder_ranges:
        return ()
    cause = "`int8: true`" if settings.int8 else _int8_constraint(settings, model, requested)
    if not cause:
        return ()
    try:
        library = find_build_library(settings)
        release = settings.release if describe_missing(settings, library) else library.version
        names = names_of_release(library.backend, release) if release else None
    except RequestError:  # `foresee_build` reports it
        return ()
    if names is None or decide_typing(settings, names).strongly_typed or mentions(model, b"QuantizeLinear"):
        return ()
    return (
        f"{cause}: {release_title(names)} needs the ranges of tensors for INT8, and nothing gives them: the model "
        "has no Q/DQ nodes (QuantizeLinear, DequantizeLinear). Add a step `quantize` with `target: tensorrt`, or set "
        f"{'' if settings.int8 else '`int8: true` and '}`calibration_cache`; `placeholder_ranges: true` is only for "
        "measuring speed",
    )


def _int8_constraint(settings: BuildSettings, model: Path, requested: frozenset[str]) -> str:
    """Return the precision constraint that allows INT8; empty if none does."""
    from ndld_flow.precision.constraints.constraints import requested_precisions

    if settings.typing not in ("obey", "prefer"):
        return ""
    if "int8" in requested:
        return f"`typing: {settings.typing}` with nodes constrained to int8"
    try:
        node = next((node for node, precision in requested_precisions(model).items() if precision == "int8"), None)
    except RequestError:  # the step that reads the model reports it
        return ""
    return "" if node is None else f"`typing: {settings.typing}` with node {short_name(node)!r} constrained to int8"


def _notes(settings: BuildSettings, names: Names, library: Library, release: str) -> Iterator[str]:
    title = f"{TITLES[names.backend]} {short_release(release)}"
    where = "" if library.origin in ("installed", "not installed") else f" ({short_name(library.origin)})"
    parts = [decide_typing(settings, names).description]
    if len(settings.profiles) > 1:
        parts.append(f"{len(settings.profiles)} optimization profiles")
    if settings.batch is not None:
        parts.append(f"batch {settings.batch.min} to {settings.batch.max}, optimized for {settings.batch.opt}")
    parts.append(_target(settings, names.backend))
    yield f"{title}{where}: {'; '.join(parts)}"
    if not is_of_release(names.release, short_release(release)):
        yield f"{title} is unknown to ndld_flow: its settings are checked as those of {release_title(names)}"


def _target(settings: BuildSettings, backend: EngineBackend) -> str:
    if ENGINE_LIBRARIES[backend].compiles_on_load:
        listed = ", ".join(settings.compute_capabilities)
        return f"for SM {listed}" if listed else "for every RTX GPU since Ampere"
    this_gpu = f"this machine's GPU {settings.gpu}" if settings.gpu else "this machine's GPU"
    kind = {
        "none": this_gpu,
        "ampere_plus": "Ampere and later GPUs",
        "same_compute_capability": f"GPUs like {this_gpu}",
    }
    system = " on Windows" if settings.advanced.runtime_platform == "windows_amd64" else ""
    return f"for {kind[settings.hardware_compatibility]}{system}"


def _missing_files(settings: BuildSettings) -> Iterator[str]:
    named = {name: getattr(settings, name) for name in ("calibration_cache", "timing_cache_file", "lock")}
    named |= {f"plugins[{index}]": path for index, path in enumerate(settings.plugins)}
    for setting, path in named.items():
        if path is not None and not path.is_file():
            yield f"`{setting}`: no file {short_name(str(path))}; paths are relative to the current directory"


def _missing_hardware(settings: BuildSettings, library: Library) -> Iterator[str]:
    if not library.found and settings.backend is None and not settings.release:
        return  # the requirements depend on which of the two it will be
    machine = describe_machine()
    if not has_nvidia_gpu():
        yield from _missing_gpu(settings, library.backend)
    elif machine.gpus and settings.gpu >= len(machine.gpus):
        yield f"`gpu: {settings.gpu}`: GPUs are counted from 0, and this machine has {len(machine.gpus)}"
    if settings.advanced.dla_core is not None and machine.architecture.lower() not in ("aarch64", "arm64"):
        yield f"`advanced.dla_core: {settings.advanced.dla_core}`: this machine ({machine.architecture}) has no DLA"
    is_linux_x86 = machine.system.startswith("Linux") and machine.architecture == "x86_64"
    if settings.advanced.runtime_platform == "windows_amd64" and not is_linux_x86:
        yield "`advanced.runtime_platform: windows_amd64`: such engines are built only on Linux x86-64"


def _missing_gpu(settings: BuildSettings, backend: EngineBackend) -> Iterator[str]:
    title = TITLES[backend]
    if not ENGINE_LIBRARIES[backend].compiles_on_load:
        yield (
            f"{title} needs an NVIDIA GPU to build, and this machine has none; `backend: tensorrt_rtx` builds "
            "without one"
        )
        return
    if settings.weights != "fixed":  # compiling such an engine calls CUDA; others are compiled without it
        yield f"`weights: {settings.weights}`: {title} needs an NVIDIA GPU for that, and this machine has none"
    if settings.gpu:
        yield f"`gpu: {settings.gpu}`: this machine has no NVIDIA GPU, and {title} builds without one: remove it"
