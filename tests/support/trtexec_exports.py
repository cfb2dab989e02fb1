"""Exports as trtexec writes them, made by code: names unescaped, numbers with six digits, every shape there was."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONV, POOL, GEMM = "/conv/Conv + /act/Relu", "/pool/MaxPool", "/fc/Gemm"
REFORMAT = f"Reformatting CopyNode for Input Tensor 0 to {CONV}"


@dataclass(frozen=True)
class EngineLayer:
    """One layer: its name, its time, and its description by the inspector."""

    name: str
    ms: float
    info: dict[str, Any] = field(default_factory=dict)


def tensor(name: str, dims: Sequence[int], dtype: str, split: bool = False) -> dict[str, Any]:
    """Return a tensor as TensorRT 8 to 10 describe it, or split as 11 does."""
    types = {"Format": "Row major linear", "Datatype": dtype} if split else {"Format/Datatype": dtype}
    return {"Name": name, "Location": "Device", "Dimensions": list(dims), **types}


def small_engine(split: bool = False) -> list[EngineLayer]:
    """Reformat, convolution with a fused Relu, pooling, and a matrix product in Myelin's words."""
    half = "Half" if split else "Channel major FP16 format where channel % 8 == 0"
    full = "FP32" if split else "Row major linear FP32"

    def one(name: str, dims: Sequence[int], dtype: str) -> dict[str, Any]:
        return tensor(name, dims, dtype, split)

    image, wide, pooled = (2, 3, 8, 8), (2, 16, 8, 8), (2, 16, 4, 4)
    return [
        EngineLayer(
            REFORMAT,
            0.011,
            {"LayerType": "Reformat", "Inputs": [one("x", image, full)], "Outputs": [one("x'", image, half)]},
        ),
        EngineLayer(
            CONV,
            0.2,
            {
                "LayerType": "CaskConvolution",
                "Inputs": [one("x'", image, half)],
                "Outputs": [one("c", wide, half)],
                "ParameterType": "Convolution",
                "Kernel": [3, 3],
                "OutMaps": 16,
                "Groups": 1,
                "Weights": {"Type": "Half", "Count": 432},
                "Bias": {"Type": "Half", "Count": 16},
                "TacticName": "sm80_xmma_fprop",
                "TacticValue": "0xe2222883a6602489",
                "StreamId": 0,
                "Metadata": "[ONNX Layer: /conv/Conv]\x1e[ONNX Layer: /act/Relu]",
            },
        ),
        EngineLayer(
            POOL,
            0.05,
            {
                "LayerType": "CudaPooling",
                "Inputs": [one("c", wide, half)],
                "Outputs": [one("p", pooled, half)],
                "ParameterType": "Pooling",
                "TacticValue": "0xfffffffffffffffe",
                "StreamId": 1,
            },
        ),
        EngineLayer(
            GEMM,
            0.1,
            {
                "LayerType": "gemm",
                "Inputs": [one("p", (2, 256), half), one("w", (256, 10), half)],
                "Outputs": [one("y", (2, 10), full)],
                "TacticValue": "0x0000000000000000",
                "StreamId": 0,
                "Metadata": "[ONNX Layer: /fc/Gemm]\x1f[ONNX Layer: /fc/Gemm]",
            },
        ),
    ]


def loose_json(value: object) -> str:
    """JSON without escapes, as trtexec prints it."""
    if isinstance(value, dict):
        return "{" + ",\n  ".join(f'"{key}": {loose_json(entry)}' for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(loose_json, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def layer_info(layers: Sequence[EngineLayer], detailed: bool = True, bindings: Sequence[str] = ("x", "y")) -> str:
    """--exportLayerInfo of TensorRT 8 to 10."""
    listed = [{"Name": layer.name, **layer.info} if detailed else layer.name for layer in layers]
    return loose_json({"Layers": listed, "Bindings": list(bindings)})


def layer_info_11(layers: Sequence[EngineLayer]) -> str:
    """--exportLayerInfo since TensorRT 11."""
    bound = [
        {"Name": "x", "IOMode": "Input", "DataType": "FP32", "Dimensions": [-1, 3, 8, 8], "Location": "Device"},
        {"Name": "y", "IOMode": "Output", "DataType": "FP32", "Dimensions": [-1, 10], "Location": "Device"},
    ]
    listed = [{"Name": layer.name, **layer.info} for layer in layers]
    return loose_json({"Engine Metadata": {"Version": "11"}, "I/O Tensors": bound, "Layers": listed})


def layer_times(layers: Sequence[EngineLayer], count: int = 50, median: bool = True) -> str:
    """--exportProfile."""
    total = sum(layer.ms for layer in layers) or 1.0
    rows = []
    for item in layers:
        middle = f'"medianMs" : {item.ms:g}, ' if median else ""
        rows.append(
            f', {{ "name" : "{item.name}", "timeMs" : {item.ms * count:g}, "averageMs" : {item.ms:g}, {middle}'
            f'"percentage" : {item.ms / total * 100:g} }}\n'
        )
    return f'[\n  {{ "count" : {count} }}\n{"".join(rows)}]\n'


def times(latencies: Sequence[float], start: float = 200.0, copy: float = 0.01) -> str:
    """--exportTimes: passes one after another, with copies of the same length at both ends."""
    rows, at = [], start
    for latency in latencies:
        compute = latency - 2 * copy
        ends = (at, at + copy, at + copy + compute, at + latency)
        rows.append(
            f'{{ "startEnqMs" : {at - 0.5:g}, "endEnqMs" : {at - 0.48:g}, "startH2dMs" : {ends[0]:g}, '
            f'"endH2dMs" : {ends[1]:g}, "startComputeMs" : {ends[1]:g}, "endComputeMs" : {ends[2]:g}, '
            f'"startD2hMs" : {ends[2]:g}, "endD2hMs" : {ends[3]:g}, "h2dMs" : {copy:g}, "computeMs" : {compute:g}, '
            f'"d2hMs" : {copy:g}, "latencyMs" : {latency:g} }}\n'
        )
        at += latency + 0.01
    return "[\n  " + ", ".join(rows) + "]\n"


def latencies(count: int, base: float = 1.0, seed: int = 0) -> list[float]:
    """Latencies with a few outliers, of six digits."""
    source = random.Random(seed)
    return [float(f"{base * (1 + source.random() / 50 + (source.random() > 0.97)):.6g}") for _ in range(count)]


def log(median: float = 1.01, version: str = "10.5.0", rtx: bool = False, warmup: int = 200) -> str:
    """Return the output of trtexec."""
    name, number = ("TensorRT-RTX", "v1200") if rtx else ("TensorRT", "v100500")
    return f"""&&&& RUNNING {name}.trtexec [{name} {number}] [b18] # trtexec --onnx=cnn.onnx --fp16
[10/01/2024-13:21:44] [I] === Model Options ===
[10/01/2024-13:21:44] [I] Format: ONNX
[10/01/2024-13:21:44] [I] Model: cnn.onnx
[10/01/2024-13:21:44] [I] Output:
[10/01/2024-13:21:44] [I] === Build Options ===
[10/01/2024-13:21:44] [I] Precision: FP32+FP16
[10/01/2024-13:21:44] [I] Input(s)s format: fp32:CHW
[10/01/2024-13:21:44] [I] === Inference Options ===
[10/01/2024-13:21:44] [I] Batch: Explicit
[10/01/2024-13:21:44] [I] Input inference shape : x=2x3x8x8
[10/01/2024-13:21:44] [I] Duration: 3s (+ {warmup}ms warm up)
[10/01/2024-13:21:44] [I] Data transfers: Enabled
[10/01/2024-13:21:44] [I] === Reporting Options ===
[10/01/2024-13:21:44] [I] Export timing to JSON file: times.json
[10/01/2024-13:21:44] [I]
[10/01/2024-13:21:44] [I] === Device Information ===
[10/01/2024-13:21:44] [I] Selected Device: NVIDIA L4
[10/01/2024-13:21:44] [I] Compute Capability: 8.9
[10/01/2024-13:21:44] [I] Compute Clock Rate: 2.04 GHz
[10/01/2024-13:21:44] [I]
[10/01/2024-13:21:44] [I] TensorRT version: {version}
[10/01/2024-13:21:45] [I] [TRT] [MemUsageChange] Init CUDA: CPU +319, GPU +0, now: CPU 1, GPU 386 (MiB)
[10/01/2024-13:21:50] [I] Created input binding for x with dimensions 2x3x8x8
[10/01/2024-13:21:50] [I] Created output binding for y with dimensions 2x10
[10/01/2024-13:21:53] [I] Warmup completed 43 queries over 200 ms
[10/01/2024-13:21:53] [I]
[10/01/2024-13:21:53] [I] === Performance summary ===
[10/01/2024-13:21:53] [I] Throughput: 983.219 qps
[10/01/2024-13:21:53] [I] Latency: min = 1 ms, max = 2.01 ms, mean = 1.03 ms, median = {median:g} ms, percentile(90%) = 1.02 ms, percentile(99%) = 2 ms
[10/01/2024-13:21:53] [I] Enqueue Time: min = 0.01 ms, max = 0.05 ms, mean = 0.02 ms, median = 0.02 ms, percentile(99%) = 0.04 ms
[10/01/2024-13:21:53] [I] H2D Latency: min = 0.01 ms, max = 0.01 ms, mean = 0.01 ms, median = 0.01 ms, percentile(99%) = 0.01 ms
[10/01/2024-13:21:53] [I] GPU Compute Time: min = 0.98 ms, max = 1.99 ms, mean = 1.01 ms, median = 0.99 ms, percentile(99%) = 1.98 ms
[10/01/2024-13:21:53] [I] D2H Latency: min = 0.01 ms, max = 0.01 ms, mean = 0.01 ms, median = 0.01 ms, percentile(99%) = 0.01 ms
[10/01/2024-13:21:53] [I] Total Host Walltime: 3.00126 s
[10/01/2024-13:21:53] [W] * GPU compute time is unstable, with coefficient of variance = 2.1%.
[10/01/2024-13:21:53] [I]
&&&& PASSED TensorRT.trtexec [TensorRT v100500]
"""  # noqa: E501


def write_exports(folder: Path, **texts: str) -> Path:
    """Files by their names without `.json`; `log` becomes `trtexec.log`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        file = folder / ("trtexec.log" if name == "log" else f"{name}.json")
        file.write_text(text, encoding="utf-8", newline="")
    return folder
