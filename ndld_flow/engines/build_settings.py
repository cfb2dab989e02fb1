"""What may be asked of an engine, in one place: the settings of the step `build_engine`. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from ndld_flow.base.settings import Settings
from ndld_flow.base.units import Bytes
from ndld_flow.inputs import Shape
from ndld_flow.records.build import EngineBackend
from ndld_flow.step import DataFile, RunsCode

Typing = Literal["default", "strong", "obey", "prefer"]
TacticSourceName = Literal["cublas", "cublas_lt", "cudnn", "edge_mask_convolutions", "jit_convolutions"]
Weights = Literal["fixed", "refit", "refit_individual", "refit_identical", "strip", "strip_refit"]
MemoryPool = Literal[
    "workspace", "dla_managed_sram", "dla_local_dram", "dla_global_dram", "tactic_dram", "tactic_shared_memory"
]


def _not_a_number(given: object) -> object:
    if isinstance(given, int | float):
        raise ValueError(
            f'write it in quotes, as a number 10.10 would be 10.1: `release: "{given}"`, '
            f"on the command line 'steps.NAME.release=\"{given}\"'"
        )
    return given


Release = Annotated[str, BeforeValidator(_not_a_number), Field(pattern=r"^$|^\d+(\.\d+){0,3}$")]
"""A release of a library, as text."""

ComputeCapability = Annotated[
    str,
    BeforeValidator(lambda given: f"{given:.1f}" if isinstance(given, float) else given),
    Field(pattern=r"^\d{1,2}\.\d$"),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "pattern": r"^\d{1,2}\.\d$"}, {"type": "number"}], "examples": ["8.6"]}
    ),
]
"""Major and minor version: `8.6`, in quotes or as a number."""

_INT32 = 2**31 - 1  # what the bindings take
PoolBytes = Annotated[Bytes, Field(le=2**63 - 1)]
"""As many as a size in TensorRT may be."""


class ShapeSetting(Settings):
    """The shapes of one input that an optimization profile allows; for a shape tensor, its values."""

    min: Shape
    """Smallest."""
    opt: Shape
    """The one to choose tactics for."""
    max: Shape
    """Largest."""

    @model_validator(mode="after")
    def _check_order(self) -> ShapeSetting:
        if len({len(self.min), len(self.opt), len(self.max)}) > 1:
            raise ValueError("`min`, `opt` and `max` must have the same number of dimensions")
        if any(not low <= best <= high for low, best, high in zip(self.min, self.opt, self.max, strict=True)):
            raise ValueError("every dimension must satisfy min <= opt <= max")
        return self


class BatchSetting(Settings):
    """Sizes of the free leading dimension that every input shares."""

    min: Annotated[int, Field(ge=1)] = 1
    """Smallest."""
    opt: Annotated[int, Field(ge=1)] = 1
    """The one to choose tactics for."""
    max: Annotated[int, Field(ge=1)] = 1
    """Largest."""

    @model_validator(mode="after")
    def _check_order(self) -> BatchSetting:
        if not self.min <= self.opt <= self.max:
            raise ValueError("a batch must satisfy min <= opt <= max")
        return self


class TensorFormatSetting(Settings):
    """How one of the engine's inputs or outputs lies in memory."""

    dtype: Literal["", "fp32", "fp16", "bf16", "int8", "int32", "int64", "uint8", "bool"] = ""
    """Data type; only weakly typed networks can have another than the model's."""
    formats: tuple[str, ...] = ()
    """Formats that are allowed, by TensorRT's names: `linear`, `chw32`, `hwc8`, ..."""


class AdvancedSettings(Settings):
    """The rest of TensorRT's IBuilderConfig, by its own words. What is not set is TensorRT's default."""

    io_formats: dict[str, TensorFormatSetting] = {}
    """Input or output -> its format."""
    direct_io: bool = False
    """Refuse to reformat inputs and outputs (DIRECT_IO)."""
    tiling: Literal["none", "fast", "moderate", "full"] | None = None
    """How hard to look for tilings (tiling_optimization_level)."""
    l2_limit: PoolBytes | None = None
    """L2 cache that tilings may count on (l2_limit_for_tiling)."""
    timing_iterations: Annotated[int, Field(ge=1, le=_INT32)] | None = None
    """How often each tactic is timed (avg_timing_iterations)."""
    max_tactics: Annotated[int, Field(ge=1, le=_INT32)] | None = None
    """How many tactics are timed at most (max_num_tactics)."""
    memory_pools: dict[MemoryPool, PoolBytes] = {}
    """Limits of memory pools besides `workspace`."""
    weight_streaming: bool = False
    """Let weights stay on the host and stream in (WEIGHT_STREAMING); needs strong typing."""
    preview_features: dict[str, bool] = {}
    """Preview features by TensorRT's names, such as `RUNTIME_ACTIVATION_RESIZE_10_10`, on or off."""
    quantization_flags: tuple[str, ...] = ()
    """Quantization flags by TensorRT's names."""
    parser_flags: tuple[str, ...] = ()
    """Flags of the ONNX parser by TensorRT's names."""
    flags: tuple[str, ...] = ()
    """More builder flags by TensorRT's names, such as `STRICT_NANS`, `MONITOR_MEMORY`, `DISTRIBUTIVE_INDEPENDENCE`."""
    dla_core: Annotated[int, Field(ge=0, le=_INT32)] | None = None
    """Build for this DLA core."""
    gpu_fallback: bool = False
    """Let layers that a DLA cannot run go to the GPU."""
    engine_capability: Literal["standard", "safety", "dla_standalone"] | None = None
    """What the engine is restricted to."""
    runtime_platform: Literal["same_as_build", "windows_amd64"] | None = None
    """System the engine will run on; one for Windows is built on Linux x86-64 and does not run there."""
    compilation_cache: bool = True
    """Let the builder keep compiled code (off: DISABLE_COMPILATION_CACHE)."""
    max_threads: Annotated[int, Field(ge=1, le=_INT32)] | None = None
    """Threads of the builder."""
    build_route: str | None = None
    """Knobs of the compiler, since 11.1: `-name=value ...`, of those that TensorRT lists (all_build_routes)."""
    remote_auto_tuning: str | None = None
    """Configuration of remote auto tuning, since 10.13, for safety engines."""
    extra_memory_target: Annotated[float, Field(ge=0, le=1)] | None = None
    """Part of the weight memory that each optimization profile may add of what it would unhindered; left out: all."""

    @model_validator(mode="after")
    def _check_agreement(self) -> AdvancedSettings:
        if self.gpu_fallback and self.dla_core is None:
            raise ValueError("`gpu_fallback` needs `dla_core`")
        if self.l2_limit is not None and self.tiling in (None, "none"):
            raise ValueError("`l2_limit` needs `tiling`")
        return self


class BuildSettings(Settings):
    """Settings of an engine. Which a release has is told by `refusals.refuse_settings`."""

    backend: EngineBackend | None = None
    """`tensorrt` or `tensorrt_rtx`; left out: the one that is installed, TensorRT when both are."""
    release: Release = ""
    """The release it must be, such as `"10.8"`; left out: whichever is found."""
    library: Annotated[Path | None, RunsCode()] = None
    """Where another TensorRT lies than the installed one: a virtual environment that has it, or the folder of an
    unpacked TensorRT archive."""
    profiles: tuple[dict[str, ShapeSetting], ...] = ()
    """Optimization profiles, each input -> its shapes; left out: one profile of the recipe's `inputs:`."""
    batch: BatchSetting | None = None
    """For inputs whose only free dimension is the first; left out, that is 1."""
    compute_capabilities: tuple[ComputeCapability, ...] = ()
    """GPUs to build for, whether or not they are here, such as `8.6` (TensorRT-RTX only); left out: this machine's, and
    with TensorRT-RTX every RTX GPU from Ampere on."""
    typing: Typing = "default"
    """`default`: TensorRT's own (weak up to 10.x, strong since 11 and in RTX); `strong`: types are the model's;
    `obey`, `prefer`: what `constrain_precision` asked for must, or may, be done."""
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
    """Give every tensor a made-up INT8 range: for measuring speed only, outputs are wrong."""
    sparse_weights: bool = False
    """Allow tactics for weights with structured sparsity."""
    tactic_sources: tuple[TacticSourceName, ...] | None = None
    """Libraries that tactics may come from; left out: TensorRT's default; empty: none."""
    native_instance_norm: bool | None = None
    """Use TensorRT's own InstanceNormalization rather than the plugin's."""
    optimization_level: Annotated[int, Field(ge=0, le=5)] | None = None
    """0 builds fastest, 5 searches longest; left out: TensorRT's 3."""
    max_aux_streams: Annotated[int, Field(ge=0, le=_INT32)] | None = None
    """How many more streams layers may run on side by side; left out: TensorRT decides."""
    hardware_compatibility: Literal["none", "ampere_plus", "same_compute_capability"] = "none"
    """Other GPUs that the engine must run on too."""
    workspace: PoolBytes | None = None
    """Scratch memory that tactics may use; left out: all of the device's."""
    weights: Weights = "fixed"
    """`refit`: weights can be changed later; `refit_individual`: those of `refittable_weights`; `refit_identical`: only
    the same can be put in again. `strip`: they are left out of the engine, and the same must be put in before it runs;
    `strip_refit`: the same or others."""
    refittable_weights: tuple[str, ...] = ()
    """With `weights: refit_individual`: the initializers that can be changed later, by name."""
    version_compatible: bool = False
    """Let later releases of TensorRT run the engine."""
    exclude_lean_runtime: bool = False
    """With `version_compatible`: leave the runtime out of the engine."""
    plugins: Annotated[tuple[Path, ...], DataFile(), RunsCode()] = ()
    """Plugin libraries to load, and to put into a version compatible engine."""
    gpu: Annotated[int, Field(ge=0, le=_INT32)] = 0
    """GPU to build on."""
    timing_cache: bool = True
    """Keep what was timed for later builds on this machine with this release."""
    timing_cache_file: Annotated[Path | None, DataFile()] = None
    """A timing cache to start from as well, such as one that is shipped with the recipe."""
    error_on_timing_cache_miss: bool = False
    """Say no when a tactic is not in the timing cache, rather than time it."""
    attempt: Annotated[int, Field(ge=1)] = 1
    """Build the same engine once more under another number, to see whether it comes out the same: a sweep over
    `attempt: [1, 2, 3]` tells which layers change their tactic. Above 1 every tactic is timed anew: this machine's
    timing cache is neither read nor added to, as it would give the tactics of before."""
    verbosity: Literal["none", "layer_names", "detailed"] = "detailed"
    """What the engine knows of its own layers; reports need `detailed`."""
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
        if self.profiles and self.batch:
            raise ValueError("give either `profiles` or `batch`")
        return self

    @model_validator(mode="after")
    def _check_timings(self) -> BuildSettings:
        if self.error_on_timing_cache_miss and not (self.timing_cache or self.timing_cache_file):
            raise ValueError("`error_on_timing_cache_miss` needs a timing cache")
        if self.attempt > 1 and (self.timing_cache_file or self.error_on_timing_cache_miss):
            raise ValueError(
                f"`attempt: {self.attempt}` times every tactic anew: leave `timing_cache_file` and "
                "`error_on_timing_cache_miss` out"
            )
        return self

    @property
    def shares_timings(self) -> bool:
        """Whether the timing cache of this machine is read and added to."""
        return self.timing_cache and self.attempt == 1
