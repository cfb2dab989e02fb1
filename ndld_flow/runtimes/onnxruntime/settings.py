"""Settings of a recipe for ONNX Runtime."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from ndld_flow.base.settings import Settings
from ndld_flow.machine.host import has_nvidia_gpu
from ndld_flow.machine.versions import find_cuda_lack, read_version
from ndld_flow.runtimes.settings import ReadArtifact, RuntimeSettings
from ndld_flow.step import DataFile, Foresight, RunsCode
from ndld_flow.store.kinds import Onnx

if TYPE_CHECKING:
    from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
    from ndld_flow.runtimes.protocol import SessionRequest

ProviderOption = str | int | float | bool
CustomOps = Annotated[tuple[Path, ...], DataFile(), RunsCode()]
"""Libraries of custom operators."""
_NEED_NVIDIA = ("cuda", "tensorrt", "nvtensorrtrtx", "tensorrt_rtx")
"""Execution providers that need an NVIDIA GPU, without `ExecutionProvider`."""

_IN_GPU_BUILD = ("cuda", "tensorrt")
"""Those that `onnxruntime-gpu` has and `onnxruntime` has not."""

_HARMLESS = """
device_id use_arena use_tf32 prefer_nhwc fuse_conv_bias sdpa_kernel enable_cuda_graph gpu_mem_limit
arena_extend_strategy cudnn_conv_algo_search cudnn_conv_use_max_workspace cudnn_conv1d_pad_to_nc1d
do_copy_in_default_stream use_ep_level_unified_stream enable_skip_layer_norm_strict_mode tunable_op_enable
tunable_op_tuning_enable tunable_op_max_tuning_duration_ms

trt_max_workspace_size trt_max_partition_iterations trt_min_subgraph_size trt_fp16_enable trt_bf16_enable
trt_int8_enable trt_dla_enable trt_dla_core trt_layer_norm_fp32_fallback trt_build_heuristics_enable
trt_sparsity_enable trt_builder_optimization_level trt_auxiliary_streams trt_tactic_sources trt_cuda_graph_enable
trt_context_memory_sharing_enable trt_force_sequential_engine_build trt_detailed_build_log
trt_profile_min_shapes trt_profile_max_shapes trt_profile_opt_shapes trt_op_types_to_exclude

nv_max_workspace_size nv_max_shared_mem_size nv_detailed_build_log nv_cuda_graph_enable nv_multi_profile_enable
nv_profile_min_shapes nv_profile_max_shapes nv_profile_opt_shapes nv_use_external_data_initializer

performance_preference device_filter disable_metacommands
"""
"""Options that only control the computation. Others name libraries to load (`trt_extra_plugin_lib_paths`), paths of
engines and caches to read and write (`trt_engine_cache_path`), or addresses in memory (`gpu_external_alloc`); an
unknown option may be any of these."""


def options_that_run_code(options: Mapping[str, ProviderOption]) -> tuple[str, ...]:
    """Return the names of options that may load code, or read and write files."""
    harmless = frozenset(_HARMLESS.split())
    return tuple(name for name in options if name not in harmless)


def loaded_paths(libraries: CustomOps) -> tuple[str, ...]:
    """Return absolute paths: the loader searches names without a folder in the system's library folders."""
    return tuple(str(library.absolute()) for library in libraries)


class LoadsCustomOps(Settings):
    """The setting of steps that only examine models: their types and shapes, and whether ONNX Runtime loads them."""

    custom_ops: CustomOps = ()
    """Libraries with custom operators for ONNX Runtime, such as `libmy_ops.so`, to infer the types behind them and to
    check that the result loads. They need a trusted recipe."""

    @property
    def operator_libraries(self) -> tuple[str, ...]:
        return loaded_paths(self.custom_ops)


class RunsInOnnxruntime(Settings):
    """Settings of steps that run models to read their values, in ONNX Runtime unless they name another runtime."""

    arithmetic: Literal["stored", "native"] = "stored"
    """`stored`: on a CPU every fp16 and bf16 tensor is rounded to its type after the node that computes it, as a GPU
    stores it; ONNX Runtime would compute such models in fp32 there and hide overflows. `native`: the arithmetic of the
    execution provider."""
    provider: str = "cpu"
    """Execution provider that runs the models: `cpu`, `cuda`, `tensorrt`, or ONNX Runtime's full name."""
    provider_options: Annotated[dict[str, ProviderOption], RunsCode(options_that_run_code)] = Field(default={})
    """Options of that provider, such as `device_id`. Options that name libraries or files, and unknown options, need
    a trusted recipe."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads within an operator; 0 lets ONNX Runtime choose."""
    custom_ops: CustomOps = ()
    """Libraries with custom operators for ONNX Runtime, such as `libmy_ops.so`. They need a trusted recipe."""

    @property
    def session(self) -> "OnnxruntimeRequest":
        """Return the request to open a model with these settings."""
        from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest

        return OnnxruntimeRequest(
            provider=self.provider,
            provider_options=self.provider_options,
            threads=self.threads,
            custom_ops=loaded_paths(self.custom_ops),
        )


class OnnxruntimeSettings(RuntimeSettings):
    """Settings of a session in ONNX Runtime."""

    title: ClassVar[str] = "ONNX Runtime"
    synonyms: ClassVar[Mapping[str, str]] = {
        "custom_op_libraries": "custom_ops",
        "custom_ops_library": "custom_ops",
        "ep": "provider",
        "execution_provider": "provider",
        "providers": "provider",
        "graph_optimization_level": "optimization",
        "enable_gelu_approximation": "gelu_approximation",
        "intra_op_num_threads": "threads",
        "intra_op_threads": "threads",
        "inter_op_num_threads": "inter_op_threads",
        "execution_mode": "execution",
        "enable_cpu_mem_arena": "memory_arena",
        "enable_mem_pattern": "memory_pattern",
        "allow_spinning": "spinning",
        "spin_duration_us": "spin_duration",
        "intra_op_thread_affinities": "affinity",
        "set_denormal_as_zero": "flush_denormals",
        "disable_prepacking": "prepacking",
        "dynamic_block_base": "block_base",
    }

    backend: Literal["onnxruntime"] = "onnxruntime"
    """The runtime: ONNX Runtime, OpenVINO, or an engine of the model in TensorRT or TensorRT-RTX (named by `engine`).
    Settings below that begin with the name of a runtime apply only to that one; TensorRT means both."""
    provider: str = "cpu"
    """ONNX Runtime: execution provider: `cpu`, `cuda`, `tensorrt`, or its full name. A provider that does not load
    is an error."""
    provider_options: Annotated[dict[str, ProviderOption], RunsCode(options_that_run_code)] = Field(default={})
    """ONNX Runtime: options of the provider, such as `device_id`. Options that name libraries or files, and unknown
    options, need a trusted recipe."""
    optimization: Literal["disabled", "basic", "extended", "layout", "all"] = "all"
    """ONNX Runtime: graph optimization level."""
    gelu_approximation: bool = False
    """ONNX Runtime: compute Gelu by its approximation with tanh, which is faster and slightly different."""
    provider_library: Annotated[Path | None, DataFile(), RunsCode()] = None
    """ONNX Runtime: a plugin library that has the provider, such as `libonnxruntime_providers_openvino_plugin.so`. It
    needs a trusted recipe."""
    free_dimensions: dict[str, Annotated[int, Field(ge=1)]] = Field(default={})
    """ONNX Runtime: dimension name -> size, fixed before optimization, so that shapes are constants."""
    custom_ops: CustomOps = ()
    """ONNX Runtime: libraries with custom operators, such as `libmy_ops.so`. They need a trusted recipe."""

    threads: Annotated[int, Field(ge=0)] = 0
    """ONNX Runtime: threads within an operator; 0 lets ONNX Runtime choose (one for each physical core)."""
    inter_op_threads: Annotated[int, Field(ge=0)] = 0
    """ONNX Runtime: threads between operators, with `execution: parallel`; 0 lets ONNX Runtime choose."""
    execution: Literal["sequential", "parallel"] = "sequential"
    """ONNX Runtime: run operators one after another, or in parallel."""
    memory_arena: bool = True
    """ONNX Runtime: use the memory arena, which keeps memory between passes."""
    memory_pattern: bool = True
    """ONNX Runtime: allocate the memory of all tensors at once, as traced in the first pass of the same shapes."""
    prepacking: bool = True
    """ONNX Runtime: rearrange weights for the kernels when the model is opened. Without it, the model opens faster and
    takes less memory, and products of matrices are slower."""
    spinning: bool = True
    """ONNX Runtime: threads busy-wait for the next operator, which is faster and occupies their processors."""
    spin_duration: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """ONNX Runtime: microseconds for which threads busy-wait before they sleep, from release 1.26; by default ONNX
    Runtime chooses."""
    block_base: Annotated[int, Field(ge=0, le=1024)] = 0
    """ONNX Runtime: divide the work of an operator into blocks that get smaller towards its end. A base of
    4 is good on a CPU whose cores differ or are shared; 0 gives each thread equal parts."""
    flush_denormals: bool = False
    """ONNX Runtime: compute with 0 in place of numbers below 1.2e-38, which some CPUs compute many times slower."""
    affinity: Annotated[str, Field(pattern=r"^(\d+([,-]\d+)*(;\d+([,-]\d+)*)*)?$", max_length=4000)] = ""
    """ONNX Runtime: processors of each thread but the first, counted from 1, such as `2;3` or `1-2;3-4`; `threads` must
    be one more than their number. By default, ONNX Runtime chooses."""

    @property
    def device(self) -> str:
        on_cpu = self.provider.lower() in ("cpu", "cpuexecutionprovider")
        return "cpu" if on_cpu else f"gpu-{self.provider_options.get('device_id', 0)}"

    def foresee(self) -> Foresight:
        if self.provider_library is not None:
            lost = f"`provider_library`: there is no file {self.provider_library}"
            return Foresight(lacks=() if self.provider_library.is_file() else (lost,))
        short = self.provider.lower().removesuffix("executionprovider")
        if short not in _NEED_NVIDIA:
            return Foresight()
        if not has_nvidia_gpu():
            lack = (
                f"provider {self.provider} is set, but there is no NVIDIA GPU here: set `provider: cpu`, or remove the "
                "step with '~steps.NAME'"
            )
            return Foresight(lacks=(lack,))
        missing = find_cuda_lack() if short in _IN_GPU_BUILD else None
        return Foresight(lacks=(f"provider {self.provider} is set, but {missing}",) if missing else ())

    def library_versions(self) -> dict[str, str]:
        return {"onnxruntime": read_version("onnxruntime")}

    def opening(self, model: str) -> str:
        level = "ORT_DISABLE_ALL" if self.optimization == "disabled" else f"ORT_ENABLE_{self.optimization.upper()}"
        changed = {
            f"intra_op_num_threads = {self.threads}": self.threads,
            f"graph_optimization_level = onnxruntime.GraphOptimizationLevel.{level}": self.optimization != "all",
            "add_session_config_entry('session.intra_op.allow_spinning', '0')": not self.spinning,
            f"add_session_config_entry('session.dynamic_block_base', '{self.block_base}')": self.block_base,
        }
        lines = "".join(f"options.{line}; " for line, is_changed in changed.items() if is_changed)
        created = "options = onnxruntime.SessionOptions()"
        return f"{created}; {lines}onnxruntime.InferenceSession({model!r}, options)" if lines else ""

    def request(self, model: Onnx, read: ReadArtifact) -> "SessionRequest":
        from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest

        library = None if self.provider_library is None else str(self.provider_library.absolute())
        request = OnnxruntimeRequest.of(self)
        return replace(request, custom_ops=loaded_paths(self.custom_ops), provider_library=library)

    @model_validator(mode="after")
    def _check_spinning(self) -> "OnnxruntimeSettings":
        if self.spin_duration is not None and not self.spinning:
            raise ValueError("`spin_duration` needs `spinning: true`")
        return self

    @model_validator(mode="after")
    def _check_affinity(self) -> "OnnxruntimeSettings":
        pinned = self.affinity.count(";") + 1 if self.affinity else 0
        if pinned and self.threads != pinned + 1:
            raise ValueError(
                f"`affinity` has the processors of {pinned} of the threads, and one more runs passes: set `threads: "
                f"{pinned + 1}`"
            )
        return self
