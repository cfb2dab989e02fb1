"""Options of ONNX Runtime's execution providers that are harmless: they only control the computation."""

from __future__ import annotations

from collections.abc import Mapping

ProviderOption = str | int | float | bool

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
"""Other options name libraries to load (`trt_extra_plugin_lib_paths`), paths of engines and caches to read and write
(`trt_engine_cache_path`), or addresses in memory (`gpu_external_alloc`); an unknown option may be any of these."""


def options_that_run_code(options: Mapping[str, ProviderOption]) -> tuple[str, ...]:
    """Return the names of options that may load code, or read and write files."""
    harmless = frozenset(_HARMLESS.split())
    return tuple(name for name in options if name not in harmless)
