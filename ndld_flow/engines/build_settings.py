"""The settings of the step `build_engine`, and the typing that they give a network: by the builder (weak) or by the
model (strong). Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from ndld_flow.base.extras import ENGINE_LIBRARIES, EngineBackend, EngineLibrary
from ndld_flow.base.name_patterns import NamePattern
from ndld_flow.base.quantities import Bytes
from ndld_flow.base.settings import Settings
from ndld_flow.inputs import Shape
from ndld_flow.runtimes.tensorrt.release_names import Names, Release
from ndld_flow.step import DataFile, RunsCode

Typing = Literal["default", "strong", "obey", "prefer"]
TacticSourceName = Literal["cublas", "cublas_lt", "cudnn", "edge_mask_convolutions", "jit_convolutions"]
Weights = Literal["fixed", "refit", "refit_individual", "refit_identical", "strip", "strip_refit"]
MemoryPool = Literal[
    "workspace", "dla_managed_sram", "dla_local_dram", "dla_global_dram", "tactic_dram", "tactic_shared_memory"
]


ComputeCapability = Annotated[
    str,
    BeforeValidator(lambda given: f"{given:.1f}" if isinstance(given, float) else given),
    Field(pattern=r"^\d{1,2}\.\d$"),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "pattern": r"^\d{1,2}\.\d$"}, {"type": "number"}], "examples": ["8.6"]}
    ),
]
"""Major and minor version: `8.6`, in quotes or as a number."""

_INT32 = 2**31 - 1  # the bindings' limit
PoolBytes = Annotated[Bytes, Field(le=2**63 - 1)]
"""Bytes within the range of a size in TensorRT."""


class ShapeSetting(Settings):
    """The shapes of one input that an optimization profile allows; for a shape tensor, its values."""

    min: Shape
    """Lower bound."""
    opt: Shape
    """The one for which tactics are chosen."""
    max: Shape
    """Upper bound."""

    @model_validator(mode="after")
    def _check_order(self) -> ShapeSetting:
        if len({len(self.min), len(self.opt), len(self.max)}) > 1:
            raise ValueError("`min`, `opt` and `max` must have the same number of dimensions")
        if any(not low <= best <= high for low, best, high in zip(self.min, self.opt, self.max, strict=True)):
            raise ValueError("every dimension must satisfy min <= opt <= max")
        return self


class BatchSetting(Settings):
    """Sizes of the dynamic first dimension that all inputs share."""

    min: Annotated[int, Field(ge=1)] = 1
    """Lower bound."""
    opt: Annotated[int, Field(ge=1)] = 1
    """The one for which tactics are chosen."""
    max: Annotated[int, Field(ge=1)] = 1
    """Upper bound."""

    @model_validator(mode="after")
    def _check_order(self) -> BatchSetting:
        if not self.min <= self.opt <= self.max:
            raise ValueError("a batch must satisfy min <= opt <= max")
        return self


class TensorFormatSetting(Settings):
    """The data type and memory format of one of the engine's inputs or outputs."""

    dtype: Literal["", "fp32", "fp16", "bf16", "int8", "int32", "int64", "uint8", "bool"] = ""
    """Data type; it can differ from the model's only in weakly typed networks."""
    formats: tuple[str, ...] = ()
    """Allowed formats, by TensorRT's names: `linear`, `chw32`, `hwc8`, ..."""


class AdvancedSettings(Settings):
    """The rest of TensorRT's IBuilderConfig, in its own terms. Omitted settings keep TensorRT's default."""

    io_formats: dict[str, TensorFormatSetting] = {}
    """Input or output -> its format."""
    direct_io: bool = False
    """Refuse to reformat inputs and outputs (DIRECT_IO)."""
    tiling: Literal["none", "fast", "moderate", "full"] | None = None
    """Effort of the search for tilings (tiling_optimization_level)."""
    l2_limit: PoolBytes | None = None
    """Size of the L2 cache that tilings may use (l2_limit_for_tiling)."""
    timing_iterations: Annotated[int, Field(ge=1, le=_INT32)] | None = None
    """Number of times that each tactic is timed (avg_timing_iterations)."""
    max_tactics: Annotated[int, Field(ge=1, le=_INT32)] | None = None
    """Maximum number of tactics to time (max_num_tactics)."""
    memory_pools: dict[MemoryPool, PoolBytes] = {}
    """Size limits of memory pools other than `workspace`."""
    weight_streaming: bool = False
    """Keep weights on the host and stream them in (WEIGHT_STREAMING); needs strong typing."""
    preview_features: dict[str, bool] = {}
    """Preview features by TensorRT's names, such as `RUNTIME_ACTIVATION_RESIZE_10_10`, on or off."""
    quantization_flags: tuple[str, ...] = ()
    """Quantization flags, by TensorRT's names."""
    parser_flags: tuple[str, ...] = ()
    """Flags of the ONNX parser, by TensorRT's names."""
    flags: tuple[str, ...] = ()
    """More builder flags, by TensorRT's names, such as `STRICT_NANS`, `MONITOR_MEMORY`, `DISTRIBUTIVE_INDEPENDENCE`."""
    dla_core: Annotated[int, Field(ge=0, le=_INT32)] | None = None
    """Build for this DLA core."""
    gpu_fallback: bool = False
    """Run layers that the DLA does not support on the GPU."""
    engine_capability: Literal["standard", "safety", "dla_standalone"] | None = None
    """Restriction of the engine's capability."""
    runtime_platform: Literal["same_as_build", "windows_amd64"] | None = None
    """Operating system that will run the engine. An engine for Windows is built on Linux x86-64 and does not run
    there."""
    compilation_cache: bool = True
    """Let the builder cache compiled code (off: DISABLE_COMPILATION_CACHE)."""
    max_threads: Annotated[int, Field(ge=1, le=_INT32)] | None = None
    """Maximum number of builder threads."""
    build_route: str | None = None
    """Compiler options `-name=value ...`, since 11.1; TensorRT lists them in all_build_routes."""
    remote_auto_tuning: str | None = None
    """Configuration of remote auto tuning, since 10.13, for safety engines."""
    extra_memory_target: Annotated[float, Field(ge=0, le=1)] | None = None
    """Additional weight memory for each optimization profile, as a fraction of its need without a limit; no limit by
    default."""

    @model_validator(mode="after")
    def _check_agreement(self) -> AdvancedSettings:
        if self.gpu_fallback and self.dla_core is None:
            raise ValueError("`gpu_fallback` needs `dla_core`")
        if self.l2_limit is not None and self.tiling in (None, "none"):
            raise ValueError("`l2_limit` needs `tiling`")
        return self


class BuildSettings(Settings):
    """Settings of an engine. `unsupported_settings.refuse_settings` rejects those that a release lacks."""

    backend: EngineBackend | None = None
    """`tensorrt` or `tensorrt_rtx`; by default the installed one, or TensorRT if both are."""
    release: Release = ""
    """The required release, such as `"10.8"`; by default any supported one. If it is not installed, pip installs it
    into a private environment when it is needed."""
    library: Annotated[Path | None, RunsCode()] = None
    """A TensorRT other than the installed one: a virtual environment that has it, or the folder of an unpacked
    archive."""
    profiles: tuple[dict[str, ShapeSetting], ...] = ()
    """Optimization profiles, each a mapping of inputs to their shapes; by default one profile from the recipe's
    `inputs:`."""
    batch: BatchSetting | None = None
    """Batch sizes, for inputs whose only dynamic dimension is the first; 1 by default."""
    compute_capabilities: tuple[ComputeCapability, ...] = ()
    """Compute capabilities to build for, such as `8.6`, with or without such a GPU (TensorRT-RTX only). By default this
    machine's, and with TensorRT-RTX those of every RTX GPU since Ampere."""
    typing: Typing = "default"
    """`default`: TensorRT's own (weak up to 10.x, strong since 11 and in RTX). `strong`: the types are those of the
    model. `obey`: the constraints of `constrain_precision` must be applied. `prefer`: they may be."""
    tf32: bool = True
    """Let fp32 layers compute in TF32."""
    fp16: bool = False
    """Allow FP16 tactics (weak typing only)."""
    bf16: bool = False
    """Allow BF16 tactics (weak typing only)."""
    int8: bool = False
    """Allow INT8 tactics (weak typing only)."""
    fp8: bool = False
    """Allow FP8 tactics (weak typing only; not together with `int8`)."""
    calibration_cache: Annotated[Path | None, DataFile()] = None
    """INT8 calibration cache of an earlier calibration."""
    placeholder_ranges: bool = False
    """Give every tensor a placeholder INT8 range. Only for measuring speed: the outputs are wrong."""
    sparse_weights: bool = False
    """Allow tactics for weights with structured sparsity."""
    tactic_sources: tuple[TacticSourceName, ...] | None = None
    """Libraries that tactics may come from; TensorRT's default if omitted, none if empty."""
    native_instance_norm: bool | None = None
    """Use TensorRT's own InstanceNormalization instead of the plugin's."""
    optimization_level: Annotated[int, Field(ge=0, le=5)] | None = None
    """0 builds fastest, 5 searches longest; by default TensorRT's 3."""
    max_aux_streams: Annotated[int, Field(ge=0, le=_INT32)] | None = None
    """Maximum number of auxiliary streams on which layers may run in parallel; by default TensorRT decides."""
    hardware_compatibility: Literal["none", "ampere_plus", "same_compute_capability"] = "none"
    """Other GPUs on which the engine must run."""
    workspace: PoolBytes | None = None
    """Scratch memory that tactics may use; by default all memory of the device."""
    weights: Weights = "fixed"
    """`refit`: weights can be changed later; `refit_individual`: those of `refittable_weights`; `refit_identical`: only
    with identical weights. `strip`: the engine has no weights, and identical ones must be added before it runs;
    `strip_refit`: identical or other ones."""
    refittable_weights: tuple[str, ...] = ()
    """With `weights: refit_individual`: names of the initializers that can be changed later."""
    version_compatible: bool = False
    """Let later releases of TensorRT run the engine."""
    exclude_lean_runtime: bool = False
    """With `version_compatible`: leave the runtime out of the engine."""
    plugins: Annotated[tuple[Path, ...], DataFile(), RunsCode()] = ()
    """Plugin libraries to load, and to embed in a version compatible engine; or `.py` files that define plugins with
    `tensorrt.plugin`."""
    gpu: Annotated[int, Field(ge=0, le=_INT32)] = 0
    """GPU to build on."""
    timing_cache: bool = True
    """Keep timings for later builds on this machine with this release."""
    timing_cache_file: Annotated[Path | None, DataFile()] = None
    """An additional timing cache to start from, such as one shipped with the recipe."""
    error_on_timing_cache_miss: bool = False
    """Fail when a tactic is not in the timing cache, instead of timing it."""
    lock: Annotated[Path | None, DataFile()] = None
    """The `engine.lock` of an earlier build: its tactics are used again, and the build fails if the engine cannot be,
    or is not, the locked one."""
    attempt: Annotated[int, Field(ge=1)] = 1
    """Number of the build, to see whether builds are reproducible: a sweep over `attempt: [1, 2, 3]` shows which layers
    change their tactic. If it is above 1, every tactic is timed again: this machine's timing cache, which would return
    the earlier tactics, is neither read nor written."""
    verbosity: Literal["none", "layer_names", "detailed"] = "detailed"
    """Level of detail that the engine keeps about its layers; reports need `detailed`."""
    mark_outputs: tuple[NamePattern, ...] = ()
    """Tensors to mark as outputs too, by names or patterns of tensors or nodes; `*` marks all. TensorRT fuses layers
    differently then, so that such an engine is for inspection only: `check_accuracy` compares its layers
    (`layers_engine`), and `profile`, `package` and exports reject it."""
    debug_tensors: Literal["unfused"] | tuple[NamePattern, ...] = ()
    """Tensors whose values the engine can report, so that `check_accuracy` compares the layers of the engine that ships
    (`layers_engine`). `unfused`: those that remain after fusion, which they do not change; only those that have the
    name of a tensor of the model are compared. Names or patterns of tensors or nodes: exactly those, for which
    TensorRT may fuse layers differently."""
    advanced: AdvancedSettings = AdvancedSettings()
    """The rest of TensorRT's builder configuration."""

    @model_validator(mode="after")
    def _check_agreement(self) -> BuildSettings:
        if self.fp8 and self.int8:
            raise ValueError("`fp8` excludes `int8`: TensorRT builds with one of them")
        if (self.calibration_cache or self.placeholder_ranges) and not self.int8:
            raise ValueError("`calibration_cache` and `placeholder_ranges` need `int8: true`")
        if self.calibration_cache and self.placeholder_ranges:
            raise ValueError("give either `calibration_cache` or `placeholder_ranges`")
        if (self.weights == "refit_individual") != bool(self.refittable_weights):
            raise ValueError("`weights: refit_individual` and `refittable_weights` need each other")
        if self.exclude_lean_runtime and not self.version_compatible:
            raise ValueError("`exclude_lean_runtime` needs `version_compatible: true`")
        if self.version_compatible and self.has_python_plugins:
            raise ValueError(
                "`version_compatible: true` embeds the plugins, and only libraries can be embedded: build without it, "
                "or compile the plugin into a library"
            )
        if self.profiles and self.batch:
            raise ValueError("give either `profiles` or `batch`")
        return self

    @model_validator(mode="after")
    def _check_timings(self) -> BuildSettings:
        if self.error_on_timing_cache_miss and not (self.timing_cache or self.timing_cache_file):
            raise ValueError("`error_on_timing_cache_miss` needs a timing cache")
        if self.lock is not None and (self.timing_cache_file or self.attempt > 1):
            raise ValueError("`lock` excludes `timing_cache_file` and `attempt`: its own timings decide the tactics")
        if self.attempt > 1 and (self.timing_cache_file or self.error_on_timing_cache_miss):
            raise ValueError(
                f"`attempt: {self.attempt}` times every tactic again: remove `timing_cache_file` and "
                "`error_on_timing_cache_miss`"
            )
        return self

    @property
    def engine_library(self) -> EngineLibrary:
        """Return the library that builds: a build sets `backend` to the one that was found."""
        return ENGINE_LIBRARIES[self.backend or "tensorrt"]

    @property
    def has_python_plugins(self) -> bool:
        return any(plugin.suffix == ".py" for plugin in self.plugins)

    @property
    def shares_timings(self) -> bool:
        """Return True if this machine's timing cache is read and written."""
        return self.timing_cache and self.attempt == 1 and self.lock is None


_STRONG_FLAG = "STRONGLY_TYPED"
_PRECISIONS = ("fp16", "bf16", "int8", "fp8", "tf32")
_CONSTRAINT_WORDS: Mapping[Typing, str] = {"obey": "; constraints obeyed", "prefer": "; constraints preferred"}
_CAST_WORDS: Mapping[Typing, str] = {
    "obey": ", constraints as Casts",
    "prefer": ", preferred constraints applied exactly, as Casts",
}


@dataclass(frozen=True)
class TypingPlan:
    """The builder's settings of types."""

    strongly_typed: bool
    creation_flags: tuple[str, ...]
    """Members of NetworkDefinitionCreationFlag to create the network with."""
    casts: bool
    """Precision constraints become Casts in the model."""
    layer_precisions: bool
    """Precision constraints are set on the network's layers."""
    description: str
    """Description such as `weakly typed: FP16, TF32; constraints obeyed`."""


def decide_typing(settings: BuildSettings, names: Names) -> TypingPlan:
    """Return the effect of the setting `typing` and the precision flags in a release.

    In a release without precision flags, every network is strongly typed, and `obey` and `prefer` are the same: a Cast
    in the model cannot be merely preferred. `unsupported_settings.refuse_settings` rejects settings that a release
    lacks.
    """
    constrained = settings.typing in _CONSTRAINT_WORDS
    if settings.typing == "strong" or types_strongly(names):
        # Where all networks are strongly typed, the flag is ignored or gone; TensorRT-RTX 1.7 sets it itself.
        flags = (_STRONG_FLAG,) if names.has("NetworkDefinitionCreationFlag", _STRONG_FLAG) else ()
        return TypingPlan(True, flags, constrained, False, f"strongly typed{_CAST_WORDS.get(settings.typing, '')}")
    allowed = [name.upper() for name in _PRECISIONS if getattr(settings, name)]
    types = ", ".join(name for name in allowed if names.has("BuilderFlag", name)) or "FP32"
    description = f"weakly typed: {types}{_CONSTRAINT_WORDS.get(settings.typing, '')}"
    return TypingPlan(False, (), False, constrained, description)


def types_strongly(names: Names) -> bool:
    """Return True if every network of the release is strongly typed."""
    return not names.has("BuilderFlag", "FP16")
