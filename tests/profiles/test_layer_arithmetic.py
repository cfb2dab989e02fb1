"""The precision and the multiply unit of a layer, inferred from tensors, weights and kernel names."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndld_flow.profiles.read.read_profile import read_profile
from ndld_flow.records.layer_arithmetic import (
    QUANTIZING_TYPES,
    LayerFacts,
    MultiplyUnit,
    Operand,
    conclude,
    read_kernel_name,
)
from ndld_flow.records.profile import Layer, LayerTimes, TensorInfo
from tests.support import trtexec_exports as trt
from tests.support.a100_exports import a100_exports

XMMA = "sm80_xmma_fprop_implicit_gemm"


@pytest.mark.parametrize(("tactic", "dtype", "circuit"), [
    # As engines for an A100 name them.
    (f"{XMMA}_interleaved_i8f16_i8i32_f32_nchw_vect_c_32kcrs_vect_c_32_tilesize64x128x64_g1_tensor16x8x32_t1r3s3",
     "int8", "tensor core"),
    (f"{XMMA}_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize256x64x32_stage3_g1_tensor16x8x8_t1r3s3", "tf32", "tensor core"),
    (f"{XMMA}_f16f16_f16f16_f16_nhwckrsc_nhwc_tilesize256x64x32_stage3_g1_tensor16x8x16", "float16", "tensor core"),
    ("ampere_h16816cudnn_128x64_sliced1x2_ldg8_relu_exp_stages_64x3_small_nhwc_tn_v1", "float16", "tensor core"),
    ("trt_turing_cutlass_image_network_first_layer_hmma_fprop_f16f16f32_nhwc_nhwc_k64r7s7c4", "float16", "tensor core"),
    ("ampere_scudnn_128x64_relu_xregs_large_nn_v1", "float32", "FMA"),
    ("ampere_fp32_icudnn_int8x4_128x64_relu_medium_nn_v1", "int8", "DP4A"),
    ("sm50_xmma_pooling_fw_4d_FP16FP32NHWC_Average_FastDiv_CAlign8", "", ""),
    # As other libraries and architectures name them.
    ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16_kernel",
     "bfloat16", "tensor core"),
    ("sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x64_stage3_warpsize2x2x1_tensor16x8x32",
     "float8_e4m3fn", "tensor core"),
    ("sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_algo2_tensor64x64x16",
     "float16", "tensor core"),
    (f"{XMMA}_indexed_wo_smem_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8_stage3_warpsize1x2x1_g1_ffma_aligna4",
     "float32", "FMA"),
    ("turing_h1688cudnn_256x64_ldg8_relu_exp_medium_nhwc_tn_v1", "float16", "tensor core"),
    ("volta_fp16_s884cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1", "float16", "tensor core"),
    ("volta_h884cudnn_256x64_sliced1x2_ldg8_relu_exp_small_nhwc_tn_v1", "float16", "tensor core"),
    ("turing_int8_i8816cudnn_int8_256x64_ldg16_relu_singleBuffer_medium_nt_v1", "int8", "tensor core"),
    ("ampere_int8_i16832gemm_int8_128x128_ldg16_stages_64x3_nt", "int8", "tensor core"),
    ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn", "bfloat16", "tensor core"),
    ("ampere_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", "float16", "tensor core"),
    ("cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4", "", "tensor core"),
    ("cutlass_80_tensorop_s1688tf32gemm_128x128_16x5_nn_align4", "", "tensor core"),
    ("cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1", "float64", "tensor core"),
    ("cutlass_80_tensorop_i16864gemm_s4_256x128_128x3_tn_align32", "int4", "tensor core"),
    ("cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_f16_f16_128x128x64_1x2x1_0_tnn_align8",
     "float16", "tensor core"),
    ("cutlass3x_sm90_tensorop_i64x128x32gemm_s8_s8_s32_s8_s8_128x128x128", "int8", "tensor core"),
    ("cutlass3x_sm120_bstensorop_s16x8x64gemm_block_scaled_ue4m3xf4_ue4m3xf4_f32_bf16_bf16_128x128x128",
     "float4_e2m1fn", "tensor core"),
    ("cutlass_80_simt_sgemm_128x64_8x5_nn_align1", "", "FMA"),
    ("volta_sgemm_128x64_nn", "float32", "FMA"),
    ("volta_fp16_sgemm_fp16_128x64_nn", "", "FMA"),
    ("maxwell_hgemm_128x64_nn", "float16", "FMA"),
    ("fmha_v2_flash_attention_fp16_64_64_S_80_sm86_kernel", "float16", "tensor core"),
    ("fmha_v2_flash_attention_S_80_sm86_kernel", "", ""),
    ("__myl_MulAddReluMulMinMaxRounCast_0x256e12b43497b205", "", "none"),
    ("__myl_AddMaxrSubExpSumDiv_0xccb520c0", "", "none"),
    ("__myl_FcMulAdd_myl0_7", "", ""),
    ("__myl_MulBrandNewOperator_0x1", "", ""),
    ("__myelin_CASK_STUB", "", ""),
    ("0x00000000000003ea", "", ""),
    ("nchwc.Conv(Relu), packed weights", "", ""),
    ("sm80_xmma_fprop", "", ""),
    ("", "", ""),
])  # fmt: skip
def test_kernel_names_reveal_the_precision(tactic: str, dtype: str, circuit: str) -> None:
    kernel = read_kernel_name(tactic)
    assert (kernel.dtype, kernel.circuit) == (dtype, circuit)


@given(st.text(max_size=700))
def test_any_name_is_accepted(tactic: str) -> None:
    assert read_kernel_name(tactic).circuit in ("tensor core", "FMA", "DP4A", "none", "")


def engine_layer(kind: str = "CaskConvolution", reads: str = "", writes: str = "", **given: Any) -> Layer:
    """A layer of an engine; `reads` and `writes` are element types, separated by blanks."""
    tensors = {
        side: tuple(TensorInfo(name="", dtype=dtype, shape=(1, 64, 8, 8)) for dtype in types.split())
        for side, types in (("inputs", reads), ("outputs", writes))
    }
    known = {"index": 0, "name": "n", "type": kind, "samples_ms": ()}
    return Layer.model_validate(known | tensors | given).with_arithmetic()


I8 = f"{XMMA}_interleaved_i8f16_i8i32_f32_nchw_tensor16x8x32"


@pytest.mark.parametrize(("made", "precision", "unit"), [
    # An INT8 convolution with a residual in FP16 that is added within it, whatever it writes.
    (engine_layer(reads="int8 float16", writes="float16", weights_dtype="int8", tactic=I8), "int8", "tensor core INT8"),
    (engine_layer(reads="int8", writes="float32", weights_dtype="int8"), "int8", ""),
    (engine_layer(reads="int8", writes="float32"), "int8", ""),  # TensorRT 10 lists no weights
    (engine_layer(reads="int8 int8", writes="int8"), "int8", ""),
    (engine_layer(reads="float16", writes="float32", weights_dtype="float16"), "float16", ""),
    # Weights alone in few bits: the product is in the activations' type.
    (engine_layer("gemm", reads="float16", writes="float16", weights_dtype="int4"), "float16", ""),
    (engine_layer("gemm", reads="float16", writes="float16", weights_dtype="int8"), "", ""),
    (engine_layer("gemm", reads="float32 float16", writes="float32"), "", ""),
    (engine_layer("MatrixMultiply", reads="bfloat16 bfloat16", writes="float32"), "bfloat16", ""),
    (engine_layer("gemm", reads="float8_e4m3fn", writes="bfloat16", weights_dtype="float8_e4m3fn",
                  tactic="sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tensor16x8x32"), "float8_e4m3fn", "tensor core FP8"),
    # The type of an instruction's operands is known from the tensors where the name leaves it open.
    (engine_layer("gemm", reads="float32", writes="float32", tactic="cutlass_80_tensorop_s1688gemm_128x128_nn"),
     "float32", "tensor core TF32"),
    (engine_layer("gemm", reads="float16", writes="float16", tactic="cutlass_80_tensorop_s1688gemm_128x128_nn"),
     "float16", "tensor core FP16"),
    # The name says one thing and the tensors another: neither is believed.
    (engine_layer(reads="float32", writes="float32", tactic=I8), "", "tensor core INT8"),
    (engine_layer("Reformat", reads="float16", writes="int8", role="quantize"), "float16 to int8", "none"),
    (engine_layer("Reformat", reads="float16", writes="float16", role="reformat"), "float16", "none"),
    (engine_layer("CaskPooling", reads="float16", writes="float16"), "float16", "none"),
    (engine_layer("PointWiseV2", reads="float16 float16", writes="int8"), "", "none"),
    (engine_layer("Gather", reads="float16 int64", writes="float16"), "float16", "none"),
    (engine_layer("Shape", reads="float16", writes="int64"), "", "none"),
    (engine_layer("kgen", reads="float32", writes="int8", tactic="__myl_MulMinMaxRounCast_0x1"), "", "none"),
    (engine_layer("kgen", reads="float16", writes="float16", tactic="__myl_FcAdd_0x1"), "float16", ""),
    (engine_layer("Myelin", reads="float32", writes="float32"), "", ""),
    (engine_layer("Whatever", name="{ForeignNode[a...b]}", reads="float16", writes="float16"), "", ""),
    (engine_layer("PluginV2", reads="float16", writes="float16"), "", ""),
    (engine_layer("unknown"), "", ""),
    (engine_layer("CudaDepthwiseConvolution", reads="float16", writes="float16"), "float16", "FMA"),
])  # fmt: skip
def test_precisions_of_engine_layers_are_inferred(made: Layer, precision: str, unit: MultiplyUnit) -> None:
    assert (made.precision, made.unit) == (precision, unit)
    assert made.precision_basis or not made.inputs


@pytest.mark.parametrize(("kind", "reads", "writes", "precision"), [
    ("Conv", "float32 float32", "float32", "float32"),
    ("QLinearConv", "uint8 float32 uint8 int8 float32 int8 float32 uint8 int32", "uint8", "int8"),
    ("QLinearMatMul", "uint8 float32 uint8 uint8 float32 uint8 float32 uint8", "uint8", "uint8"),
    ("MatMulInteger", "uint8 int8 uint8", "int32", "int8"),
    ("ConvInteger", "uint8 uint8", "int32", "uint8"),
    ("DynamicQuantizeMatMul", "float32 int8 float32 int8", "float32", "int8"),
    ("MatMulIntegerToFloat", "uint8 int8 float32 float32", "float32", "int8"),
    ("QLinearAdd", "uint8 float32 uint8 uint8 float32 uint8 float32 uint8", "uint8", "uint8"),
    ("MatMulNBits", "float32 uint8 float32", "float32", ""),
    ("DynamicQuantizeLinear", "float32", "uint8 float32 uint8", "float32 to uint8"),
    ("DequantizeLinear", "int8 float32 int8", "float32", "int8 to float32"),
    ("Equal", "float32 float32", "bool", "float32"),
    ("Gather", "float16 int64", "float16", "float16"),
    ("Shape", "float32", "int64", "int64"),
    ("Transpose", "uint8", "uint8", "uint8"),
])  # fmt: skip
def test_precisions_of_onnxruntime_layers_are_inferred(kind: str, reads: str, writes: str, precision: str) -> None:
    role = "quantize" if kind in QUANTIZING_TYPES else "compute"
    layer = engine_layer(kind, reads, writes, provider="CPUExecutionProvider", role=role)
    assert (layer.precision, layer.unit in ("", "none")) == (precision, True)


@pytest.mark.parametrize("library", ["Tensorrt", "NvTensorRTRTX", "OpenVINO"])
def test_the_precision_of_a_compiled_partition_is_unknown(library: str) -> None:
    """An FP16 engine of an FP32 model reads and writes FP32."""
    assert (
        engine_layer("TRTKernel_graph_1", "float32", "float32", provider=f"{library}ExecutionProvider").precision == ""
    )


def test_input_and_output_precisions_are_inferred() -> None:
    conv = engine_layer(reads="int8 float16", writes="float16")
    assert (conv.input_precision, conv.output_precision) == ("int8 + float16", "float16")
    quantized = engine_layer("QLinearConv", "uint8 float32 uint8 int8", "uint8", provider="CPUExecutionProvider")
    assert (quantized.input_precision, quantized.output_precision) == ("uint8", "uint8")


@given(
    st.builds(
        LayerFacts, st.text(max_size=9), st.text(max_size=9), st.text(max_size=9), st.text(max_size=9),
        st.text(max_size=60), st.text(max_size=9), *[st.lists(st.builds(Operand, st.text(max_size=9)), max_size=3)] * 2,
    )
)  # fmt: skip
def test_any_layer_has_a_conclusion(facts: LayerFacts) -> None:
    assert isinstance(conclude(facts).basis, str)


# --- files ---


def test_layers_of_a_quantized_engine_compute_in_int8_whatever_they_write() -> None:
    """Every convolution has Int8 weights; only nine of the twenty-one write INT8."""
    profile = read_profile(a100_exports() / "qat")
    convolutions = [layer for layer in profile.layers if layer.type == "CaskConvolution"]
    assert Counter(layer.precision for layer in convolutions) == {"int8": 21}
    assert Counter(layer.output_precision for layer in convolutions) == {"float16": 11, "int8": 8, "float32": 2}
    whole = profile.layers_sum_ms
    assert sum(LayerTimes(convolutions).ms) / whole == pytest.approx(0.649, abs=0.001)
    assert Counter(layer.unit for layer in convolutions) == {"tensor core INT8": 20, "INT8 DP4A": 1}
    assert {layer.precision for layer in profile.layers if layer.name.startswith("QuantizeLinear")} == {
        "float32 to int8", "float16 to int8",
    }  # fmt: skip


@pytest.mark.parametrize(("folder", "precision", "units"), [
    ("fp32", "float32", {"tensor core TF32": 20, "FP32 FMA": 1}), ("fp16", "float16", {"tensor core FP16": 21}),
])  # fmt: skip
def test_other_exports_of_the_network_are_inferred(folder: str, precision: str, units: dict[str, int]) -> None:
    convolutions = [layer for layer in read_profile(a100_exports() / folder).layers if layer.type == "CaskConvolution"]
    assert {layer.precision for layer in convolutions} == {precision}
    assert Counter(layer.unit for layer in convolutions) == units


def test_layers_with_only_a_name_are_unknown(tmp_path: Path) -> None:
    folder = trt.write_exports(
        tmp_path / "e", a=trt.layer_info(trt.small_engine(), detailed=False), b=trt.layer_times(trt.small_engine())
    )
    layers = [layer for layer in read_profile(folder).layers if layer.role == "compute"]
    assert {(layer.precision, layer.unit) for layer in layers} == {("", "")}


def test_weights_of_rtx_are_found_in_its_constants(tmp_path: Path) -> None:
    """A kernel's constants are weights where it multiplies matrices; elsewhere they are padding and scales."""
    tensor = {
        "Name": "x",
        "Dimensions": [4, 3, 8, 8],
        "Datatype": "Float",
        "Format": "(Linear) Row major linear format",
    }
    scales = {**tensor, "Name": "s", "Dimensions": [1, 64, 1, 1]}
    weights = {**tensor, "Name": "w", "Dimensions": [64, 4, 3, 3], "Datatype": "Int8"}
    layers = [
        {"Name": name, "LayerType": kind, "Inputs": [{**tensor, "Datatype": "Int8"}], "Constants": [scales, weights],
         "Outputs": [tensor], "TacticName": "__myelin_CASK_STUB", "StreamId": 0, "Metadata": ""}
        for name, kind in (("Conv_2_myl0_1", "correlation"), ("__myl_CastConc_myl0_0", "kgen"))
    ]  # fmt: skip
    file = tmp_path / "model.trt.json"
    file.write_text(json.dumps({"Layers": layers, "I/O Tensors": []}))
    conv, plain = read_profile(file).layers
    assert (conv.weights_dtype, conv.precision, conv.unit) == ("int8", "int8", "")
    assert (plain.weights_dtype, plain.precision) == ("", "")
