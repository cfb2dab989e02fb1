"""Lints on layers: each fires where its advice is right, and is silent elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndld_flow.profiles.diagnose.diagnose import diagnose
from ndld_flow.profiles.diagnose.lints import LINTS
from ndld_flow.profiles.diagnose.subject import EngineSubject, Insight, Subject
from ndld_flow.profiles.read.read_profile import read_profile
from ndld_flow.records.measurement import Machine
from ndld_flow.records.profile import Layer, Profile, TensorInfo
from tests.support.a100_exports import a100_exports
from tests.support.runtime_traits import with_traits
from tests.support.text_facts import numbers_in

INT8_TENSOR_CORE = "sm80_xmma_fprop_implicit_gemm_interleaved_i8f16_i8i32_f32_nchw_tensor16x8x32"
FP16_TENSOR_CORE = "ampere_h16816cudnn_128x64_ldg8_relu_small_nhwc_tn_v1"
DP4A = "ampere_fp32_icudnn_int8x4_128x64_relu_medium_nn_v1"
FP32_SCALAR = "ampere_scudnn_128x64_relu_xregs_large_nn_v1"


def tensor(text: str, channels: int = 64) -> TensorInfo:
    """`a:int8`, `a:int8:96` for another number of channels, `a:int8:96:chw32` for a format too."""
    name, dtype, *rest = text.split(":")
    width = int(rest[0]) if rest else channels
    return TensorInfo(name=name, dtype=dtype, shape=(1, width, 8, 8), format=rest[1] if len(rest) > 1 else "")


def layer(kind: str, reads: str, writes: str, **given: Any) -> Layer:
    known = {"index": 0, "name": given.get("name", kind), "type": kind, "samples_ms": (1.0,),
             "inputs": tuple(map(tensor, reads.split())), "outputs": tuple(map(tensor, writes.split()))}  # fmt: skip
    return Layer.model_validate(known | given).with_arithmetic()


def conv(reads: str, writes: str, **given: Any) -> Layer:
    return layer("CaskConvolution", reads, writes, **({"groups": 1, "macs": 10**6} | given))


def int8_conv(reads: str, writes: str, **given: Any) -> Layer:
    return conv(reads, writes, **({"weights_dtype": "int8", "tactic": INT8_TENSOR_CORE} | given))


def half_conv(reads: str, writes: str, **given: Any) -> Layer:
    return conv(reads, writes, **({"weights_dtype": "float16", "tactic": FP16_TENSOR_CORE} | given))


def quantize(reads: str, writes: str, **given: Any) -> Layer:
    return layer("Reformat", reads, writes, role="quantize", **given)


def profile(layers: Sequence[Layer], inputs: str = "", outputs: str = "", **given: Any) -> Profile:
    known = {
        "label": "made", "model_digest": "", "backend": "tensorrt", "versions": {}, "options": {}, "warmup_passes": 0,
        "machine": Machine(system="", architecture="", cpu="", cpu_count=0, memory_bytes=0), "warmup_ms": 0,
        "inputs": tuple(map(tensor, inputs.split())), "outputs": tuple(map(tensor, outputs.split())), "runs": (),
        "layers": tuple(layer.model_copy(update={"index": index}) for index, layer in enumerate(layers)),
    }  # fmt: skip
    return Profile.model_validate(with_traits(known | given))


def found(lint: str, result: Profile, *, timed: bool = True) -> list[Insight]:
    subject = Subject(result) if timed else EngineSubject(result, None)
    return [insight for known in LINTS if known.__name__ == lint for insight in known(subject)]


def residual_block(residual: str = "x:float16") -> list[Layer]:
    """A float tensor goes into a convolution through a QuantizeLinear, and around it into the addition."""
    return [
        quantize("x:float16", "q:int8"),
        int8_conv("q:int8", "a:int8"),
        int8_conv(f"a:int8 {residual}", "y:float16", name="Conv_5 + Add_6", onnx_nodes=("Conv_5", "Add_6")),
        quantize("y:float16", "r:int8"),
        int8_conv("r:int8", "z:int8"),
    ]


def fp32_network() -> list[Layer]:
    tactic = "sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tensor16x8x8"
    layers = [conv("x:float32:3", "a:float32", weights_dtype="float32", tactic=FP32_SCALAR)]
    return [*layers, *(conv("a:float32 a:float32", "a:float32", weights_dtype="float32", tactic=tactic)
                       for _ in range(4))]  # fmt: skip


SILENT: dict[str, Profile] = {
    "an FP32 engine": profile(fp32_network()[1:]),
    "an FP16 engine": profile([half_conv("x:float16", "a:float16"), half_conv("a:float16", "b:float16")]),
    "names only": profile([Layer(index=0, name=f"Conv_{n}", type="unknown", samples_ms=(1.0,)) for n in range(3)]),
    "fully quantized": profile(
        [int8_conv("x:int8", "a:int8"), int8_conv("a:int8 x:int8", "b:int8", onnx_nodes=("Conv", "Add")),
         int8_conv("b:int8", "y:float32")], inputs="x:int8", outputs="y:float32",
    ),
    "without tensors' names": profile([int8_conv(":int8", ":float16"), layer("CaskPooling", ":float16", ":float16")]),
    "no layers": profile([]),
}  # fmt: skip


@pytest.mark.parametrize("case", list(SILENT))
@pytest.mark.parametrize("timed", [True, False], ids=["profile", "engine"])
def test_a_good_profile_has_no_findings(case: str, timed: bool) -> None:
    found_here = [insight.title for lint in LINTS for insight in found(lint.__name__, SILENT[case], timed=timed)]
    assert found_here == []


# --- residuals ---


def test_a_float_residual_of_a_quantized_convolution_is_found() -> None:
    (result,) = found("unquantized_residual", profile(residual_block()))
    assert numbers_in(result.title) == [1, 40.0] and "FP16" in result.title
    assert result.layers == (2, 0, 3)
    assert "`op_types` of `quantize`" in result.next_step and result.score == pytest.approx(0.4)
    # Its parts are reported once.
    assert found("unfused_quantization", profile(residual_block())) == []
    assert found("quantized_float_output", profile(residual_block())) == []


def test_a_float_residual_is_found_in_an_engine_without_times() -> None:
    (result,) = found("unquantized_residual", profile(residual_block()), timed=False)
    assert (result.score, result.layers) == (0.0, (2, 0, 3))
    assert "latency" not in result.title


def test_a_quantized_residual_is_not_reported() -> None:
    assert found("unquantized_residual", profile(residual_block("q:int8"))) == []


@pytest.mark.parametrize(("nodes", "fires"), [(("Conv_11", "Add_12"), True), (("Conv_11", "Mul_12"), False)])
def test_residuals_of_myelin_are_found_unless_the_kernel_rescales(nodes: tuple[str, ...], fires: bool) -> None:
    layers = [
        layer("correlation", "q:int8", "c:float32", weights_dtype="int8"),
        layer("kgen", "r:float32 c:float32", "z:int8", name="__myl_MulAddAddRelu_myl0_8", onnx_nodes=nodes),
    ]
    assert bool(found("unquantized_residual", profile(layers))) == fires


def test_the_sum_of_two_products_has_no_residual_to_quantize() -> None:
    """A downsampling branch: Myelin's products write floating point whatever follows."""
    products = [layer("correlation", "q:int8", name, weights_dtype="int8") for name in ("a:float32", "b:float32")]
    added = layer("kgen", "a:float32 b:float32", "z:int8", name="__myl_AddAdd_myl0_8", onnx_nodes=("Add_3",))
    assert found("unquantized_residual", profile([*products, added])) == []


def test_residuals_of_transformers_stay_in_floating_point() -> None:
    layers = [
        layer("gemm", "q:int8", "c:float32", weights_dtype="int8"),
        layer("kgen", "r:float32 c:float32", "z:int8 s:float32", name="__myl_MulAddAdd_myl0_8", onnx_nodes=("Add_12",)),
    ]
    assert found("unquantized_residual", profile(layers)) == []


# --- float outputs ---


def float_output(reader: Layer, **given: Any) -> Profile:
    return profile([int8_conv("x:int8", "a:float32"), reader, quantize("b:float32", "c:int8")], **given)


def test_a_float_input_of_a_pool_is_found() -> None:
    (result,) = found("quantized_float_output", float_output(layer("TiledPooling", "a:float32", "b:float32")))
    assert numbers_in(result.title) == [1, 8] and "FP32" in result.title
    assert result.layers == (0, 1) and "MaxPool" in result.next_step
    assert result.score == pytest.approx(1 / 6)


def test_a_float_output_for_an_unquantized_product_scores_nothing() -> None:
    result = profile([int8_conv("x:int8", "a:float16"), half_conv("a:float16", "b:float16")])
    (insight,) = found("quantized_float_output", result)
    assert "not quantized" in insight.next_step and insight.score == 0.0


@pytest.mark.parametrize(
    ("reader", "given"),
    [
        (layer("CudaSoftMax", "a:float32", "b:float32"), {}),  # it has no kernel for 8 bits
        (layer("Normalization", "a:float32", "b:float32"), {}),
        (layer("PluginV2", "a:float32", "b:float32"), {}),
        (layer("kgen", "a:float32", "b:int8", name="__myl_MulMinMaxRounCast_myl0_1"), {}),  # it quantizes at once
        (quantize("a:float32", "b:int8"), {}),
        (layer("TiledPooling", "a:float32", "b:float32"), {"outputs": "a:float32"}),  # the engine's own output
        (layer("TiledPooling", "x:float32", "b:float32"), {}),  # nobody reads it
    ],
)
def test_a_justified_float_output_is_not_reported(reader: Layer, given: dict[str, Any]) -> None:
    assert found("quantized_float_output", float_output(reader, **given)) == []


# --- Q/DQ by themselves ---


def test_separate_quantization_layers_are_found() -> None:
    layers = [
        quantize("x:float32", "a:int8", name="QuantizeLinear_2"),
        int8_conv("a:int8", "b:int8"),
        layer("TiledPooling", "c:float16", "d:float16", name="pool"),
        quantize("d:float16", "e:int8", name="QuantizeLinear_9"),
    ]
    (result,) = found("unfused_quantization", profile(layers, inputs="x:float32"))
    assert numbers_in(result.title) == [2, 50.0]
    assert "inputs and outputs (QuantizeLinear_2)" in result.evidence
    assert "after TiledPooling pool" in result.evidence
    assert "`op_types`" in result.next_step and "`exclude.nodes`" in result.next_step
    short = [
        layer.model_copy(update={"samples_ms": (0.001,)}) if layer.role == "quantize" else layer for layer in layers
    ]
    assert found("unfused_quantization", profile(short)) == []


def test_dynamic_quantization_is_not_reported() -> None:
    dynamic = layer("DynamicQuantizeLinear", "x:float32", "a:uint8", role="quantize", provider="CPUExecutionProvider")
    assert found("unfused_quantization", profile([dynamic, dynamic])) == []


def test_onnxruntime_on_cuda_gets_the_advice_to_build_an_engine() -> None:
    layers = [quantize("x:float32", "a:int8", provider="CUDAExecutionProvider")]
    (result,) = found(
        "unfused_quantization", profile(layers, backend="onnxruntime", providers=("CUDAExecutionProvider",))
    )
    assert "build an engine" in result.next_step and "op_types" not in result.next_step


def test_a_quantize_linear_is_not_a_cast() -> None:
    """`block` of `convert_fp16` has no influence on it."""
    steps = " ".join(insight.next_step for insight in diagnose(profile(residual_block())))
    assert "convert_fp16" not in steps


# --- conversions ---


def test_conversions_between_layers_and_at_the_ends_are_found() -> None:
    layers = [
        layer("Reformat", "x:float32", "a:float16", role="reformat"),
        half_conv("a:float16", "b:float16"),
        layer("Reformat", "b:float16", "c:float32", role="reformat"),
        layer("TiledPooling", "c:float32", "y:float32"),
    ]
    (result,) = found("type_conversions", profile(layers, inputs="x:float32"))
    assert numbers_in(result.title) == [2, 50.0]
    assert "FP32 to FP16" in result.evidence
    assert "FP16 to FP32 after" in result.evidence
    assert "`keep_io: false`" in result.next_step and "Between layers" in result.next_step
    moved = layer("Reformat", "x:float16:64:linear", "a:float16:64:hwc8", role="reformat")
    assert found("type_conversions", profile([moved])) == []


# --- tensor cores ---


def test_a_quantized_first_layer_without_tensor_cores_is_found() -> None:
    layers = [
        conv("x:int8:3", "a:float32", weights_dtype="int8", tactic=DP4A, name="first"),
        *(int8_conv("b:int8", "b:int8") for _ in range(3)),
    ]
    (result,) = found("off_tensor_cores", profile(layers))
    assert "(INT8 DP4A)" in result.title and numbers_in(result.title) == [1, 25.0]
    assert "3 input channels" in result.evidence and "`exclude.nodes` of `quantize`" in result.next_step


def test_an_fp32_first_layer_gets_no_advice_on_quantizing() -> None:
    (result,) = found("off_tensor_cores", profile(fp32_network()))
    assert "`convert_fp16`" in result.next_step and "quantize" not in result.next_step


def test_devices_that_may_lack_tensor_cores_get_no_advice() -> None:
    scalar = [conv("a:float32", "a:float32", weights_dtype="float32", tactic=FP32_SCALAR) for _ in range(3)]
    assert found("off_tensor_cores", profile(scalar)) == []


def test_depthwise_convolutions_get_no_advice_on_tensor_cores() -> None:
    depthwise = conv("a:float32", "b:float32", tactic="sm80_xmma_fprop_f32f32_f32f32_f32_ffma", groups=64)
    assert depthwise.unit == "FP32 FMA"
    assert found("off_tensor_cores", profile([depthwise, half_conv("x:float16", "a:float16")])) == []


def test_kernels_with_uninformative_names_are_not_reported() -> None:
    unknown = conv("a:float16", "b:float16", tactic="__myelin_CASK_STUB")
    result = profile([unknown, half_conv("x:float16", "a:float16")])
    assert found("off_tensor_cores", result) == []
    assert result.tensor_cores is not None
    assert (result.tensor_cores.on, result.tensor_cores.off, result.tensor_cores.unknown) == (0.5, 0.0, 0.5)


def test_shares_are_absent_without_known_units() -> None:
    assert profile([conv("a:float16", "b:float16")]).tensor_cores is None
    assert profile([layer("TiledPooling", "a:float16", "b:float16")]).tensor_cores is None
    assert profile([half_conv("a:float16", "b:float16", samples_ms=())]).tensor_cores is None


# --- channels ---


def test_padded_channels_are_found() -> None:
    layers = [half_conv("x:float16:3", "a:float16:33"), half_conv("a:float16:33", "b:float16:64")]
    (result,) = found("channel_alignment", profile(layers))
    assert "33 output channels (multiples of 8)" in result.evidence or "33 input channels" in result.evidence
    assert result.score == pytest.approx(1 - 33 / 40, abs=0.01)
    assert re.search(r": 1\d\.\d % of .+ multiplies zeros$", result.title)
    assert "3 input channels" not in result.evidence  # of a picture: nobody chose them


def test_a_vectorized_format_pads_to_its_width() -> None:
    layers = [int8_conv("x:int8:64:chw32", "a:int8:48:chw32"), int8_conv("a:int8:48:chw32", "b:int8:64:chw32")]
    (result,) = found("channel_alignment", profile(layers))
    assert "48 output channels (multiples of 32)" in result.evidence or "48 input" in result.evidence
    plain = [int8_conv("x:int8:64", "a:int8:48"), int8_conv("a:int8:48", "b:int8:64")]
    assert found("channel_alignment", profile(plain)) == []


def test_products_of_two_activations_get_no_advice_on_channels() -> None:
    """Heads of 24 and sequences of 197."""
    attention = layer("gemm", "q:int8:197 k:int8:197", "s:float32:197")
    assert attention.precision == "int8"
    assert found("channel_alignment", profile([attention, int8_conv("s:int8:197", "y:int8")]), timed=False) == []


@pytest.mark.parametrize("layers", [
    # A classifier's classes, by way of what only renames a tensor.
    [half_conv("x:float16", "a:float16:1001"), layer("NoOp", "a:float16:1001", "y:float16:1001")],
    [half_conv("x:float16:33", "a:float16:33", groups=33), half_conv("a:float16:40", "y:float16")],
    [half_conv("x:float16:33", "a:float16:33", groups=None), half_conv("a:float16:40", "y:float16")],
    [conv("x:float32:33", "a:float32:33", tactic=FP32_SCALAR), conv("a:float32:40", "y:float32", tactic=FP32_SCALAR)],
    [conv("x:int8:3", "a:int8:64", tactic=DP4A), int8_conv("a:int8", "y:int8")],
])  # fmt: skip
def test_aligned_channels_are_not_reported(layers: list[Layer]) -> None:
    assert found("channel_alignment", profile(layers)) == []


# --- real exports ---


def test_the_quantized_export_gets_advice() -> None:
    """Nothing of it computes in float but the pools, so that `block` of `convert_fp16` is none of its business."""
    insights = {insight.name: insight for insight in diagnose(read_profile(a100_exports() / "qat"))}
    residual = insights["unquantized_residual"]
    assert len(residual.layers) == 16 and residual.score == pytest.approx(0.15, abs=0.01)
    assert numbers_in(residual.title)[0] == 8
    assert insights["off_tensor_cores"].layers == (1,)
    assert insights["quantized_float_output"].layers == (1, 2)
    titles = [insight.title for insight in insights.values()]
    assert not any("out of `block`" in insight.next_step or "Casts" in insight.title for insight in insights.values())
    assert not any("in float32" in title for title in titles)


@pytest.mark.parametrize("folder", ["fp32", "fp16"])
def test_other_exports_get_no_advice_on_quantizing(folder: str) -> None:
    words = " ".join(
        f"{insight.title} {insight.next_step}" for insight in diagnose(read_profile(a100_exports() / folder))
    )
    assert "quanti" not in words.replace("`op_types` and `exclude` of `quantize`", "")


# --- anything ---

_DTYPES = st.sampled_from(["int8", "float16", "float32", ""])
_TENSORS = st.lists(
    st.builds(
        TensorInfo,
        name=st.sampled_from(["", "a", "b", "c"]),
        dtype=_DTYPES,
        shape=st.lists(st.integers(-1, 40), max_size=4).map(tuple),
    ),
    max_size=3,
).map(tuple)
_LAYERS = st.builds(
    lambda **given: Layer(index=0, name="n", **given).with_arithmetic(),
    type=st.sampled_from(["CaskConvolution", "gemm", "TiledPooling", "kgen", "Reformat"]),
    role=st.sampled_from(["compute", "reformat", "quantize"]),
    inputs=_TENSORS, outputs=_TENSORS, weights_dtype=_DTYPES, groups=st.sampled_from([None, 0, 1, 40]),
    tactic=st.sampled_from([INT8_TENSOR_CORE, FP16_TENSOR_CORE, DP4A, ""]),
    samples_ms=st.tuples(st.floats(0, 10)), onnx_nodes=st.sampled_from([(), ("Add_1",)]),
)  # fmt: skip


@given(st.lists(_LAYERS, max_size=6))
def test_any_layers_are_checked_without_errors(layers: list[Layer]) -> None:
    result = profile(layers)
    for lint in LINTS:
        for insight in (*found(lint.__name__, result), *found(lint.__name__, result, timed=False)):
            assert insight.next_step.endswith(".") and 0 <= insight.score <= 1.0001
            assert all(0 <= layer < len(layers) for layer in insight.layers)
