"""Settings of quantization by ONNX Runtime and by NVIDIA ModelOpt, of a placement, and ModelOpt's environment."""

import importlib.util
import json
import platform
import shutil
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.base.name_patterns import NamePattern
from ndld_flow.base.quantities import Fraction, Milliseconds
from ndld_flow.base.settings import Settings
from ndld_flow.machine.hardware import describe_cpu
from ndld_flow.step import Foresight, RunsCode

Mode = Literal["static", "dynamic", "weight_only"]
Algorithm = Literal["rtn", "hqq"]
Method = Literal["minmax", "entropy", "percentile"]
Target = Literal["cpu", "tensorrt", "openvino"]
Format = Literal["qdq", "qoperator"]
Activations = Literal["uint8", "int8", "uint16", "int16"]
Weights = Literal["int8", "uint8", "int4"]

WEIGHTED_OP_TYPES = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that are worth quantizing by themselves."""
_NOT_ON_CPU = ("ConvTranspose",)
"""ONNX Runtime has no integer kernels for these on a CPU: they would compute in fp32 and convert in addition."""
FOLLOWING_OP_TYPES = (
    "Add", "Clip", "Concat", "Flatten", "MaxPool", "Relu", "Reshape", "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip
"""Operators that are quantized on a CPU if all their inputs are: Q/DQ pairs between such nodes disappear."""
DYNAMIC_OP_TYPES = ("Gather", "Gemm", "LSTM", "MatMul")
"""Operators that take less memory with 8-bit weights. Not Conv, which ONNX Runtime runs slower that way."""
BLOCK_OP_TYPES = ("Gemm", "MatMul")
"""Operators for which ONNX Runtime has kernels that read weights in blocks (MatMulNBits)."""
_TABLE_OP_TYPES = ("Gather",)
"""Operators that `mode: weight_only` quantizes on request: the result is smaller, and reading its rows not faster."""
LAYER_OP_TYPES = frozenset({
    *WEIGHTED_OP_TYPES, "GRU", "LSTM", "RNN", "com.microsoft::Attention", "com.microsoft::FusedConv",
    "com.microsoft::FusedGemm", "com.microsoft::FusedMatMul", "com.microsoft::GroupQueryAttention",
    "com.microsoft::MultiHeadAttention", "com.microsoft::NhwcFusedConv",
})  # fmt: skip
"""Operators that count as layers: one that is not quantized gets a reason."""
QUANTIZED_OP_TYPES = frozenset({
    "ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "com.microsoft::DynamicQuantizeLSTM",
    "com.microsoft::DynamicQuantizeMatMul", "com.microsoft::GatherBlockQuantized", "com.microsoft::MatMulBnb4",
    "com.microsoft::MatMulFpQ4", "com.microsoft::MatMulIntegerToFloat", "com.microsoft::MatMulNBits",
    "com.microsoft::QAttention", "com.microsoft::QGemm", "com.microsoft::QMoE",
})  # fmt: skip
"""Layers that compute with quantized weights already."""
SkipReason = Literal[
    "already quantized", "attributes", "body", "element type", "excluded", "found by search", "inaccurate",
    "input shape", "low intensity", "no constant weight", "no gain", "not faster", "not finite", "not measured",
    "operator", "replaceable weight", "shared weight", "unknown", "unknown type", "weight not finite", "weight shape",
]  # fmt: skip
"""The reason why a layer is not quantized."""
SKIPPED: Mapping[SkipReason, str] = {
    "already quantized": "quantized in the source already",
    "attributes": "the quantized operator does not have all of its attributes",
    "body": "inside the body of a Loop, a Scan or an If, whose ranges cannot be measured: `mode: dynamic` needs none",
    "element type": "its weights or inputs are neither float32 nor float16",
    "excluded": "excluded by the settings",
    "found by search": "kept by the search of `found_by`",
    "inaccurate": "the tolerance is not met with it",
    "input shape": "the quantized operator does not support the rank of its input",
    "low intensity": "computes fewer multiply-accumulates per element than `min_intensity`",
    "no constant weight": "both operands are computed, or the constant one is the first",
    "no gain": "the quantized weight would not be smaller",
    "not faster": "the model is not faster with it on the target",
    "not finite": "NaN or infinity on the samples",
    "not measured": "the time of `optimize` was used up before it was measured or tried",
    "operator": "not an operator that this mode quantizes by default or by `op_types`",
    "replaceable weight": "the weight is also an input of the model, which callers may replace",
    "shared weight": "other nodes read its weight in floats, and with both forms the file is larger than its source",
    "unknown": "the quantizer left it as it was and gave no reason",
    "unknown type": "the element type of its inputs or outputs is unknown",
    "weight not finite": "its weight or bias holds NaN or infinity, which would make the scale of all values infinite",
    "weight shape": "the quantized operator does not support the shape of its weight or bias",
}
"""Reason -> its explanation, after the names of the layers."""
CPU_INTENSITY = 64.0
"""Measured on PP-OCRv4 (det and rec, one thread, AVX2): dense convolutions of 64 channels and more run 1.6 to 2 times
as fast, depthwise ones (5 multiply-accumulates per element) half as fast, and det with everything in int8 gains nothing
at a cosine of 0.94. From 16 to 96 the latency is equal within 3 %, and quantizing fewer nodes is more accurate: det
0.958, 0.993, 0.997 at 16, 32, 64."""


class Exclude(Settings):
    """Nodes that stay unquantized."""

    op_types: tuple[str, ...] = ()
    """Operators, such as `Softmax`."""
    nodes: tuple[NamePattern, ...] = ()
    """Names of nodes: globs (`head.*`), or `/.../` for a regular expression (RE2's syntax) searched in the name."""
    first: Annotated[int, Field(ge=0)] = 0
    """Number of layers with weights at the beginning of the model, in the order of its nodes. The first and the last
    layer often lose the most accuracy and take little of the time: `{first: 1, last: 1}`."""
    last: Annotated[int, Field(ge=0)] = 0
    """Number of layers with weights at the end of the model."""


class QuantizeSettings(Settings):
    """Settings of quantization."""

    mode: Mode = "static"
    """`static`: ranges of activations are measured on samples, and Q/DQ pairs hold their scales. `dynamic`: ranges of
    activations are computed in every inference, which needs no samples and suits MatMul and LSTM. `weight_only`: the
    weights of MatMul and Gemm become int4 or int8 in blocks (MatMulNBits), each with its own scale, and activations
    keep their type: for language models in ONNX Runtime, of any size."""
    target: Target = "cpu"
    """The runtime that the model is for. `cpu`: ONNX Runtime's CPU kernels, activations uint8. `openvino`: uint8, Q/DQ
    on inputs only, as OpenVINO fuses the nodes after a layer into it, biases in fp32. `tensorrt`: the same, in
    symmetric int8; the default where `build_engine` reads the result."""
    format: Format = "qdq"
    """For static quantization on a CPU: how the result is written. `qdq`: the operators of the source between
    QuantizeLinear and DequantizeLinear, which runtimes fuse when they load it. `qoperator`: the integer operators of
    ONNX Runtime themselves, such as QLinearConv. It depends on the model which of the two is faster."""
    method: Method = "minmax"
    """How ranges are derived from samples. `minmax`: all values. `percentile`: the central `percentile` % of the
    values. `entropy`: the range whose histogram of 128 bins has the smallest KL divergence from the histogram of all
    values."""
    percentile: Annotated[float, Field(gt=50, le=100)] = 99.999
    """For `method: percentile`: percentage of a tensor's values that the range covers."""
    activations: Activations | None = None
    """Type of activations; by default the target's: uint8 on a CPU, int8 for TensorRT."""
    weights: Weights = "int8"
    """Type of weights. `int4` halves their size; a CPU computes with them in fp32."""
    block_size: Literal[16, 32, 64, 128, 256] = 32
    """For `mode: weight_only`: number of consecutive weights of an output column that share a scale. Smaller blocks are
    more accurate and larger on disk: 32 takes 5 bits per int4 weight, 128 takes 4.25."""
    algorithm: Algorithm = "rtn"
    """For `mode: weight_only`: how scales and offsets are chosen. `rtn`: from the extremes of a block, each weight
    rounded to the nearest. `hqq`: offsets that minimize the error with little weight on outliers (half-quadratic
    quantization), for int4 only; takes several times as long and needs PyTorch (`pip install torch`)."""
    accuracy_level: Annotated[int, Field(ge=0, le=4)] | None = None
    """For `mode: weight_only`: type in which ONNX Runtime may compute: 1 fp32, 2 fp16, 3 bf16, 4 int8, which is faster
    on many CPUs and less accurate. By default the type of the activations."""
    per_channel: bool = True
    """One scale for each output channel of a weight instead of one for the whole weight."""
    symmetric: bool | None = None
    """Make the ranges of activations symmetric around 0; by default for TensorRT only. With `mode: weight_only`, the
    ranges of weights, without offsets: a bit smaller and less accurate."""
    reduce_range: bool | Literal["auto"] = "auto"
    """Use 7 of 8 bits for weights. An x86 CPU without VNNI silently saturates sums of two 8-bit products at 16 bits,
    and 8-bit weights can ruin a model there. `auto` depends on this machine's CPU, for int8 weights and the target
    `cpu`; `true` writes a model for any CPU. Use `false` if `check_accuracy` shows that nothing saturates. On such a
    CPU, PP-OCR rec has a cosine of 0.995 with the 7-bit range and of 0.974 without it."""
    op_types: tuple[str, ...] = ()
    """Operators to quantize: all their nodes that have float tensors. By default Conv, Gemm and MatMul with a weight;
    for TensorRT and OpenVINO also ConvTranspose; on a CPU also operators that follow them, such as Relu, MaxPool or
    the Add of two quantized tensors. With `mode: dynamic` MatMul, Gemm, LSTM and Gather; with `weight_only` MatMul and
    Gemm, and on request Gather, for embedding tables (`[Gather, Gemm, MatMul]`)."""
    min_intensity: Annotated[float, Field(ge=0)] | None = None
    """A Conv, ConvTranspose, Gemm or MatMul stays unquantized if it computes fewer multiply-accumulates than this for
    each element that it reads and writes: conversion would cost more than int8 saves. Depthwise convolutions have about
    5, dense ones a third to a half of their number of channels. By default 64 for static quantization on a CPU, else
    0."""
    exclude: Exclude = Exclude()
    """Nodes to leave unquantized."""
    allow_empty: bool = False
    """Allow that nothing is quantized; otherwise that is an error, which lists the reasons."""

    @model_validator(mode="after")
    def _check_weight_only(self) -> Self:
        if self.mode != "weight_only":
            for name in ("block_size", "algorithm", "accuracy_level"):
                if getattr(self, name) != QuantizeSettings.model_fields[name].default:
                    raise ValueError(f"`{name}` needs `mode: weight_only`")
            return self
        if self.target != "cpu" or self.activations is not None or self.weights == "uint8":
            raise ValueError(
                "`mode: weight_only` writes int8 or int4 weights for ONNX Runtime: omit `target` and `activations`; "
                "TensorRT reads int4 weights as `modelopt: {format: int4}` writes them"
            )
        others = sorted(set(self.op_types) - {*BLOCK_OP_TYPES, *_TABLE_OP_TYPES})
        if others:
            raise ValueError(f"`mode: weight_only` quantizes Gemm, MatMul and Gather only, not {', '.join(others)}")
        if self.algorithm == "hqq" and (self.symmetric or self.weights != "int4"):
            raise ValueError(
                "`algorithm: hqq` writes int4 weights with offsets in floats, for which ONNX Runtime has no other "
                "kernels: set `weights: int4` and omit `symmetric`"
            )
        return self

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        if self.target == "tensorrt":
            if self.mode == "dynamic":
                raise ValueError("`target: tensorrt` needs Q/DQ, which `mode: dynamic` does not write: use `static`")
            if self.weights == "int4":
                raise ValueError(
                    "`target: tensorrt` supports int4 weights only in blocks, as `modelopt: {format: int4}` writes them"
                )
            if self.activations not in (None, "int8") or self.symmetric is False or self.weights == "uint8":
                raise ValueError("`target: tensorrt` supports symmetric int8 only: omit `activations` and `symmetric`")
        if self.mode == "dynamic" and (self.activations not in (None, "uint8") or self.weights == "int4"):
            raise ValueError("`mode: dynamic` supports uint8 activations and int8 or uint8 weights")
        return self

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        if self.format == "qdq":
            return self
        if self.mode != "static" or self.target != "cpu":
            raise ValueError("`format: qoperator` is for `mode: static` and `target: cpu`: remove `format`")
        if self.weights != "int8" or self.activations not in (None, "uint8", "int8"):
            raise ValueError("`format: qoperator` has operators for int8 weights and 8-bit activations only")
        return self

    @property
    def weight_bits(self) -> int:
        return 4 if self.weights == "int4" else 8

    @property
    def activation_type(self) -> Activations:
        return self.activations or ("int8" if self.target == "tensorrt" else "uint8")

    @property
    def symmetric_activations(self) -> bool:
        return self.target == "tensorrt" if self.symmetric is None else self.symmetric

    @property
    def wanted_op_types(self) -> tuple[str, ...]:
        """Operators to quantize: `op_types` or the default."""
        if self.op_types:
            return self.op_types
        if self.mode != "static":
            return DYNAMIC_OP_TYPES if self.mode == "dynamic" else BLOCK_OP_TYPES
        if self.target != "cpu":
            return WEIGHTED_OP_TYPES
        return tuple(each for each in WEIGHTED_OP_TYPES if each not in _NOT_ON_CPU)

    @property
    def following_op_types(self) -> tuple[str, ...]:
        """Operators that are quantized if all their inputs are: with the defaults of static quantization on a CPU."""
        return FOLLOWING_OP_TYPES if self.target == "cpu" and self.mode == "static" and not self.op_types else ()

    @property
    def least_intensity(self) -> float:
        """Minimum of multiply-accumulates per element: `min_intensity` or the default."""
        if self.min_intensity is not None:
            return self.min_intensity
        return CPU_INTENSITY if self.target == "cpu" and self.mode == "static" else 0.0

    @property
    def least_opset(self) -> int:
        """Opset that the quantized operators need: scales per channel need 13, 4 and 16 bits need 21. MatMulNBits is in
        a domain of its own, and needs what ONNX Runtime does."""
        if self.mode == "weight_only":
            return 7
        wide = self.activation_type in ("uint16", "int16") or self.weights == "int4"
        return 21 if wide else 13

    @property
    def reduces_range(self) -> bool:
        """True if weights use 7 of 8 bits, by `reduce_range` or depending on this machine's CPU."""
        if self.reduce_range != "auto":
            return self.reduce_range
        return self.target != "tensorrt" and self.weights == "int8" and cpu_saturates()


def foresee_hqq() -> Foresight:
    """Report whether PyTorch is installed, with which ONNX Runtime computes HQQ."""
    if importlib.util.find_spec("torch") is not None:
        return Foresight()
    return Foresight(lacks=("`algorithm: hqq` needs PyTorch: `pip install torch`, or use `algorithm: rtn`",))


_X86 = ("x86_64", "amd64", "i386", "i686")


@cache
def cpu_saturates() -> bool:
    """Return whether this CPU saturates sums of two uint8 x int8 products at 16 bits (VPMADDUBSW): x86 without VNNI.

    True if an x86 system does not report its flags: a bit less precision is better than wrong sums.
    """
    if platform.machine().lower() not in _X86:
        return False
    return not any(flag.endswith("_vnni") for flag in describe_cpu("flags").split())


class ModelOpt(Settings):
    """NVIDIA ModelOpt in its own environment."""

    python: Annotated[Path, RunsCode()]
    """The interpreter of an environment with ModelOpt, such as `modelopt/bin/python`; create one with
    `python3 -m venv modelopt` and `modelopt/bin/pip install 'nvidia-modelopt[onnx]'`. It runs only when the recipe is
    trusted. Its version of ModelOpt is part of the step's key."""
    format: Literal["fp8", "int8", "int4"] = "fp8"
    """`fp8` (E4M3) and `int8`: activations and weights, for TensorRT. `int4`: weights of Gemm and MatMul only, in
    blocks."""
    high_precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    """Type of everything that is not quantized."""
    timeout: Annotated[Milliseconds, Field(gt=0)] = 3_600_000.0
    """Time limit, such as `10 min`."""


_LIBRARIES = {"modelopt": "nvidia-modelopt", "modelopt's onnx": "onnx", "modelopt's onnxruntime": "onnxruntime-gpu"}
"""Libraries that affect its results -> their distributions."""
_QUERY = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_TIMEOUT_S = 30.0


def find_interpreter(python: Path) -> str | None:
    """Return the path of an interpreter without following links (that of a virtual environment is one), or None."""
    program = shutil.which(python)
    return None if program is None else str(Path(program).absolute())


def modelopt_versions(python: Path) -> dict[str, str]:
    """Return the versions of libraries that affect results; without `modelopt` if it is missing or the query fails."""
    program = find_interpreter(python)
    return {} if program is None else dict(_versions_in(program, Path(program).stat().st_mtime_ns))


@lru_cache
def _versions_in(program: str, _changed_ns: int) -> dict[str, str]:
    """Query an interpreter once: a query takes 0.1 s, and plans need it often."""
    import tempfile

    from ndld_flow.processes.launch import Program, minimal_environment, run_program

    lines: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        command = [program, "-c", _QUERY, *_LIBRARIES.values()]
        try:
            run_program(Program(command, minimal_environment(Path(scratch)), _TIMEOUT_S, Path(scratch)), lines.append)
            versions = json.loads(lines[-1])
        except (NdldFlowError, IndexError, ValueError):  # `foresee_modelopt` reports it
            return {}
    if not isinstance(versions, dict):
        return {}
    return {key: str(versions[name]) for key, name in _LIBRARIES.items() if name in versions}


def foresee_modelopt(python: Path) -> Foresight:
    """Report whether ModelOpt is installed."""
    hint = (
        "`python3 -m venv modelopt` and `modelopt/bin/pip install 'nvidia-modelopt[onnx]'` create an environment with"
        " it; then set `modelopt: {python: modelopt/bin/python}`"
    )
    if find_interpreter(python) is None:
        return Foresight(lacks=(f"`modelopt.python`: no program {str(python)!r} was found. {hint}",))
    versions = modelopt_versions(python)
    if "modelopt" not in versions:
        return Foresight(lacks=(f"`modelopt.python`: {str(python)!r} has no nvidia-modelopt. {hint}",))
    return Foresight(notes=(f"ModelOpt {versions['modelopt']}",))


class PlacementSettings(Settings):
    """The goal and the limits of a placement."""

    objective: Literal["latency"] = "latency"
    """The quantity that must improve: the latency of one inference at the shapes of the first sample."""
    time: Annotated[Milliseconds, Field(gt=0)] = 300_000.0
    """Time for measurements and trials, without calibration. The largest layers are measured first; those that are not
    reached stay in floats unless they belong to a set that pays as a whole."""
    least_gain: Annotated[Fraction, Field(lt=1)] = 0.01
    """The smallest gain that is worth it: a model is delivered only if it is faster by this much at 95 % confidence."""
    trials: Annotated[int, Field(ge=1)] = 60
    """Maximum number of sets whose accuracy is tried."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads of ONNX Runtime within an operator; 0 lets it choose. Other runtimes have this setting in `runtime`."""
